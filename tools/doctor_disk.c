/* SPDX-License-Identifier: Apache-2.0 */
/* A directory that K/V may go to (--dir): what it is, and how fast by the library's own measure. */
#include "tools/doctor.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <linux/magic.h>

enum { MOUNTS_BYTES = 65536 };

#define GIB (1024.0 * 1024.0 * 1024.0)

static const uint64_t measured_bytes = 256u << 20, least_bytes = 2u << 20;

/* The type that mountinfo has for a device number: "id parent major:minor ... - type ...". */
static bool find_type(const char *mounts, dev_t device, char *type, size_t size)
{
    for (const char *line = mounts; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        unsigned major_number, minor_number;
        const char *dash = strstr(line, " - ");
        if (!dash || dash > line + strcspn(line, "\n") ||
            sscanf(line, "%*s %*s %u:%u", &major_number, &minor_number) != 2)
            continue;
        if (major_number != major(device) || minor_number != minor(device))
            continue;
        snprintf(type, size, "%.*s", (int)strcspn(dash + 3, " \n"), dash + 3);
        return true;
    }
    return false;
}

/* Some file systems (btrfs) number devices otherwise in mountinfo. */
static void name_magic(const char *path, char *type, size_t size)
{
    struct statfs s;
    if (statfs(path, &s) != 0)
        snprintf(type, size, "unknown file system");
    else if (s.f_type == BTRFS_SUPER_MAGIC)
        snprintf(type, size, "btrfs");
    else if (s.f_type == NFS_SUPER_MAGIC)
        snprintf(type, size, "nfs");
    else
        snprintf(type, size, "file system 0x%lx", (unsigned long)s.f_type);
}

static void find_file_system(const char *root, struct doctor_disk *d)
{
    char mounts[MOUNTS_BYTES];
    struct stat st;
    doctor_read_text(root, "/proc/self/mountinfo", mounts, sizeof(mounts));
    if (stat(d->path, &st) != 0 ||
        !find_type(mounts, st.st_dev, d->file_system, sizeof(d->file_system)))
        name_magic(d->path, d->file_system, sizeof(d->file_system));
}

void doctor_disk_probe(const char *root, const char *path, struct doctor_disk *d)
{
    struct statvfs v;
    hr_disk disk = {.path = path, .bytes = measured_bytes};
    *d = (struct doctor_disk){.path = path, .free_bytes = DOCTOR_UNKNOWN};
    d->rates.struct_size = sizeof(d->rates);
    find_file_system(root, d);
    if (statvfs(path, &v) == 0)
        d->free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    if (d->free_bytes / 2 < disk.bytes)
        disk.bytes = d->free_bytes / 2 > least_bytes ? d->free_bytes / 2 : least_bytes;
    d->measured_bytes = disk.bytes;
    d->status = hr_disk_measure(&disk, NULL, &d->rates);
    if (d->status != HR_OK)
        snprintf(d->error, sizeof(d->error), "%.255s", hr_error_text(NULL));
}

static const char *fix_of(const struct doctor_disk *d)
{
    if (d->status == HR_E_SYSTEM && d->free_bytes == DOCTOR_UNKNOWN)
        return "make the directory, or name one that is there";
    if (d->status == HR_E_SYSTEM && d->free_bytes < measured_bytes)
        return "free space there, or name another directory";
    if (d->status == HR_E_IO || d->status == HR_E_CORRUPT || d->status == HR_E_TIMEOUT)
        return "look for the drive's errors in the kernel's log, and name another directory";
    return "remove the cause that the sentence names, or name another directory";
}

/* The engine's name leads the line about it. */
static void name_engine(const struct doctor_disk *d, char name[16])
{
    snprintf(name, 16, "%.*s", (int)strcspn(d->rates.text, ":;"), d->rates.text);
}

static void judge_rates(const struct doctor_disk *d, struct doctor_finding *f)
{
    const double slow = 0.2e9, little = 4 * GIB; /* bytes per second: a hard disk; bytes */
    const hr_disk_rates *r = &d->rates;
    char cache[64], engine[16];
    name_engine(d, engine);
    snprintf(cache, sizeof(cache), "O_DIRECT (aligned to %u)", r->alignment);
    doctor_say(f, DOCTOR_WARN,
               "%.120s: %.2f GiB free, %s, %s, %s: %.2f GB/s read, %.2f GB/s written", d->path,
               (double)d->free_bytes / GIB, d->file_system, r->direct ? cache : "no O_DIRECT",
               engine, r->read_bytes_per_s * 1e-9, r->write_bytes_per_s * 1e-9);
    if (r->in_memory)
        doctor_fix(f, "name a directory on a disk: files of this one take memory");
    else if (!r->direct)
        doctor_fix(f, "name a directory on ext4 or xfs: here K/V take memory of the page cache "
                      "too");
    else if (r->read_bytes_per_s < slow || r->write_bytes_per_s < slow)
        doctor_fix(f, "name a directory on an NVMe drive, or give several drives to run");
    else if ((double)d->free_bytes < little)
        doctor_fix(f, "free space there: K/V beyond the memory have to fit");
    else
        f->verdict = DOCTOR_OK;
}

void doctor_judge_disk(const struct doctor_disk *d, struct doctor_finding *f)
{
    const hr_disk_rates *r = &d->rates;
    const bool measured = d->status == HR_OK;
    *f = (struct doctor_finding){.check = "disk"};
    if (measured) {
        judge_rates(d, f);
    } else {
        doctor_say(f, DOCTOR_FAIL, "%s", d->error);
        doctor_fix(f, "%s", fix_of(d));
    }
    doctor_add_text(f, "path", d->path);
    doctor_add_number(f, "free_bytes", (double)d->free_bytes, d->free_bytes != DOCTOR_UNKNOWN);
    doctor_add_text(f, "file_system", d->file_system);
    doctor_add_text(f, "io", r->text);
    doctor_add_number(f, "direct", r->direct, measured);
    doctor_add_number(f, "alignment", r->alignment, measured);
    doctor_add_number(f, "read_bytes_per_s", r->read_bytes_per_s, measured);
    doctor_add_number(f, "write_bytes_per_s", r->write_bytes_per_s, measured);
    doctor_add_number(f, "measured_bytes", (double)d->measured_bytes, measured);
}

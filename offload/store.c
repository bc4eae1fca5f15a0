/* SPDX-License-Identifier: Apache-2.0 */
/* Every directory is checked before the first file is made. A file is tried past the page cache
 * first, then through it; `trouble` says why a try failed and whether the other way may do. */
#include "offload/store.h"
#include "src/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { ALIGN_MAX = 4096, PROBE_BYTES = 4096, TRIES = 16 };

struct trouble {
    bool refused; /* O_DIRECT, or may be: not the disk */
    char text[HR_STORE_WHY_BYTES];
};

/* False, for the caller to return. */
__attribute__((format(printf, 3, 4))) static bool explain(struct trouble *t, int error,
                                                          const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->text, sizeof(t->text), format, args);
    va_end(args);
    size_t at = (size_t)n < sizeof(t->text) ? (size_t)n : sizeof(t->text);
    snprintf(t->text + at, sizeof(t->text) - at, ": %s (errno %d)", strerror(error), error);
    t->refused = error == EINVAL || error == EOPNOTSUPP;
    return false;
}

static uint64_t file_bytes(const struct hr_store_file *f)
{
    return (uint64_t)f->extents * HR_EXTENT_BYTES;
}

/* Of the file system of a directory. */
static bool find_free(const char *path, uint64_t *bytes)
{
    struct statvfs v = {0};
    bool found = statvfs(path, &v) == 0;
    *bytes = (uint64_t)v.f_bavail * v.f_frsize;
    return found;
}

/* A name for as long as it takes to open and unlink it. */
static bool open_named(const struct hr_io_calls *c, struct hr_store_file *f, int flags,
                       struct trouble *t)
{
    const char *call = flags & O_DIRECT ? "open(O_DIRECT)" : "open";
    char path[PATH_MAX];
    for (int i = 0; i < TRIES; i++) {
        int n = snprintf(path, sizeof(path), "%s/.headrace-%ld-%lld", f->path, (long)getpid(),
                         (long long)hr_clock_ns());
        if (n >= (int)sizeof(path))
            return explain(t, ENAMETOOLONG, "%s", call);
        f->fd = c->open(c->user, path, flags | O_CREAT | O_EXCL, 0600);
        if (f->fd != -EEXIST)
            break;
    }
    if (f->fd == -EEXIST)
        return explain(t, EEXIST, "%s", call);
    /* Some systems make the file and then refuse O_DIRECT. */
    int unlinked = c->unlink(c->user, path);
    if (f->fd < 0)
        return explain(t, -f->fd, "%s", call);
    return unlinked >= 0 || explain(t, -unlinked, "unlink of %s", strrchr(path, '/') + 1);
}

static bool open_unnamed(const struct hr_io_calls *c, struct hr_store_file *f, int flags,
                         struct trouble *t)
{
    f->fd = c->open(c->user, f->path, flags | O_TMPFILE, 0600);
    return f->fd >= 0 || open_named(c, f, flags, t);
}

static bool align_fits(uint32_t align)
{
    return align > 0 && ALIGN_MAX % align == 0;
}

/* Pages are multiples of ALIGN_MAX bytes, and so is the memory that they are read into. */
static bool find_alignment(struct hr_store_file *f, struct trouble *t)
{
    f->memory_align = f->offset_align = ALIGN_MAX;
#ifdef STATX_DIOALIGN
    struct statx x = {0};
    if (statx(f->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) == 0 && x.stx_mask & STATX_DIOALIGN) {
        f->memory_align = x.stx_dio_mem_align;
        f->offset_align = x.stx_dio_offset_align;
    }
#endif
    return (align_fits(f->memory_align) && align_fits(f->offset_align)) ||
           explain(t, EINVAL, "statx: alignment %u of memory, %u of offsets, at most %d",
                   f->memory_align, f->offset_align, ALIGN_MAX);
}

static bool moved(int64_t n, const char *call, uint64_t offset, struct trouble *t)
{
    if (n == PROBE_BYTES)
        return true;
    if (n < 0)
        return explain(t, (int)-n, "%s of %d bytes at %llu", call, PROBE_BYTES,
                       (unsigned long long)offset);
    explain(t, EIO, "%s of %d bytes at %llu: %lld moved", call, PROBE_BYTES,
            (unsigned long long)offset, (long long)n);
    t->refused = true;
    return false;
}

/* Writes the last page of the file and reads it back. */
static bool probe(const struct hr_io_calls *c, const struct hr_store_file *f, struct trouble *t)
{
    _Alignas(ALIGN_MAX) unsigned char out[PROBE_BYTES], back[PROBE_BYTES];
    uint64_t offset = file_bytes(f) - PROBE_BYTES;
    int64_t n = -EINTR;
    for (int i = 0; i < PROBE_BYTES; i++)
        out[i] = (unsigned char)(i * 7 + i / 256);
    memset(back, 0, sizeof(back));
    for (int i = 0; i < TRIES && n == -EINTR; i++)
        n = c->pwrite(c->user, f->fd, out, sizeof(out), offset);
    if (!moved(n, "pwrite", offset, t))
        return false;
    n = -EINTR;
    for (int i = 0; i < TRIES && n == -EINTR; i++)
        n = c->pread(c->user, f->fd, back, sizeof(back), offset);
    if (!moved(n, "pread", offset, t))
        return false;
    return memcmp(out, back, sizeof(out)) == 0 ||
           explain(t, EIO, "pread at %llu: not what was written", (unsigned long long)offset);
}

/* EINVAL: where the C library allocates by writing single bytes, O_DIRECT forbids it. */
static bool allocate(const struct hr_io_calls *c, const struct hr_store_file *f, struct trouble *t)
{
    int n = -EINTR;
    uint64_t room = 0;
    for (int i = 0; i < TRIES && n == -EINTR; i++)
        n = c->allocate(c->user, f->fd, file_bytes(f));
    if (n >= 0)
        return true;
    find_free(f->path, &room);
    return explain(t, -n, "posix_fallocate of %llu bytes, %llu free",
                   (unsigned long long)file_bytes(f), (unsigned long long)room);
}

static bool try_file(const struct hr_io_calls *c, struct hr_store_file *f,
                     enum hr_store_cache cache, struct trouble *t)
{
    bool direct = cache == HR_STORE_DIRECT;
    f->cache = cache;
    f->memory_align = f->offset_align = 1;
    if (open_unnamed(c, f, O_RDWR | (direct ? O_DIRECT : 0), t) &&
        (!direct || find_alignment(f, t)) && probe(c, f, t) && allocate(c, f, t))
        return true;
    if (f->fd >= 0)
        c->close(c->user, f->fd);
    f->fd = -1;
    return false;
}

static hr_status make_file(const struct hr_store *s, struct hr_store_file *f, bool buffered,
                           struct hr_error *error)
{
    struct trouble t = {.refused = true, .text = "as asked"};
    if (!buffered && try_file(s->calls, f, HR_STORE_DIRECT, &t))
        return HR_OK;
    memcpy(f->why, t.text, sizeof(f->why));
    if (t.refused && try_file(s->calls, f, HR_STORE_BUFFERED, &t))
        return HR_OK;
    return hr_fail(error, HR_E_SYSTEM, "disk directory \"%.256s\": %s", f->path, t.text);
}

hr_status hr_store_check(const struct hr_store_dir *dirs, int32_t n_dirs, struct hr_error *error)
{
    uint64_t left = HR_STORE_BYTES_MAX;
    if (n_dirs < 1 || n_dirs > HR_STORE_DIRS_MAX)
        return hr_fail(error, HR_E_INVALID, "%d disk directories; 1 to %d", n_dirs,
                       HR_STORE_DIRS_MAX);
    for (int32_t i = 0; i < n_dirs; i++) {
        const struct hr_store_dir *d = &dirs[i];
        if (!d->path)
            return hr_fail(error, HR_E_INVALID, "disk directory %d: the path is NULL", i);
        if (d->bytes < HR_EXTENT_BYTES || d->bytes > left)
            return hr_fail(error, HR_E_INVALID,
                           "disk directory \"%.256s\": %llu bytes; %d are needed, and all "
                           "directories together may have %llu",
                           d->path, (unsigned long long)d->bytes, HR_EXTENT_BYTES,
                           (unsigned long long)HR_STORE_BYTES_MAX);
        left -= d->bytes;
    }
    return HR_OK;
}

static hr_status check_size(const struct hr_store_dir *d, struct hr_error *error)
{
    struct rlimit limit;
    /* Past this limit a write would end the process (SIGXFSZ). */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && d->bytes > limit.rlim_cur)
        return hr_fail(error, HR_E_SYSTEM,
                       "disk directory \"%.256s\": %llu bytes asked, files may have %llu "
                       "(RLIMIT_FSIZE, ulimit -f)",
                       d->path, (unsigned long long)d->bytes, (unsigned long long)limit.rlim_cur);
    return HR_OK;
}

/* Such a "disk" takes memory, and accepts O_DIRECT. */
static bool is_memory(const char *path)
{
    struct statfs s;
    return statfs(path, &s) == 0 && (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC);
}

static hr_status check_path(struct hr_store_file *f, struct hr_error *error)
{
    struct stat st;
    const char *call = "stat";
    int result = stat(f->path, &st);
    if (result == 0 && !S_ISDIR(st.st_mode))
        return hr_fail(error, HR_E_INVALID, "disk directory \"%.256s\": not a directory", f->path);
    if (result == 0) {
        f->file_system = st.st_dev;
        f->in_memory = is_memory(f->path);
        call = "access";
        result = faccessat(AT_FDCWD, f->path, W_OK | X_OK, AT_EACCESS);
    }
    if (result != 0)
        return hr_fail(error, HR_E_SYSTEM, "disk directory \"%.256s\": %s: %s (errno %d)", f->path,
                       call, strerror(errno), errno);
    return HR_OK;
}

/* The files of one file system share its room. */
static hr_status check_room(const struct hr_store *s, const struct hr_store_file *f,
                            struct hr_error *error)
{
    uint64_t room;
    int64_t extents = 0;
    int32_t sharing = 0;
    for (int32_t i = 0; i < s->n_files; i++) {
        bool shares = s->files[i].file_system == f->file_system;
        extents += shares ? s->files[i].extents : 0;
        sharing += shares;
    }
    if (!find_free(f->path, &room))
        return hr_fail(error, HR_E_SYSTEM, "disk directory \"%.256s\": statvfs: %s (errno %d)",
                       f->path, strerror(errno), errno);
    if ((uint64_t)extents <= room / HR_EXTENT_BYTES)
        return HR_OK;
    return hr_fail(error, HR_E_SYSTEM,
                   "disk directory \"%.256s\": %lld MiB asked on its file system (files: %d), "
                   "%llu MiB free",
                   f->path, (long long)extents * (HR_EXTENT_BYTES >> 20), sharing,
                   (unsigned long long)room >> 20);
}

static hr_status note_dir(struct hr_store *s, struct hr_store_file *f, const struct hr_store_dir *d,
                          struct hr_error *error)
{
    size_t bytes = strlen(d->path) + 1;
    char *path = hr_alloc_get(s->alloc, bytes);
    if (!path)
        return hr_fail(error, HR_E_NO_MEMORY, "no memory for a path of %zu bytes", bytes);
    f->path = memcpy(path, d->path, bytes);
    f->extents = (int64_t)(d->bytes / HR_EXTENT_BYTES);
    s->extents += f->extents;
    return check_path(f, error);
}

static hr_status open_all(struct hr_store *s, const struct hr_store_options *o,
                          struct hr_error *error)
{
    hr_status status = HR_OK;
    for (int32_t i = 0; i < o->n_dirs && !status; i++)
        status = note_dir(s, &s->files[i], &o->dirs[i], error);
    for (int32_t i = 0; i < o->n_dirs && !status; i++)
        status = check_room(s, &s->files[i], error);
    for (int32_t i = 0; i < o->n_dirs && !status; i++)
        status = make_file(s, &s->files[i], o->buffered, error);
    return status;
}

hr_status hr_store_open(struct hr_store *store, const struct hr_store_options *options,
                        struct hr_error *error)
{
    hr_status status;
    *store = (struct hr_store){
        .alloc = options->alloc,
        .calls = options->calls ? options->calls : &hr_io_calls_system,
    };
    status = hr_store_check(options->dirs, options->n_dirs, error);
    for (int32_t i = 0; i < options->n_dirs && !status; i++)
        status = check_size(&options->dirs[i], error);
    if (status)
        return status;
    store->files = hr_alloc_zero(store->alloc, (size_t)options->n_dirs * sizeof(*store->files));
    if (!store->files)
        return hr_fail(error, HR_E_NO_MEMORY, "no memory for %d files", options->n_dirs);
    store->n_files = options->n_dirs;
    for (int32_t i = 0; i < store->n_files; i++)
        store->files[i].fd = -1;
    status = open_all(store, options, error);
    if (status)
        hr_store_close(store);
    return status;
}

void hr_store_close(struct hr_store *store)
{
    for (int32_t i = 0; i < store->n_files; i++) {
        struct hr_store_file *f = &store->files[i];
        if (f->fd >= 0)
            store->calls->close(store->calls->user, f->fd);
        if (f->path)
            hr_alloc_put(store->alloc, (char *)f->path, strlen(f->path) + 1);
    }
    hr_alloc_put(store->alloc, store->files, (size_t)store->n_files * sizeof(*store->files));
    *store = (struct hr_store){0};
}

static struct hr_store_place place_in_row(const struct hr_store_file *f, int64_t row, int64_t turn)
{
    while (f->extents <= row || turn-- > 0)
        f++;
    return (struct hr_store_place){f->fd, (uint64_t)row * HR_EXTENT_BYTES};
}

/* Row r has the r-th extent of each file that is long enough. Of as many files are the rows up to
 * the end of the shortest of them. */
struct hr_store_place hr_store_place(const struct hr_store *store, int64_t extent)
{
    for (int64_t row = 0, end; extent >= 0; row = end) {
        int64_t long_enough = 0;
        end = INT64_MAX;
        for (int32_t i = 0; i < store->n_files; i++) {
            int64_t rows = store->files[i].extents;
            long_enough += rows > row;
            end = rows > row && rows < end ? rows : end;
        }
        if (long_enough == 0)
            break;
        if (extent < (end - row) * long_enough)
            return place_in_row(store->files, row + extent / long_enough, extent % long_enough);
        extent -= (end - row) * long_enough;
    }
    return (struct hr_store_place){.fd = -1};
}

__attribute__((format(printf, 4, 5))) static void add(char *buffer, size_t size, int *at,
                                                      const char *format, ...)
{
    size_t used = (size_t)*at < size ? (size_t)*at : size;
    va_list args;
    va_start(args, format);
    *at += vsnprintf(size ? buffer + used : NULL, size - used, format, args);
    va_end(args);
}

int hr_store_text(const struct hr_store *store, char *buffer, size_t size)
{
    int at = 0;
    bool buffered = false;
    for (int32_t i = 0; i < store->n_files; i++) {
        const struct hr_store_file *f = &store->files[i];
        add(buffer, size, &at, "%s\"%s\": %llu MiB%s, ", i ? "; " : "", f->path,
            (unsigned long long)file_bytes(f) >> 20, f->in_memory ? " of memory (tmpfs)" : "");
        if (f->cache == HR_STORE_DIRECT)
            add(buffer, size, &at, "O_DIRECT (memory aligned to %u, offsets to %u)",
                f->memory_align, f->offset_align);
        else
            add(buffer, size, &at, "buffered (%s)", f->why);
        buffered |= f->cache == HR_STORE_BUFFERED;
    }
    if (buffered)
        add(buffer, size, &at,
            "; what was just written to a buffered file is read from the page cache, not the disk");
    return at;
}

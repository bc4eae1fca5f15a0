/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated files behind the table of file calls: each keeps one page, and fails as told.
 * statvfs and statx of this file take the place of the system's. After <cmocka.h>. */
#ifndef HR_TESTS_FAKE_FILES_H
#define HR_TESTS_FAKE_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "offload/io.h"

enum { PAGE = 4096, FD_0 = 1000, FDS = 16, ALWAYS = 1 << 30 };

/* What statvfs and statx say; reset before each test. */
static struct {
    bool fake_room;
    uint64_t room;
    int room_error;
    bool fake_align;
    uint32_t memory_align, offset_align;
    bool silent; /* statx without an answer */
} machine;

/* Linked before the C library's, so the library calls this one. */
int statvfs(const char *path, struct statvfs *v)
{
    if (machine.room_error) {
        errno = machine.room_error;
        return -1;
    }
    int fd = open(path, O_PATH | O_CLOEXEC);
    int result = fd < 0 ? -1 : fstatvfs(fd, v);
    if (fd >= 0)
        close(fd);
    if (machine.fake_room) {
        v->f_frsize = 1;
        v->f_bavail = machine.room;
    }
    return result;
}

int statx(int dir, const char *path, int flags, unsigned mask, struct statx *x)
{
    if (!machine.fake_align)
        return (int)syscall(SYS_statx, dir, path, flags, mask, x);
    x->stx_mask = 0;
#ifdef STATX_DIOALIGN
    x->stx_mask = machine.silent ? 0 : STATX_DIOALIGN;
    x->stx_dio_mem_align = machine.memory_align;
    x->stx_dio_offset_align = machine.offset_align;
#endif
    return 0;
}

enum call { CALL_PREAD, CALL_PWRITE, CALL_ALLOCATE, CALL_OPEN, CALL_UNLINK, CALL_CLOSE };

static const char *const call_names[] = {"pread", "pwrite", "posix_fallocate", "open", "unlink"};

struct sim_file {
    bool open, direct;
    uint64_t offset, bytes;
    unsigned char page[PAGE];
};

struct sim {
    /* The kind of file system. */
    bool no_tmpfile, no_direct_open, leaves_name, no_direct_write, no_direct_allocate;
    bool short_direct, loses_direct;
    int refusal; /* errno; 0: EINVAL */
    /* Calls fail_at .. fail_at + fails - 1 give -error. */
    int fail_at, fails, error;
    int calls;
    bool failed;
    enum call failed_call;
    int names, names_stuck, open;
    struct sim_file files[FDS];
};

static int note(struct sim *s, enum call call, bool refused)
{
    bool injected = s->calls >= s->fail_at && s->calls < s->fail_at + s->fails;
    s->calls++;
    if (injected && call != CALL_CLOSE) {
        s->failed = true;
        s->failed_call = call;
    }
    return injected ? -s->error : refused ? (s->refusal ? -s->refusal : -EINVAL) : 0;
}

static struct sim_file *file_of(struct sim *s, int fd)
{
    assert_in_range(fd, FD_0, FD_0 + FDS - 1);
    assert_true(s->files[fd - FD_0].open);
    return &s->files[fd - FD_0];
}

static int sim_open(void *user, const char *path, int flags, int mode)
{
    struct sim *s = user;
    bool unnamed = (flags & O_TMPFILE) == O_TMPFILE, direct = flags & O_DIRECT;
    bool refused = (unnamed && s->no_tmpfile) || (direct && s->no_direct_open);
    int result = note(s, CALL_OPEN, refused), slot = 0;
    assert_int_equal(mode, 0600);
    assert_true(unnamed || (flags & O_EXCL));
    if (result == 0 || (s->leaves_name && refused && !unnamed))
        s->names += !unnamed;
    if (result < 0)
        return result;
    while (s->files[slot].open)
        slot++;
    s->files[slot] = (struct sim_file){.open = true, .direct = direct};
    s->open++;
    return FD_0 + slot;
}

static int sim_close(void *user, int fd)
{
    struct sim *s = user;
    file_of(s, fd)->open = false;
    s->open--;
    return note(s, CALL_CLOSE, false);
}

static int64_t sim_pwrite(void *user, int fd, const void *memory, size_t bytes, uint64_t offset)
{
    struct sim *s = user;
    struct sim_file *f = file_of(s, fd);
    int result = note(s, CALL_PWRITE, f->direct && s->no_direct_write);
    assert_int_equal(bytes, PAGE);
    assert_int_equal((uintptr_t)memory % PAGE, 0);
    if (result < 0)
        return result;
    memcpy(f->page, memory, bytes);
    f->offset = offset;
    f->page[77] ^= f->direct && s->loses_direct;
    return f->direct && s->short_direct ? 512 : PAGE;
}

static int64_t sim_pread(void *user, int fd, void *memory, size_t bytes, uint64_t offset)
{
    struct sim *s = user;
    struct sim_file *f = file_of(s, fd);
    int result = note(s, CALL_PREAD, false);
    assert_int_equal((uintptr_t)memory % PAGE, 0);
    assert_int_equal(offset, f->offset);
    if (result < 0)
        return result;
    memcpy(memory, f->page, bytes);
    return (int64_t)bytes;
}

static int sim_allocate(void *user, int fd, uint64_t bytes)
{
    struct sim *s = user;
    struct sim_file *f = file_of(s, fd);
    int result = note(s, CALL_ALLOCATE, f->direct && s->no_direct_allocate);
    if (result == 0)
        f->bytes = bytes;
    return result;
}

static int sim_unlink(void *user, const char *path)
{
    struct sim *s = user;
    int result = note(s, CALL_UNLINK, false);
    if (s->names == s->names_stuck)
        return -ENOENT; /* as the file was not made */
    s->names -= result == 0;
    s->names_stuck += result != 0;
    return result;
}

static struct hr_io_calls calls_of(struct sim *s)
{
    return (struct hr_io_calls){
        .user = s,
        .pread = sim_pread,
        .pwrite = sim_pwrite,
        .open = sim_open,
        .close = sim_close,
        .allocate = sim_allocate,
        .unlink = sim_unlink,
    };
}

#endif

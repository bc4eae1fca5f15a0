/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/io.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static int64_t system_pread(void *user, int fd, void *memory, size_t bytes, uint64_t offset)
{
    ssize_t n = pread(fd, memory, bytes, (off_t)offset);
    return n < 0 ? -errno : n;
}

static int64_t system_pwrite(void *user, int fd, const void *memory, size_t bytes, uint64_t offset)
{
    ssize_t n = pwrite(fd, memory, bytes, (off_t)offset);
    return n < 0 ? -errno : n;
}

static int system_open(void *user, const char *path, int flags, int mode)
{
    int fd = open(path, flags | O_CLOEXEC, mode);
    return fd < 0 ? -errno : fd;
}

static int system_close(void *user, int fd)
{
    return close(fd) < 0 ? -errno : 0;
}

static int system_allocate(void *user, int fd, uint64_t bytes)
{
    return -posix_fallocate(fd, 0, (off_t)bytes);
}

static int system_sync(void *user, int fd)
{
    return fdatasync(fd) < 0 ? -errno : 0;
}

static int system_unlink(void *user, const char *path)
{
    return unlink(path) < 0 ? -errno : 0;
}

const struct hr_io_calls hr_io_calls_system = {
    .pread = system_pread,
    .pwrite = system_pwrite,
    .open = system_open,
    .close = system_close,
    .allocate = system_allocate,
    .sync = system_sync,
    .unlink = system_unlink,
};

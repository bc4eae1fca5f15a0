/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/files.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static bool falls(struct files *f, enum file_call call)
{
    pthread_mutex_lock(&f->mutex);
    bool counts = f->counted == 0 || f->counted >> call & 1;
    int64_t n = f->calls;
    bool fell = counts && n >= f->fail_at && n - f->fail_at <= f->more;
    f->calls += counts;
    f->fell += fell;
    pthread_mutex_unlock(&f->mutex);
    return fell;
}

static int64_t read_file(void *user, int fd, void *memory, size_t bytes, uint64_t offset)
{
    struct files *f = user;
    bool fell = falls(f, FILE_READ);
    if (fell && f->error)
        return -f->error;
    return hr_io_calls_system.pread(NULL, fd, memory, fell ? bytes / 2 : bytes, offset);
}

static int64_t write_file(void *user, int fd, const void *memory, size_t bytes, uint64_t offset)
{
    struct files *f = user;
    bool fell = falls(f, FILE_WRITE);
    if (fell && f->error)
        return -f->error;
    return hr_io_calls_system.pwrite(NULL, fd, memory, fell ? bytes / 2 : bytes, offset);
}

static int failure(const struct files *f)
{
    return f->error ? -f->error : -EIO;
}

static void count_open(struct files *f, int by)
{
    pthread_mutex_lock(&f->mutex);
    f->open += by;
    pthread_mutex_unlock(&f->mutex);
}

static int open_file(void *user, const char *path, int flags, int mode)
{
    struct files *f = user;
    if (falls(f, FILE_OPEN))
        return failure(f);
    if (f->buffered && flags & O_DIRECT)
        return -EINVAL;
    int fd = hr_io_calls_system.open(NULL, path, flags, mode);
    count_open(f, fd >= 0);
    return fd;
}

/* One that fails has closed the file nevertheless, as Linux does. */
static int close_file(void *user, int fd)
{
    struct files *f = user;
    bool fell = falls(f, FILE_CLOSE);
    int result = hr_io_calls_system.close(NULL, fd);
    count_open(f, -(result == 0));
    return fell ? failure(f) : result;
}

static int allocate_file(void *user, int fd, uint64_t bytes)
{
    struct files *f = user;
    if (falls(f, FILE_ALLOCATE))
        return failure(f);
    if (f->sparse)
        return ftruncate(fd, (off_t)bytes) < 0 ? -errno : 0;
    return hr_io_calls_system.allocate(NULL, fd, bytes);
}

static int unlink_file(void *user, const char *path)
{
    struct files *f = user;
    return falls(f, FILE_UNLINK) ? failure(f) : hr_io_calls_system.unlink(NULL, path);
}

int64_t files_fell(struct files *files)
{
    pthread_mutex_lock(&files->mutex);
    int64_t fell = files->fell;
    pthread_mutex_unlock(&files->mutex);
    return fell;
}

void files_heal(struct files *files)
{
    pthread_mutex_lock(&files->mutex);
    files->fail_at = INT64_MAX;
    pthread_mutex_unlock(&files->mutex);
}

struct hr_io_calls files_calls(struct files *files)
{
    return (struct hr_io_calls){
        .user = files,
        .pread = read_file,
        .pwrite = write_file,
        .open = open_file,
        .close = close_file,
        .allocate = allocate_file,
        .unlink = unlink_file,
    };
}

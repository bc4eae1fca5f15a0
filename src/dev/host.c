/* SPDX-License-Identifier: Apache-2.0 */
#include "src/dev/dev.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

struct host_dev {
    struct hr_dev dev;
    struct hr_alloc *alloc;
    struct hr_pool *pool;
};

static struct host_dev *host_of(struct hr_dev *dev)
{
    return (struct host_dev *)dev;
}

static void host_launch(struct hr_dev *dev, hr_item_fn *fn, const void *args, int64_t items)
{
    hr_pool_run(host_of(dev)->pool, fn, args, items);
}

static void host_zero(struct hr_dev *dev, void *memory, size_t bytes)
{
    memset(memory, 0, bytes);
}

static void host_release(struct hr_dev *dev, void *memory, size_t bytes)
{
    madvise(memory, bytes, MADV_DONTNEED);
}

static void host_close(struct hr_dev *dev)
{
    struct host_dev *host = host_of(dev);
    hr_pool_destroy(host->pool);
    if (dev->arena)
        munmap(dev->arena, dev->arena_bytes);
    hr_alloc_put(host->alloc, host, sizeof(*host));
}

static void *host_get(struct hr_dev *dev, size_t bytes)
{
    return hr_alloc_get(host_of(dev)->alloc, bytes);
}

static void host_put(struct hr_dev *dev, void *memory, size_t bytes)
{
    hr_alloc_put(host_of(dev)->alloc, memory, bytes);
}

static void host_copy(struct hr_dev *dev, enum hr_dev_queue queue, void *to, const void *from,
                      size_t bytes)
{
    memcpy(to, from, bytes);
}

static void host_copy_batch(struct hr_dev *dev, enum hr_dev_queue queue,
                            const struct hr_dev_copy *copies, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(copies[i].to, copies[i].from, copies[i].bytes);
}

static void host_set_stream(struct hr_dev *dev, void *stream) {}

/* Every event has happened: one will do. */
static struct hr_dev_event *host_event_make(struct hr_dev *dev)
{
    return (struct hr_dev_event *)dev;
}

static void host_event_free(struct hr_dev *dev, struct hr_dev_event *event) {}

static void host_event(struct hr_dev *dev, struct hr_dev_event *event, enum hr_dev_queue queue) {}

static enum hr_dev_wait host_event_wait(struct hr_dev *dev, struct hr_dev_event *event,
                                        int64_t deadline_ns)
{
    return HR_DEV_DONE;
}

static const char *host_error(const struct hr_dev *dev)
{
    return NULL;
}

static const struct hr_dev_ops host_ops = {
    .name = "host",
    .launch = host_launch,
    .zero = host_zero,
    .release = host_release,
    .close = host_close,
    .memory_get = host_get,
    .memory_put = host_put,
    .pinned_get = host_get,
    .pinned_put = host_put,
    .upload = host_copy,
    .download = host_copy,
    .copy_batch = host_copy_batch,
    .set_stream = host_set_stream,
    .event_make = host_event_make,
    .event_free = host_event_free,
    .event_record = host_event,
    .event_await = host_event,
    .event_wait = host_event_wait,
    .error = host_error,
};

enum hr_dev_fault hr_dev_host_open(const struct hr_dev_host_options *options, struct hr_dev **dev)
{
    *dev = NULL;
    struct host_dev *host = hr_alloc_zero(options->alloc, sizeof(*host));
    if (!host)
        return HR_DEV_NO_MEMORY;
    host->dev.ops = &host_ops;
    host->alloc = options->alloc;
    void *arena = mmap(NULL, options->arena_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) {
        host_close(&host->dev);
        return HR_DEV_NO_ARENA;
    }
    host->dev.arena = arena;
    host->dev.arena_bytes = options->arena_bytes;
    host->dev.threads = options->threads;
    struct hr_pool_options pool = {
        .threads = options->threads,
        .bind = options->bind,
        .scratch_bytes = options->scratch_bytes,
        .alloc = options->alloc,
    };
    int no_thread;
    host->pool = hr_pool_create(&pool, &no_thread);
    if (!host->pool) {
        host_close(&host->dev);
        errno = no_thread;
        return no_thread ? HR_DEV_NO_THREADS : HR_DEV_NO_MEMORY;
    }
    *dev = &host->dev;
    return HR_DEV_OK;
}

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

static void host_close(struct hr_dev *dev)
{
    struct host_dev *host = host_of(dev);
    hr_pool_destroy(host->pool);
    if (dev->arena)
        munmap(dev->arena, dev->arena_bytes);
    hr_alloc_put(host->alloc, host, sizeof(*host));
}

static const struct hr_dev_ops host_ops = {
    .name = "host",
    .launch = host_launch,
    .zero = host_zero,
    .close = host_close,
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

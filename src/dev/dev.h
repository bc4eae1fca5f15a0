/* SPDX-License-Identifier: Apache-2.0 */
/* A device behind a table: one arena for K/V and a way to run the items of a list. */
#ifndef HR_DEV_DEV_H
#define HR_DEV_DEV_H

#include "src/base/alloc.h"
#include "src/base/pool.h"

struct hr_dev;

struct hr_dev_ops {
    const char *name;
    /* Runs fn(args, i, scratch) for each i in [0, items), in any order, after all earlier work. */
    void (*launch)(struct hr_dev *dev, hr_item_fn *fn, const void *args, int64_t items);
    /* Zeroes arena bytes, after all earlier work. */
    void (*zero)(struct hr_dev *dev, void *memory, size_t bytes);
    void (*close)(struct hr_dev *dev);
};

struct hr_dev {
    const struct hr_dev_ops *ops;
    unsigned char *arena; /* arena_bytes, zeroed once */
    uint64_t arena_bytes;
    int32_t threads;
};

enum hr_dev_fault { HR_DEV_OK, HR_DEV_NO_MEMORY, HR_DEV_NO_ARENA, HR_DEV_NO_THREADS };

struct hr_dev_host_options {
    struct hr_alloc *alloc;
    uint64_t arena_bytes;
    int32_t threads;
    bool bind;
    size_t scratch_bytes; /* per thread */
};

/* The host device: ordinary memory, reserved now and touched when used; the caller's thread and a
 * worker pool. Launches return when their items have run. On a fault *dev is NULL (and errno tells
 * why the arena could not be mapped or a thread not be started). */
enum hr_dev_fault hr_dev_host_open(const struct hr_dev_host_options *options, struct hr_dev **dev);

#endif

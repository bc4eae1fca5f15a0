/* SPDX-License-Identifier: Apache-2.0 */
/* Worker pool: runs the items of one list on all threads, the caller's included. */
#ifndef HR_BASE_POOL_H
#define HR_BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One item: `args` as given to hr_pool_run, `scratch` of the running thread. */
typedef void hr_item_fn(const void *args, int64_t item, void *scratch);

struct hr_pool;
struct hr_alloc;

struct hr_pool_options {
    int32_t threads;      /* >= 1, the caller's included */
    bool bind;            /* bind workers to cores */
    size_t scratch_bytes; /* per thread */
    struct hr_alloc *alloc;
};

/* Starts threads - 1 workers. NULL: no memory (*no_thread is 0), or a thread could not be started
 * (*no_thread is the error number). */
struct hr_pool *hr_pool_create(const struct hr_pool_options *options, int *no_thread);

/* Ends the workers. NULL is fine. */
void hr_pool_destroy(struct hr_pool *pool);

/* Runs fn(args, i, scratch) for each i in [0, items), in any order, and returns when all have run.
 * Called by one thread at a time. */
void hr_pool_run(struct hr_pool *pool, hr_item_fn *fn, const void *args, int64_t items);

int32_t hr_pool_threads(const struct hr_pool *pool);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for the products and row operations of the program: one list of items at a time. */
#ifndef HEADRACE_TOOLS_GEMM_POOL_H
#define HEADRACE_TOOLS_GEMM_POOL_H

#include <stdint.h>

struct gemm_pool;

/* `thread` is 0 for the caller, 1 .. threads - 1 for the workers. */
typedef void gemm_item_fn(const void *args, int64_t item, int thread);

/* Starts threads - 1 workers. NULL: out of memory or threads; errno says why. */
struct gemm_pool *gemm_pool_create(int threads);
void gemm_pool_destroy(struct gemm_pool *pool); /* NULL is fine */
int gemm_pool_threads(const struct gemm_pool *pool);

/* Runs fn(args, i, thread) for each i in [0, items), in any order, on all threads, and returns when
 * all have run. items < 2^40. */
void gemm_pool_run(struct gemm_pool *pool, gemm_item_fn *fn, const void *args, int64_t items);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* `ticket` is the whole protocol: the number of the job and how many of its items are not yet dealt
 * out. Who lowers the count owns an item, and the job cannot end before that item is done, so `fn`
 * and `args` may be read then. Workers that sleep through a job delay nobody. */
#include "tools/gemm_pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define LEFT_BITS 40
#define LEFT ((UINT64_C(1) << LEFT_BITS) - 1)

enum {
    SPINS = 500,          /* pauses before a waiting thread begins to yield */
    IDLE_NS = 1000 * 1000 /* yields before a worker sleeps: longer than one layer's attention */
};

struct worker {
    struct gemm_pool *pool;
    pthread_t thread;
    int index;
};

struct gemm_pool {
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic int64_t done;
    _Alignas(64) gemm_item_fn *fn;
    const void *args;
    int64_t items;
    pthread_mutex_t mutex; /* guards sleeping */
    pthread_cond_t wake;
    _Atomic int sleepers;
    _Atomic bool stop;
    int threads;
    int started;
    struct worker *workers;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void run_items(struct gemm_pool *pool, int thread)
{
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while (ticket & LEFT) {
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1,
                                                   memory_order_acquire, memory_order_acquire))
            continue;
        pool->fn(pool->args, pool->items - (int64_t)(ticket & LEFT), thread);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
        ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
}

static bool has_news(struct gemm_pool *pool)
{
    return (atomic_load(&pool->ticket) & LEFT) || atomic_load(&pool->stop);
}

/* Yields rather than spins on: the library's own workers share the cores. */
static bool news_come_soon(struct gemm_pool *pool)
{
    for (int i = 0; i < SPINS; i++) {
        if (has_news(pool))
            return true;
        relax();
    }
    for (int64_t end = now_ns() + IDLE_NS; now_ns() < end; sched_yield())
        if (has_news(pool))
            return true;
    return false;
}

static void sleep_until_news(struct gemm_pool *pool)
{
    if (news_come_soon(pool))
        return;
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!has_news(pool))
        pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    while (!atomic_load(&worker->pool->stop)) {
        run_items(worker->pool, worker->index);
        sleep_until_news(worker->pool);
    }
    return NULL;
}

static void wake_sleepers(struct gemm_pool *pool)
{
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

void gemm_pool_run(struct gemm_pool *pool, gemm_item_fn *fn, const void *args, int64_t items)
{
    if (items <= 1 || pool->threads == 1) {
        for (int64_t i = 0; i < items; i++)
            fn(args, i, 0);
        return;
    }
    pool->fn = fn;
    pool->args = args;
    pool->items = items;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    uint64_t job = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> LEFT_BITS) + 1;
    atomic_store(&pool->ticket, job << LEFT_BITS | (uint64_t)items);
    wake_sleepers(pool);
    run_items(pool, 0);
    for (int i = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < items; i++) {
        if (i > SPINS)
            sched_yield();
        relax();
    }
}

struct gemm_pool *gemm_pool_create(int threads)
{
    struct gemm_pool *pool = aligned_alloc(64, sizeof(*pool));
    if (!pool)
        return NULL;
    *pool = (struct gemm_pool){.threads = threads, .started = 1};
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->workers = calloc((size_t)threads, sizeof(*pool->workers));
    int failed = pool->workers ? 0 : ENOMEM;
    for (int i = 1; i < threads && !failed; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .index = i};
        failed = pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]);
        pool->started += !failed;
    }
    if (!failed)
        return pool;
    gemm_pool_destroy(pool);
    errno = failed;
    return NULL;
}

void gemm_pool_destroy(struct gemm_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 1; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->workers);
    free(pool);
}

int gemm_pool_threads(const struct gemm_pool *pool)
{
    return pool->threads;
}

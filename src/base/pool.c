/* SPDX-License-Identifier: Apache-2.0 */
/* One job at a time. `state` holds everything that threads race for: the job's number, whether it
 * is open and how many workers are in it. A worker joins an open job by raising the count; the
 * caller closes the job when the items are dealt out and waits only for those who joined, so a
 * worker that still sleeps delays nobody. */
#include "src/base/pool.h"
#include "src/base/alloc.h"
#include "src/base/topo.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sched.h>

enum {
    CLAIMS = 64,        /* per thread and job: small enough to balance, large enough to be cheap */
    SPINS = 300,        /* about 10 µs of pauses before a worker sleeps */
    CALLER_SPINS = 4000 /* then the caller yields: its core may be the one the worker needs */
};

#define JOINED 0xffffull /* workers in the job */
#define OPEN 0x10000ull
#define JOB 0x20000ull /* one job number */

struct worker {
    struct hr_pool *pool;
    pthread_t thread;
    void *scratch;
    int32_t cpu; /* -1: not bound */
};

struct hr_pool {
    _Alignas(64) _Atomic uint64_t state;
    _Alignas(64) _Atomic int64_t next;
    _Alignas(64) hr_item_fn *fn;
    const void *args;
    int64_t items;
    int64_t grain;                      /* items claimed at once */
    _Alignas(64) pthread_mutex_t mutex; /* guards sleeping */
    pthread_cond_t wake;
    _Atomic int32_t sleepers;
    _Atomic bool stop;
    struct hr_alloc *alloc;
    int32_t threads;
    int32_t started;
    size_t scratch_bytes;
    struct worker *workers; /* [threads]; [0] is the caller's scratch */
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void run_items(struct hr_pool *pool, void *scratch)
{
    int64_t first, grain = pool->grain;
    while ((first = atomic_fetch_add_explicit(&pool->next, grain, memory_order_relaxed)) <
           pool->items) {
        int64_t end = pool->items - first < grain ? pool->items : first + grain;
        for (int64_t i = first; i < end; i++)
            pool->fn(pool->args, i, scratch);
    }
}

/* Joins the open job if there is one newer than *seen. */
static bool join(struct hr_pool *pool, uint64_t *seen)
{
    uint64_t state = atomic_load_explicit(&pool->state, memory_order_acquire);
    while ((state & OPEN) && (state & ~(JOINED | OPEN)) != *seen) {
        if (atomic_compare_exchange_weak_explicit(&pool->state, &state, state + 1,
                                                  memory_order_acquire, memory_order_acquire)) {
            *seen = state & ~(JOINED | OPEN);
            return true;
        }
    }
    return false;
}

static bool news(struct hr_pool *pool, uint64_t seen)
{
    uint64_t state = atomic_load(&pool->state);
    return atomic_load(&pool->stop) || ((state & OPEN) && (state & ~(JOINED | OPEN)) != seen);
}

static void sleep_until_news(struct hr_pool *pool, uint64_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (news(pool, seen))
            return;
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!news(pool, seen))
        pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct hr_pool *pool = worker->pool;
    uint64_t seen = 0;
    if (worker->cpu >= 0)
        hr_topo_bind_self(worker->cpu); /* refused in some containers: then unbound */
    while (!atomic_load(&pool->stop)) {
        if (join(pool, &seen)) {
            run_items(pool, worker->scratch);
            atomic_fetch_sub_explicit(&pool->state, 1, memory_order_release);
        } else {
            sleep_until_news(pool, seen);
        }
    }
    return NULL;
}

static void wake_all(struct hr_pool *pool)
{
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

static void wait_for_joined(struct hr_pool *pool)
{
    for (int i = 0; atomic_load_explicit(&pool->state, memory_order_acquire) & JOINED; i++) {
        relax();
        if (i > CALLER_SPINS)
            sched_yield();
    }
}

void hr_pool_run(struct hr_pool *pool, hr_item_fn *fn, const void *args, int64_t items)
{
    if (items <= 1 || pool->threads == 1) {
        for (int64_t i = 0; i < items; i++)
            fn(args, i, pool->workers[0].scratch);
        return;
    }
    pool->fn = fn;
    pool->args = args;
    pool->items = items;
    pool->grain = items / (pool->threads * CLAIMS) + 1;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    uint64_t state = atomic_load_explicit(&pool->state, memory_order_relaxed);
    atomic_store(&pool->state, (state + JOB) | OPEN);
    wake_all(pool);
    run_items(pool, pool->workers[0].scratch);
    atomic_fetch_and(&pool->state, ~OPEN);
    wait_for_joined(pool);
}

static bool start_workers(struct hr_pool *pool, bool bind, int *no_thread)
{
    int32_t n = pool->threads;
    int32_t *cpus = hr_alloc_get(pool->alloc, (size_t)n * sizeof(*cpus));
    int32_t known = cpus && bind && n > 1 ? hr_topo_bind_order(cpus, n) : 0;
    bool ok = cpus != NULL;
    for (int32_t i = 0; ok && i < n; i++) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->cpu = i < known ? cpus[i] : -1;
        worker->scratch = hr_alloc_get(pool->alloc, pool->scratch_bytes);
        ok = worker->scratch != NULL;
        if (ok && i > 0)
            *no_thread = pthread_create(&worker->thread, NULL, worker_main, worker);
        ok = ok && *no_thread == 0;
        pool->started += ok;
    }
    hr_alloc_put(pool->alloc, cpus, (size_t)n * sizeof(*cpus));
    return ok;
}

struct hr_pool *hr_pool_create(const struct hr_pool_options *options, int *no_thread)
{
    *no_thread = 0;
    struct hr_alloc *alloc = options->alloc;
    struct hr_pool *pool = hr_alloc_zero(alloc, sizeof(*pool));
    if (!pool)
        return NULL;
    pool->alloc = alloc;
    pool->threads = options->threads;
    pool->scratch_bytes = options->scratch_bytes;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->workers = hr_alloc_zero(alloc, (size_t)pool->threads * sizeof(*pool->workers));
    if (!pool->workers || !start_workers(pool, options->bind, no_thread)) {
        hr_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void hr_pool_destroy(struct hr_pool *pool)
{
    if (!pool)
        return;
    struct hr_alloc *alloc = pool->alloc;
    atomic_store(&pool->stop, true);
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int32_t i = 1; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    for (int32_t i = 0; pool->workers && i < pool->threads; i++)
        hr_alloc_put(alloc, pool->workers[i].scratch, pool->scratch_bytes);
    hr_alloc_put(alloc, pool->workers, (size_t)pool->threads * sizeof(*pool->workers));
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    hr_alloc_put(alloc, pool, sizeof(*pool));
}

int32_t hr_pool_threads(const struct hr_pool *pool)
{
    return pool->threads;
}

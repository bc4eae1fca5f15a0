/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/mover.h"

#include <pthread.h>
#include <time.h>

#include "src/base/clock.h"

struct list {
    struct hr_move *first, *last;
};

struct hr_mover {
    struct hr_alloc *alloc;
    struct hr_transfers *transfers;
    bool manual;
    int64_t running; /* the caller's */
    struct hr_mover_counts counts;
    pthread_t thread;
    bool has_thread;
    /* Between the threads. */
    pthread_mutex_t mutex;
    pthread_cond_t change; /* of `done`, `interrupted` or `resize` */
    struct list started, done;
    bool interrupted, stop, resize;
    size_t resize_bytes;
};

static void push(struct list *l, struct hr_move *x)
{
    x->next = NULL;
    if (l->first)
        l->last->next = x;
    else
        l->first = x;
    l->last = x;
}

static struct hr_move *pop(struct list *l)
{
    struct hr_move *x = l->first;
    if (x)
        l->first = x->next;
    return x;
}

static uint64_t sum_of(const struct hr_move *move, int32_t i, int32_t head)
{
    const struct hr_moved *b = &move->blocks[i];
    struct hr_page_id id = {.layout = move->layout,
                            .uid = b->uid,
                            .generation = b->generation,
                            .block = b->index,
                            .layer = b->layer,
                            .head = (uint32_t)head};
    uint64_t bytes = move->block_bytes / (uint64_t)b->heads;
    const unsigned char *page =
        move->transfer.memory + (uint64_t)i * move->block_bytes + (uint64_t)head * bytes;
    return hr_page_sum(page, bytes, hr_page_seed(&id));
}

static void sum_up(struct hr_move *move)
{
    for (int32_t i = 0; i < move->count; i++)
        for (int32_t h = 0; h < move->blocks[i].heads; h++)
            move->blocks[i].sums[h] = sum_of(move, i, h);
}

static void compare(struct hr_move *move)
{
    for (int32_t i = 0; i < move->count; i++)
        for (int32_t h = 0; h < move->blocks[i].heads; h++)
            if (sum_of(move, i, h) != move->blocks[i].sums[h]) {
                move->bad_block = i;
                move->bad_head = h;
                return;
            }
}

static void start_all(struct hr_mover *m)
{
    struct hr_move *move;
    for (;;) {
        pthread_mutex_lock(&m->mutex);
        move = pop(&m->started);
        pthread_mutex_unlock(&m->mutex);
        if (!move)
            return;
        move->bad_block = move->bad_head = -1;
        if (move->transfer.write)
            sum_up(move);
        hr_transfers_start(m->transfers, &move->transfer);
    }
}

/* Gives back one move that has ended by the deadline. */
static bool finish_one(struct hr_mover *m, int64_t deadline_ns)
{
    struct hr_transfer *transfer = hr_transfers_finish(m->transfers, deadline_ns);
    if (!transfer)
        return false;
    struct hr_move *move = (struct hr_move *)transfer; /* its first member */
    move->end_ns = hr_clock_ns();
    if (!transfer->write && transfer->error == 0)
        compare(move);
    pthread_mutex_lock(&m->mutex);
    push(&m->done, move);
    pthread_cond_signal(&m->change);
    pthread_mutex_unlock(&m->mutex);
    return true;
}

static bool stopped(struct hr_mover *m)
{
    pthread_mutex_lock(&m->mutex);
    bool stop = m->stop;
    pthread_mutex_unlock(&m->mutex);
    return stop;
}

/* Between two waits of the thread, so that not even the wait itself is under way. */
static void resize_if_asked(struct hr_mover *m)
{
    pthread_mutex_lock(&m->mutex);
    if (m->resize) {
        hr_transfers_resize(m->transfers, m->resize_bytes);
        m->resize = false;
        pthread_cond_signal(&m->change);
    }
    pthread_mutex_unlock(&m->mutex);
}

static void *progress(void *arg)
{
    struct hr_mover *m = arg;
    while (!stopped(m)) {
        resize_if_asked(m);
        start_all(m);
        finish_one(m, INT64_MAX); /* a start wakes it */
    }
    return NULL;
}

struct hr_mover *hr_mover_open(const struct hr_mover_options *options, int *no_thread)
{
    pthread_condattr_t monotonic;
    struct hr_mover *m = hr_alloc_zero(options->alloc, sizeof(*m));
    *no_thread = 0;
    if (!m) {
        hr_transfers_close(options->transfers);
        return NULL;
    }
    m->alloc = options->alloc;
    m->transfers = options->transfers;
    m->manual = options->manual;
    pthread_mutex_init(&m->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->change, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (!m->manual)
        *no_thread = pthread_create(&m->thread, NULL, progress, m);
    m->has_thread = !m->manual && *no_thread == 0;
    if (*no_thread == 0)
        return m;
    hr_mover_close(m);
    return NULL;
}

void hr_mover_close(struct hr_mover *m)
{
    if (!m)
        return;
    if (m->has_thread) {
        pthread_mutex_lock(&m->mutex);
        m->stop = true;
        pthread_mutex_unlock(&m->mutex);
        hr_transfers_wake(m->transfers);
        pthread_join(m->thread, NULL);
    }
    hr_transfers_close(m->transfers);
    pthread_cond_destroy(&m->change);
    pthread_mutex_destroy(&m->mutex);
    hr_alloc_put(m->alloc, m, sizeof(*m));
}

void hr_mover_start(struct hr_mover *m, struct hr_move *move)
{
    m->running++;
    move->begin_ns = hr_clock_ns();
    pthread_mutex_lock(&m->mutex);
    push(&m->started, move);
    pthread_mutex_unlock(&m->mutex);
    if (m->has_thread)
        hr_transfers_wake(m->transfers);
}

struct hr_move *hr_mover_done(struct hr_mover *m)
{
    pthread_mutex_lock(&m->mutex);
    struct hr_move *move = pop(&m->done);
    pthread_mutex_unlock(&m->mutex);
    if (!move)
        return NULL;
    m->running--;
    *(move->transfer.write ? &m->counts.write_bytes : &m->counts.read_bytes) +=
        move->transfer.bytes;
    return move;
}

/* The caller does what the thread would. */
static void work(struct hr_mover *m, int64_t deadline_ns)
{
    start_all(m);
    if (finish_one(m, deadline_ns))
        while (finish_one(m, 0))
            ;
}

static void wait_for_change(struct hr_mover *m, int64_t deadline_ns)
{
    struct timespec at = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    pthread_mutex_lock(&m->mutex);
    int error = 0;
    while (!m->done.first && !m->interrupted && error == 0)
        error = pthread_cond_timedwait(&m->change, &m->mutex, &at);
    pthread_mutex_unlock(&m->mutex);
}

static bool any_done(struct hr_mover *m, bool *interrupted)
{
    pthread_mutex_lock(&m->mutex);
    bool any = m->done.first != NULL;
    *interrupted = m->interrupted;
    m->interrupted = false;
    pthread_mutex_unlock(&m->mutex);
    return any;
}

bool hr_mover_wait(struct hr_mover *m, int64_t deadline_ns)
{
    bool interrupted;
    if (any_done(m, &interrupted))
        return true;
    if (interrupted)
        return false;
    if (m->manual)
        work(m, deadline_ns);
    else if (deadline_ns > 0)
        wait_for_change(m, deadline_ns);
    return any_done(m, &interrupted);
}

int64_t hr_mover_running(const struct hr_mover *m)
{
    return m->running;
}

void hr_mover_interrupt(struct hr_mover *m)
{
    pthread_mutex_lock(&m->mutex);
    m->interrupted = true;
    pthread_cond_signal(&m->change);
    pthread_mutex_unlock(&m->mutex);
    if (m->manual)
        hr_transfers_wake(m->transfers);
}

void hr_mover_resize(struct hr_mover *m, size_t bytes)
{
    if (!m->has_thread) {
        hr_transfers_resize(m->transfers, bytes);
        return;
    }
    pthread_mutex_lock(&m->mutex);
    m->resize = true;
    m->resize_bytes = bytes;
    pthread_mutex_unlock(&m->mutex);
    hr_transfers_wake(m->transfers);
    pthread_mutex_lock(&m->mutex);
    while (m->resize)
        pthread_cond_wait(&m->change, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
}

struct hr_mover_counts hr_mover_counts(const struct hr_mover *m)
{
    return m->counts;
}

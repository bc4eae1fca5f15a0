/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that each take a request, make its call and note the result; the two rows are rings under
 * one mutex. A request counts against the depth until it is reaped, so neither ring can overflow.
 */
#include "offload/io.h"
#include "src/base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { THREADS_MAX = 16, WHY_BYTES = 192 };

struct threads {
    struct hr_io io;
    struct hr_alloc *alloc;
    const struct hr_io_calls *calls;
    pthread_mutex_t mutex; /* guards all below but ids */
    pthread_cond_t work, news;
    bool stop, woken;
    uint32_t queued, begun, ended, reaped; /* of all requests so far; they may wrap */
    struct hr_io_request queue[THREADS_MAX];
    struct hr_io_done done[THREADS_MAX];
    int started;
    pthread_t ids[THREADS_MAX];
};

static int64_t call(const struct hr_io_calls *calls, const struct hr_io_request *r)
{
    if (r->write)
        return calls->pwrite(calls->user, r->fd, r->memory, r->bytes, r->offset);
    return calls->pread(calls->user, r->fd, r->memory, r->bytes, r->offset);
}

static void *thread_main(void *arg)
{
    struct threads *t = arg;
    pthread_mutex_lock(&t->mutex);
    for (;;) {
        while (t->begun == t->queued && !t->stop)
            pthread_cond_wait(&t->work, &t->mutex);
        if (t->begun == t->queued)
            break;
        struct hr_io_request r = t->queue[t->begun++ % THREADS_MAX];
        pthread_mutex_unlock(&t->mutex);
        int64_t result = call(t->calls, &r);
        pthread_mutex_lock(&t->mutex);
        t->done[t->ended++ % THREADS_MAX] = (struct hr_io_done){r.tag, result};
        pthread_cond_signal(&t->news);
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

static int threads_submit(struct hr_io *io, const struct hr_io_request *requests, int count)
{
    struct threads *t = (struct threads *)io;
    int n = 0;
    pthread_mutex_lock(&t->mutex);
    for (; n < count && t->queued - t->reaped < (uint32_t)io->depth; n++) {
        t->queue[t->queued++ % THREADS_MAX] = requests[n];
        pthread_cond_signal(&t->work);
    }
    pthread_mutex_unlock(&t->mutex);
    return n;
}

static int threads_reap(struct hr_io *io, struct hr_io_done *done, int most, int64_t deadline_ns)
{
    struct threads *t = (struct threads *)io;
    struct timespec until = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    int n = 0;
    pthread_mutex_lock(&t->mutex);
    while (deadline_ns && t->ended == t->reaped && !t->woken && hr_clock_ns() < deadline_ns)
        pthread_cond_timedwait(&t->news, &t->mutex, &until);
    while (n < most && t->reaped != t->ended)
        done[n++] = t->done[t->reaped++ % THREADS_MAX];
    if (deadline_ns && n == 0)
        t->woken = false;
    pthread_mutex_unlock(&t->mutex);
    return n;
}

static void threads_wake(struct hr_io *io)
{
    struct threads *t = (struct threads *)io;
    pthread_mutex_lock(&t->mutex);
    t->woken = true;
    pthread_cond_signal(&t->news);
    pthread_mutex_unlock(&t->mutex);
}

static void threads_close(struct hr_io *io)
{
    struct threads *t = (struct threads *)io;
    pthread_mutex_lock(&t->mutex);
    t->stop = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->mutex);
    for (int i = 0; i < t->started; i++)
        pthread_join(t->ids[i], NULL);
    pthread_cond_destroy(&t->news);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->mutex);
    hr_alloc_put(t->alloc, t, sizeof(*t));
}

static const struct hr_io_ops threads_ops = {
    .name = "threads",
    .submit = threads_submit,
    .reap = threads_reap,
    .wake = threads_wake,
    .close = threads_close,
};

static void init_locks(struct threads *t)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC); /* that of deadlines */
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->news, &clock);
    pthread_condattr_destroy(&clock);
}

struct hr_io *hr_io_threads_open(const struct hr_io_options *options, char *why)
{
    struct threads *t = hr_alloc_zero(options->alloc, sizeof(*t));
    int error = 0, depth = options->depth > 0 ? options->depth : 16;
    if (!t) {
        snprintf(why, WHY_BYTES, "no memory for %zu bytes", sizeof(*t));
        return NULL;
    }
    t->alloc = options->alloc;
    t->calls = options->calls ? options->calls : &hr_io_calls_system;
    t->io.ops = &threads_ops;
    t->io.depth = depth < THREADS_MAX ? depth : THREADS_MAX;
    init_locks(t);
    while (t->started < t->io.depth && error == 0) {
        error = pthread_create(&t->ids[t->started], NULL, thread_main, t);
        t->started += error == 0;
    }
    snprintf(t->io.text, sizeof(t->io.text), "threads: %d, one request each", t->io.depth);
    if (error == 0)
        return &t->io;
    snprintf(why, WHY_BYTES, "thread %d of %d could not be started: %s", t->started + 1,
             t->io.depth, strerror(error));
    threads_close(&t->io);
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A disk as bad as the contract allows, drawn from a seed. A read's bytes arrive when it completes;
 * half of the writes take theirs when they are submitted, the others when they complete: memory
 * that is used too early holds wrong bytes. Without a rate and a latency nothing depends on time.
 */
#include "offload/io.h"
#include "src/base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { WHY_BYTES = 192, DIRECT_BYTES = 4096 };

struct slot {
    struct hr_io_request request;
    bool taken;
    bool moved; /* when it was submitted, with `result` */
    int64_t due_ns;
    uint64_t number; /* of its submission */
    uint32_t part;   /* bytes that it moves */
    int64_t error;   /* -errno that it ends with, or 0 */
    int64_t result;
};

struct sim {
    struct hr_io io;
    struct hr_alloc *alloc;
    const struct hr_io_calls *calls;
    struct hr_io_sim_options options;
    uint64_t state; /* of the generator */
    uint64_t submitted;
    int64_t busy_until_ns, last_due_ns;
    pthread_mutex_t mutex; /* guards woken */
    pthread_cond_t news;
    bool woken;
    struct slot slots[];
};

static size_t sim_bytes(int depth)
{
    return sizeof(struct sim) + (size_t)depth * sizeof(struct slot);
}

/* A Weyl sequence through a mixer with full avalanche. */
static uint64_t draw(struct sim *s)
{
    uint64_t x = s->state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static uint64_t draw_below(struct sim *s, uint64_t bound)
{
    return draw(s) % bound;
}

static double draw_share(struct sim *s)
{
    return (double)(draw(s) >> 11) * 0x1p-53;
}

static int64_t move(struct sim *s, const struct slot *slot)
{
    const struct hr_io_request *r = &slot->request;
    if (slot->part == 0)
        return 0;
    if (r->write)
        return s->calls->pwrite(s->calls->user, r->fd, r->memory, slot->part, r->offset);
    return s->calls->pread(s->calls->user, r->fd, r->memory, slot->part, r->offset);
}

/* Where requests may be cut: anywhere, but direct I/O takes multiples of the alignment only. */
static uint32_t unit(const struct hr_io_request *r)
{
    uint64_t all = (uintptr_t)r->memory | r->offset | r->bytes;
    return all % DIRECT_BYTES == 0 ? DIRECT_BYTES : 1;
}

static void draw_fault(struct sim *s, struct slot *slot)
{
    const struct hr_io_sim_options *o = &s->options;
    uint32_t cut = unit(&slot->request), units = slot->request.bytes / cut;
    uint32_t least = slot->request.write; /* a write of nothing means that the disk is full */
    double x = draw_share(s);
    slot->part = slot->request.bytes;
    slot->error = 0;
    if (x < o->error_rate) {
        slot->error = -EIO;
        slot->part = cut * (uint32_t)draw_below(s, units + 1);
    } else if (x < o->error_rate + o->eintr_rate) {
        slot->error = draw_below(s, 2) ? -EINTR : -EAGAIN;
        slot->part = 0;
    } else if (x < o->error_rate + o->eintr_rate + o->short_rate && units > least) {
        slot->part = cut * (least + (uint32_t)draw_below(s, units - least));
    }
}

static double bytes_per_s(const struct sim *s)
{
    const struct hr_io_sim_options *o = &s->options;
    return o->rate ? (double)atomic_load_explicit(o->rate, memory_order_relaxed) : o->bytes_per_s;
}

/* The rate is that of one server which takes requests in turn; latencies overlap. */
static int64_t draw_due_ns(struct sim *s, uint32_t bytes)
{
    const struct hr_io_sim_options *o = &s->options;
    double rate = bytes_per_s(s);
    if (rate <= 0 && o->latency_ns <= 0)
        return 0;
    int64_t now = hr_clock_ns();
    if (s->busy_until_ns < now)
        s->busy_until_ns = now;
    if (rate > 0)
        s->busy_until_ns += (int64_t)(bytes / rate * 1e9);
    int64_t due = s->busy_until_ns;
    if (o->latency_ns > 0)
        due += o->latency_ns + (int64_t)draw_below(s, (uint64_t)o->latency_ns);
    if (o->ordered && due < s->last_due_ns)
        due = s->last_due_ns;
    s->last_due_ns = due;
    return due;
}

static int sim_submit(struct hr_io *io, const struct hr_io_request *requests, int count)
{
    struct sim *s = (struct sim *)io;
    int n = 0;
    for (int i = 0; i < io->depth && n < count; i++) {
        struct slot *slot = &s->slots[i];
        if (slot->taken)
            continue;
        slot->request = requests[n++];
        slot->taken = true;
        slot->number = s->submitted++;
        draw_fault(s, slot);
        slot->due_ns = draw_due_ns(s, slot->request.bytes);
        slot->moved = slot->request.write && draw_below(s, 2);
        if (slot->moved)
            slot->result = move(s, slot);
    }
    return n;
}

static bool before(const struct slot *a, const struct slot *b)
{
    return a->due_ns < b->due_ns || (a->due_ns == b->due_ns && a->number < b->number);
}

/* The request that completes next: the first by the clock; any one where there is none. NULL:
 * nothing runs. */
static struct slot *next_slot(struct sim *s)
{
    struct slot *next = NULL;
    uint64_t taken = 0;
    bool any = bytes_per_s(s) <= 0 && s->options.latency_ns <= 0 && !s->options.ordered;
    for (int i = 0; i < s->io.depth; i++) {
        struct slot *slot = &s->slots[i];
        if (!slot->taken)
            continue;
        taken++;
        if (!next || (any ? draw_below(s, taken) == 0 : before(slot, next)))
            next = slot;
    }
    return next;
}

static struct hr_io_done complete(struct sim *s, struct slot *slot)
{
    if (!slot->moved)
        slot->result = move(s, slot);
    slot->taken = false;
    return (struct hr_io_done){slot->request.tag, slot->error ? slot->error : slot->result};
}

/* True: woken. */
static bool wait_until(struct sim *s, int64_t deadline_ns)
{
    struct timespec until = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    pthread_mutex_lock(&s->mutex);
    while (!s->woken && hr_clock_ns() < deadline_ns)
        pthread_cond_timedwait(&s->news, &s->mutex, &until);
    bool woken = s->woken;
    s->woken = false;
    pthread_mutex_unlock(&s->mutex);
    return woken;
}

static int sim_reap(struct hr_io *io, struct hr_io_done *done, int most, int64_t deadline_ns)
{
    struct sim *s = (struct sim *)io;
    int n = 0;
    for (;;) {
        struct slot *next = next_slot(s);
        int64_t now = hr_clock_ns();
        if (next && next->due_ns <= now && n < most) {
            done[n++] = complete(s, next);
            continue;
        }
        if (n > 0 || deadline_ns == 0)
            return n;
        bool soon = next && next->due_ns < deadline_ns;
        if (wait_until(s, soon ? next->due_ns : deadline_ns) || !soon)
            return 0;
    }
}

static void sim_wake(struct hr_io *io)
{
    struct sim *s = (struct sim *)io;
    pthread_mutex_lock(&s->mutex);
    s->woken = true;
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->mutex);
}

static void sim_close(struct hr_io *io)
{
    struct sim *s = (struct sim *)io;
    struct hr_io_done done;
    while (next_slot(s))
        sim_reap(io, &done, 1, INT64_MAX);
    pthread_cond_destroy(&s->news);
    pthread_mutex_destroy(&s->mutex);
    hr_alloc_put(s->alloc, s, sim_bytes(io->depth));
}

static const struct hr_io_ops sim_ops = {
    .name = "simulated",
    .submit = sim_submit,
    .reap = sim_reap,
    .wake = sim_wake,
    .close = sim_close,
};

static void init_locks(struct sim *s)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC); /* that of deadlines */
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->news, &clock);
    pthread_condattr_destroy(&clock);
}

struct hr_io *hr_io_sim_open(const struct hr_io_options *options,
                             const struct hr_io_sim_options *sim, char *why)
{
    int depth = options->depth > 0 ? options->depth : 16;
    struct sim *s = hr_alloc_zero(options->alloc, sim_bytes(depth));
    if (!s) {
        snprintf(why, WHY_BYTES, "no memory for %zu bytes", sim_bytes(depth));
        return NULL;
    }
    s->io.ops = &sim_ops;
    s->io.depth = depth;
    s->alloc = options->alloc;
    s->calls = options->calls ? options->calls : &hr_io_calls_system;
    s->options = *sim;
    s->state = sim->seed;
    init_locks(s);
    snprintf(s->io.text, sizeof(s->io.text),
             "simulated: depth %d, seed %llu, %.4g bytes/s, %lld ns, short %g, again %g, error %g",
             depth, (unsigned long long)sim->seed, sim->bytes_per_s, (long long)sim->latency_ns,
             sim->short_rate, sim->eintr_rate, sim->error_rate);
    return &s->io;
}

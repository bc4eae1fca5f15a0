/* SPDX-License-Identifier: Apache-2.0 */
/* A request of a transfer is a piece. A transfer stays in its queue until its last piece is cut
 * off, so only the first of a queue is begun and not all cut. It ends when every piece that was cut
 * has ended: until then a request may still move its memory, also after an error. */
#include "offload/transfer.h"
#include "src/base/clock.h"

#include <errno.h>

enum piece_state {
    PIECE_FREE,
    PIECE_WAITS, /* for the engine to take it */
    PIECE_RUNS,
};

struct piece {
    struct hr_transfer *transfer;
    uint64_t offset; /* in the transfer */
    uint32_t bytes;
    uint32_t turn; /* of all requests made of this slot: a completion of another one is stale */
    int failures;
    enum piece_state state;
};

struct queue {
    struct hr_transfer *first, *last;
};

struct hr_transfers {
    struct hr_alloc *alloc;
    struct hr_io *io;
    int depth;
    struct piece *pieces;           /* [depth] */
    struct hr_io_request *requests; /* [depth] of one submission */
    struct hr_io_done *done;        /* [depth] of one reaping */
    struct queue queue[2];          /* [write]: not all cut */
    struct queue ended;
    int taken[2];    /* [write]: pieces that are not free */
    int64_t running; /* transfers not given back */
    struct hr_transfer_counts counts;
};

static void push(struct queue *q, struct hr_transfer *x)
{
    x->queue_next = NULL;
    if (q->first)
        q->last->queue_next = x;
    else
        q->first = x;
    q->last = x;
}

static struct hr_transfer *pop(struct queue *q)
{
    struct hr_transfer *x = q->first;
    if (x)
        q->first = x->queue_next;
    return x;
}

static void end_piece(struct hr_transfers *t, struct piece *p)
{
    struct hr_transfer *x = p->transfer;
    x->ended += p->bytes;
    p->state = PIECE_FREE;
    t->taken[x->write]--;
    if (x->ended == x->started && (x->error || x->started == x->bytes))
        push(&t->ended, x);
}

static void fail(struct hr_transfers *t, struct hr_transfer *x, int error)
{
    if (x->error)
        return;
    x->error = error;
    if (x->started < x->bytes)
        pop(&t->queue[x->write]);
}

/* The errno of a request that did not move all its bytes, and whether it may pass. */
static int failure(const struct piece *p, int64_t result, bool *passes)
{
    bool full = p->transfer->write && result == 0; /* no progress: the disk has no room */
    *passes = result == -EINTR || result == -EAGAIN || (result >= 0 && result < p->bytes && !full);
    if (result < 0)
        return (int)-result;
    return full ? ENOSPC : EIO;
}

static void settle(struct hr_transfers *t, const struct hr_io_done *done)
{
    uint32_t slot = (uint32_t)done->tag, turn = (uint32_t)(done->tag >> 32);
    if (slot >= (uint32_t)t->depth || t->pieces[slot].state != PIECE_RUNS ||
        t->pieces[slot].turn != turn)
        return; /* stale */
    struct piece *p = &t->pieces[slot];
    bool write = p->transfer->write, passes;
    if (done->result == p->bytes) {
        *(write ? &t->counts.write_bytes : &t->counts.read_bytes) += p->bytes;
        *(write ? &t->counts.write_requests : &t->counts.read_requests) += 1;
        end_piece(t, p);
        return;
    }
    int error = failure(p, done->result, &passes);
    p->failures++;
    if (passes && p->failures < HR_TRANSFER_TRIES && !p->transfer->error) {
        p->state = PIECE_WAITS;
        t->counts.again++;
        return;
    }
    fail(t, p->transfer, error);
    end_piece(t, p);
}

static bool may_cut(const struct hr_transfers *t, bool write)
{
    bool reads = t->taken[false] > 0 || t->queue[false].first;
    int half = t->depth > 1 ? t->depth / 2 : 1;
    return t->queue[write].first && t->taken[false] + t->taken[true] < t->depth &&
           (!write || t->taken[true] < (reads ? half : t->depth));
}

static void cut(struct hr_transfers *t, bool write)
{
    struct hr_transfer *x = t->queue[write].first;
    struct piece *p = t->pieces;
    while (p->state != PIECE_FREE)
        p++;
    uint64_t left = x->bytes - x->started;
    *p = (struct piece){
        .transfer = x,
        .offset = x->started,
        .bytes = left < HR_IO_PIECE_BYTES ? (uint32_t)left : HR_IO_PIECE_BYTES,
        .turn = p->turn,
        .state = PIECE_WAITS,
    };
    t->taken[write]++;
    x->started += p->bytes;
    if (x->started == x->bytes)
        pop(&t->queue[write]);
}

/* Notes the pieces of one direction that wait, and ends those of a transfer that has failed. */
static int gather(struct hr_transfers *t, bool write, int n)
{
    for (int slot = 0; slot < t->depth; slot++) {
        struct piece *p = &t->pieces[slot];
        struct hr_transfer *x = p->transfer;
        if (p->state != PIECE_WAITS || x->write != write)
            continue;
        if (x->error) {
            end_piece(t, p);
            continue;
        }
        t->requests[n++] = (struct hr_io_request){
            .fd = x->fd,
            .write = write,
            .offset = x->offset + p->offset,
            .bytes = p->bytes,
            .memory = x->memory + p->offset,
            .tag = (uint64_t)++p->turn << 32 | (uint32_t)slot,
        };
    }
    return n;
}

static void submit(struct hr_transfers *t)
{
    while (may_cut(t, false))
        cut(t, false);
    while (may_cut(t, true))
        cut(t, true);
    int n = gather(t, true, gather(t, false, 0));
    int taken = n > 0 ? t->io->ops->submit(t->io, t->requests, n) : 0;
    for (int i = 0; i < taken; i++)
        t->pieces[(uint32_t)t->requests[i].tag].state = PIECE_RUNS;
}

static int reap(struct hr_transfers *t, int64_t deadline_ns)
{
    int n = t->io->ops->reap(t->io, t->done, t->depth, deadline_ns);
    for (int i = 0; i < n; i++)
        settle(t, &t->done[i]);
    return n;
}

void hr_transfers_start(struct hr_transfers *t, struct hr_transfer *transfer)
{
    transfer->error = 0;
    transfer->started = transfer->ended = 0;
    push(transfer->bytes > 0 ? &t->queue[transfer->write] : &t->ended, transfer);
    t->running++;
}

struct hr_transfer *hr_transfers_finish(struct hr_transfers *t, int64_t deadline_ns)
{
    bool wait = true;
    for (;;) {
        reap(t, 0);
        submit(t);
        struct hr_transfer *x = pop(&t->ended);
        t->running -= x != NULL;
        if (x || !wait || hr_clock_ns() >= deadline_ns)
            return x;
        wait = reap(t, deadline_ns) > 0;
    }
}

struct hr_transfers *hr_transfers_open(struct hr_alloc *alloc, struct hr_io *io)
{
    size_t depth = (size_t)io->depth;
    struct hr_transfers *t = hr_alloc_zero(alloc, sizeof(*t));
    if (!t) {
        io->ops->close(io);
        return NULL;
    }
    t->alloc = alloc;
    t->io = io;
    t->depth = io->depth;
    t->pieces = hr_alloc_zero(alloc, depth * sizeof(*t->pieces));
    t->requests = hr_alloc_get(alloc, depth * sizeof(*t->requests));
    t->done = hr_alloc_get(alloc, depth * sizeof(*t->done));
    if (t->pieces && t->requests && t->done)
        return t;
    hr_transfers_close(t);
    return NULL;
}

void hr_transfers_close(struct hr_transfers *t)
{
    if (!t)
        return;
    size_t depth = (size_t)t->depth;
    while (t->taken[false] + t->taken[true] > 0 || t->queue[false].first || t->queue[true].first) {
        submit(t);
        if (t->taken[false] + t->taken[true] > 0) /* else submit ended the last ones itself */
            reap(t, INT64_MAX);
    }
    t->io->ops->close(t->io);
    hr_alloc_put(t->alloc, t->pieces, depth * sizeof(*t->pieces));
    hr_alloc_put(t->alloc, t->requests, depth * sizeof(*t->requests));
    hr_alloc_put(t->alloc, t->done, depth * sizeof(*t->done));
    hr_alloc_put(t->alloc, t, sizeof(*t));
}

int64_t hr_transfers_running(const struct hr_transfers *t)
{
    return t->running;
}

void hr_transfers_wake(struct hr_transfers *t)
{
    t->io->ops->wake(t->io);
}

void hr_transfers_resize(struct hr_transfers *t, size_t bytes)
{
    if (t->io->ops->resize)
        t->io->ops->resize(t->io, bytes);
}

const struct hr_io *hr_transfers_io(const struct hr_transfers *t)
{
    return t->io;
}

struct hr_transfer_counts hr_transfers_counts(const struct hr_transfers *t)
{
    return t->counts;
}

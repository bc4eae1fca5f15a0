/* SPDX-License-Identifier: Apache-2.0 */
/* What is measured is what a run has: a context with this one directory. Its device's memory is the
 * buffer, its mover moves the file in pieces, one of them a "block" of HEADS pages. */
#include "src/measure.h"

#include <fcntl.h>
#include <string.h>

#include "src/base/clock.h"

enum { SLOTS = 32, PIECE = HR_IO_PIECE_BYTES, HEADS = 16, LINE = 4096 };

static const int64_t MOST_NS = 5000000000; /* of a direction */

struct measure {
    hr_context *c;
    struct hr_error *error;
    struct hr_alloc alloc;
    const char *path;
    int64_t count;  /* pieces of the file */
    int64_t *order; /* [count] */
    uint64_t *sums; /* [count][HEADS] */
};

/* One direction. */
struct pass {
    bool write;
    int64_t count; /* pieces to move: the first ones of the order */
    int64_t begin_ns, end_ns;
    int64_t started, ended;
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static void fill(unsigned char *memory, uint64_t bytes, uint64_t *state)
{
    for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t x = next_random(state);
        memcpy(memory + i, &x, sizeof(x));
    }
}

static void shuffle(int64_t *order, int64_t count, uint64_t *state)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t j = (int64_t)(next_random(state) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
}

/* No two pages of the file alike: a disk may store equal ones once. */
static void mark(unsigned char *memory, int64_t piece)
{
    for (int64_t i = 0; i < PIECE / LINE; i++) {
        uint64_t number = (uint64_t)(piece * (PIECE / LINE) + i) * 0x9e3779b97f4a7c15;
        memcpy(memory + i * LINE, &number, sizeof(number));
    }
}

static void start(struct measure *m, struct pass *p, struct hr_move *move, unsigned char *memory)
{
    struct hr_tier *tier = m->c->tier;
    int64_t piece = m->order[p->started++], parts = HR_EXTENT_BYTES / PIECE;
    struct hr_store_place place = hr_store_place(&tier->store, piece / parts);
    *move = (struct hr_move){
        .transfer = {.fd = place.fd,
                     .write = p->write,
                     .offset = place.offset + (uint64_t)(piece % parts) * PIECE,
                     .bytes = PIECE,
                     .memory = memory},
        .block_bytes = PIECE,
        .count = 1,
        .blocks = {{.index = (uint64_t)piece, .heads = HEADS, .sums = m->sums + piece * HEADS}},
    };
    if (p->write)
        mark(memory, piece);
    hr_mover_start(tier->mover, move);
}

static hr_status check_move(const struct measure *m, const struct hr_move *move)
{
    const struct hr_transfer *t = &move->transfer;
    if (t->error)
        return hr_fail(m->error, HR_E_IO,
                       "disk directory \"%.256s\": %s of %d bytes at %llu: %s (errno %d)", m->path,
                       t->write ? "write" : "read", PIECE, (unsigned long long)t->offset,
                       strerror(t->error), t->error);
    if (move->bad_block >= 0)
        return hr_fail(m->error, HR_E_CORRUPT,
                       "disk directory \"%.256s\": other data came back than were written to the "
                       "%d bytes at %llu",
                       m->path, PIECE, (unsigned long long)t->offset);
    return HR_OK;
}

static hr_status finish(struct measure *m, struct pass *p, struct hr_move **move)
{
    struct hr_mover *mover = m->c->tier->mover;
    int64_t deadline_ns = hr_clock_ns() + m->c->patience_ns;
    while (!(*move = hr_mover_done(mover)))
        if (!hr_mover_wait(mover, deadline_ns) && hr_clock_ns() >= deadline_ns)
            return hr_fail(m->error, HR_E_TIMEOUT,
                           "disk directory \"%.256s\": no %s of %d bytes ended within %lld ms",
                           m->path, p->write ? "write" : "read", PIECE,
                           (long long)(m->c->patience_ns / 1000000));
    p->ended++;
    return check_move(m, *move);
}

/* On failure the moves under way are ended with the context. */
static hr_status move_all(struct measure *m, struct pass *p)
{
    struct hr_tier *tier = m->c->tier;
    hr_status status = HR_OK;
    p->begin_ns = hr_clock_ns();
    while (p->started < SLOTS && p->started < p->count)
        start(m, p, hr_tier_take_move(tier, false), m->c->dev->arena + p->started * PIECE);
    while (p->ended < p->started) {
        struct hr_move *move;
        status = finish(m, p, &move);
        if (status != HR_OK)
            return status;
        if (p->started < p->count && hr_clock_ns() - p->begin_ns < MOST_NS)
            start(m, p, move, move->transfer.memory);
        else
            hr_tier_give_move(tier, move);
    }
    p->end_ns = hr_clock_ns();
    return HR_OK;
}

/* What was written is on the disk, and nowhere else. */
static hr_status settle(struct measure *m, struct pass *p)
{
    const struct hr_store *store = &m->c->tier->store;
    int fd = store->files[0].fd;
    if (store->files[0].cache == HR_STORE_DIRECT)
        return HR_OK;
    int error = -store->calls->sync(store->calls->user, fd);
    if (error > 0)
        return hr_fail(m->error, HR_E_IO, "disk directory \"%.256s\": fdatasync: %s (errno %d)",
                       m->path, strerror(error), error);
    p->end_ns = hr_clock_ns();
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return HR_OK;
}

static double rate(const struct pass *p)
{
    int64_t ns = p->end_ns - p->begin_ns;
    return (double)p->ended * PIECE * 1e9 / (double)(ns > 0 ? ns : 1);
}

static hr_status move_both_ways(struct measure *m, hr_disk_rates *rates)
{
    const struct hr_store_file *f = &m->c->tier->store.files[0];
    struct pass out = {.write = true, .count = m->count};
    hr_status status = move_all(m, &out);
    if (status == HR_OK)
        status = settle(m, &out);
    struct pass in = {.count = out.ended};
    if (status == HR_OK)
        status = move_all(m, &in);
    if (status != HR_OK)
        return status;
    *rates = (hr_disk_rates){
        .struct_size = rates->struct_size,
        .direct = f->cache == HR_STORE_DIRECT,
        .in_memory = f->in_memory,
        .alignment = f->memory_align > f->offset_align ? f->memory_align : f->offset_align,
        .read_bytes_per_s = rate(&in),
        .write_bytes_per_s = rate(&out),
    };
    memcpy(rates->text, m->c->tier->text, sizeof(rates->text));
    return HR_OK;
}

static hr_status make_tables(struct measure *m)
{
    uint64_t state = 0x9e3779b97f4a7c15 ^ (uint64_t)hr_clock_ns();
    size_t count = (size_t)m->count;
    m->order = hr_alloc_get(&m->alloc, count * sizeof(*m->order));
    m->sums = hr_alloc_get(&m->alloc, count * HEADS * sizeof(*m->sums));
    if (!m->order || !m->sums)
        return hr_fail(m->error, HR_E_NO_MEMORY, "no memory for the tables of %zu MiB", count);
    shuffle(m->order, m->count, &state);
    fill(m->c->dev->arena, m->c->dev->arena_bytes, &state);
    return HR_OK;
}

hr_status hr_measure(const hr_disk *disk, const char *io, const struct hr_hooks *hooks,
                     struct hr_error *error, hr_disk_rates *rates)
{
    _Static_assert(sizeof(rates->text) == sizeof(((struct hr_tier *)0)->text), "the same line");
    struct measure m = {.error = error, .path = disk->path};
    hr_options options = {.struct_size = sizeof(options),
                          .threads = 1,
                          .unbound = true,
                          .device_bytes = (uint64_t)SLOTS * PIECE,
                          .caps = "portable", /* no kernel runs */
                          .disks = disk,
                          .n_disks = 1,
                          .io = io};
    hr_status status = hr_context_open(&options, hooks, error, &m.c);
    if (status != HR_OK)
        return status;
    hr_alloc_init(&m.alloc, NULL);
    m.count = m.c->tier->extents.count * (HR_EXTENT_BYTES / PIECE);
    status = make_tables(&m);
    if (status == HR_OK)
        status = move_both_ways(&m, rates);
    hr_context_close(m.c); /* before the tables, which moves under way use */
    hr_alloc_put(&m.alloc, m.order, (size_t)m.count * sizeof(*m.order));
    hr_alloc_put(&m.alloc, m.sums, (size_t)m.count * HEADS * sizeof(*m.sums));
    return status;
}

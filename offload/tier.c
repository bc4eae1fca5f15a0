/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/tier.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MOVES = 96, MOVES_OF_READS = 48 };

static int64_t read_nothing(void *user, int fd, void *memory, size_t bytes, uint64_t offset)
{
    return (int64_t)bytes;
}

static int64_t write_nothing(void *user, int fd, const void *memory, size_t bytes, uint64_t offset)
{
    return (int64_t)bytes;
}

static int close_nothing(void *user, int fd)
{
    return 0;
}

static const struct hr_io_calls no_calls = {
    .pread = read_nothing, .pwrite = write_nothing, .close = close_nothing};

/* A store without files, as large as the directories. */
static hr_status open_dry_store(struct hr_store *store, const struct hr_tier_options *o,
                                struct hr_error *error)
{
    hr_status status = hr_store_check(o->dirs, o->n_dirs, error);
    if (status != HR_OK)
        return status;
    *store = (struct hr_store){.alloc = o->alloc, .calls = &no_calls, .n_files = 1};
    store->files = hr_alloc_zero(o->alloc, sizeof(*store->files));
    if (!store->files)
        return hr_fail(error, HR_E_NO_MEMORY, "no memory for a file");
    for (int32_t i = 0; i < o->n_dirs; i++)
        store->extents += (int64_t)(o->dirs[i].bytes / HR_EXTENT_BYTES);
    store->files[0].extents = store->extents;
    return HR_OK;
}

/* The ring where it works, else threads. */
static struct hr_io *open_io(const struct hr_tier_options *o, char *why)
{
    struct hr_io_options io = {
        .alloc = o->alloc,
        .calls = o->calls,
        .depth = o->depth,
        .memory = o->dev->arena,
        .bytes = o->dev->arena_bytes,
    };
    struct hr_io *ring = NULL;
    if (o->dry) {
        io.calls = &no_calls;
        return hr_io_sim_open(&io, &(struct hr_io_sim_options){.ordered = true}, why);
    }
    if (o->open_io)
        return o->open_io(o->user, &io, why);
    if (o->engine == HR_TIER_SIMULATED)
        return hr_io_sim_open(&io, o->sim, why);
    if (o->engine != HR_TIER_THREADS)
        ring = hr_io_uring_open(&io, why);
    if (ring || o->engine == HR_TIER_URING)
        return ring;
    return hr_io_threads_open(&io, why);
}

static void describe(struct hr_tier *tier)
{
    const struct hr_io *io = tier->io;
    if (tier->store.calls == &no_calls) {
        snprintf(tier->text, sizeof(tier->text), "a dry run of %lld MiB on disk",
                 (long long)(tier->store.extents * HR_EXTENT_BYTES >> 20));
        return;
    }
    int n =
        snprintf(tier->text, sizeof(tier->text), "%s; ", io->text[0] ? io->text : io->ops->name);
    if (n > 0 && (size_t)n < sizeof(tier->text))
        hr_store_text(&tier->store, tier->text + n, sizeof(tier->text) - (size_t)n);
}

static hr_status open_mover(struct hr_tier *tier, const struct hr_tier_options *o,
                            struct hr_error *error)
{
    char why[192] = "";
    int no_thread = 0;
    uint64_t refused = o->alloc->refused;
    struct hr_io *io = open_io(o, why);
    if (!io) {
        hr_status status = o->engine == HR_TIER_URING ? HR_E_UNSUPPORTED : HR_E_SYSTEM;
        status = o->alloc->refused > refused ? HR_E_NO_MEMORY : status;
        return hr_fail(error, status, "I/O engine: %s", why);
    }
    tier->io = io;
    describe(tier);
    struct hr_mover_options options = {.alloc = o->alloc, .manual = o->manual || o->dry};
    options.transfers = hr_transfers_open(o->alloc, io);
    if (options.transfers)
        tier->mover = hr_mover_open(&options, &no_thread);
    if (no_thread)
        return hr_fail(error, HR_E_SYSTEM, "no thread for I/O: %s", strerror(no_thread));
    return tier->mover ? HR_OK : hr_fail(error, HR_E_NO_MEMORY, "no memory for the I/O queue");
}

static hr_status make_tables(struct hr_tier *tier, const struct hr_tier_options *o,
                             struct hr_error *error)
{
    tier->moves = hr_alloc_zero(o->alloc, MOVES * sizeof(*tier->moves));
    bool ok = tier->moves && hr_extents_init(&tier->extents, o->alloc, tier->store.extents) &&
              hr_tickets_init(&tier->tickets, o->dev);
    for (int32_t i = 0; tier->moves && i < MOVES; i++)
        hr_tier_give_move(tier, &tier->moves[i]);
    return ok ? HR_OK
              : hr_fail(error, HR_E_NO_MEMORY, "no memory for the tables of %lld extents on disk",
                        (long long)tier->store.extents);
}

hr_status hr_tier_open(struct hr_tier *tier, const struct hr_tier_options *o,
                       struct hr_error *error)
{
    *tier = (struct hr_tier){.alloc = o->alloc};
    struct hr_store_options store = {
        .alloc = o->alloc, .calls = o->calls, .dirs = o->dirs, .n_dirs = o->n_dirs};
    hr_status status = o->dry ? open_dry_store(&tier->store, o, error)
                              : hr_store_open(&tier->store, &store, error);
    if (status != HR_OK)
        return status;
    status = make_tables(tier, o, error);
    if (status == HR_OK)
        status = open_mover(tier, o, error);
    if (status != HR_OK)
        hr_tier_close(tier);
    return status;
}

void hr_tier_close(struct hr_tier *tier)
{
    hr_mover_close(tier->mover);
    if (tier->tickets.dev)
        hr_tickets_close(&tier->tickets);
    hr_extents_close(&tier->extents, tier->alloc);
    hr_alloc_put(tier->alloc, tier->moves, MOVES * sizeof(*tier->moves));
    hr_store_close(&tier->store);
    *tier = (struct hr_tier){0};
}

void hr_tier_resize(struct hr_tier *tier, uint64_t bytes)
{
    hr_mover_resize(tier->mover, bytes);
    describe(tier);
}

struct hr_move *hr_tier_take_move(struct hr_tier *tier, bool write)
{
    struct hr_move *move = tier->free_moves;
    if (!move || (write && tier->free_count <= MOVES_OF_READS))
        return NULL;
    tier->free_moves = move->next;
    tier->free_count--;
    return move;
}

void hr_tier_give_move(struct hr_tier *tier, struct hr_move *move)
{
    move->next = tier->free_moves;
    tier->free_moves = move;
    tier->free_count++;
}

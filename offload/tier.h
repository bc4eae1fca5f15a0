/* SPDX-License-Identifier: Apache-2.0 */
/* The tier below the one that kernels read: its files, the mover, and the moves there are. */
#ifndef HR_OFFLOAD_TIER_H
#define HR_OFFLOAD_TIER_H

#include "offload/mover.h"
#include "offload/store.h"
#include "offload/ticket.h"

enum hr_tier_engine { HR_TIER_AUTO, HR_TIER_URING, HR_TIER_THREADS, HR_TIER_SIMULATED };

struct hr_tier_options {
    struct hr_alloc *alloc;
    struct hr_dev *dev;
    const struct hr_store_dir *dirs;
    int32_t n_dirs;
    enum hr_tier_engine engine;
    const struct hr_io_sim_options *sim; /* with HR_TIER_SIMULATED */
    const struct hr_io_calls *calls;     /* NULL: the system's */
    /* Opens the engine instead, or NULL. */
    struct hr_io *(*open_io)(void *user, const struct hr_io_options *options, char *why);
    void *user;
    int depth;   /* requests at a time; 0: the default */
    bool manual; /* no progress thread */
    bool dry;    /* no files: transfers end at once and move nothing */
};

struct hr_tier {
    struct hr_alloc *alloc;
    struct hr_store store;
    struct hr_extents extents; /* of the store */
    const struct hr_io *io;
    struct hr_mover *mover;
    struct hr_tickets tickets;
    struct hr_move *moves, *free_moves;
    int32_t free_count;
    uint64_t generation; /* of the last write */
    /* The last write that failed for good: its blocks stayed where they were. */
    int write_error;
    int64_t write_failures;
    char text[320]; /* the engine, the directories: one line */
};

/* Errors: as hr_store_open; HR_E_UNSUPPORTED: the engine that was asked for. */
hr_status hr_tier_open(struct hr_tier *tier, const struct hr_tier_options *options,
                       struct hr_error *error);
void hr_tier_close(struct hr_tier *tier);

/* Only the first `bytes` of the device's arena are read to and written from, from now on; nothing
 * is under way. */
void hr_tier_resize(struct hr_tier *tier, uint64_t bytes);

/* A move to fill, or NULL: all are under way. Some are kept for reads. */
struct hr_move *hr_tier_take_move(struct hr_tier *tier, bool write);
void hr_tier_give_move(struct hr_tier *tier, struct hr_move *move);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The copies of a pool's blocks in the tier below: eviction, and who may use which slot when. */
#ifndef HR_OFFLOAD_LOWER_H
#define HR_OFFLOAD_LOWER_H

#include "offload/blocks.h"
#include "offload/tier.h"

/* What a block's pages are (page.h), and its place in the queue of those that leave. */
struct hr_birth {
    uint64_t uid, generation, index;
    uint32_t layer;
    uint32_t next;        /* of the queue */
    uint32_t mark;        /* residency.h */
    bool leaving;         /* gives its slot up once it is written */
    uint16_t heads;       /* its pages that have checksums */
    uint32_t entry, list; /* ring.h: what brings it, in which list */
};

struct hr_lower {
    struct hr_tier *tier;
    struct hr_blocks *blocks;
    struct hr_slab slots;    /* of the files */
    struct hr_birth *births; /* [blocks->max] */
    uint64_t *sums;          /* [slot below][heads] */
    uint64_t layout;
    int32_t heads;
    uint32_t first_leaving, last_leaving; /* queue: evicted, their write not yet started */
    int64_t leaving;                      /* slots that will be free */
    uint64_t slots_peak;                  /* highest slots.slots_used so far */
    int64_t writing;                      /* moves under way */
};

struct hr_lower_options {
    struct hr_tier *tier;
    struct hr_blocks *blocks; /* made with room for `extents` below */
    uint64_t layout;
    int64_t extents; /* of the store, at most */
    int32_t heads;   /* most of a block */
};

/* False: no memory. */
bool hr_lower_init(struct hr_lower *l, const struct hr_lower_options *options);
/* Nothing may be under way. */
void hr_lower_close(struct hr_lower *l);

/* Slots below that are free. */
int64_t hr_lower_room(const struct hr_lower *l);

/* The block gives up its slot: at once when it has a copy below, else when it is written. False: no
 * room below; nothing changed. */
bool hr_lower_evict(struct hr_lower *l, uint32_t block);
/* It stays after all: the copy below that is being written is one more. */
void hr_lower_stay(struct hr_lower *l, uint32_t block);
/* The block is about to be written to: its copy below goes. */
void hr_lower_forget(struct hr_lower *l, uint32_t block);
/* Drops one owner of the block, as hr_blocks_drop. */
void hr_lower_drop(struct hr_lower *l, uint32_t block);

/* Gives up the copies below of resident blocks. Returns how many. */
int64_t hr_lower_reclaim(struct hr_lower *l);

/* Starts writes, as far as their slots' work is done and moves are there. */
void hr_lower_pump(struct hr_lower *l);
/* A write has come back. */
void hr_lower_written(struct hr_lower *l, const struct hr_move *move);

/* Where a slot below lies. */
struct hr_store_place hr_lower_place(const struct hr_lower *l, uint32_t slot);
/* The block as part of a move. */
struct hr_moved hr_lower_moved(const struct hr_lower *l, uint32_t block);
/* Frees what a dead block had, once its last transfer has ended. */
void hr_lower_bury(struct hr_lower *l, uint32_t block);

/* Ticket of the last work that touched a slot of the arena. */
static inline uint64_t *hr_lower_used_by(const struct hr_lower *l, uint32_t slot)
{
    return &l->blocks->slots.used_by[slot];
}

/* Not resident: below, on its way, or about to leave. */
static inline bool hr_lower_away(const struct hr_lower *l, uint32_t block)
{
    return l->blocks->all[block].life.device != HR_LIFE_THERE || l->births[block].leaving;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of one size: what each is, how many own it, and where its copies are. A block's number
 * stays the same wherever it lies; kernels read slots. */
#ifndef HR_OFFLOAD_BLOCKS_H
#define HR_OFFLOAD_BLOCKS_H

#include "offload/life.h"
#include "offload/slab.h"

struct hr_block {
    struct hr_life life;
    uint32_t slot;  /* of the arena; HR_BLOCK_NONE: it has none there */
    uint32_t lower; /* of the tier below; HR_BLOCK_NONE */
    uint32_t next;  /* link of the free list */
};

struct hr_blocks {
    struct hr_slab slots;
    struct hr_alloc *alloc;
    struct hr_block *all; /* [max], touched as far as `high` */
    uint64_t used;        /* blocks that are not free */
    uint64_t owned;       /* those that have an owner */
    uint32_t max, high;
    uint32_t first_free; /* of those below `high` */
    /* The first event that a guard forbade: a bug of the engine. */
    enum hr_life_event broken_event;
    bool broken;
};

struct hr_blocks_options {
    struct hr_alloc *alloc;
    struct hr_extents *arena;
    unsigned char *base;
    uint64_t block_bytes;
    uint32_t run;   /* extents of a part of the slab */
    uint32_t below; /* how many more blocks there may be than the arena has slots */
};

/* False: no memory. */
bool hr_blocks_init(struct hr_blocks *b, const struct hr_blocks_options *options);
void hr_blocks_close(struct hr_blocks *b);

/* Applies an event to a block; one that is forbidden is kept in `broken`. */
void hr_blocks_event(struct hr_blocks *b, uint32_t block, enum hr_life_event event);

/* Notes what should never be: `event` is missing or forbidden. */
void hr_blocks_break(struct hr_blocks *b, enum hr_life_event event);

/* Takes up to `count` new blocks with a slot each. Returns how many; never allocates. */
int64_t hr_blocks_take(struct hr_blocks *b, uint32_t *blocks, uint32_t *slots, int64_t count);
/* Takes up to `count` new blocks without slots (place), for a pool with a tier below. */
int64_t hr_blocks_take_unplaced(struct hr_blocks *b, uint32_t *blocks, int64_t count);
/* Gives a new block a slot. False: none is free. */
bool hr_blocks_place(struct hr_blocks *b, uint32_t block);
/* Drops one owner; the last one's slot goes too. Without a tier below. */
void hr_blocks_drop(struct hr_blocks *b, uint32_t block);
/* The number of a block that has become free may be used again. */
void hr_blocks_bury(struct hr_blocks *b, uint32_t block);

static inline bool hr_blocks_shared(const struct hr_blocks *b, uint32_t block)
{
    return b->all[block].life.refs > 1;
}

static inline uint64_t hr_blocks_bytes(const struct hr_blocks *b)
{
    return b->slots.view.block_bytes;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of one size over extents of the arena, with reference counts: a block may belong to
 * several sequences. An extent returns to the arena when its last block is given back. */
#ifndef HR_OFFLOAD_SLAB_H
#define HR_OFFLOAD_SLAB_H

#include "offload/extent.h"
#include "src/base/geom.h"

#define HR_BLOCK_NONE UINT32_MAX

struct hr_slab {
    struct hr_pool_view view; /* block id -> address; what kernels read */
    struct hr_extents *arena;
    struct hr_alloc *alloc;
    uint64_t blocks_used;
    uint32_t extents_max; /* slots that this slab can ever have */
    uint32_t run;         /* arena extents of one slot */
    uint32_t slots;       /* slots in use or once used */
    uint32_t first_open;  /* head of the list of slots with a free block */
    uint32_t first_empty; /* head of the list of slots without an extent */
    uint32_t *extents;    /* [slot] first arena extent */
    uint32_t *next_slot;  /* [slot] link of either list */
    uint32_t *prev_slot;  /* [slot] back link of the open list */
    uint32_t *free_head;  /* [slot] first free block of the slot */
    uint32_t *free_count; /* [slot] */
    uint32_t *next_free;  /* [block] link of the slot's free list */
    uint32_t *refs;       /* [block] */
};

/* Prepares a slab of blocks of `block_bytes` over the arena at `base`. False: no memory. */
bool hr_slab_init(struct hr_slab *s, struct hr_alloc *alloc, struct hr_extents *arena,
                  unsigned char *base, uint64_t block_bytes);
/* Gives back all memory and extents. */
void hr_slab_close(struct hr_slab *s);

/* Writes up to `count` blocks with one reference each into blocks[]; fewer than `count` when the
 * arena is full. Returns how many. Never allocates. */
int64_t hr_slab_take(struct hr_slab *s, uint32_t *blocks, int64_t count);
void hr_slab_share(struct hr_slab *s, uint32_t block);
/* Drops one reference. */
void hr_slab_give(struct hr_slab *s, uint32_t block);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of one size over extents, of the arena or of files. An extent goes back when its last slot
 * is given back. */
#ifndef HR_OFFLOAD_SLAB_H
#define HR_OFFLOAD_SLAB_H

#include "offload/extent.h"
#include "src/base/geom.h"

#define HR_BLOCK_NONE UINT32_MAX

struct hr_slab {
    struct hr_pool_view view; /* slot id -> address; what kernels read */
    struct hr_extents *arena; /* or those of files */
    struct hr_alloc *alloc;
    uint64_t slots_used;
    uint32_t extents_max; /* parts that this slab can ever have */
    uint32_t parts_limit; /* parts that it may have now: its share of the extents */
    uint32_t parts_held;
    uint32_t run;         /* arena extents of one part */
    uint32_t parts;       /* parts in use or once used */
    uint32_t first_open;  /* head of the list of parts with a free slot */
    uint32_t first_empty; /* head of the list of parts without an extent */
    uint32_t *extents;    /* [part] first arena extent */
    uint32_t *next_part;  /* [part] link of either list */
    uint32_t *prev_part;  /* [part] back link of the open list */
    uint32_t *free_head;  /* [part] first free slot of the part */
    uint32_t *free_count; /* [part] */
    uint32_t *next_free;  /* [slot] link of the part's free list */
    /* With hr_slab_watch: [slot] ticket of the last work that touched it. */
    uint64_t *used_by;
    const uint64_t *now; /* the last ticket there is */
};

/* Extents that a block takes: the fewest that a part may have. */
uint32_t hr_slab_run(uint64_t block_bytes);
/* Prepares a slab of slots of `block_bytes`, in parts of `run` extents, over extents at `base`
 * (NULL: of files, which have no address). False: no memory. */
bool hr_slab_init(struct hr_slab *s, struct hr_alloc *alloc, struct hr_extents *arena,
                  unsigned char *base, uint64_t block_bytes, uint32_t run);
/* Notes from now on who used which slot last. The slots of a new part begin with `*now`: its extent
 * may have been another slab's. False: no memory. */
bool hr_slab_watch(struct hr_slab *s, const uint64_t *now);
/* Gives back all memory and extents. */
void hr_slab_close(struct hr_slab *s);

/* Writes up to `count` slots into slots[]; fewer than `count` when there is no extent left. Returns
 * how many. Never allocates. */
int64_t hr_slab_take(struct hr_slab *s, uint32_t *slots, int64_t count);
void hr_slab_give(struct hr_slab *s, uint32_t slot);

/* For pack.h. Takes slots of these parts from now on, in this order; they are all that it holds, in
 * the low half of each entry. */
void hr_slab_prefer(struct hr_slab *s, const uint64_t *parts, uint32_t n);
/* Gives up a part with all its slots, which are nobody's. */
void hr_slab_drop_part(struct hr_slab *s, uint32_t part);

#endif

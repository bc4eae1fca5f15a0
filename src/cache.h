/* SPDX-License-Identifier: Apache-2.0 */
/* A cache: layers, their classes of equal geometry, the blocks of each size. */
#ifndef HR_CACHE_H
#define HR_CACHE_H

#include "kernels/cuda/launch.h"
#include "offload/ring.h"
#include "src/context.h"

/* Layers of equal geometry share plans; those whose blocks have one size share blocks. */
struct hr_class {
    struct hr_geom geom;
    int32_t pool;
    struct hr_cu_class cuda; /* with a CUDA device */
};

/* A pool's part of the tiers. */
struct hr_tiered {
    struct hr_lower lower;
    struct hr_ring ring;
    int64_t slots;       /* of the device, the ring's among them */
    uint32_t ring_slots; /* of these */
    uint32_t wave_most;  /* of the ring's, for a wave */
    int64_t layers;      /* whose blocks are of this pool */
    int64_t reserved;    /* slots that open steps count on, beside what sequences keep */
};

struct hr_cache {
    hr_context *context;
    hr_cache *next;                   /* of the context's */
    const struct hr_kernels *kernels; /* frozen here */
    struct hr_class *classes;         /* [n_layers] allocated, n_classes used */
    int32_t *class_of;                /* [n_layers] */
    struct hr_blocks *pools;          /* [n_layers] allocated, n_pools used */
    int32_t n_layers;
    int32_t n_classes;
    int32_t n_pools;
    uint32_t run;             /* extents that a part of any pool has at least */
    struct hr_tiered *tiered; /* [n_pools] with a tier below, else none */
    int32_t n_tiered;         /* n_pools, or 0 */
    hr_seq *first_seq;        /* of those not yet destroyed */
    hr_step *fetching;        /* whose list the rings work on, or NULL */
    uint32_t mark;            /* of the last begin */
    uint64_t evictions;       /* so far: a fetch list made before one may be wrong */
    int64_t promised;         /* extents of the device that are its own */
    int32_t users;            /* sequences and steps not yet destroyed */
    hr_step *first_open;      /* of the open steps */
};

hr_status hr_cache_make(hr_context *context, const hr_cache_options *options, hr_cache **cache);
void hr_cache_free(hr_cache *cache);
/* HR_E_BUG once a block was to do what its life forbids. */
hr_status hr_cache_status(const hr_cache *cache);

static inline const struct hr_geom *hr_cache_geom(const hr_cache *cache, int32_t layer)
{
    return &cache->classes[cache->class_of[layer]].geom;
}

static inline int32_t hr_cache_pool_of(const hr_cache *cache, int32_t layer)
{
    return cache->classes[cache->class_of[layer]].pool;
}

/* NULL: there is no tier below. */
static inline struct hr_tiered *hr_cache_tiered(const hr_cache *cache, int32_t layer)
{
    return cache->n_tiered ? &cache->tiered[hr_cache_pool_of(cache, layer)] : NULL;
}

static inline struct hr_blocks *hr_cache_pool(const hr_cache *cache, int32_t layer)
{
    return &cache->pools[hr_cache_pool_of(cache, layer)];
}

/* Where kernels find the slots of a layer. */
static inline const struct hr_pool_view *hr_cache_view(const hr_cache *cache, int32_t layer)
{
    return &hr_cache_pool(cache, layer)->slots.view;
}

/* Take (as hr_blocks_take) and drop blocks of a layer, counted in the context's statistics. */
int64_t hr_cache_take(hr_cache *cache, int32_t layer, uint32_t *blocks, uint32_t *slots,
                      int64_t count);
/* With a tier below: new blocks [first, first + count) of a sequence's layer, without slots. */
int64_t hr_cache_take_unplaced(hr_cache *cache, int32_t layer, const hr_seq *seq, uint32_t *blocks,
                               int64_t first, int64_t count);
void hr_cache_drop(hr_cache *cache, int32_t layer, uint32_t block);

#endif

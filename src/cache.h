/* SPDX-License-Identifier: Apache-2.0 */
/* A cache: layers, their classes of equal geometry, the blocks of each size. */
#ifndef HR_CACHE_H
#define HR_CACHE_H

#include "kernels/cuda/launch.h"
#include "offload/blocks.h"
#include "src/context.h"

/* Layers of equal geometry share plans; those whose blocks have one size share blocks. */
struct hr_class {
    struct hr_geom geom;
    int32_t pool;
    struct hr_cu_class cuda; /* with a CUDA device */
};

struct hr_cache {
    hr_context *context;
    const struct hr_kernels *kernels; /* frozen here */
    struct hr_class *classes;         /* [n_layers] allocated, n_classes used */
    int32_t *class_of;                /* [n_layers] */
    struct hr_blocks *pools;          /* [n_layers] allocated, n_pools used */
    int32_t n_layers;
    int32_t n_classes;
    int32_t n_pools;
    int32_t users; /* sequences and steps not yet destroyed */
};

hr_status hr_cache_make(hr_context *context, const hr_cache_options *options, hr_cache **cache);
void hr_cache_free(hr_cache *cache);
/* HR_E_BUG once a block was to do what its life forbids. */
hr_status hr_cache_status(const hr_cache *cache);

static inline const struct hr_geom *hr_cache_geom(const hr_cache *cache, int32_t layer)
{
    return &cache->classes[cache->class_of[layer]].geom;
}

static inline struct hr_blocks *hr_cache_pool(const hr_cache *cache, int32_t layer)
{
    return &cache->pools[cache->classes[cache->class_of[layer]].pool];
}

/* Where kernels find the slots of a layer. */
static inline const struct hr_pool_view *hr_cache_view(const hr_cache *cache, int32_t layer)
{
    return &hr_cache_pool(cache, layer)->slots.view;
}

/* Take (as hr_blocks_take) and drop blocks of a layer, counted in the context's statistics. */
int64_t hr_cache_take(hr_cache *cache, int32_t layer, uint32_t *blocks, uint32_t *slots,
                      int64_t count);
void hr_cache_drop(hr_cache *cache, int32_t layer, uint32_t block);

#endif

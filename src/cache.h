/* SPDX-License-Identifier: Apache-2.0 */
/* A cache: layers, their classes of equal geometry, one slab of blocks per class. */
#ifndef HR_CACHE_H
#define HR_CACHE_H

#include "kernels/cuda/launch.h"
#include "offload/slab.h"
#include "src/context.h"

/* Layers of equal geometry share blocks and plans. */
struct hr_class {
    struct hr_geom geom;
    struct hr_slab slab;
    struct hr_cu_class cuda; /* with a CUDA device */
};

struct hr_cache {
    hr_context *context;
    const struct hr_kernels *kernels; /* frozen here */
    struct hr_class *classes;         /* [n_layers] allocated, n_classes used */
    int32_t *class_of;                /* [n_layers] */
    int32_t n_layers;
    int32_t n_classes;
    int32_t users; /* sequences and steps not yet destroyed */
};

hr_status hr_cache_make(hr_context *context, const hr_cache_options *options, hr_cache **cache);
void hr_cache_free(hr_cache *cache);

static inline const struct hr_geom *hr_cache_geom(const hr_cache *cache, int32_t layer)
{
    return &cache->classes[cache->class_of[layer]].geom;
}

static inline struct hr_slab *hr_cache_slab(hr_cache *cache, int32_t layer)
{
    return &cache->classes[cache->class_of[layer]].slab;
}

/* Take (as hr_slab_take) and give blocks of a layer, counted in the context's statistics. */
int64_t hr_cache_take(hr_cache *cache, int32_t layer, uint32_t *blocks, int64_t count);
void hr_cache_give(hr_cache *cache, int32_t layer, uint32_t block);

#endif

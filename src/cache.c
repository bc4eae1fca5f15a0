/* SPDX-License-Identifier: Apache-2.0 */
#include "src/cache.h"

#include <string.h>

#include "src/seq.h"
#include "src/tiers.h"

enum { LAYERS_MAX = 4096, KV_HEADS_MAX = 1024, Q_HEADS_MAX = 4096 };

static hr_status check_shape(const hr_layer_options *l, int32_t i, struct hr_error *error)
{
    if (l->kv_heads < 1 || l->kv_heads > KV_HEADS_MAX)
        return hr_fail(error, HR_E_INVALID, "layer %d: kv_heads is %d; 1 to %d are allowed", i,
                       l->kv_heads, KV_HEADS_MAX);
    if (l->q_heads < 1 || l->q_heads > Q_HEADS_MAX || l->q_heads % l->kv_heads != 0)
        return hr_fail(
            error, HR_E_INVALID,
            "layer %d: q_heads is %d; it must be 1 to %d and a multiple of kv_heads (%d)", i,
            l->q_heads, Q_HEADS_MAX, l->kv_heads);
    if (l->dim_k < 8 || l->dim_k > HR_DIM_MAX || l->dim_k % 8 != 0)
        return hr_fail(error, HR_E_INVALID,
                       "layer %d: dim_k is %d; it must be a multiple of 8 from 8 to %d", i,
                       l->dim_k, HR_DIM_MAX);
    if ((int)l->dtype < HR_BF16 || (int)l->dtype > HR_FP32)
        return hr_fail(error, HR_E_INVALID,
                       "layer %d: dtype is %d; HR_BF16 (1), HR_FP16 (2) and HR_FP32 (3) exist", i,
                       (int)l->dtype);
    if (l->window < 0 || l->sinks < 0)
        return hr_fail(error, HR_E_INVALID,
                       "layer %d: window is %lld and sinks is %lld; both must be >= 0", i,
                       (long long)l->window, (long long)l->sinks);
    return HR_OK;
}

/* Fields that exist for later versions. */
static hr_status check_reserved(const hr_layer_options *l, int32_t i, struct hr_error *error)
{
    if (l->dim_v != 0 && l->dim_v != l->dim_k)
        return hr_fail(error, HR_E_UNSUPPORTED,
                       "layer %d: dim_v is %d and dim_k is %d; they must be equal in this version",
                       i, l->dim_v, l->dim_k);
    if (l->kv_layers_back != 0)
        return hr_fail(error, HR_E_UNSUPPORTED,
                       "layer %d: kv_layers_back is %d; only 0 is supported in this version", i,
                       l->kv_layers_back);
    if (l->aux_bytes != 0)
        return hr_fail(error, HR_E_UNSUPPORTED,
                       "layer %d: aux_bytes is %d; only 0 is supported in this version", i,
                       l->aux_bytes);
    if (l->v_is_prefix_of_k)
        return hr_fail(error, HR_E_UNSUPPORTED,
                       "layer %d: v_is_prefix_of_k is set; it is not supported in this version", i);
    return HR_OK;
}

static hr_layer_options layer_of(const hr_cache_options *o, int32_t i)
{
    hr_layer_options layer;
    memcpy(&layer, (const char *)o->layers + (size_t)i * o->layer_size, sizeof(layer));
    return layer;
}

static int64_t at_most_tokens_max(int64_t n)
{
    return n < HR_TOKENS_MAX ? n : HR_TOKENS_MAX;
}

static struct hr_geom geom_of(const hr_layer_options *l)
{
    return (struct hr_geom){
        .kv_heads = l->kv_heads,
        .group = l->q_heads / l->kv_heads,
        .dim = l->dim_k,
        .dtype = l->dtype,
        .window = at_most_tokens_max(l->window),
        .sinks = l->window ? at_most_tokens_max(l->sinks) : 0,
    };
}

static bool geom_equal(const struct hr_geom *a, const struct hr_geom *b)
{
    return a->kv_heads == b->kv_heads && a->group == b->group && a->dim == b->dim &&
           a->dtype == b->dtype && a->window == b->window && a->sinks == b->sinks;
}

/* Blocks of a size that the disk has room for. */
static uint32_t most_below(const hr_context *c, uint64_t block_bytes, uint32_t run)
{
    if (!c->tier)
        return 0;
    uint64_t most = (uint64_t)c->tier->store.extents / run * (run * HR_EXTENT_BYTES / block_bytes);
    return most < HR_BLOCK_NONE / 2 ? (uint32_t)most : HR_BLOCK_NONE / 2;
}

/* Finds or makes the pool for blocks of a size. */
static hr_status pool_for(hr_cache *cache, uint64_t block_bytes, int32_t *index)
{
    hr_context *c = cache->context;
    for (*index = 0; *index < cache->n_pools; ++*index)
        if (hr_blocks_bytes(&cache->pools[*index]) == block_bytes)
            return HR_OK;
    uint32_t least = hr_slab_run(block_bytes), run = cache->run > least ? cache->run : least;
    if (run > c->extents.limit)
        return hr_fail(&c->error, HR_E_BUDGET,
                       "one block of %d tokens takes %llu bytes; the K/V budget is %llu bytes",
                       HR_BLOCK_TOKENS, (unsigned long long)block_bytes,
                       (unsigned long long)hr_context_budget(c));
    struct hr_blocks_options options = {
        .alloc = &c->alloc,
        .arena = &c->extents,
        .base = c->dev->arena,
        .block_bytes = block_bytes,
        .run = run,
        .below = most_below(c, block_bytes, run),
    };
    if (!hr_blocks_init(&cache->pools[*index], &options))
        return hr_fail(
            &c->error, HR_E_NO_MEMORY,
            "no memory for the tables of blocks of %llu bytes in a budget of %llu bytes and "
            "%lld on disk",
            (unsigned long long)block_bytes, (unsigned long long)c->dev->arena_bytes,
            c->tier ? (long long)c->tier->store.extents * HR_EXTENT_BYTES : 0ll);
    cache->n_pools++;
    return HR_OK;
}

/* With a tier below each pool has a share of the extents for good: parts of one size leave no hole
 * that only some of them could use. */
static uint32_t common_run(const hr_cache_options *o)
{
    uint32_t run = 1;
    for (int32_t i = 0; i < o->n_layers; i++) {
        hr_layer_options layer = layer_of(o, i);
        struct hr_geom g = geom_of(&layer);
        uint32_t own = hr_slab_run(hr_block_bytes(&g));
        run = own > run ? own : run;
    }
    return run;
}

/* Finds or makes the class of a geometry. */
static hr_status class_for(hr_cache *cache, const struct hr_geom *g, int32_t layer, int32_t *index)
{
    for (*index = 0; *index < cache->n_classes; ++*index)
        if (geom_equal(&cache->classes[*index].geom, g))
            return HR_OK;
    struct hr_class *class = &cache->classes[*index];
    class->geom = *g;
    hr_status status = pool_for(cache, hr_block_bytes(g), &class->pool);
    if (status != HR_OK)
        return status;
    cache->n_classes++;
#ifdef HR_HAVE_CUDA
    hr_context *c = cache->context;
    char why[HR_DEV_TEXT_BYTES] = "";
    if (c->cuda && !hr_cu_class_make(c->cuda, g, HR_EXTENT_BYTES, &class->cuda, why)) {
        hr_status dead = hr_context_device_status(c);
        if (dead != HR_OK)
            return dead;
        return hr_fail(&c->error, HR_E_UNSUPPORTED, "layer %d: %s", layer, why);
    }
#endif
    return HR_OK;
}

static hr_status add_layers(hr_cache *cache, const hr_cache_options *o)
{
    struct hr_error *error = &cache->context->error;
    for (int32_t i = 0; i < o->n_layers; i++) {
        hr_layer_options layer = layer_of(o, i);
        hr_status status = check_shape(&layer, i, error);
        if (status == HR_OK)
            status = check_reserved(&layer, i, error);
        if (status != HR_OK)
            return status;
    }
    cache->run = cache->context->tier ? common_run(o) : 1;
    for (int32_t i = 0; i < o->n_layers; i++) {
        hr_layer_options layer = layer_of(o, i);
        struct hr_geom g = geom_of(&layer);
        hr_status status = class_for(cache, &g, i, &cache->class_of[i]);
        if (status != HR_OK)
            return status;
    }
    return HR_OK;
}

hr_status hr_cache_make(hr_context *c, const hr_cache_options *o, hr_cache **out)
{
    if (o->n_layers < 1 || o->n_layers > LAYERS_MAX || !o->layers)
        return hr_fail(&c->error, HR_E_INVALID,
                       "options.n_layers is %d and layers is %s; 1 to %d layers are needed",
                       o->n_layers, o->layers ? "set" : "NULL", LAYERS_MAX);
    if (o->layer_size != sizeof(hr_layer_options))
        return hr_fail(&c->error, HR_E_INVALID,
                       "options.layer_size is %zu; this library's hr_layer_options has %zu bytes",
                       o->layer_size, sizeof(hr_layer_options));
    hr_cache *cache = hr_alloc_zero(&c->alloc, sizeof(*cache));
    if (!cache)
        return hr_fail(&c->error, HR_E_NO_MEMORY, "no memory for a cache");
    cache->context = c;
    cache->kernels = c->kernels;
    cache->n_layers = o->n_layers;
    c->caches++;
    cache->next = c->first_cache;
    c->first_cache = cache;
    cache->classes = hr_alloc_zero(&c->alloc, (size_t)o->n_layers * sizeof(*cache->classes));
    cache->class_of = hr_alloc_zero(&c->alloc, (size_t)o->n_layers * sizeof(*cache->class_of));
    cache->pools = hr_alloc_zero(&c->alloc, (size_t)o->n_layers * sizeof(*cache->pools));
    hr_status status =
        cache->classes && cache->class_of && cache->pools
            ? add_layers(cache, o)
            : hr_fail(&c->error, HR_E_NO_MEMORY, "no memory for %d layers", o->n_layers);
    if (status == HR_OK && c->tier)
        status = hr_tiers_make(cache);
    if (status != HR_OK)
        hr_cache_free(cache);
    else
        *out = cache;
    return status;
}

void hr_cache_free(hr_cache *cache)
{
    hr_context *c = cache->context;
    hr_cache **at = &c->first_cache;
    while (*at != cache)
        at = &(*at)->next;
    hr_tiers_free(cache);
    *at = cache->next;
    for (int32_t i = 0; i < cache->n_pools; i++)
        hr_blocks_close(&cache->pools[i]);
    hr_alloc_put(&c->alloc, cache->pools, (size_t)cache->n_layers * sizeof(*cache->pools));
    hr_alloc_put(&c->alloc, cache->classes, (size_t)cache->n_layers * sizeof(*cache->classes));
    hr_alloc_put(&c->alloc, cache->class_of, (size_t)cache->n_layers * sizeof(*cache->class_of));
    hr_alloc_put(&c->alloc, cache, sizeof(*cache));
    c->caches--;
}

int64_t hr_cache_take(hr_cache *cache, int32_t layer, uint32_t *blocks, uint32_t *slots,
                      int64_t count)
{
    hr_context *c = cache->context;
    struct hr_blocks *pool = hr_cache_pool(cache, layer);
    int64_t taken = hr_blocks_take(pool, blocks, slots, count);
    c->kv_bytes_used += (uint64_t)taken * hr_blocks_bytes(pool);
    if (c->kv_bytes_used > c->kv_bytes_peak)
        c->kv_bytes_peak = c->kv_bytes_used;
    return taken;
}

int64_t hr_cache_take_unplaced(hr_cache *cache, int32_t layer, const hr_seq *seq, uint32_t *blocks,
                               int64_t first, int64_t count)
{
    hr_context *c = cache->context;
    struct hr_tiered *t = hr_cache_tiered(cache, layer);
    int64_t taken = hr_blocks_take_unplaced(t->lower.blocks, blocks, count);
    int32_t heads = c->dry ? 0 : hr_cache_geom(cache, layer)->kv_heads;
    for (int64_t i = 0; i < taken; i++)
        t->lower.births[blocks[i]] = (struct hr_birth){.uid = seq->uid,
                                                       .index = (uint64_t)(first + i),
                                                       .layer = (uint32_t)layer,
                                                       .heads = (uint16_t)heads};
    c->kv_bytes_used += (uint64_t)taken * hr_blocks_bytes(t->lower.blocks);
    if (c->kv_bytes_used > c->kv_bytes_peak)
        c->kv_bytes_peak = c->kv_bytes_used;
    return taken;
}

void hr_cache_drop(hr_cache *cache, int32_t layer, uint32_t block)
{
    struct hr_blocks *pool = hr_cache_pool(cache, layer);
    struct hr_tiered *t = hr_cache_tiered(cache, layer);
    uint64_t before = pool->owned;
    if (t)
        hr_lower_drop(&t->lower, block);
    else
        hr_blocks_drop(pool, block);
    cache->context->kv_bytes_used -= (before - pool->owned) * hr_blocks_bytes(pool);
}

hr_status hr_cache_status(const hr_cache *cache)
{
    for (int32_t i = 0; i < cache->n_pools; i++)
        if (cache->pools[i].broken)
            return hr_fail(&cache->context->error, HR_E_BUG,
                           "a block of %llu bytes was to %s, which its state forbids",
                           (unsigned long long)hr_blocks_bytes(&cache->pools[i]),
                           hr_life_event_name(cache->pools[i].broken_event));
    return HR_OK;
}

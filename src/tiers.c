/* SPDX-License-Identifier: Apache-2.0 */
#include "src/tiers.h"

#include <string.h>
#include <sys/mman.h>

#include "src/progress.h"

/* Waves of about this size, four of them in the ring; less where the budget is small. */
enum { WAVE_BYTES = 16 << 20, RING_WAVES = 4, RING_SHARE = 4, RING_LEAST = 2 };

static const int64_t PATIENCE_MS = 60000;

static enum hr_tier_engine engine_of(const char *io)
{
    if (!io)
        return HR_TIER_AUTO;
    return strcmp(io, "uring") == 0 ? HR_TIER_URING : HR_TIER_THREADS;
}

hr_status hr_tiers_open(hr_context *c, const hr_options *o, const struct hr_hooks *hooks,
                        struct hr_error *error)
{
    struct hr_store_dir dirs[HR_STORE_DIRS_MAX];
    struct hr_tier_options options = {.alloc = &c->alloc,
                                      .dev = c->dev,
                                      .dirs = dirs,
                                      .n_dirs = o->n_disks,
                                      .engine = engine_of(o->io),
                                      .manual = o->manual_progress,
                                      .dry = o->dry_run};
    if (o->n_disks < 1 || o->n_disks > HR_STORE_DIRS_MAX || !o->disks)
        return hr_fail(error, HR_E_INVALID,
                       "options.n_disks is %d with disks %s; 1 to %d are needed", o->n_disks,
                       o->disks ? "set" : "NULL", HR_STORE_DIRS_MAX);
    for (int32_t i = 0; i < o->n_disks; i++)
        dirs[i] = (struct hr_store_dir){o->disks[i].path, o->disks[i].bytes};
    if (hooks) {
        options.calls = hooks->calls;
        options.sim = hooks->sim;
        options.open_io = hooks->open_io;
        options.user = hooks->user;
        options.engine = hooks->sim ? HR_TIER_SIMULATED : options.engine;
    }
    if (c->cuda)
        return hr_fail(error, HR_E_UNSUPPORTED, "disks are for the host device in this version");
    c->patience_ns = (o->patience_ms > 0 ? o->patience_ms : PATIENCE_MS) * 1000000;
    /* A disk takes some 250 pieces of memory a request, a megabyte of small pages has 256: huge
     * ones read 1.7 times as fast. Where there are none, small ones do. */
    madvise(c->dev->arena, c->dev->arena_bytes, MADV_HUGEPAGE);
    struct hr_tier *tier = hr_alloc_zero(&c->alloc, sizeof(*tier));
    if (!tier)
        return hr_fail(error, HR_E_NO_MEMORY, "no memory for the disk tier");
    hr_status status = hr_tier_open(tier, &options, error);
    if (status == HR_OK)
        c->tier = tier;
    else
        hr_alloc_put(&c->alloc, tier, sizeof(*tier));
    return status;
}

/* Bytes that a token takes in all layers of a pool; -1: of all pools. */
static uint64_t weight(const hr_cache *cache, int32_t pool)
{
    uint64_t sum = 0;
    for (int32_t l = 0; l < cache->n_layers; l++)
        if (pool < 0 || hr_cache_pool_of(cache, l) == pool)
            sum += hr_blocks_bytes(hr_cache_pool(cache, l));
    return sum;
}

/* A pool's share of extents, in whole parts. */
static int64_t share_of(const hr_cache *cache, int32_t pool, int64_t extents)
{
    double part = (double)weight(cache, pool) / (double)weight(cache, -1);
    return (int64_t)((double)extents * part + 1e-6) / cache->pools[pool].slots.run;
}

static int32_t layers_of(const hr_cache *cache, int32_t pool)
{
    int32_t n = 0;
    for (int32_t l = 0; l < cache->n_layers; l++)
        n += hr_cache_pool_of(cache, l) == pool;
    return n;
}

static int64_t slots_of(const hr_cache *cache, int32_t pool, int64_t extents)
{
    return share_of(cache, pool, extents) * cache->pools[pool].slots.view.blocks_per_extent;
}

/* Slots of the ring, and how many of them a wave takes at most. */
static uint32_t ring_size(const hr_cache *cache, int32_t pool, int64_t slots, uint32_t *wave_most)
{
    int64_t wave = WAVE_BYTES / (int64_t)hr_blocks_bytes(&cache->pools[pool]);
    int64_t most = slots / RING_SHARE / RING_WAVES;
    wave = wave < most ? wave : most;
    wave = wave > 1 ? wave : 1;
    int64_t size = wave * RING_WAVES;
    if (size > slots / RING_SHARE)
        size = slots / RING_SHARE;
    *wave_most = (uint32_t)wave;
    return (uint32_t)(size > RING_LEAST ? size : RING_LEAST);
}

/* An open block of each layer, the new ones of two, a ring. */
static int64_t least_slots(const hr_cache *cache, int32_t pool)
{
    return layers_of(cache, pool) + 2 + RING_LEAST;
}

static hr_status too_small(const hr_cache *cache, int32_t pool, int64_t extents)
{
    hr_context *c = cache->context;
    int64_t least = extents;
    for (int32_t p = 0; p < cache->n_pools; p++)
        while (slots_of(cache, p, least) < least_slots(cache, p))
            least++;
    return hr_fail(&c->error, HR_E_BUDGET,
                   "the device budget has %lld blocks of %llu bytes for %d layers; one open block "
                   "a layer, the new blocks of two and a ring of %d take %lld: "
                   "device_bytes must be at least %llu",
                   (long long)slots_of(cache, pool, extents),
                   (unsigned long long)hr_blocks_bytes(&cache->pools[pool]), layers_of(cache, pool),
                   RING_LEAST, (long long)least_slots(cache, pool),
                   (unsigned long long)least * HR_EXTENT_BYTES);
}

hr_status hr_tiers_check(const hr_cache *cache, int64_t extents)
{
    for (int32_t p = 0; p < cache->n_pools; p++)
        if (slots_of(cache, p, extents) < least_slots(cache, p))
            return too_small(cache, p, extents);
    return HR_OK;
}

void hr_tiers_share(hr_cache *cache, int64_t extents)
{
    cache->context->promised += extents - cache->promised;
    cache->promised = extents;
    for (int32_t p = 0; p < cache->n_tiered; p++) {
        struct hr_tiered *t = &cache->tiered[p];
        t->lower.blocks->slots.parts_limit = (uint32_t)share_of(cache, p, extents);
        t->slots = slots_of(cache, p, extents);
        t->ring_slots = ring_size(cache, p, t->slots, &t->wave_most);
    }
}

void hr_tiers_fill_rings(hr_cache *cache)
{
    for (int32_t p = 0; p < cache->n_tiered; p++) {
        struct hr_tiered *t = &cache->tiered[p];
        hr_ring_fill(&t->ring, t->ring_slots, t->wave_most);
    }
}

static hr_status make_pool(hr_cache *cache, int32_t pool, int64_t disk)
{
    hr_context *c = cache->context;
    struct hr_blocks *blocks = &cache->pools[pool];
    struct hr_tiered *t = &cache->tiered[pool];
    uint64_t layout = 0;
    int32_t heads = 0; /* layers of a pool may differ in them */
    for (int32_t l = 0; l < cache->n_layers; l++) {
        const struct hr_geom *g = hr_cache_geom(cache, l);
        layout = hr_page_layout(layout, g);
        if (hr_cache_pool_of(cache, l) == pool && g->kv_heads > heads)
            heads = g->kv_heads;
    }
    t->layers = layers_of(cache, pool);
    if (blocks->slots.run > 1 && c->tier->store.n_files > 1)
        return hr_fail(&c->error, HR_E_UNSUPPORTED,
                       "a block of %llu bytes is larger than an extent: use one disk directory",
                       (unsigned long long)hr_blocks_bytes(blocks));
    struct hr_lower_options options = {
        .tier = c->tier,
        .blocks = blocks,
        .layout = layout,
        .extents = share_of(cache, pool, disk) * blocks->slots.run,
        .heads = c->dry ? 0 : heads, /* a dry run has no checksums */
    };
    uint32_t wave_most;
    uint32_t most = ring_size(cache, pool, slots_of(cache, pool, c->extents.count), &wave_most);
    if (!hr_lower_init(&t->lower, &options))
        return hr_fail(&c->error, HR_E_NO_MEMORY,
                       "no memory for the tables of %u blocks of %llu bytes in memory and on disk",
                       blocks->max, (unsigned long long)hr_blocks_bytes(blocks));
    cache->n_tiered++;
    if (!hr_ring_init(&t->ring, &t->lower, most))
        return hr_fail(&c->error, HR_E_NO_MEMORY, "no memory for a ring of %u blocks", most);
    return HR_OK;
}

hr_status hr_tiers_make(hr_cache *cache)
{
    hr_context *c = cache->context;
    int64_t device = c->extents.limit - c->promised;
    int64_t disk = c->tier->extents.count;
    if (c->promised > 0)
        return hr_fail(&c->error, HR_E_BUDGET,
                       "another cache of the context has the device and disk budgets; with disks "
                       "there is one cache at a time");
    cache->tiered = hr_alloc_zero(&c->alloc, (size_t)cache->n_pools * sizeof(*cache->tiered));
    if (!cache->tiered)
        return hr_fail(&c->error, HR_E_NO_MEMORY, "no memory for %d pools", cache->n_pools);
    hr_status status = hr_tiers_check(cache, device);
    for (int32_t p = 0; status == HR_OK && p < cache->n_pools; p++)
        status = make_pool(cache, p, disk);
    if (status != HR_OK)
        return status;
    hr_tiers_share(cache, device);
    hr_tiers_fill_rings(cache);
    return HR_OK;
}

void hr_tiers_free(hr_cache *cache)
{
    hr_context *c = cache->context;
    if (!cache->tiered)
        return;
    hr_progress_drain(cache, INT64_MAX);
    for (int32_t p = 0; p < cache->n_tiered; p++) {
        hr_ring_close(&cache->tiered[p].ring);
        hr_lower_close(&cache->tiered[p].lower);
    }
    cache->n_tiered = 0;
    hr_alloc_put(&c->alloc, cache->tiered, (size_t)cache->n_pools * sizeof(*cache->tiered));
    c->promised -= cache->promised;
}

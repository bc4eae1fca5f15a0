/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences go to disk until the rest fits, as in a begin; then blocks move out of the extents that
 * go, whose memory is given back. */
#include "src/budget.h"

#include <string.h>

#include "offload/pack.h"
#include "src/fetch.h"
#include "src/progress.h"
#include "src/residency.h"
#include "src/tiers.h"

static hr_status check(hr_context *c, uint64_t bytes)
{
    if (bytes < HR_EXTENT_BYTES || bytes / HR_EXTENT_BYTES > (uint64_t)c->extents.count)
        return hr_fail(&c->error, HR_E_INVALID,
                       "device_bytes is %llu; one extent of %d bytes to the %llu that the context "
                       "was opened with are allowed",
                       (unsigned long long)bytes, HR_EXTENT_BYTES,
                       (unsigned long long)c->dev->arena_bytes);
    for (const hr_cache *cache = c->first_cache; cache; cache = cache->next)
        if (cache->first_open)
            return hr_fail(&c->error, HR_E_BUSY,
                           "a step is open: commit or abort it before the budget changes");
    return HR_OK;
}

/* ---- Moving blocks ---- */

/* Slots hold no bytes in a dry run. */
static struct hr_dev *mover_of(const hr_context *c)
{
    return c->dry ? NULL : c->dev;
}

/* Blocks have moved: what uses a slot from now on comes behind the copies. */
static void note_copies(hr_cache *cache)
{
    uint64_t ticket = cache->n_tiered ? hr_tickets_issue(&cache->context->tier->tickets) : 0;
    for (hr_seq *s = cache->first_seq; s && !cache->n_tiered; s = s->next)
        hr_seq_find_slots(s);
    for (int32_t p = 0; p < cache->n_tiered; p++) {
        const struct hr_slab *s = &cache->pools[p].slots;
        for (uint64_t i = 0; i < (uint64_t)s->parts * s->view.blocks_per_extent; i++)
            s->used_by[i] = ticket;
    }
}

/* Parts that a pool may keep: its share; without a tier below the fewest that its blocks need. */
static uint32_t parts_kept(const hr_cache *cache, int32_t pool)
{
    const struct hr_slab *s = &cache->pools[pool].slots;
    uint32_t per = s->view.blocks_per_extent;
    return cache->n_tiered ? s->parts_limit : (uint32_t)((s->slots_used + per - 1) / per);
}

/* Frees the extents beyond the limit. What has moved stays where it is also on failure. */
static hr_status pack(hr_context *c)
{
    struct hr_dev *dev = mover_of(c);
    bool memory = true, room = true;
    for (const hr_cache *cache = c->first_cache; cache; cache = cache->next)
        for (int32_t p = 0; p < cache->n_pools; p++)
            memory = memory && hr_pack_parts(&cache->pools[p], dev, parts_kept(cache, p));
    for (const hr_cache *cache = c->first_cache; memory && cache; cache = cache->next)
        for (int32_t p = 0; p < cache->n_pools; p++)
            room = hr_pack_extents(&cache->pools[p], dev) && room;
    if (!memory)
        return hr_fail(&c->error, HR_E_NO_MEMORY, "no memory for a list of blocks to move");
    if (!room)
        return hr_fail(&c->error, HR_E_BUDGET,
                       "blocks of several extents find no place side by side in the first %lld",
                       (long long)c->extents.limit);
    return HR_OK;
}

/* ---- Without a tier below ---- */

static hr_status check_fits(hr_context *c, int64_t extents)
{
    int64_t need = 0;
    for (const hr_cache *cache = c->first_cache; cache; cache = cache->next)
        for (int32_t p = 0; p < cache->n_pools; p++)
            need += (int64_t)parts_kept(cache, p) * cache->pools[p].slots.run;
    if (need <= extents)
        return HR_OK;
    return hr_fail(&c->error, HR_E_BUDGET,
                   "sequences have K/V in %lld extents of %d bytes; device_bytes has room for %lld",
                   (long long)need, HR_EXTENT_BYTES, (long long)extents);
}

static hr_status set_plain(hr_context *c, int64_t extents)
{
    int64_t before = c->extents.limit;
    hr_status status = check_fits(c, extents);
    if (status != HR_OK)
        return status;
    c->extents.limit = extents;
    if (extents < before)
        status = pack(c);
    if (status != HR_OK)
        c->extents.limit = before;
    return status;
}

/* ---- With one ---- */

/* What was evicted is below, unless writes have failed. */
static hr_status check_left(hr_cache *cache)
{
    hr_context *c = cache->context;
    if (!hr_progress_drain(cache, c->patience_ns))
        return hr_fail(&c->error, HR_E_TIMEOUT, "no K/V went to disk within %lld ms",
                       (long long)(c->patience_ns / 1000000));
    for (int32_t p = 0; p < cache->n_tiered; p++) {
        const struct hr_tiered *t = &cache->tiered[p];
        int64_t used = (int64_t)t->lower.blocks->slots.slots_used;
        if (used + t->ring_slots > t->slots)
            return hr_fail(&c->error, HR_E_IO,
                           "%lld bytes of K/V had to go to disk and could not: %lld writes failed, "
                           "the last with %s",
                           (long long)((uint64_t)(used + t->ring_slots - t->slots) *
                                       hr_blocks_bytes(t->lower.blocks)),
                           (long long)c->tier->write_failures, strerror(c->tier->write_error));
    }
    return HR_OK;
}

static hr_status set_tiered(hr_cache *cache, int64_t extents)
{
    hr_context *c = cache->context;
    int64_t before = c->extents.limit;
    hr_status status = hr_tiers_check(cache, extents);
    if (status != HR_OK)
        return status;
    hr_fetch_stop(cache);
    for (int32_t p = 0; p < cache->n_tiered; p++)
        hr_ring_empty(&cache->tiered[p].ring);
    hr_tiers_share(cache, extents);
    if (extents < before)
        status = hr_residency_settle(cache);
    if (status == HR_OK && extents < before)
        status = check_left(cache);
    if (status == HR_OK) {
        c->extents.limit = extents;
        status = pack(c);
    }
    if (status != HR_OK) {
        c->extents.limit = before;
        hr_tiers_share(cache, before);
    }
    hr_tiers_fill_rings(cache);
    return status;
}

/* ---- Both ---- */

/* What lies beyond the limit is no longer registered with the kernel when it is given back. */
static void resize(hr_context *c, int64_t before)
{
    uint64_t from = hr_context_budget(c), to = (uint64_t)before * HR_EXTENT_BYTES;
    if (c->tier)
        hr_tier_resize(c->tier, from);
    if (to > from && !c->dry)
        c->dev->ops->release(c->dev, c->dev->arena + from, to - from);
}

hr_status hr_budget_set(hr_context *c, uint64_t bytes)
{
    int64_t before = c->extents.limit, extents = (int64_t)(bytes / HR_EXTENT_BYTES);
    hr_status status = hr_context_device_status(c);
    if (status == HR_OK)
        status = check(c, bytes);
    if (status != HR_OK || extents == before)
        return status;
    status =
        c->tier && c->first_cache ? set_tiered(c->first_cache, extents) : set_plain(c, extents);
    if (status == HR_OK)
        resize(c, before);
    for (hr_cache *cache = c->first_cache; cache; cache = cache->next)
        note_copies(cache);
    if (status == HR_OK)
        hr_log(&c->error, HR_LOG_INFO, "K/V budget %llu bytes",
               (unsigned long long)hr_context_budget(c));
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* On the host device: items of lists, run by its threads; a call returns when they have run. */
#include "src/exec.h"

#include "src/fetch.h"
#include "src/residency.h"
#include "src/trace.h"

/* Kernels find the blocks of a layer at their sequences' slots, or, with a tier below, in the
 * step's list, which the fetcher fills. */
static void view_layer(hr_step *step, int32_t layer)
{
    for (int32_t i = 0; i < step->n_seqs; i++)
        step->views[i].blocks = step->cache->n_tiered ? step->slots + step->first_slot[i]
                                                      : hr_seq_slots(step->seqs[i], layer);
}

/* Slots of the blocks that an append writes to, and of those it copies from. */
static void view_written(hr_step *step, int32_t layer)
{
    hr_cache *cache = step->cache;
    view_layer(step, layer);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        step->copy_from[i] = hr_step_copied_slot(step, i, layer);
        struct hr_span span = hr_step_written(step, i);
        if (!cache->n_tiered || span.end == 0)
            continue;
        const uint32_t *blocks = hr_seq_blocks(step->seqs[i], layer);
        uint32_t copied = *hr_step_replaced(step, i, layer);
        for (int64_t b = span.first; b < span.end; b++)
            step->slots[step->first_slot[i] + b] = hr_fetch_slot(step, layer, blocks[b]);
        if (copied != HR_BLOCK_NONE)
            step->copy_from[i] = hr_fetch_slot(step, layer, copied);
    }
}

static hr_status append(hr_step *step, int32_t layer, const struct hr_rows *k,
                        const struct hr_rows *v)
{
    hr_cache *cache = step->cache;
    struct hr_dev *dev = cache->context->dev;
    if (cache->n_tiered) {
        hr_status status = hr_residency_append(step, layer);
        if (status != HR_OK)
            return status;
    }
    int64_t begin_ns = hr_trace_begin(cache->context);
    view_written(step, layer);
    struct hr_append job = {
        .geom = *hr_cache_geom(cache, layer),
        .pool = *hr_cache_view(cache, layer),
        .seqs = step->views,
        .k = *k,
        .v = *v,
        .copy_from = step->copy_from,
        .first_item = step->first_item,
        .n_seqs = step->n_seqs,
    };
    dev->ops->launch(dev, cache->kernels->append, &job, step->first_item[step->n_seqs]);
    hr_trace_end(cache->context, HR_TRACE_APPEND, layer, begin_ns);
    if (cache->n_tiered)
        hr_fetch_appended(step, layer);
    return HR_OK;
}

/* Tiles and chunks in one launch: no thread waits between the two lists. */
struct attend_job {
    const struct hr_attend *attend;
    const struct hr_kernels *kernels;
    int64_t n_tiles;
};

static void attend_item(const void *args, int64_t item, void *scratch)
{
    const struct attend_job *job = args;
    if (item < job->n_tiles)
        job->kernels->tile(job->attend, item, scratch);
    else
        job->kernels->chunk(job->attend, item - job->n_tiles, scratch);
}

/* One wave: blocks [begin, end), counted from the newest. The last one merges the partials. */
static void launch_wave(hr_step *step, int32_t layer, struct hr_attend *attend, int64_t begin,
                        int64_t end)
{
    hr_cache *cache = step->cache;
    struct hr_dev *dev = cache->context->dev;
    const struct hr_plan *plan = &step->plans[cache->class_of[layer]];
    struct attend_job job = {attend, cache->kernels, plan->n_tiles};
    attend->wave_begin = begin;
    attend->wave_end = attend->last ? INT64_MAX : end;
    int64_t begin_ns = hr_trace_begin(cache->context);
    dev->ops->launch(dev, attend_item, &job, plan->n_tiles + plan->n_chunks);
    if (attend->last && plan->n_folds > 0)
        dev->ops->launch(dev, cache->kernels->fold, attend, plan->n_folds);
    hr_trace_end(cache->context, HR_TRACE_ATTEND, layer, begin_ns);
}

/* Waves as the fetch list has them, each when its blocks are there. */
static hr_status attend_fetched(hr_step *step, int32_t layer, struct hr_attend *attend)
{
    const struct hr_ring *ring = &hr_cache_tiered(step->cache, layer)->ring;
    uint32_t first, end;
    hr_status status = hr_fetch_for_attend(step, layer, &first, &end);
    for (uint32_t w = first; status == HR_OK && w < end; w++) {
        status = hr_fetch_wave(step, layer, w);
        if (status != HR_OK)
            break;
        attend->first = w == first;
        attend->last = w == end - 1;
        launch_wave(step, layer, attend, ring->waves[w].begin, ring->waves[w].end);
        hr_fetch_waved(step, layer);
    }
    return status;
}

static void attend_resident(hr_step *step, int32_t layer, struct hr_attend *attend)
{
    const struct hr_plan *plan = &step->plans[step->cache->class_of[layer]];
    for (int64_t wave = 0; wave < plan->waves; wave++) {
        attend->first = wave == 0;
        attend->last = wave == plan->waves - 1;
        launch_wave(step, layer, attend, wave * plan->wave_blocks, (wave + 1) * plan->wave_blocks);
    }
}

static hr_status attend(hr_step *step, int32_t layer, struct hr_attend *attend)
{
    hr_cache *cache = step->cache;
    const struct hr_plan *plan = &step->plans[cache->class_of[layer]];
    view_layer(step, layer);
    attend->pool = *hr_cache_view(cache, layer);
    attend->seqs = step->views;
    attend->tiles = plan->tiles;
    attend->chunks = plan->chunks;
    attend->folds = plan->folds;
    attend->state = step->state;
    if (cache->n_tiered) {
        hr_status status = attend_fetched(step, layer, attend);
        if (status != HR_OK)
            return status;
    } else {
        attend_resident(step, layer, attend);
    }
    if (cache->n_tiered)
        hr_residency_trim(step, layer);
    return HR_OK;
}

/* Plans and blocks are read where they are. */
static bool begin(hr_step *step)
{
    (void)step;
    return true;
}

static enum hr_dev_wait done(hr_step *step, int64_t deadline_ns)
{
    (void)step;
    (void)deadline_ns;
    return HR_DEV_DONE;
}

static void nothing(hr_step *step)
{
    (void)step;
}

const struct hr_exec_ops hr_exec_host = {
    .begin = begin,
    .append = append,
    .attend = attend,
    .wait = done,
    .free = nothing,
};

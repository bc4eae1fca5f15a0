/* SPDX-License-Identifier: Apache-2.0 */
/* On the host device: items of lists, run by its threads; a call returns when they have run. */
#include "src/exec.h"

static void view_layer(hr_step *step, int32_t layer)
{
    for (int32_t i = 0; i < step->n_seqs; i++)
        step->views[i].blocks = hr_seq_slots(step->seqs[i], layer);
}

static void append(hr_step *step, int32_t layer, const struct hr_rows *k, const struct hr_rows *v)
{
    hr_cache *cache = step->cache;
    struct hr_dev *dev = cache->context->dev;
    view_layer(step, layer);
    for (int32_t i = 0; i < step->n_seqs; i++)
        step->copy_from[i] = hr_step_copied_slot(step, i, layer);
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

static bool attend(hr_step *step, int32_t layer, struct hr_attend *attend)
{
    hr_cache *cache = step->cache;
    struct hr_dev *dev = cache->context->dev;
    const struct hr_plan *plan = &step->plans[cache->class_of[layer]];
    struct attend_job job = {attend, cache->kernels, plan->n_tiles};
    view_layer(step, layer);
    attend->pool = *hr_cache_view(cache, layer);
    attend->seqs = step->views;
    attend->tiles = plan->tiles;
    attend->chunks = plan->chunks;
    attend->folds = plan->folds;
    attend->state = step->state;
    for (int64_t wave = 0; wave < plan->waves; wave++) {
        attend->first = wave == 0;
        attend->last = wave == plan->waves - 1;
        attend->wave_begin = wave * plan->wave_blocks;
        attend->wave_end = attend->last ? INT64_MAX : (wave + 1) * plan->wave_blocks;
        dev->ops->launch(dev, attend_item, &job, plan->n_tiles + plan->n_chunks);
    }
    if (plan->n_folds > 0)
        dev->ops->launch(dev, cache->kernels->fold, attend, plan->n_folds);
    return true;
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

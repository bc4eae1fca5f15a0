/* SPDX-License-Identifier: Apache-2.0 */
#include "src/step.h"

#include <string.h>

#include "src/exec.h"
#include "src/request.h"
#include "src/fetch.h"
#include "src/reserve.h"
#include "src/residency.h"

static hr_status no_memory(hr_context *c, const char *what)
{
    return hr_fail(&c->error, HR_E_NO_MEMORY, "no memory for %s", what);
}

/* Every array that the limits size, in one list, so that making and freeing cannot differ. */
struct part {
    void **array;
    size_t bytes;
};

enum { PARTS = 13, SEQS_MAX = 1 << 20 };

static void list_parts(hr_step *step, struct part parts[PARTS])
{
    size_t seqs = (size_t)step->limits.seqs, layers = (size_t)step->cache->n_layers;
    size_t classes = (size_t)step->cache->n_classes;
    size_t pools = (size_t)step->cache->n_pools;
    struct part list[PARTS] = {
        {(void **)&step->seqs, seqs * sizeof(*step->seqs)},
        {(void **)&step->shapes, seqs * sizeof(*step->shapes)},
        {(void **)&step->order, seqs * sizeof(*step->order)},
        {(void **)&step->views, seqs * sizeof(*step->views)},
        {(void **)&step->first_slot, seqs * sizeof(*step->first_slot)},
        {(void **)&step->first_item, (seqs + 1) * sizeof(*step->first_item)},
        {(void **)&step->copy_from, seqs * sizeof(*step->copy_from)},
        {(void **)&step->replaced, seqs * layers * sizeof(*step->replaced)},
        {(void **)&step->appended, layers * sizeof(*step->appended)},
        {(void **)&step->attended, layers * sizeof(*step->attended)},
        {(void **)&step->first_wave, layers * sizeof(*step->first_wave)},
        {(void **)&step->plans, classes * sizeof(*step->plans)},
        {(void **)&step->reserved, pools * sizeof(*step->reserved)},
    };
    memcpy(parts, list, sizeof(list));
}

hr_status hr_step_make(hr_cache *cache, const hr_step_limits *limits, hr_step **out)
{
    hr_context *c = cache->context;
    struct part parts[PARTS];
    bool ok = true;
    if (limits->seqs < 1 || limits->seqs > SEQS_MAX || limits->new_tokens < 0 ||
        limits->query_tokens < 0)
        return hr_fail(&c->error, HR_E_INVALID,
                       "limits: seqs %d, new_tokens %lld, query_tokens %lld; seqs must be 1 to %d, "
                       "the others >= 0",
                       limits->seqs, (long long)limits->new_tokens, (long long)limits->query_tokens,
                       SEQS_MAX);
    hr_step *step = hr_alloc_zero(&c->alloc, sizeof(*step));
    if (!step)
        return no_memory(c, "a step");
    step->cache = cache;
    step->limits = *limits;
    cache->users++;
    list_parts(step, parts);
    for (int i = 0; i < PARTS; i++) {
        *parts[i].array = hr_alloc_zero(&c->alloc, parts[i].bytes);
        ok = ok && *parts[i].array;
    }
    if (!ok) {
        hr_step_free(step);
        return no_memory(c, "the arrays of a step");
    }
    *out = step;
    return HR_OK;
}

void hr_step_free(hr_step *step)
{
    hr_cache *cache = step->cache;
    struct hr_alloc *alloc = &cache->context->alloc;
    struct part parts[PARTS];
    for (int32_t i = 0; step->plans && i < cache->n_classes; i++)
        hr_plan_free(&step->plans[i], alloc);
    list_parts(step, parts);
    for (int i = 0; i < PARTS; i++)
        hr_alloc_put(alloc, *parts[i].array, parts[i].bytes);
    cache->context->exec->free(step);
    hr_alloc_put(alloc, step->slots, step->slots_max * sizeof(*step->slots));
    hr_alloc_put(alloc, step->distances, step->distances_max * sizeof(*step->distances));
    struct hr_dev *dev = cache->context->dev;
    dev->ops->memory_put(dev, step->state, step->state_floats * sizeof(float));
    hr_alloc_put(alloc, step, sizeof(*step));
    cache->users--;
}

/* Whether waves may be cut: where K/V come from below, or may have gone there when a layer that was
 * appended long before attends. */
static bool cuts(const hr_step *step)
{
    bool tiered = step->cache->n_tiered > 0;
    return tiered && (step->cache->context->wave_blocks > 0 || !hr_residency_fits(step));
}

/* Room for the lists of a step that reads from below. */
static hr_status make_lists(hr_step *step)
{
    hr_context *c = step->cache->context;
    int64_t all = 0, longest = 0;
    for (int32_t i = 0; i < step->n_seqs; i++) {
        int64_t n = hr_blocks_of(step->views[i].n_kv);
        step->first_slot[i] = all;
        all += n;
        longest = n > longest ? n : longest;
    }
    bool ok = hr_alloc_grow(&c->alloc, (void **)&step->slots, &step->slots_max, (size_t)all + 1,
                            sizeof(*step->slots)) &&
              hr_alloc_grow(&c->alloc, (void **)&step->distances, &step->distances_max,
                            (size_t)longest + 1, sizeof(*step->distances));
    return ok ? HR_OK : no_memory(c, "the lists of a step");
}

/* Plans every class of layers and makes room for the largest workspace. */
static hr_status plan_classes(hr_step *step)
{
    hr_cache *cache = step->cache;
    hr_context *c = cache->context;
    size_t floats = 0;
    step->cut = cuts(step);
    for (int32_t i = 0; i < cache->n_classes; i++) {
        struct hr_plan *plan = &step->plans[i];
        struct hr_plan_input input = {
            .kernels = cache->kernels,
            .geom = &cache->classes[i].geom,
            .shapes = step->shapes,
            .order = step->order,
            .n_seqs = step->n_seqs,
            .threads = c->dev->threads,
            .wave_blocks = cache->n_tiered ? 0 : c->wave_blocks,
            .cut = step->cut,
        };
        if (!hr_plan_make(plan, &input, &c->alloc))
            return no_memory(c, "the plan of a step");
        if ((size_t)(plan->carry_floats + plan->partial_floats) > floats)
            floats = (size_t)(plan->carry_floats + plan->partial_floats);
    }
    if (floats <= step->state_floats)
        return HR_OK;
    c->dev->ops->memory_put(c->dev, step->state, step->state_floats * sizeof(float));
    step->state = c->dev->ops->memory_get(c->dev, floats * sizeof(float));
    step->state_floats = step->state ? floats : 0;
    return step->state ? HR_OK : no_memory(c, "the workspace of a step");
}

static void unlink_open(hr_step *step)
{
    hr_step **at = &step->cache->first_open;
    while (*at != step)
        at = &(*at)->next_open;
    *at = step->next_open;
}

/* The caller may destroy the step's stream once it has done with it. */
static void end_step(hr_step *step)
{
    struct hr_dev *dev = step->cache->context->dev;
    if (step->cache->n_tiered) {
        hr_fetch_end(step);
        hr_residency_end(step);
    }
    dev->ops->set_stream(dev, NULL);
    hr_request_drop(step);
    if (step->open)
        unlink_open(step);
    step->open = false;
}

hr_status hr_step_open(hr_step *step, const hr_batch *batch)
{
    hr_context *c = step->cache->context;
    hr_status status = hr_request_take(step, batch);
    if (status != HR_OK)
        return status;
    step->stream = batch->stream;
    c->dev->ops->set_stream(c->dev, step->stream);
    step->failed = HR_OK;
    atomic_store(&step->cancelled, false);
    if (step->cache->n_tiered)
        status = make_lists(step);
    if (status == HR_OK && step->cache->n_tiered)
        status = hr_residency_begin(step);
    if (status == HR_OK)
        status = hr_reserve_take(step);
    if (status == HR_OK) {
        memset(step->appended, 0, (size_t)step->cache->n_layers * sizeof(*step->appended));
        memset(step->attended, 0, (size_t)step->cache->n_layers * sizeof(*step->attended));
        status = plan_classes(step);
        if (status == HR_OK && !c->exec->begin(step))
            status = no_memory(c, "the lists of a step");
        if (status == HR_OK && step->cache->n_tiered)
            status = hr_fetch_plan(step, 0);
        for (int32_t i = step->n_seqs; status != HR_OK && i-- > 0;)
            hr_reserve_undo(step, i);
    }
    if (status != HR_OK) {
        end_step(step);
        hr_status dead = hr_context_device_status(c);
        return dead == HR_OK ? status : dead; /* a dead device gives no memory */
    }
    step->open = true;
    step->next_open = step->cache->first_open;
    step->cache->first_open = step;
    return HR_OK;
}

static bool any_appended(const hr_step *step)
{
    for (int32_t l = 0; l < step->cache->n_layers; l++)
        if (step->appended[l])
            return true;
    return false;
}

/* The sequence keeps nothing: its blocks are as before begin. */
static void undo_seq(hr_step *step, int32_t i)
{
    hr_seq *seq = step->seqs[i];
    int64_t n_kv = step->views[i].n_kv, fill = seq->length % HR_BLOCK_TOKENS;
    int64_t last = seq->length / HR_BLOCK_TOKENS;
    bool copied = *hr_step_replaced(step, i, 0) != HR_BLOCK_NONE;
    hr_reserve_undo(step, i);
    if (fill > 0 && n_kv > seq->length && !copied && any_appended(step)) {
        int64_t end = n_kv - last * HR_BLOCK_TOKENS;
        hr_seq_zero_values(seq, last, fill, end < HR_BLOCK_TOKENS ? end : HR_BLOCK_TOKENS);
    }
}

/* The sequence keeps its first `kept` > 0 new tokens. */
static void keep_seq(hr_step *step, int32_t i, int64_t kept)
{
    hr_seq *seq = step->seqs[i];
    hr_reserve_keep(step, i);
    seq->foreign_tail = false;
    int64_t length = seq->length + kept;
    seq->length = step->views[i].n_kv;
    hr_seq_cut(seq, length);
}

static hr_status check_kept(const hr_step *step, const int64_t *kept)
{
    struct hr_error *error = &step->cache->context->error;
    for (int32_t i = 0; kept && i < step->n_seqs; i++)
        if (kept[i] < 0 || kept[i] > hr_step_new(step, i))
            return hr_fail(error, HR_E_INVALID,
                           "args.kept[%d] is %lld; the sequence has %lld new tokens", i,
                           (long long)kept[i], (long long)hr_step_new(step, i));
    for (int32_t l = 0; step->new_tokens > 0 && l < step->cache->n_layers; l++)
        if (!step->appended[l])
            return hr_fail(error, HR_E_STATE,
                           "layer %d was not appended; the batch has %lld new tokens", l,
                           (long long)step->new_tokens);
    return HR_OK;
}

hr_status hr_step_close(hr_step *step, const int64_t *kept)
{
    hr_context *c = step->cache->context;
    hr_status status = check_kept(step, kept);
    if (status != HR_OK)
        return status;
    c->dev->ops->set_stream(c->dev, step->stream);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        int64_t keep = kept ? kept[i] : hr_step_new(step, i);
        if (keep > 0)
            keep_seq(step, i, keep);
        else
            undo_seq(step, i);
        c->tokens_appended += (uint64_t)keep;
    }
    end_step(step);
    c->steps_committed++;
    return HR_OK;
}

void hr_step_undo(hr_step *step)
{
    struct hr_dev *dev = step->cache->context->dev;
    dev->ops->set_stream(dev, step->stream);
    for (int32_t i = 0; i < step->n_seqs; i++)
        undo_seq(step, i);
    end_step(step);
    step->cache->context->steps_aborted++;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "src/reserve.h"

#include <string.h>

/* New blocks [first, first + count) of a layer; with a tier below they get their slots in append.
 * Returns how many there are. */
static int64_t take_new(hr_step *step, int32_t i, int32_t layer, int64_t first, int64_t count)
{
    hr_seq *seq = step->seqs[i];
    uint32_t *blocks = hr_seq_blocks(seq, layer) + first;
    struct hr_tiered *t = hr_cache_tiered(step->cache, layer);
    if (!t)
        return hr_cache_take(step->cache, layer, blocks, hr_seq_slots(seq, layer) + first, count);
    int64_t taken = hr_cache_take_unplaced(step->cache, layer, seq, blocks, first, count);
    int64_t stay = hr_blocks_of(step->views[i].n_kv) - hr_seq_keep(seq, layer);
    for (int64_t b = 0; b < taken; b++)
        t->lower.births[blocks[b]].mark = first + b >= stay ? step->mark : step->mark - 1;
    return taken;
}

/* The last block, which the new rows go to: held, or replaced by a copy when it is shared. */
static bool take_last(hr_step *step, int32_t i, int32_t layer)
{
    hr_seq *seq = step->seqs[i];
    uint32_t *block = &hr_seq_blocks(seq, layer)[seq->length / HR_BLOCK_TOKENS];
    uint32_t shared = *block;
    if (!hr_seq_must_copy(seq, layer)) {
        hr_blocks_event(hr_cache_pool(step->cache, layer), *block, HR_LIFE_HOLD);
        if (hr_seq_tiered(seq))
            hr_lower_stay(&hr_cache_tiered(step->cache, layer)->lower, *block);
        return true;
    }
    int64_t at = seq->length / HR_BLOCK_TOKENS;
    if (take_new(step, i, layer, at, 1) == 0)
        return false;
    *hr_step_replaced(step, i, layer) = shared;
    return true;
}

/* Undoes take_last. */
static void give_last(hr_step *step, int32_t i, int32_t layer)
{
    hr_seq *seq = step->seqs[i];
    struct hr_blocks *pool = hr_cache_pool(step->cache, layer);
    uint32_t *block = &hr_seq_blocks(seq, layer)[seq->length / HR_BLOCK_TOKENS];
    uint32_t *old = hr_step_replaced(step, i, layer);
    if (*old == HR_BLOCK_NONE) {
        hr_blocks_event(pool, *block, HR_LIFE_BACK);
        return;
    }
    hr_cache_drop(step->cache, layer, *block);
    *block = *old;
    hr_seq_slots(seq, layer)[seq->length / HR_BLOCK_TOKENS] = pool->all[*old].slot;
    *old = HR_BLOCK_NONE;
}

static bool has_last(const hr_step *step, int32_t i)
{
    return hr_step_new(step, i) > 0 && step->seqs[i]->length % HR_BLOCK_TOKENS != 0;
}

/* Undoes take_layer; `taken`: how far it came. */
static void give_layer(hr_step *step, int32_t i, int32_t layer, int64_t taken)
{
    hr_seq *seq = step->seqs[i];
    for (int64_t b = taken; b-- > hr_blocks_of(seq->length);)
        hr_cache_drop(step->cache, layer, hr_seq_blocks(seq, layer)[b]);
    if (has_last(step, i))
        give_last(step, i, layer);
}

/* All or nothing of what sequence i needs in one layer. */
static bool take_layer(hr_step *step, int32_t i, int32_t layer)
{
    hr_seq *seq = step->seqs[i];
    int64_t have = hr_blocks_of(seq->length), want = hr_blocks_of(step->views[i].n_kv);
    if (has_last(step, i) && !take_last(step, i, layer))
        return false;
    if (want > have)
        have += take_new(step, i, layer, have, want - have);
    if (have >= want)
        return true;
    give_layer(step, i, layer, have);
    return false;
}

static hr_status budget_error(const hr_step *step, int32_t i, int32_t layer)
{
    hr_context *c = step->cache->context;
    return hr_fail(&c->error, HR_E_BUDGET,
                   "sequence %d of the batch needs %lld tokens: no block is left for layer %d; "
                   "%llu of %llu bytes of K/V are used, in %lld of %lld extents; a block takes "
                   "%llu",
                   i, (long long)step->views[i].n_kv, layer, (unsigned long long)c->kv_bytes_used,
                   (unsigned long long)hr_context_budget(c), (long long)c->extents.used_count,
                   (long long)c->extents.limit,
                   (unsigned long long)hr_blocks_bytes(hr_cache_pool(step->cache, layer)));
}

hr_status hr_reserve_take(hr_step *step)
{
    int32_t layers = step->cache->n_layers, i, l = 0;
    for (i = 0; i < step->n_seqs; i++) {
        hr_status status = hr_seq_reserve(step->seqs[i], hr_blocks_of(step->views[i].n_kv));
        if (status != HR_OK)
            return status;
        memset(hr_step_replaced(step, i, 0), 0xff, (size_t)layers * sizeof(*step->replaced));
    }
    for (i = 0; i < step->n_seqs; i++)
        for (l = 0; l < layers; l++) {
            if (take_layer(step, i, l))
                continue;
            hr_status status = budget_error(step, i, l);
            while (l-- > 0)
                give_layer(step, i, l, hr_blocks_of(step->views[i].n_kv));
            while (i-- > 0)
                hr_reserve_undo(step, i);
            return status;
        }
    return HR_OK;
}

void hr_reserve_undo(hr_step *step, int32_t i)
{
    for (int32_t l = 0; l < step->cache->n_layers; l++)
        give_layer(step, i, l, hr_blocks_of(step->views[i].n_kv));
}

void hr_reserve_written(hr_step *step, int32_t layer)
{
    struct hr_blocks *pool = hr_cache_pool(step->cache, layer);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        const uint32_t *blocks = hr_seq_blocks(step->seqs[i], layer);
        struct hr_span span = hr_step_written(step, i);
        for (int64_t b = span.first; b < span.end; b++) {
            hr_blocks_event(pool, blocks[b], HR_LIFE_WRITE);
            if ((b + 1) * HR_BLOCK_TOKENS <= step->views[i].n_kv)
                hr_blocks_event(pool, blocks[b], HR_LIFE_FILL);
        }
    }
}

void hr_reserve_keep(hr_step *step, int32_t i)
{
    struct hr_span span = hr_step_written(step, i);
    for (int32_t l = 0; l < step->cache->n_layers; l++) {
        struct hr_blocks *pool = hr_cache_pool(step->cache, l);
        uint32_t *old = hr_step_replaced(step, i, l);
        for (int64_t b = span.first; b < span.end; b++)
            hr_blocks_event(pool, hr_seq_blocks(step->seqs[i], l)[b], HR_LIFE_COMMIT);
        if (*old != HR_BLOCK_NONE)
            hr_cache_drop(step->cache, l, *old);
        *old = HR_BLOCK_NONE;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "src/seq.h"

#include <string.h>

#include "src/fetch.h"

static size_t keep_bytes(const hr_cache *cache)
{
    return (size_t)cache->n_tiered * sizeof(int64_t);
}

static void link_seq(hr_seq *seq)
{
    seq->next = seq->cache->first_seq;
    if (seq->next)
        seq->next->prev = seq;
    seq->cache->first_seq = seq;
}

static void unlink_seq(hr_seq *seq)
{
    if (seq->next)
        seq->next->prev = seq->prev;
    if (seq->prev)
        seq->prev->next = seq->next;
    else
        seq->cache->first_seq = seq->next;
}

hr_status hr_seq_make(hr_cache *cache, hr_seq **out)
{
    hr_context *c = cache->context;
    hr_seq *seq = hr_alloc_zero(&c->alloc, sizeof(*seq));
    if (!seq)
        return hr_fail(&c->error, HR_E_NO_MEMORY, "no memory for a sequence");
    seq->cache = cache;
    if (cache->n_tiered) {
        seq->keep = hr_alloc_zero(&c->alloc, keep_bytes(cache));
        if (!seq->keep) {
            hr_alloc_put(&c->alloc, seq, sizeof(*seq));
            return hr_fail(&c->error, HR_E_NO_MEMORY, "no memory for a sequence");
        }
    }
    seq->uid = ++c->last_uid;
    link_seq(seq);
    cache->users++;
    *out = seq;
    return HR_OK;
}

static size_t table_bytes(const hr_seq *seq, int64_t capacity)
{
    return 2 * (size_t)seq->cache->n_layers * (size_t)capacity * sizeof(uint32_t);
}

void hr_seq_free(hr_seq *seq)
{
    hr_cache *cache = seq->cache;
    struct hr_alloc *alloc = &cache->context->alloc;
    hr_fetch_stop(cache);
    hr_seq_drop_blocks(seq, 0, hr_blocks_of(seq->length));
    unlink_seq(seq);
    hr_alloc_put(alloc, seq->table, table_bytes(seq, seq->capacity));
    hr_alloc_put(alloc, seq->keep, keep_bytes(cache));
    hr_alloc_put(alloc, seq, sizeof(*seq));
    cache->users--;
}

hr_status hr_seq_reserve(hr_seq *seq, int64_t blocks)
{
    hr_context *c = seq->cache->context;
    int64_t have = hr_blocks_of(seq->length);
    int64_t capacity = seq->capacity ? seq->capacity : 16;
    if (blocks <= seq->capacity)
        return HR_OK;
    while (capacity < blocks)
        capacity *= 2;
    uint32_t *table = hr_alloc_get(&c->alloc, table_bytes(seq, capacity));
    if (!table)
        return hr_fail(&c->error, HR_E_NO_MEMORY,
                       "no memory for a table of %lld blocks x %d layers", (long long)capacity,
                       seq->cache->n_layers);
    for (int32_t l = 0; l < 2 * seq->cache->n_layers && have > 0; l++)
        memcpy(table + l * capacity, seq->table + l * seq->capacity, (size_t)have * sizeof(*table));
    hr_alloc_put(&c->alloc, seq->table, table_bytes(seq, seq->capacity));
    seq->table = table;
    seq->capacity = capacity;
    return HR_OK;
}

void hr_seq_drop_blocks(hr_seq *seq, int64_t keep, int64_t have)
{
    for (int32_t l = 0; l < seq->cache->n_layers; l++)
        for (int64_t b = keep; b < have; b++)
            hr_cache_drop(seq->cache, l, hr_seq_blocks(seq, l)[b]);
}

hr_status hr_seq_make_fork(hr_seq *parent, int64_t length, hr_seq **child)
{
    hr_cache *cache = parent->cache;
    int64_t blocks = hr_blocks_of(length);
    hr_seq *seq = NULL;
    hr_status status = hr_seq_make(cache, &seq);
    if (status == HR_OK) {
        status = hr_seq_reserve(seq, blocks);
        if (status != HR_OK)
            hr_seq_free(seq);
    }
    if (status != HR_OK)
        return status;
    for (int32_t l = 0; l < cache->n_layers; l++)
        for (int64_t b = 0; b < blocks; b++) {
            uint32_t block = hr_seq_blocks(parent, l)[b];
            hr_blocks_event(hr_cache_pool(cache, l), block, HR_LIFE_SHARE);
            hr_seq_blocks(seq, l)[b] = block;
            hr_seq_slots(seq, l)[b] = hr_seq_slots(parent, l)[b];
        }
    seq->length = length;
    seq->foreign_tail = length % HR_BLOCK_TOKENS != 0;
    *child = seq;
    return HR_OK;
}

/* All that is enqueued has used block `index`: a write to disk comes behind it. */
static void note_use(const hr_seq *seq, int64_t index)
{
    uint64_t ticket = hr_tickets_issue(&seq->cache->context->tier->tickets);
    for (int32_t l = 0; l < seq->cache->n_layers; l++) {
        const struct hr_lower *lower = &hr_cache_tiered(seq->cache, l)->lower;
        uint32_t slot = lower->blocks->all[hr_seq_blocks(seq, l)[index]].slot;
        if (slot != HR_BLOCK_NONE)
            *hr_lower_used_by(lower, slot) = ticket;
    }
}

void hr_seq_zero_values(hr_seq *seq, int64_t index, int64_t from, int64_t to)
{
    struct hr_dev *dev = seq->cache->context->dev;
    if (from >= to || seq->cache->context->dry)
        return;
    for (int32_t l = 0; l < seq->cache->n_layers; l++) {
        const struct hr_blocks *pool = hr_cache_pool(seq->cache, l);
        const struct hr_block *block = &pool->all[hr_seq_blocks(seq, l)[index]];
        const struct hr_geom *g = hr_cache_geom(seq->cache, l);
        size_t row_bytes = (size_t)g->dim * hr_dtype_bytes(g->dtype);
        if (block->life.device != HR_LIFE_THERE || block->life.lower == HR_LIFE_COMING)
            continue;           /* below, or on its way, clean: the layer was not appended */
        if (hr_seq_tiered(seq)) /* or the rows would come back from there */
            hr_lower_forget(&hr_cache_tiered(seq->cache, l)->lower, hr_seq_blocks(seq, l)[index]);
        for (int32_t h = 0; h < g->kv_heads; h++) {
            unsigned char *page = hr_page_addr(g, &pool->slots.view, block->slot, h);
            unsigned char *values = page + hr_page_bytes(g) / 2;
            dev->ops->zero(dev, values + (size_t)from * row_bytes, (size_t)(to - from) * row_bytes);
        }
    }
    if (hr_seq_tiered(seq))
        note_use(seq, index);
}

/* Whether any layer shares block `index` with another sequence. */
static bool is_shared(const hr_seq *seq, int64_t index)
{
    for (int32_t l = 0; l < seq->cache->n_layers; l++)
        if (hr_blocks_shared(hr_cache_pool(seq->cache, l), hr_seq_blocks(seq, l)[index]))
            return true;
    return false;
}

/* Whether the block is below in any layer, or on its way there. */
static bool is_away(const hr_seq *seq, int64_t index)
{
    for (int32_t l = 0; l < seq->cache->n_layers && hr_seq_tiered(seq); l++) {
        const struct hr_lower *lower = &hr_cache_tiered(seq->cache, l)->lower;
        uint32_t block = hr_seq_blocks(seq, l)[index];
        const struct hr_life *life = &lower->blocks->all[block].life;
        if (hr_lower_away(lower, block) || life->device != HR_LIFE_THERE ||
            life->lower == HR_LIFE_COMING)
            return true;
    }
    return false;
}

/* Rows of block `index` may be written again. */
static void reopen(hr_seq *seq, int64_t index)
{
    for (int32_t l = 0; l < seq->cache->n_layers; l++) {
        struct hr_blocks *pool = hr_cache_pool(seq->cache, l);
        uint32_t block = hr_seq_blocks(seq, l)[index];
        if (pool->all[block].life.phase == HR_LIFE_SEALED)
            hr_blocks_event(pool, block, HR_LIFE_REOPEN);
    }
}

void hr_seq_cut(hr_seq *seq, int64_t length)
{
    int64_t old = seq->length, last = length / HR_BLOCK_TOKENS, fill = length % HR_BLOCK_TOKENS;
    if (length == old)
        return;
    hr_fetch_stop(seq->cache);
    hr_seq_drop_blocks(seq, hr_blocks_of(length), hr_blocks_of(old));
    seq->length = length;
    bool same_block = fill > 0 && old <= (last + 1) * HR_BLOCK_TOKENS;
    if (fill == 0) {
        seq->foreign_tail = false;
    } else if (is_shared(seq, last) || is_away(seq, last)) {
        seq->foreign_tail = true;
    } else if (!same_block || !seq->foreign_tail) {
        int64_t end = same_block ? old - last * HR_BLOCK_TOKENS : HR_BLOCK_TOKENS;
        reopen(seq, last);
        hr_seq_zero_values(seq, last, fill, end);
        seq->foreign_tail = false;
    }
}

void hr_seq_find_slots(hr_seq *seq)
{
    for (int32_t l = 0; l < seq->cache->n_layers; l++)
        for (int64_t b = 0; b < hr_blocks_of(seq->length); b++)
            hr_seq_slots(seq, l)[b] =
                hr_cache_pool(seq->cache, l)->all[hr_seq_blocks(seq, l)[b]].slot;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence: its length and, per layer, its blocks and where they are. */
#ifndef HR_SEQ_H
#define HR_SEQ_H

#include "src/cache.h"

struct hr_seq {
    hr_cache *cache;
    hr_seq *prev, *next; /* of the cache's */
    hr_step *step;       /* the open step that holds it, or NULL */
    int32_t batch_index; /* in it */
    uint64_t uid;        /* of this context's, never used again */
    hr_advice advice;
    int64_t *keep;   /* [pools] with a tier below: newest blocks of each layer that stay resident */
    int64_t length;  /* committed tokens */
    uint32_t *table; /* [2][n_layers][capacity] blocks, oldest first, and behind them their slots */
    int64_t capacity; /* blocks per layer that the table has room for */
    /* The last block may hold rows of another sequence past `length` (a fork or truncate inside a
     * shared block): copy it before appending, even when the other owner is gone. */
    bool foreign_tail;
};

hr_status hr_seq_make(hr_cache *cache, hr_seq **seq);
void hr_seq_free(hr_seq *seq);
hr_status hr_seq_make_fork(hr_seq *parent, int64_t length, hr_seq **child);
void hr_seq_cut(hr_seq *seq, int64_t length);

/* Makes room for `blocks` per layer. */
hr_status hr_seq_reserve(hr_seq *seq, int64_t blocks);

/* Lets go of the blocks [keep, have) of every layer. */
void hr_seq_drop_blocks(hr_seq *seq, int64_t keep, int64_t have);

/* Zeroes V rows [from, to) of block `index` in all layers: rows that no token owns must be finite,
 * since 0 * NaN is NaN. */
void hr_seq_zero_values(hr_seq *seq, int64_t index, int64_t from, int64_t to);

static inline uint32_t *hr_seq_blocks(const hr_seq *seq, int32_t layer)
{
    return seq->table ? seq->table + (int64_t)layer * seq->capacity : NULL;
}

static inline uint32_t *hr_seq_slots(const hr_seq *seq, int32_t layer)
{
    return seq->table ? seq->table + (seq->cache->n_layers + (int64_t)layer) * seq->capacity : NULL;
}

/* Whether a tier is below. */
static inline bool hr_seq_tiered(const hr_seq *seq)
{
    return seq->cache->n_tiered > 0;
}

static inline int64_t hr_seq_keep(const hr_seq *seq, int32_t layer)
{
    return seq->keep[hr_cache_pool_of(seq->cache, layer)];
}

/* Whether an append must first copy the last block of `layer`. */
static inline bool hr_seq_must_copy(const hr_seq *seq, int32_t layer)
{
    if (seq->length % HR_BLOCK_TOKENS == 0)
        return false;
    uint32_t last = hr_seq_blocks(seq, layer)[seq->length / HR_BLOCK_TOKENS];
    return seq->foreign_tail || hr_blocks_shared(hr_cache_pool(seq->cache, layer), last);
}

/* Without a tier below: writes the slots of its blocks into the table, when they have moved. */
void hr_seq_find_slots(hr_seq *seq);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A step: begin reserves and plans, append and attend run layer by layer, commit or abort ends. */
#ifndef HR_STEP_H
#define HR_STEP_H

#include <stdatomic.h>

#include "src/plan.h"
#include "src/seq.h"

struct hr_step {
    hr_cache *cache;
    hr_step_limits limits;
    bool open;
    bool cut;           /* planned for waves: its K/V may go to disk before it attends */
    hr_step *next_open; /* of the cache's */
    int32_t n_seqs;
    int64_t new_tokens;
    int64_t query_tokens;
    void *stream; /* the batch's: steps that are open together may have different ones */
    /* [limits.seqs] */
    hr_seq **seqs;
    struct hr_shape *shapes;
    struct hr_plan_order *order;
    struct hr_seq_view *views;
    int64_t *first_slot; /* of each in `slots` */
    int64_t *first_item; /* and one more: prefix counts of the blocks that an append touches */
    uint32_t *copy_from; /* of the layer being appended */
    uint32_t *replaced;  /* [limits.seqs][n_layers] shared last block that a copy stands in for */
    /* [n_layers] */
    bool *appended;
    bool *attended;
    uint32_t *first_wave; /* of the layer in its ring's list; UINT32_MAX: not in it */
    /* [classes of the cache] */
    struct hr_plan *plans;
    int64_t *reserved; /* [pools]: hr_tiered.reserved has it */
    float *state;      /* carries and partials of one attend; memory of the device */
    size_t state_floats;
    /* With a tier below. */
    uint32_t mark;       /* of the blocks that stay resident behind this step */
    uint64_t evictions;  /* those that the fetch list knows of */
    uint32_t *slots;     /* of the layer at hand: all blocks, sequence by sequence */
    uint32_t *distances; /* scratch of fetch.c: [blocks of the longest sequence] */
    size_t slots_max, distances_max;
    hr_status failed; /* what ended an append or attend for good */
    atomic_bool cancelled;
    struct hr_step_cuda *cuda; /* lists on the CUDA device, or NULL */
};

hr_status hr_step_make(hr_cache *cache, const hr_step_limits *limits, hr_step **step);
void hr_step_free(hr_step *step);
hr_status hr_step_open(hr_step *step, const hr_batch *batch);
hr_status hr_step_close(hr_step *step, const int64_t *kept);
void hr_step_undo(hr_step *step);

/* The shared last block that a copy stands in for; HR_BLOCK_NONE: none. */
static inline uint32_t *hr_step_replaced(const hr_step *step, int32_t i, int32_t layer)
{
    return &step->replaced[(int64_t)i * step->cache->n_layers + layer];
}

/* Slot of the block whose rows sequence i's own copy of it begins with; HR_BLOCK_NONE: there is
 * none. */
static inline uint32_t hr_step_copied_slot(const hr_step *step, int32_t i, int32_t layer)
{
    uint32_t old = *hr_step_replaced(step, i, layer);
    return old == HR_BLOCK_NONE ? old : hr_cache_pool(step->cache, layer)->all[old].slot;
}

static inline int64_t hr_step_new(const hr_step *step, int32_t i)
{
    return step->views[i].n_new;
}

/* Blocks [first, end) of a sequence. */
struct hr_span {
    int64_t first, end;
};

/* Those that the step writes to, of sequence i. */
static inline struct hr_span hr_step_written(const hr_step *step, int32_t i)
{
    int64_t n_kv = step->views[i].n_kv, n_new = hr_step_new(step, i);
    if (n_new == 0)
        return (struct hr_span){0, 0};
    return (struct hr_span){(n_kv - n_new) / HR_BLOCK_TOKENS, hr_blocks_of(n_kv)};
}

#endif

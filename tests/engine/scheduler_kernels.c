/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of scheduler.h: an item notes all that it would read, and is run when the scheduler
 * wants. What the caller may change meanwhile is copied: views, lists of blocks, rows to append. */
#include <stdlib.h>
#include <string.h>

#include "tests/engine/scheduler.h"

static const struct hr_kernels *real;
static struct hr_kernels table;
static void *scratch;

/* ---- Attend ---- */

struct attend_op {
    struct sched_op op;
    struct hr_attend attend;
    struct hr_seq_view view;
    struct hr_tile tile;
    struct hr_chunk chunk;
    int64_t item;
    uint32_t blocks[];
};

static struct attend_op *capture(const struct hr_attend *a, int32_t seq,
                                 void (*run)(struct sched_op *op))
{
    const struct hr_seq_view *view = &a->seqs[seq];
    size_t bytes = (size_t)hr_blocks_of(view->n_kv) * sizeof(uint32_t);
    struct attend_op *x = malloc(sizeof(*x) + bytes);
    *x = (struct attend_op){.op.run = run, .attend = *a, .view = *view};
    memcpy(x->blocks, view->blocks, bytes);
    x->view.blocks = x->blocks;
    x->attend.seqs = &x->view;
    sched_counted.items++;
    return x;
}

/* One head's pages of blocks [from, to) that this launch reaches. */
static void read_blocks(const struct attend_op *x, int32_t head, int64_t from, int64_t to)
{
    const struct hr_attend *a = &x->attend;
    int64_t n = hr_blocks_of(x->view.n_kv), low = n - a->wave_end, high = n - a->wave_begin;
    for (int64_t b = from > low ? from : low; b < to && b < high; b++)
        if (b >= 0)
            sched_use(hr_page_addr(&a->geom, &a->pool, x->blocks[b], head), hr_page_bytes(&a->geom),
                      false, "attention");
}

/* What rows [first, end) of a head see. */
static void read_visible(const struct attend_op *x, int32_t head, int64_t first, int64_t end,
                         int64_t least, int64_t most)
{
    const struct hr_attend *a = &x->attend;
    const struct hr_seq_view *v = &x->view;
    struct hr_visible low = hr_visible_keys(&a->geom, a->mask, v->n_kv, v->n_q, first);
    struct hr_visible high = hr_visible_keys(&a->geom, a->mask, v->n_kv, v->n_q, end - 1);
    int64_t from = low.lo / HR_BLOCK_TOKENS, to = hr_blocks_of(high.hi);
    int64_t sinks = a->geom.window > 0 ? hr_blocks_of(hr_clamp(a->geom.sinks, high.hi)) : 0;
    sinks = sinks < from ? sinks : from;
    read_blocks(x, head, least, sinks < most ? sinks : most);
    read_blocks(x, head, from > least ? from : least, to < most ? to : most);
}

static void run_tile(struct sched_op *op)
{
    struct attend_op *x = (struct attend_op *)op;
    const struct hr_tile *t = &x->tile;
    read_visible(x, t->head, t->token, t->token + t->tokens, 0, INT64_MAX);
    x->attend.tiles = t;
    real->tile(&x->attend, 0, scratch);
}

static void tile(const void *args, int64_t item, void *unused)
{
    const struct hr_attend *a = args;
    struct attend_op *x = capture(a, a->tiles[item].seq, run_tile);
    x->tile = a->tiles[item];
    x->tile.seq = 0;
    sched_enqueue(&x->op);
}

static void run_chunk(struct sched_op *op)
{
    struct attend_op *x = (struct attend_op *)op;
    const struct hr_chunk *c = &x->chunk;
    read_visible(x, c->head, 0, x->view.n_q, c->block, c->block + c->blocks);
    x->attend.chunks = c;
    real->chunk(&x->attend, 0, scratch);
}

static void chunk(const void *args, int64_t item, void *unused)
{
    const struct hr_attend *a = args;
    struct attend_op *x = capture(a, a->chunks[item].seq, run_chunk);
    x->chunk = a->chunks[item];
    x->chunk.seq = 0;
    sched_enqueue(&x->op);
}

/* Reads partials only: the step's own lists will do, which stay until its next begin. */
static void run_fold(struct sched_op *op)
{
    struct attend_op *x = (struct attend_op *)op;
    const struct hr_fold *f = &x->attend.folds[x->item];
    struct hr_fold one = *f;
    one.seq = 0;
    x->attend.folds = &one;
    real->fold(&x->attend, 0, scratch);
}

static void fold(const void *args, int64_t item, void *unused)
{
    const struct hr_attend *a = args;
    struct attend_op *x = capture(a, a->folds[item].seq, run_fold);
    x->item = item;
    sched_enqueue(&x->op);
}

/* ---- Append ---- */

struct append_op {
    struct sched_op op;
    struct hr_append append;
    struct hr_seq_view view;
    uint32_t copy_from;
    int64_t first_item[2];
    int64_t block;
    uint32_t *blocks;
    float *rows[2];
};

static void use_block(const struct append_op *x, uint32_t slot, bool write, const char *what)
{
    const struct hr_append *a = &x->append;
    sched_use(hr_block_addr(&a->pool, slot), a->pool.block_bytes, write, what);
}

static void run_append(struct sched_op *op)
{
    struct append_op *x = (struct append_op *)op;
    bool first = x->block == (x->view.n_kv - x->view.n_new) / HR_BLOCK_TOKENS;
    if (first && x->copy_from != UINT32_MAX)
        use_block(x, x->copy_from, false, "the copy of a fork");
    use_block(x, x->blocks[x->block], true, "append");
    real->append(&x->append, x->block - (x->view.n_kv - x->view.n_new) / HR_BLOCK_TOKENS, scratch);
    free(x->blocks);
    free(x->rows[0]);
    free(x->rows[1]);
}

/* The rows of one sequence, as [n_new][heads][dim] of their own. */
static float *copy_rows(const struct hr_rows *rows, const struct hr_seq_view *v)
{
    size_t bytes = (size_t)(v->n_new * rows->stride_token) * sizeof(float);
    float *copy = malloc(bytes + 1);
    memcpy(copy, (const float *)rows->data + v->new_row * rows->stride_token, bytes);
    return copy;
}

static void append(const void *args, int64_t item, void *unused)
{
    const struct hr_append *a = args;
    int32_t seq = 0;
    while (a->first_item[seq + 1] <= item)
        seq++;
    const struct hr_seq_view *v = &a->seqs[seq];
    struct append_op *x = malloc(sizeof(*x));
    size_t bytes = (size_t)hr_blocks_of(v->n_kv) * sizeof(uint32_t);
    *x = (struct append_op){.op.run = run_append,
                            .append = *a,
                            .view = *v,
                            .copy_from = a->copy_from[seq],
                            .first_item = {0, a->first_item[seq + 1] - a->first_item[seq]},
                            .block =
                                (v->n_kv - v->n_new) / HR_BLOCK_TOKENS + item - a->first_item[seq],
                            .blocks = malloc(bytes)};
    memcpy(x->blocks, v->blocks, bytes);
    x->rows[0] = copy_rows(&a->k, v);
    x->rows[1] = copy_rows(&a->v, v);
    x->view.blocks = x->blocks;
    x->view.new_row = 0;
    x->append.seqs = &x->view;
    x->append.copy_from = &x->copy_from;
    x->append.first_item = x->first_item;
    x->append.n_seqs = 1;
    x->append.k.data = x->rows[0];
    x->append.v.data = x->rows[1];
    sched_counted.items++;
    sched_enqueue(&x->op);
}

const struct hr_kernels *sched_kernels(const struct hr_kernels *kernels)
{
    size_t bytes = (kernels->scratch_bytes() + 63) / 64 * 64;
    if (!scratch)
        scratch = aligned_alloc(64, bytes);
    real = kernels;
    table = *kernels;
    table.tile = tile;
    table.chunk = chunk;
    table.fold = fold;
    table.append = append;
    return &table;
}

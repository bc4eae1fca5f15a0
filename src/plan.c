/* SPDX-License-Identifier: Apache-2.0 */
#include "src/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static bool takes_tiles(const struct hr_plan_input *in, const struct hr_shape *shape)
{
    return shape->n_q * in->geom->group >= in->kernels->tile_rows_min;
}

static int64_t count_tiles(const struct hr_plan_input *in, int64_t tokens)
{
    int64_t tiles = 0;
    for (int32_t i = 0; i < in->n_seqs; i++)
        if (takes_tiles(in, &in->shapes[i]))
            tiles += (in->shapes[i].n_q + tokens - 1) / tokens * in->geom->kv_heads;
    return tiles;
}

/* As large as the kernel takes: a block is converted once per tile. Smaller, down to a sixth, where
 * the threads would not get two each. No bit depends on it. */
static int64_t tile_tokens(const struct hr_plan_input *in)
{
    int64_t most = in->kernels->tile_rows(in->geom) / in->geom->group;
    int64_t tokens = most > 0 ? most : 1;
    while (tokens * 3 > most && tokens > 1 && count_tiles(in, tokens) < 2 * in->threads)
        tokens = (tokens + 1) / 2;
    return tokens;
}

static int64_t chunk_count(const struct hr_plan_input *in, const struct hr_shape *shape)
{
    int64_t per_chunk = in->kernels->chunk_blocks(shape->n_kv, shape->n_q, in->geom);
    return (hr_blocks_of(shape->n_kv) + per_chunk - 1) / per_chunk;
}

/* Longest first, so that the last items to start are short; ties by index, so that the plan is a
 * function of its input. */
static int compare_order(const void *a, const void *b)
{
    const struct hr_plan_order *x = a, *y = b;
    if (x->n_kv != y->n_kv)
        return x->n_kv < y->n_kv ? 1 : -1;
    return x->seq < y->seq ? -1 : 1;
}

static void sort_longest_first(const struct hr_plan_input *in)
{
    bool sorted = true;
    for (int32_t i = 0; i < in->n_seqs; i++) {
        in->order[i] = (struct hr_plan_order){in->shapes[i].n_kv, i};
        sorted = sorted && (i == 0 || in->order[i - 1].n_kv >= in->order[i].n_kv);
    }
    if (!sorted)
        qsort(in->order, (size_t)in->n_seqs, sizeof(*in->order), compare_order);
}

static bool make_room(struct hr_plan *plan, const struct hr_plan_input *in, struct hr_alloc *alloc)
{
    int64_t heads = in->geom->kv_heads, chunks = 0, folds = 0;
    for (int32_t i = 0; i < in->n_seqs; i++) {
        const struct hr_shape *shape = &in->shapes[i];
        if (shape->n_q == 0 || takes_tiles(in, shape))
            continue;
        chunks += heads * chunk_count(in, shape);
        folds += heads;
    }
    size_t tiles = (size_t)count_tiles(in, plan->tile_tokens);
    return hr_alloc_grow(alloc, (void **)&plan->tiles, &plan->tiles_max, tiles,
                         sizeof(*plan->tiles)) &&
           hr_alloc_grow(alloc, (void **)&plan->chunks, &plan->chunks_max, (size_t)chunks,
                         sizeof(*plan->chunks)) &&
           hr_alloc_grow(alloc, (void **)&plan->folds, &plan->folds_max, (size_t)folds,
                         sizeof(*plan->folds));
}

/* Heads whose tiles run together: as many as have K/V that a cache keeps, in equal shares; a small
 * share left over would end with long tiles on few processors. */
static int32_t heads_together(const struct hr_plan_input *in, int32_t seq)
{
    int64_t heads = in->geom->kv_heads, room = in->kernels->section_bytes;
    int64_t bytes =
        in->shapes[seq].n_kv * 2 * in->geom->dim * (int64_t)hr_dtype_bytes(in->geom->dtype);
    if (room == 0 || bytes * heads <= room)
        return (int32_t)heads;
    int64_t fit = room / bytes, shares = fit < 1 ? heads : (heads + fit - 1) / fit;
    return (int32_t)((heads + shares - 1) / shares);
}

/* The newest tokens first: under a causal mask they have the most keys. Heads innermost, so that
 * tiles that run at one time share the sequence's blocks. */
static void add_tiles_of(struct hr_plan *plan, const struct hr_plan_input *in, int32_t seq,
                         int32_t first_head, int32_t end_head)
{
    const struct hr_geom *g = in->geom;
    int64_t n_q = in->shapes[seq].n_q, per_tile = plan->tile_tokens;
    for (int64_t token = (n_q - 1) / per_tile * per_tile; token >= 0; token -= per_tile) {
        int32_t tokens = (int32_t)(n_q - token < per_tile ? n_q - token : per_tile);
        int64_t carry =
            plan->waves > 1 || in->cut ? in->kernels->carry_floats(g, tokens * g->group) : 0;
        for (int32_t head = first_head; head < end_head; head++) {
            plan->tiles[plan->n_tiles++] =
                (struct hr_tile){seq, head, token, plan->carry_floats, tokens};
            plan->carry_floats += carry;
        }
    }
}

static void add_tiles(struct hr_plan *plan, const struct hr_plan_input *in, int32_t seq)
{
    int32_t heads = in->geom->kv_heads, together = heads_together(in, seq);
    for (int32_t head = 0; head < heads; head += together)
        add_tiles_of(plan, in, seq, head, head + together < heads ? head + together : heads);
}

static void add_chunks(struct hr_plan *plan, const struct hr_plan_input *in, int32_t seq)
{
    const struct hr_geom *g = in->geom;
    const struct hr_shape *shape = &in->shapes[seq];
    int64_t blocks = hr_blocks_of(shape->n_kv), count = chunk_count(in, shape);
    int32_t per_chunk = in->kernels->chunk_blocks(shape->n_kv, shape->n_q, g);
    int64_t floats = shape->n_q * g->group * (g->dim + 2);
    for (int32_t head = 0; head < g->kv_heads; head++) {
        plan->folds[plan->n_folds++] = (struct hr_fold){seq, head, plan->n_chunks, (int32_t)count};
        for (int64_t i = 0; i < count; i++) {
            int64_t left = blocks - i * per_chunk;
            int32_t n = left < per_chunk ? (int32_t)left : per_chunk;
            plan->chunks[plan->n_chunks++] =
                (struct hr_chunk){seq, head, i * per_chunk, plan->partial_floats, n};
            plan->partial_floats += floats;
        }
    }
}

static void plan_waves(struct hr_plan *plan, const struct hr_plan_input *in)
{
    plan->blocks_max = 0;
    for (int32_t i = 0; i < in->n_seqs; i++) {
        int64_t blocks = in->shapes[i].n_q > 0 ? hr_blocks_of(in->shapes[i].n_kv) : 0;
        if (blocks > plan->blocks_max)
            plan->blocks_max = blocks;
    }
    plan->wave_blocks = in->wave_blocks;
    plan->waves = 1;
    if (in->wave_blocks > 0 && plan->blocks_max > in->wave_blocks)
        plan->waves = (plan->blocks_max + in->wave_blocks - 1) / in->wave_blocks;
}

/* Carries lie in front of the partials in one workspace. */
static void place_partials(struct hr_plan *plan)
{
    for (int64_t i = 0; i < plan->n_chunks; i++)
        plan->chunks[i].partial += plan->carry_floats;
}

bool hr_plan_make(struct hr_plan *plan, const struct hr_plan_input *in, struct hr_alloc *alloc)
{
    plan->tile_tokens = tile_tokens(in);
    if (!make_room(plan, in, alloc))
        return false;
    sort_longest_first(in);
    plan_waves(plan, in);
    plan->n_tiles = plan->n_chunks = plan->n_folds = 0;
    plan->carry_floats = plan->partial_floats = 0;
    for (int32_t i = 0; i < in->n_seqs; i++) {
        int32_t seq = in->order[i].seq;
        if (in->shapes[seq].n_q == 0)
            continue;
        if (takes_tiles(in, &in->shapes[seq]))
            add_tiles(plan, in, seq);
        else
            add_chunks(plan, in, seq);
    }
    place_partials(plan);
    return true;
}

void hr_plan_free(struct hr_plan *plan, struct hr_alloc *alloc)
{
    hr_alloc_put(alloc, plan->tiles, plan->tiles_max * sizeof(*plan->tiles));
    hr_alloc_put(alloc, plan->chunks, plan->chunks_max * sizeof(*plan->chunks));
    hr_alloc_put(alloc, plan->folds, plan->folds_max * sizeof(*plan->folds));
    *plan = (struct hr_plan){0};
}

/* Appends to a buffer that may be too short; *length counts the whole text. */
static void put(char *buffer, size_t size, int64_t *length, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void put(char *buffer, size_t size, int64_t *length, const char *format, ...)
{
    va_list args;
    size_t at = (size_t)*length < size ? (size_t)*length : size;
    va_start(args, format);
    int n = vsnprintf(buffer ? buffer + at : NULL, buffer ? size - at : 0, format, args);
    va_end(args);
    *length += n > 0 ? n : 0;
}

int64_t hr_plan_text(const struct hr_plan *plan, const struct hr_plan_input *in, char *buffer,
                     size_t size)
{
    static const char *const dtypes[] = {"", "bf16", "fp16", "fp32"};
    const struct hr_geom *g = in->geom;
    int64_t n = 0;
    put(buffer, size, &n, "kernel %s: %d KV heads x %d, dim %d, %s", in->kernels->name, g->kv_heads,
        g->group, g->dim, dtypes[g->dtype]);
    if (g->window)
        put(buffer, size, &n, ", window %lld, sinks %lld", (long long)g->window,
            (long long)g->sinks);
    put(buffer, size, &n, "\n%lld tiles of %lld tokens, %lld chunks, %lld folds\n",
        (long long)plan->n_tiles, (long long)plan->tile_tokens, (long long)plan->n_chunks,
        (long long)plan->n_folds);
    put(buffer, size, &n, "%lld waves over %lld blocks, workspace %lld + %lld bytes\n",
        (long long)plan->waves, (long long)plan->blocks_max, (long long)plan->carry_floats * 4,
        (long long)plan->partial_floats * 4);
    for (int32_t i = 0; i < in->n_seqs; i++) {
        const struct hr_shape *s = &in->shapes[i];
        bool tiles = takes_tiles(in, s);
        put(buffer, size, &n, "sequence %d: %lld queries, %lld keys: ", i, (long long)s->n_q,
            (long long)s->n_kv);
        if (s->n_q == 0)
            put(buffer, size, &n, "nothing to attend\n");
        else if (tiles)
            put(buffer, size, &n, "tiles\n");
        else
            put(buffer, size, &n, "%lld chunks of %d blocks\n", (long long)chunk_count(in, s),
                in->kernels->chunk_blocks(s->n_kv, s->n_q, g));
    }
    return n;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a case into items and runs them, wave by wave. */
#include <stdlib.h>
#include <string.h>

#include "tests/check/gpu.h"

struct plan {
    struct hr_tile *tiles;
    struct hr_chunk *chunks;
    struct hr_fold *folds;
    int64_t n_tiles, n_chunks, n_folds, state_floats;
};

static void plan_tiles(struct plan *p, const struct hc_case *c, const struct hr_kernels *k,
                       int32_t seq, int64_t cut)
{
    const struct hr_geom *g = &c->shape.geom;
    int64_t tokens = k->tile_rows(g) / g->group;
    if (cut > 0 && !(hc_on_gpu(k) && cut > tokens)) /* a CTA holds no larger one */
        tokens = cut;
    if (tokens < 1)
        tokens = 1;
    for (int32_t h = 0; h < g->kv_heads; h++) {
        for (int64_t t = 0; t < c->seqs[seq].n_q; t += tokens) {
            int64_t left = c->seqs[seq].n_q - t, n = left < tokens ? left : tokens;
            p->tiles[p->n_tiles++] = (struct hr_tile){seq, h, t, p->state_floats, (int32_t)n};
            p->state_floats += k->carry_floats(g, (int32_t)n * g->group);
        }
    }
}

static void plan_chunks(struct plan *p, const struct hc_case *c, const struct hr_kernels *k,
                        int32_t seq)
{
    const struct hr_geom *g = &c->shape.geom;
    const struct hr_seq_view *s = c->seqs + seq;
    int32_t step = k->chunk_blocks(s->n_kv, s->n_q, g);
    int64_t n = hr_blocks_of(s->n_kv), rows = s->n_q * g->group;
    for (int32_t h = 0; h < g->kv_heads; h++) {
        struct hr_fold *fold = p->folds + p->n_folds++;
        *fold = (struct hr_fold){seq, h, p->n_chunks, 0};
        for (int64_t b = 0; b < n; b += step) {
            int64_t left = n - b;
            p->chunks[p->n_chunks++] =
                (struct hr_chunk){seq, h, b, p->state_floats, (int32_t)(left < step ? left : step)};
            p->state_floats += rows * (g->dim + 2);
            fold->n_chunks++;
        }
    }
}

static void plan_make(struct plan *p, const struct hc_case *c, const struct hr_kernels *k,
                      int64_t tile_tokens)
{
    int32_t heads = c->shape.geom.kv_heads;
    size_t tiles = 1, chunks = 1;
    memset(p, 0, sizeof *p);
    for (int32_t i = 0; i < c->shape.n_seqs; i++) {
        tiles += (size_t)(c->seqs[i].n_q * heads);
        chunks += (size_t)(hr_blocks_of(c->seqs[i].n_kv) * heads);
    }
    p->tiles = hc_alloc(tiles * sizeof *p->tiles);
    p->chunks = hc_alloc(chunks * sizeof *p->chunks);
    p->folds = hc_alloc((size_t)(c->shape.n_seqs * heads + 1) * sizeof *p->folds);
    for (int32_t i = 0; i < c->shape.n_seqs; i++) {
        int64_t rows = c->seqs[i].n_q * c->shape.geom.group;
        if (rows >= k->tile_rows_min)
            plan_tiles(p, c, k, i, tile_tokens);
        else if (rows > 0)
            plan_chunks(p, c, k, i);
    }
}

static void run_items(struct hc_case *c, void (*fn)(const void *, int64_t, void *), int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        memset(c->scratch, HC_POISON, c->scratch_bytes);
        fn(&c->attend, i, c->scratch);
    }
}

static void run_on_cpu(struct hc_case *c, const struct hr_kernels *k, const struct plan *p,
                       int64_t wave, int64_t blocks)
{
    struct hr_attend *a = &c->attend;
    if (c->scratch_bytes < k->scratch_bytes()) {
        free(c->scratch);
        c->scratch_bytes = k->scratch_bytes();
        c->scratch = hc_alloc(c->scratch_bytes);
    }
    for (int64_t b = 0; b < blocks; b += wave) {
        a->wave_begin = b;
        a->wave_end = b + wave;
        a->first = b == 0;
        a->last = b + wave >= blocks;
        run_items(c, k->tile, p->n_tiles);
        run_items(c, k->chunk, p->n_chunks);
    }
    run_items(c, k->fold, p->n_folds);
}

void hc_case_run(struct hc_case *c, const struct hr_kernels *k, struct hc_cut cut)
{
    struct plan p;
    struct hr_attend *a = &c->attend;
    plan_make(&p, c, k, cut.tile_tokens);
    memset(c->out, HC_CANARY, c->out_bytes);
    memset(c->lse, HC_CANARY, c->lse_bytes);
    size_t state_bytes = (size_t)p.state_floats * 4;
    a->state = hc_alloc(state_bytes);
    memset(a->state, HC_POISON, state_bytes);
    a->tiles = p.tiles;
    a->chunks = p.chunks;
    a->folds = p.folds;
    int64_t blocks = 1;
    for (int32_t i = 0; i < c->shape.n_seqs; i++)
        if (hr_blocks_of(c->seqs[i].n_kv) > blocks)
            blocks = hr_blocks_of(c->seqs[i].n_kv);
    int64_t wave = cut.wave_blocks > 0 ? cut.wave_blocks : blocks;
    if (hc_on_gpu(k))
        hc_gpu_attend(c, k, (const int64_t[]){p.n_tiles, p.n_chunks, p.n_folds}, p.state_floats,
                      wave, blocks);
    else
        run_on_cpu(c, k, &p, wave, blocks);
    free(a->state);
    free(p.tiles);
    free(p.chunks);
    free(p.folds);
}

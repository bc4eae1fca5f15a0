/* SPDX-License-Identifier: Apache-2.0 */
/* Appends in random pieces, with forks, beside a flat model: page bytes must be equal. */
#include "tests/check/check.h"
#include "tests/check/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/ref.h"

enum { SEQS = 3, MAX_TOKENS = 700, MAX_BLOCKS = (MAX_TOKENS + 127) / 128 };

struct model {
    struct hr_append a;
    struct hr_seq_view seqs[SEQS];
    uint32_t blocks[SEQS][MAX_BLOCKS], spare;
    int64_t first_item[SEQS + 1];
    uint32_t copy_from[SEQS];
    uint32_t extents[1];
    bool opened[SEQS][MAX_BLOCKS]; /* by an append of this test: V behind the fill is zero */
    size_t elements;               /* of k and v */
};

/* Values that rounding can get wrong are frequent. */
static float source_value(uint64_t uid, int kind, int64_t token, int32_t head, int32_t d)
{
    static const float odd[] = {0.0f,      -0.0f,       INFINITY,    -INFINITY, NAN,   65519.0f,
                                65520.0f,  3.4e38f,     1e-45f,      6e-8f,     3e-8f, 2.98e-8f,
                                6.097e-5f, 1.00390625f, 1.01171875f, 1e-40f};
    uint64_t pick = (uint64_t)(token * 31 + head * 7 + d) % 97;
    return pick < 16 ? odd[pick] : hc_value(uid, (uint64_t)kind, token, head, d);
}

static void make_rows(struct hc_random *r, struct hr_rows *rows, const struct hr_geom *g,
                      int64_t tokens)
{
    rows->dtype = (hr_dtype)hc_range(r, HR_BF16, HR_FP32);
    rows->stride_head = g->dim + hc_range(r, 0, 3);
    rows->stride_token = rows->stride_head * g->kv_heads + hc_range(r, 0, 3);
    rows->data = hc_alloc((size_t)(rows->stride_token * (tokens + 1)) * 4);
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b));
}

/* Checks every byte that the appends define. */
static void check_pages(const struct model *m, uint64_t uid, const hr_dtype *types,
                        struct hc_verdict *v)
{
    const struct hr_geom *g = &m->a.geom;
    for (int32_t s = 0; s < SEQS; s++) {
        int64_t n = m->seqs[s].n_kv;
        for (int64_t j = 0; j < hr_blocks_of(n) * HR_BLOCK_TOKENS; j++) {
            for (int32_t i = 0; i < g->kv_heads * g->dim; i++) {
                int32_t h = i / g->dim, d = i % g->dim;
                const unsigned char *page =
                    hr_page_addr(g, &m->a.pool, m->seqs[s].blocks[j / HR_BLOCK_TOKENS], h);
                int64_t at = j % HR_BLOCK_TOKENS * g->dim + d;
                uint64_t id = uid + (uint64_t)s;
                float k = hr_ref_element(page, g->dtype, at);
                float x = hr_ref_element(page + hr_page_bytes(g) / 2, g->dtype, at);
                float want_k =
                    hr_ref_round(hr_ref_round(source_value(id, 0, j, h, d), types[0]), g->dtype);
                float want_v =
                    hr_ref_round(hr_ref_round(source_value(id, 1, j, h, d), types[1]), g->dtype);
                v->rows++;
                bool good = j < n ? same(k, want_k) && same(x, want_v)
                                  : !m->opened[s][j / HR_BLOCK_TOKENS] || same(x, 0);
                if (!good && !v->text[0])
                    snprintf(v->text, HC_TEXT,
                             "seq %d of %ld tokens, token %ld head %d d %d: "
                             "K %g should be %g, V %g should be %g",
                             s, (long)n, (long)j, h, d, (double)k, (double)want_k, (double)x,
                             j < n ? (double)want_v : 0.0);
            }
        }
    }
}

static void make_model(struct model *m, struct hc_random *r)
{
    static const int32_t dims[] = {8, 64, 72, 24, 128, 256};
    memset(m, 0, sizeof *m);
    m->a.geom = (struct hr_geom){.kv_heads = (int32_t)hc_range(r, 1, 3),
                                 .group = 1,
                                 .dim = dims[hc_range(r, 0, 5)],
                                 .dtype = (hr_dtype)hc_range(r, HR_BF16, HR_FP32)};
    uint32_t blocks = 2 * SEQS * MAX_BLOCKS;
    uint64_t bytes = hr_block_bytes(&m->a.geom);
    m->a.pool =
        (struct hr_pool_view){hc_alloc(bytes * blocks), bytes * blocks, bytes, m->extents, blocks};
    memset(m->a.pool.base, HC_POISON, bytes * blocks);
    for (uint32_t s = 0; s < SEQS; s++) {
        m->seqs[s].blocks = m->blocks[s];
        for (uint32_t b = 0; b < MAX_BLOCKS; b++)
            m->blocks[s][b] = s + b * SEQS;
    }
    m->spare = SEQS * MAX_BLOCKS;
    m->a.seqs = m->seqs;
    m->a.n_seqs = SEQS;
    m->a.first_item = m->first_item;
    m->a.copy_from = m->copy_from;
}

/* New tokens for every sequence; some appends go to a copy of the open block. */
static int64_t next_batch(struct model *m, struct hc_random *r)
{
    int64_t row = 0;
    for (int32_t s = 0; s < SEQS; s++) {
        struct hr_seq_view *q = m->seqs + s;
        int64_t old = q->n_kv, left = MAX_TOKENS - old;
        q->n_new = hc_range(r, 0, hc_chance(r, 50) ? 3 : 200);
        q->n_new = q->n_new < left ? q->n_new : left;
        q->n_kv = old + q->n_new;
        q->new_row = row;
        row += q->n_new;
        m->copy_from[s] = UINT32_MAX;
        if (old % HR_BLOCK_TOKENS != 0 && q->n_new > 0 && hc_chance(r, 30) &&
            m->spare < 2 * SEQS * MAX_BLOCKS) {
            m->copy_from[s] = m->blocks[s][old / HR_BLOCK_TOKENS];
            m->blocks[s][old / HR_BLOCK_TOKENS] = m->spare++;
            m->opened[s][old / HR_BLOCK_TOKENS] = true;
        }
        int64_t first = old / HR_BLOCK_TOKENS;
        int64_t items = q->n_new > 0 ? hr_blocks_of(q->n_kv) - first : 0;
        m->first_item[s + 1] = m->first_item[s] + items;
        for (int64_t b = hr_blocks_of(old); b < hr_blocks_of(q->n_kv); b++)
            m->opened[s][b] = true;
    }
    return row;
}

void hc_test_append(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_random r = {seed};
    struct model m;
    make_model(&m, &r);
    hr_dtype types[2] = {HR_FP32, HR_FP32};
    void *scratch = hc_on_gpu(k) ? NULL : hc_alloc(k->scratch_bytes());
    for (int step = 0; step < 8; step++) {
        int64_t tokens = next_batch(&m, &r);
        struct hr_rows *rows[2] = {&m.a.k, &m.a.v};
        for (int i = 0; i < 2; i++) {
            make_rows(&r, rows[i], &m.a.geom, tokens);
            if (step == 0) /* CUDA kernels and the API have one type for both */
                types[i] = i && hc_on_gpu(k) ? types[0] : rows[i]->dtype;
            rows[i]->dtype = types[i];
            for (int32_t s = 0; s < SEQS; s++)
                for (int64_t t = 0; t < m.seqs[s].n_new; t++)
                    for (int32_t h = 0; h < m.a.geom.kv_heads; h++)
                        for (int32_t d = 0; d < m.a.geom.dim; d++)
                            hr_ref_store(rows[i]->data, types[i],
                                         (m.seqs[s].new_row + t) * rows[i]->stride_token +
                                             h * rows[i]->stride_head + d,
                                         source_value(seed + (uint64_t)s, i,
                                                      m.seqs[s].n_kv - m.seqs[s].n_new + t, h, d));
        }
        if (hc_on_gpu(k))
            hc_gpu_append(&m.a, 2 * SEQS * MAX_BLOCKS, tokens);
        else
            for (int64_t i = 0; i < m.first_item[SEQS]; i++)
                k->append(&m.a, i, scratch);
        free(m.a.k.data);
        free(m.a.v.data);
        if (step % 4 == 3)
            check_pages(&m, seed, types, v);
    }
    free(scratch);
    free(m.a.pool.base);
}

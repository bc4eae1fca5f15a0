/* SPDX-License-Identifier: Apache-2.0 */
/* The row rule: a row's bits depend on its own q, the K/V it sees with their positions, its
 * sequence's n_q and n_kv, the geometry and the kernel; on the tile path not on n_q or later keys.
 */
#include "tests/check/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/ref/ref.h"
#include "tests/check/gpu.h"

static void make_random(struct hc_case *c, const struct hr_kernels *k, uint64_t seed, int64_t work)
{
    struct hc_shape s;
    hc_shape_random(&s, seed, hc_on_gpu(k) ? 20 * work : work);
    hc_shape_fit(&s, k);
    s.lse = true;
    hc_case_make(c, &s);
}

/* Sequence `seq` of a and `other` of b: rows from .. on must be equal; b's rows lie `back` earlier.
 */
static void compare(const struct hc_case *a, int32_t seq, const struct hc_case *b, int32_t other,
                    int64_t from, int64_t back, const char *what, struct hc_verdict *v)
{
    for (int64_t t = from; t < a->shape.n_q[seq] && t - back < b->shape.n_q[other]; t++) {
        v->rows++;
        if (!hc_same_row(a, seq, t, b, other, t - back) && !v->text[0])
            snprintf(v->text, HC_TEXT, "bits of seq %d token %ld differ %s", seq, (long)t, what);
    }
}

/* Alone, or beside other sequences, in other blocks. */
void hc_test_neighbours(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_case all, one;
    make_random(&all, k, seed, 2000000);
    hc_case_run(&all, k, (struct hc_cut){0, 0});
    for (int32_t i = 0; i < all.shape.n_seqs; i++) {
        struct hc_shape s = all.shape;
        s.n_seqs = 1;
        s.n_kv[0] = s.n_kv[i];
        s.n_q[0] = s.n_q[i];
        s.uid[0] = s.uid[i];
        hc_case_make(&one, &s);
        if (s.sink_logits) /* the layout's, which is the same */
            memcpy(one.sink_logits, all.sink_logits,
                   (size_t)(s.geom.kv_heads * s.geom.group) * sizeof(float));
        hc_case_run(&one, k, (struct hc_cut){0, 0});
        compare(&all, i, &one, 0, 0, 0, "beside other sequences", v);
        hc_case_free(&one);
    }
    hc_case_free(&all);
}

/* Other tiles, other waves. */
void hc_test_cuts(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_random r = {seed ^ 0x77};
    struct hc_case whole, cut;
    make_random(&whole, k, seed, 4000000);
    hc_case_make(&cut, &whole.shape);
    hc_case_run(&whole, k, (struct hc_cut){0, 0});
    const struct hc_cut cuts[] = {
        {0, 1}, {0, 7}, {hc_range(&r, 1, 9), 0}, {hc_range(&r, 1, 200), hc_range(&r, 1, 3)}};
    static const char *const names[] = {"in waves of 1 block", "in waves of 7 blocks",
                                        "in small tiles", "in other tiles and waves"};
    for (int n = 0; n < 4; n++) {
        hc_case_run(&cut, k, cuts[n]);
        for (int32_t i = 0; i < whole.shape.n_seqs; i++)
            compare(&whole, i, &cut, i, 0, 0, names[n], v);
    }
    hc_case_free(&whole);
    hc_case_free(&cut);
}

/* Prefill in pieces of any size, all on the tile path, gives the bits of the whole (causal). */
void hc_test_chunked(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_random r = {seed ^ 0x99};
    struct hc_case whole, part;
    struct hc_shape s;
    hc_shape_random(&s, seed, 1);
    hc_shape_fit(&s, k);
    int64_t least = (k->tile_rows_min + s.geom.group - 1) / s.geom.group;
    s.mask = HR_MASK_CAUSAL;
    s.lse = true;
    s.n_seqs = 1;
    s.n_kv[0] = hc_range(&r, least, least + 700);
    s.n_q[0] = hc_range(&r, least, s.n_kv[0]);
    hc_case_make(&whole, &s);
    hc_case_run(&whole, k, (struct hc_cut){0, 0});
    int64_t start = s.n_kv[0] - s.n_q[0];
    for (int64_t at = start; at + least <= s.n_kv[0];) {
        struct hc_shape p = s;
        int64_t left = s.n_kv[0] - at;
        p.n_q[0] = hc_range(&r, least, least * 4);
        if (p.n_q[0] > left)
            p.n_q[0] = left;
        p.n_kv[0] = at + p.n_q[0];
        hc_case_make(&part, &p);
        hc_case_run(&part, k, (struct hc_cut){0, hc_range(&r, 0, 2)});
        compare(&whole, 0, &part, 0, at - start, at - start, "when prefilled in pieces", v);
        hc_case_free(&part);
        at += p.n_q[0];
    }
    hc_case_free(&whole);
}

/* Every other row's q changes, and one token's is kept. */
void hc_test_others(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_random r = {seed ^ 0xbb};
    struct hc_case a, b;
    make_random(&a, k, seed, 2000000);
    hc_case_make(&b, &a.shape);
    const struct hc_shape *s = &a.shape;
    int32_t heads = s->geom.kv_heads * s->geom.group, head = (int32_t)hc_range(&r, 0, heads - 1);
    int64_t stride = hc_range(&r, 1, 40);
    for (int32_t i = 0; i < s->n_seqs; i++)
        for (int64_t t = 0; t < s->n_q[i]; t++)
            for (int32_t h = 0; h < heads; h++)
                for (int32_t d = 0; d < s->geom.dim && (t % stride != 0 || h != head); d++)
                    hr_ref_store(b.q, s->q_dtype,
                                 (b.seqs[i].q_row + t) * b.attend.q.stride_token +
                                     h * b.attend.q.stride_head + d,
                                 30 * hc_value(seed, 3, t, h, d));
    hc_case_run(&a, k, (struct hc_cut){0, 0});
    hc_case_run(&b, k, (struct hc_cut){0, 0});
    size_t bytes = hr_dtype_bytes(s->out_dtype);
    for (int32_t i = 0; i < s->n_seqs; i++) {
        for (int64_t t = 0; t < s->n_q[i]; t += stride) {
            size_t at = (size_t)hc_out_at(&a, i, t, head) * bytes;
            size_t lse = (size_t)hc_lse_at(&a, i, t, head) * 4;
            v->rows++;
            if ((memcmp(a.out + at, b.out + at, (size_t)s->geom.dim * bytes) != 0 ||
                 memcmp(a.lse + lse, b.lse + lse, 4) != 0) &&
                !v->text[0])
                snprintf(v->text, HC_TEXT, "bits of seq %d token %ld head %d differ beside other q",
                         i, (long)t, head);
        }
    }
    hc_case_free(&a);
    hc_case_free(&b);
}

/* Sets V of one key, all heads, and K of it if `k` is not 0. */
static void set_key(struct hc_case *c, int32_t seq, int64_t key, float k, float value)
{
    const struct hr_geom *g = &c->shape.geom;
    for (int32_t h = 0; h < g->kv_heads; h++) {
        unsigned char *page =
            hr_page_addr(g, &c->attend.pool, c->seqs[seq].blocks[key / HR_BLOCK_TOKENS], h);
        for (int32_t d = 0; d < g->dim; d++) {
            int64_t at = key % HR_BLOCK_TOKENS * g->dim + d;
            if (k != 0)
                hr_ref_store(page, g->dtype, at, k);
            hr_ref_store(page + hr_page_bytes(g) / 2, g->dtype, at, value);
        }
    }
}

/* Rows that do not see some keys: those keys' K and V, and all that lies behind the last key,
 * change no bit. */
void hc_test_hidden(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_random r = {seed ^ 0xdd};
    struct hc_case a, b;
    make_random(&a, k, seed, 2000000);
    hc_case_make(&b, &a.shape);
    const struct hc_shape *s = &a.shape;
    float huge = s->geom.dtype == HR_FP16 ? 60000.0f : 1e30f;
    memset(b.pool, 0, b.pool_bytes); /* unused rows: zeros instead of NaN */
    for (int32_t i = 0; i < s->n_seqs; i++) {
        for (int64_t j = 0; j < hr_blocks_of(s->n_kv[i]) * HR_BLOCK_TOKENS; j++) {
            if (j >= s->n_kv[i])
                set_key(&b, i, j, hc_chance(&r, 50) ? 1e4f : NAN, hc_chance(&r, 50) ? huge : NAN);
        }
        for (int32_t h = 0; h < s->geom.kv_heads; h++)
            for (int64_t block = 0; block < hr_blocks_of(s->n_kv[i]); block++) {
                int64_t left = s->n_kv[i] - block * HR_BLOCK_TOKENS;
                size_t n = (size_t)(left < HR_BLOCK_TOKENS ? left : HR_BLOCK_TOKENS) *
                           (size_t)s->geom.dim * hr_dtype_bytes(s->geom.dtype);
                size_t half = hr_page_bytes(&s->geom) / 2;
                unsigned char *to =
                    hr_page_addr(&s->geom, &b.attend.pool, b.seqs[i].blocks[block], h);
                const unsigned char *from =
                    hr_page_addr(&s->geom, &a.attend.pool, a.seqs[i].blocks[block], h);
                memcpy(to, from, n);
                memcpy(to + half, from + half, n);
            }
    }
    int64_t hidden[HC_SEQS];
    for (int32_t i = 0; i < s->n_seqs; i++) {
        hidden[i] = s->n_kv[i] > 0 ? hc_range(&r, 0, s->n_kv[i] - 1) : -1;
        if (hidden[i] >= 0)
            set_key(&b, i, hidden[i], 1000, huge);
    }
    hc_case_run(&a, k, (struct hc_cut){0, 0});
    hc_case_run(&b, k, (struct hc_cut){0, 0});
    for (int32_t i = 0; i < s->n_seqs; i++)
        for (int64_t t = 0; t < s->n_q[i]; t++) {
            struct hr_visible see = hr_visible_keys(&s->geom, s->mask, s->n_kv[i], s->n_q[i], t);
            bool sees = hidden[i] < see.hi && (hidden[i] >= see.lo || hidden[i] < s->geom.sinks);
            if (hidden[i] < 0 || !sees) {
                v->rows++;
                if (!hc_same_row(&a, i, t, &b, i, t) && !v->text[0])
                    snprintf(v->text, HC_TEXT, "bits of seq %d token %ld depend on hidden key %ld",
                             i, (long)t, (long)hidden[i]);
            }
        }
    hc_case_free(&a);
    hc_case_free(&b);
}

/* The newest block's values underflow to -0 when the older block raises the maximum by 2^369; then
 * a row adds 1 * -0, and, where its neighbours make it visit keys below its window, 0 * 1. */
void hc_test_zeros(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    enum { WINDOW = 160, QUERIES = 64 };
    struct hc_random r = {seed};
    struct hc_shape s = {.geom = {.kv_heads = 1,
                                  .group = 1,
                                  .dim = 64,
                                  .dtype = (hr_dtype)(HR_BF16 + seed % 3),
                                  .window = WINDOW},
                         .q_dtype = HR_FP32,
                         .out_dtype = HR_FP32,
                         .scale = 0.125f,
                         .lse = true,
                         .n_seqs = 1,
                         .n_kv = {2 * HR_BLOCK_TOKENS},
                         .n_q = {QUERIES}};
    struct hc_case whole, cut;
    int64_t token = hc_range(&r, 1, QUERIES - 1);
    int64_t low = s.n_kv[0] - QUERIES + token - WINDOW + 1;
    hc_shape_fit(&s, k);
    hc_case_make(&whole, &s);
    hc_case_make(&cut, &s);
    for (int64_t i = 0; i < QUERIES * s.geom.dim; i++) {
        int64_t at = i / s.geom.dim * whole.attend.q.stride_token + i % s.geom.dim;
        hr_ref_store(whole.q, HR_FP32, at, 1);
        hr_ref_store(cut.q, HR_FP32, at, 1);
    }
    for (int64_t key = 0; key < s.n_kv[0]; key++) {
        bool old = key < HR_BLOCK_TOKENS;
        float value = !old ? -1.0f : key < low ? 1.0f : -0.0f;
        set_key(&whole, 0, key, old ? 16 : -16, value);
        set_key(&cut, 0, key, old ? 16 : -16, value);
    }
    hc_case_run(&whole, k, (struct hc_cut){0, 0});
    hc_case_run(&cut, k, (struct hc_cut){1, 0});
    compare(&whole, 0, &cut, 0, token, 0, "by the sign of a zero", v);
    hc_case_free(&whole);
    hc_case_free(&cut);
}

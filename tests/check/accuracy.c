/* SPDX-License-Identifier: Apache-2.0 */
/* The error against float64, beside that of a naive implementation of the same precision. */
#include "tests/check/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/ref.h"

/* Distance of neighbouring values of the type at |x|. */
static double ulp(hr_dtype dtype, double x)
{
    static const int bits[] = {0, 8, 11, 24}, lowest[] = {0, -133, -24, -149};
    int exponent = 0;
    frexp(fabs(x), &exponent);
    int e = exponent - bits[dtype];
    return ldexp(1, x != 0 && e > lowest[dtype] ? e : lowest[dtype]);
}

/* Largest errors of a set of rows that share a limit. */
struct errors {
    double ours, naive, top; /* top: largest |out| */
};

static void exact_row(const struct hc_case *c, const struct hr_ref_row *row, struct errors *e,
                      int shifts, struct hc_verdict *v)
{
    double out[HR_DIM_MAX], lse;
    float naive[HR_DIM_MAX];
    int32_t dim = c->shape.geom.dim;
    hr_dtype type = c->shape.out_dtype;
    hr_ref_exact(row, out, &lse);
    int64_t at = hc_out_at(c, row->seq, row->token, row->q_head);
    for (int32_t d = 0; d < dim; d++) {
        double ours = (double)hr_ref_element(c->out, type, at + d);
        double error = fabs(ours - out[d]);
        if (!(error <= e->ours)) /* a NaN too */
            e->ours = isnan(error) ? INFINITY : error;
        e->top = fmax(e->top, fabs(out[d]));
    }
    for (int i = 0; i < shifts; i++) {
        hr_ref_naive(row, 0.3f * (float)i, naive);
        for (int32_t d = 0; d < dim; d++)
            e->naive = fmax(e->naive, fabs((double)hr_ref_round(naive[d], type) - out[d]));
    }
    v->rows++;
    if (!c->shape.lse)
        return;
    double got = (double)((const float *)(const void *)
                              c->lse)[hc_lse_at(c, row->seq, row->token, row->q_head)];
    /* A scale above 1 / sqrt(D) raises the fp32 rounding of q.k with it, whatever its sum is. */
    double steep = fabs((double)c->shape.scale) * sqrt((double)dim);
    double limit = 2e-6 * fmax(1, fabs(lse)) * fmax(1, steep);
    if (!(got == lse || fabs(got - lse) <= limit) && !v->text[0])
        snprintf(v->text, HC_TEXT, "lse of seq %d token %ld head %d is %.9g, should be %.9g",
                 row->seq, (long)row->token, row->q_head, got, lse);
}

/* Rows token, token + step, ... of all sequences and heads. */
static void check_case(const struct hc_case *c, int64_t step, struct hc_verdict *v)
{
    const struct hc_shape *s = &c->shape;
    struct errors e = {0, 0, 0};
    int64_t elements = c->rows / step * s->geom.kv_heads * s->geom.group * s->geom.dim;
    int shifts = elements < 4096 ? 4 : 1;
    for (int32_t i = 0; i < s->n_seqs; i++) {
        size_t n = (size_t)s->n_kv[i] * (size_t)s->geom.dim;
        float *k = hc_alloc(n * 4), *v_rows = hc_alloc(n * 4);
        double *work = hc_alloc(((size_t)s->n_kv[i] + 2 * (size_t)s->geom.dim) * 8);
        for (int32_t h = 0; h < s->geom.kv_heads && s->n_q[i] > 0; h++) {
            hr_ref_gather(&c->attend, i, h, k, v_rows);
            for (int64_t t = 0; t < s->n_q[i]; t += step)
                for (int32_t g = 0; g < s->geom.group; g++) {
                    struct hr_ref_row row = {&c->attend, i,   h * s->geom.group + g, t, k,
                                             v_rows,     work};
                    exact_row(c, &row, &e, shifts, v);
                }
        }
        free(k);
        free(v_rows);
        free(work);
    }
    /* P is rounded to the K/V type and the row sum is not, so the rounding of the maximum, common
     * to all P, does not cancel in them; the naive model has an exact maximum: with one key its
     * error is 0. It stays under 4 ulp of fp32, far below one of the K/V type. */
    double common = s->geom.dtype == HR_FP32 ? 0 : 4 * ulp(HR_FP32, e.top);
    double limit = 2 * e.naive + ulp(s->out_dtype, e.top) + common;
    v->worst = e.ours / limit;
    if (!(e.ours <= limit) && !v->text[0])
        snprintf(v->text, HC_TEXT, "error %.3g, limit %.3g (naive error %.3g, largest value %.3g)",
                 e.ours, limit, e.naive, e.top);
    if (hc_case_spilled(c) && !v->text[0])
        snprintf(v->text, HC_TEXT, "bytes outside the rows of out or lse were written");
}

void hc_test_shapes(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_random r = {seed ^ 0x5a5a};
    struct hc_shape s;
    struct hc_case c;
    hc_shape_random(&s, seed, hc_chance(&r, 3) ? 30000000 : 2000000);
    hc_shape_fit(&s, k);
    hc_case_make(&c, &s);
    struct hc_cut cut = {0, 0};
    if (hc_chance(&r, 30))
        cut.wave_blocks = hc_range(&r, 1, 3);
    hc_case_run(&c, k, cut);
    check_case(&c, 1, v);
    hc_case_free(&c);
}

/* The ragged edges, all together in one batch and one by one. */
void hc_test_edges(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    static const int64_t n_q[] = {0, 0, 1, 1, 5, 40, 33, 129};
    static const int64_t n_kv[] = {0, 300, 0, 1, 3, 0, 129, 128};
    struct hc_shape s;
    struct hc_case c;
    hc_shape_random(&s, seed, 1);
    hc_shape_fit(&s, k);
    s.lse = true;
    s.n_seqs = HC_SEQS;
    for (int32_t i = 0; i < HC_SEQS; i++) {
        s.uid[i] = seed * 16 + (uint64_t)i;
        s.n_q[i] = n_q[i];
        s.n_kv[i] = n_kv[i];
    }
    if (seed % (HC_SEQS + 1) < HC_SEQS) { /* one alone */
        s.n_q[0] = n_q[seed % (HC_SEQS + 1)];
        s.n_kv[0] = n_kv[seed % (HC_SEQS + 1)];
        s.n_seqs = 1;
    }
    hc_case_make(&c, &s);
    hc_case_run(&c, k, (struct hc_cut){0, 0});
    check_case(&c, 1, v);
    hc_case_free(&c);
}

/* A few rows at 2^20 keys, in turn on the split path and on the tile path. */
void hc_test_million(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_shape s = {.geom = {.kv_heads = 1, .group = 3, .dim = 64, .dtype = HR_BF16},
                         .mask = HR_MASK_CAUSAL,
                         .q_dtype = HR_BF16,
                         .out_dtype = HR_FP32,
                         .scale = 0.125f,
                         .lse = true,
                         .n_seqs = 1,
                         .n_kv = {1 << 20},
                         .n_q = {1},
                         .uid = {seed},
                         .layout = seed};
    struct hc_case c;
    if (seed % 2 == 1) {
        s.geom.group = 1;
        s.geom.dim = 24;
        s.n_q[0] = k->tile_rows_min;
    }
    if (seed % 4 >= 2)
        s.geom.dtype = s.q_dtype = HR_FP32;
    hc_shape_fit(&s, k);
    hc_case_make(&c, &s);
    hc_case_run(&c, k, (struct hc_cut){0, 0});
    check_case(&c, 13, v);
    hc_case_free(&c);
}

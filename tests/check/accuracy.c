/* SPDX-License-Identifier: Apache-2.0 */
/* The error against float64, beside that of a naive implementation of the same precision. */
#include "tests/check/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/ref/ref.h"
#include "tests/check/gpu.h"

/* Distance of neighbouring values of the type at |x|. */
static double ulp(hr_dtype dtype, double x)
{
    static const int bits[] = {0, 8, 11, 24}, lowest[] = {0, -133, -24, -149};
    int exponent = 0;
    frexp(fabs(x), &exponent);
    int e = exponent - bits[dtype];
    return ldexp(1, x != 0 && e > lowest[dtype] ? e : lowest[dtype]);
}

/* Rows, and what the reference says of each. */
struct truth {
    struct hr_cu_reference_row *rows;
    struct hr_cu_reference_errors *errors;
    double *lse;
    int64_t n;
    int32_t shifts;
};

/* Rows token, token + step, ... of all sequences and heads. */
static void truth_make(struct truth *t, const struct hc_case *c, int64_t step)
{
    const struct hc_shape *s = &c->shape;
    const struct hr_geom *g = &s->geom;
    size_t n = (size_t)(c->rows * g->kv_heads * g->group);
    *t = (struct truth){hc_alloc(n * sizeof *t->rows), hc_alloc(n * sizeof *t->errors),
                        hc_alloc(n * 8), 0, 1};
    for (int32_t i = 0; i < s->n_seqs; i++)
        for (int32_t h = 0; h < g->kv_heads; h++)
            for (int64_t token = 0; token < s->n_q[i]; token += step)
                for (int32_t j = 0; j < g->group; j++)
                    t->rows[t->n++] = (struct hr_cu_reference_row){i, h * g->group + j, token};
    if (t->n * g->dim < 4096)
        t->shifts = 4;
}

static void truth_free(struct truth *t)
{
    free(t->rows);
    free(t->errors);
    free(t->lse);
}

static struct hr_cu_reference_errors errors_of(const struct hc_case *c,
                                               const struct hr_ref_row *row, int32_t shifts,
                                               double *lse)
{
    struct hr_cu_reference_errors e = {0, 0, 0};
    double out[HR_DIM_MAX];
    float naive[HR_DIM_MAX];
    int32_t dim = c->shape.geom.dim;
    hr_dtype type = c->shape.out_dtype;
    int64_t at = hc_out_at(c, row->seq, row->token, row->q_head);
    hr_ref_exact(row, out, lse);
    for (int32_t d = 0; d < dim; d++) {
        double error = fabs((double)hr_ref_element(c->out, type, at + d) - out[d]);
        e.ours = fmax(e.ours, isnan(error) ? INFINITY : error);
        e.top = fmax(e.top, fabs(out[d]));
    }
    for (int i = 0; i < shifts; i++) {
        hr_ref_naive(row, 0.3f * (float)i, naive);
        for (int32_t d = 0; d < dim; d++)
            e.naive = fmax(e.naive, fabs((double)hr_ref_round(naive[d], type) - out[d]));
    }
    return e;
}

static void truth_on_cpu(const struct hc_case *c, struct truth *t)
{
    const struct hc_shape *s = &c->shape;
    size_t most = 0, dim = (size_t)s->geom.dim;
    for (int32_t i = 0; i < s->n_seqs; i++)
        most = (size_t)s->n_kv[i] > most ? (size_t)s->n_kv[i] : most;
    float *k = hc_alloc(most * dim * 4), *v = hc_alloc(most * dim * 4);
    double *work = hc_alloc((most + 2 * dim) * 8);
    int32_t seq = -1, head = -1; /* whose K and V are there */
    for (int64_t i = 0; i < t->n; i++) {
        const struct hr_cu_reference_row *r = t->rows + i;
        if (r->seq != seq || r->q_head / s->geom.group != head) {
            seq = r->seq;
            head = r->q_head / s->geom.group;
            hr_ref_gather(&c->attend, seq, head, k, v);
        }
        struct hr_ref_row row = {&c->attend, seq, r->q_head, r->token, k, v, work};
        t->errors[i] = errors_of(c, &row, t->shifts, t->lse + i);
    }
    free(k);
    free(v);
    free(work);
}

/* Largest errors of rows that share a limit. */
static struct hr_cu_reference_errors largest(const struct truth *t)
{
    struct hr_cu_reference_errors e = {0, 0, 0};
    for (int64_t i = 0; i < t->n; i++) {
        e.ours = fmax(e.ours, t->errors[i].ours);
        e.naive = fmax(e.naive, t->errors[i].naive);
        e.top = fmax(e.top, t->errors[i].top);
    }
    return e;
}

static void judge_lse(const struct hc_case *c, const struct truth *t, struct hc_verdict *v)
{
    /* A scale above 1 / sqrt(D) raises the fp32 rounding of q.k with it, whatever its sum is. */
    double steep = fmax(1, fabs((double)c->shape.scale) * sqrt((double)c->shape.geom.dim));
    const float *lse = (const float *)(const void *)c->lse;
    for (int64_t i = 0; i < t->n; i++) {
        const struct hr_cu_reference_row *r = t->rows + i;
        double got = (double)lse[hc_lse_at(c, r->seq, r->token, r->q_head)], want = t->lse[i];
        if (!(got == want || fabs(got - want) <= 2e-6 * fmax(1, fabs(want)) * steep) && !v->text[0])
            snprintf(v->text, HC_TEXT, "lse of seq %d token %ld head %d is %.9g, should be %.9g",
                     r->seq, (long)r->token, r->q_head, got, want);
    }
}

/* The largest value of rows whose weights are relative to a reference that need not be the maximum:
 * those on the tile path of a GPU. */
static double top_of_referred(const struct hc_case *c, const struct truth *t,
                              const struct hr_kernels *k)
{
    double top = 0;
    if (!hc_on_gpu(k))
        return 0;
    for (int64_t i = 0; i < t->n; i++)
        if (c->shape.n_q[t->rows[i].seq] * c->shape.geom.group >= k->tile_rows_min)
            top = fmax(top, t->errors[i].top);
    return top;
}

static void judge(const struct hc_case *c, const struct hr_kernels *k, const struct truth *t,
                  struct hc_verdict *v)
{
    const struct hc_shape *s = &c->shape;
    struct hr_cu_reference_errors e = largest(t);
    v->rows += t->n;
    if (s->lse)
        judge_lse(c, t, v);
    /* P is rounded to the K/V type and the row sum is not, so the rounding of the maximum, common
     * to all P, does not cancel in them; the naive model has an exact maximum: with one key its
     * error is 0. It stays under 4 ulp of fp32, far below one of the K/V type. */
    double common = s->geom.dtype == HR_FP32 ? 0 : 4 * ulp(HR_FP32, e.top);
    /* There the weight of a key that outweighs the others is not 1, and rounded as theirs are. */
    double outweighs = ulp(s->geom.dtype, 1) / 2 * top_of_referred(c, t, k);
    double limit = 2 * e.naive + ulp(s->out_dtype, e.top) + common + outweighs;
    v->worst = e.ours / limit;
    if (!(e.ours <= limit) && !v->text[0])
        snprintf(v->text, HC_TEXT, "error %.3g, limit %.3g (naive error %.3g, largest value %.3g)",
                 e.ours, limit, e.naive, e.top);
    if (hc_case_spilled(c) && !v->text[0])
        snprintf(v->text, HC_TEXT, "bytes outside the rows of out or lse were written");
}

/* A table of a GPU has its reference there. */
static void check_case(const struct hc_case *c, const struct hr_kernels *k, int64_t step,
                       struct hc_verdict *v)
{
    struct truth t;
    truth_make(&t, c, step);
    if (hc_on_gpu(k))
        hc_gpu_reference(c, t.rows, t.n, t.shifts, t.errors, t.lse);
    else
        truth_on_cpu(c, &t);
    judge(c, k, &t, v);
    truth_free(&t);
}

/* ---- The GPU's reference beside the CPU's ---- */

static bool near(double a, double b, double limit, struct hc_verdict *v)
{
    if (a == b)
        return true;
    v->worst = fmax(v->worst, fabs(a - b) / limit);
    return fabs(a - b) <= limit;
}

/* Both count in float64 in the same order; the naive errors are of fp32, with exponentials that
 * may differ in the last bit. */
static void compare_truths(const struct truth *a, const struct truth *b, struct hc_verdict *v)
{
    const double tight = 1e-11;
    struct hr_cu_reference_errors x = largest(a), y = largest(b);
    for (int64_t i = 0; i < a->n; i++) {
        const struct hr_cu_reference_errors *e = a->errors + i, *f = b->errors + i;
        bool good = near(e->ours, f->ours, tight * fmax(e->top, 1e-300), v) &&
                    near(e->top, f->top, tight * fmax(e->top, 1e-300), v) &&
                    near(a->lse[i], b->lse[i], tight * fmax(1, fabs(a->lse[i])), v);
        if (!good && !v->text[0])
            snprintf(v->text, HC_TEXT,
                     "row %ld: CPU error %.17g top %.17g lse %.17g, GPU %.17g %.17g %.17g", (long)i,
                     e->ours, e->top, a->lse[i], f->ours, f->top, b->lse[i]);
    }
    double limit = 0.02 * x.naive + 4 * ulp(HR_FP32, x.top);
    if (!near(x.naive, y.naive, limit, v) && !v->text[0])
        snprintf(v->text, HC_TEXT, "naive error %.9g on the CPU, %.9g on the GPU", x.naive,
                 y.naive);
    v->rows += a->n;
}

void hc_test_reference(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_shape s;
    struct hc_case c;
    struct truth cpu, gpu;
    hc_shape_random(&s, seed, 2000000);
    hc_shape_fit(&s, k);
    hc_case_make(&c, &s);
    hc_case_run(&c, k, (struct hc_cut){0, 0});
    truth_make(&cpu, &c, 1);
    truth_make(&gpu, &c, 1);
    truth_on_cpu(&c, &cpu);
    hc_gpu_reference(&c, gpu.rows, gpu.n, gpu.shifts, gpu.errors, gpu.lse);
    compare_truths(&cpu, &gpu, v);
    truth_free(&cpu);
    truth_free(&gpu);
    hc_case_free(&c);
}

/* ---- Tests ---- */

/* A GPU takes more work, and sequences of several chunks. */
static void random_shape(struct hc_shape *s, const struct hr_kernels *k, uint64_t seed)
{
    struct hc_random r = {seed ^ 0x5a5a};
    int64_t work = hc_chance(&r, 3) ? 30000000 : 2000000;
    hc_shape_random(s, seed, hc_on_gpu(k) ? 40 * work : work);
    hc_shape_fit(s, k);
    for (int32_t i = 0; i < s->n_seqs && hc_on_gpu(k); i++)
        if (hc_chance(&r, 10) && s->n_q[i] < 64)
            s->n_kv[i] *= hc_range(&r, 1, 16);
}

void hc_test_shapes(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_random r = {seed ^ 0xa5a5};
    struct hc_shape s;
    struct hc_case c;
    random_shape(&s, k, seed);
    hc_case_make(&c, &s);
    struct hc_cut cut = {0, 0};
    if (hc_chance(&r, 30))
        cut.wave_blocks = hc_range(&r, 1, 3);
    hc_case_run(&c, k, cut);
    check_case(&c, k, 1, v);
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
    check_case(&c, k, 1, v);
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
    check_case(&c, k, hc_on_gpu(k) ? 1 : 13, v);
    hc_case_free(&c);
}

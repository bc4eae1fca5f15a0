/* SPDX-License-Identifier: Apache-2.0 */
/* The row rule on the ways that K, V and q can come to a GPU: recycled slots, lists of blocks,
 * places and rows far apart, kernels that come late at every barrier. */
#include "tests/check/check.h"
#include "tests/check/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void same_rows(const struct hc_case *a, const struct hc_case *b, const char *what,
                      struct hc_verdict *v)
{
    for (int32_t i = 0; i < a->shape.n_seqs; i++)
        for (int64_t t = 0; t < a->shape.n_q[i]; t++) {
            v->rows++;
            if (!hc_same_row(a, i, t, b, i, t) && !v->text[0])
                snprintf(v->text, HC_TEXT, "bits of seq %d token %ld differ %s", i, (long)t, what);
        }
}

static void random_shape(struct hc_shape *s, const struct hr_kernels *k, uint64_t seed)
{
    hc_shape_random(s, seed, hc_on_gpu(k) ? 40000000 : 2000000);
    hc_shape_fit(s, k);
    s->lse = true;
}

/* Other blocks, which held NaN before the append kernel filled them. On the CPU other blocks. */
void hc_test_recycled(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_shape s;
    struct hc_case a, b;
    random_shape(&s, k, seed);
    hc_case_make(&a, &s);
    s.layout++;
    hc_case_make(&b, &s);
    b.ways = HC_APPENDED;
    memcpy(b.sink_logits, a.sink_logits,
           (size_t)(s.geom.kv_heads * s.geom.group) * sizeof(float)); /* they are the layout's */
    hc_case_run(&a, k, (struct hc_cut){0, 0});
    hc_case_run(&b, k, (struct hc_cut){0, 0});
    same_rows(&a, &b, "in recycled blocks", v);
    hc_case_free(&a);
    hc_case_free(&b);
}

/* Sequences of up to 16 blocks, most of them on the tile path: chunks have no lists. */
static void list_shape(struct hc_shape *s, const struct hr_kernels *k, uint64_t seed)
{
    struct hc_random r = {seed ^ 0x33};
    random_shape(s, k, seed);
    int64_t least = (k->tile_rows_min + s->geom.group - 1) / s->geom.group;
    for (int32_t i = 0; i < s->n_seqs; i++) {
        if (hc_chance(&r, 80)) {
            s->n_kv[i] = hc_range(&r, 1, 16 * HR_BLOCK_TOKENS);
            s->n_q[i] = least + hc_range(&r, 0, 5);
        }
    }
}

/* A list of all blocks is none; one of some gives the same in any waves. */
void hc_test_lists(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_random r = {seed ^ 0x11};
    struct hc_shape s;
    struct hc_case a, b;
    list_shape(&s, k, seed);
    hc_case_make(&a, &s);
    hc_case_make(&b, &s);
    b.ways = HC_LISTED;
    hc_case_run(&a, k, (struct hc_cut){0, 0});
    hc_case_run(&b, k, (struct hc_cut){0, hc_range(&r, 0, 3)});
    same_rows(&a, &b, "with a list of all blocks", v);
    a.ways = b.ways = HC_LISTED | HC_SPARSE;
    hc_case_run(&a, k, (struct hc_cut){0, 0});
    for (int n = 0; n < 2; n++) {
        hc_case_run(&b, k, (struct hc_cut){n * hc_range(&r, 1, 60), hc_range(&r, 1, 3)});
        same_rows(&a, &b, "with a list, in waves", v);
    }
    hc_case_free(&a);
    hc_case_free(&b);
}

/* Makes of a sequence one of the blocks on its list alone; `ids` is to hold them. */
static void keep_listed(struct hc_case *c, const struct hc_case *listed, int32_t seq, uint32_t *ids)
{
    struct hr_seq_view *s = c->seqs + seq;
    int32_t n = hc_case_list(listed, seq, 0, ids);
    int64_t blocks = hr_blocks_of(s->n_kv), lacks = blocks * HR_BLOCK_TOKENS - s->n_kv;
    s->n_kv = n * HR_BLOCK_TOKENS - (n > 0 && ids[0] == blocks - 1 ? lacks : 0);
    for (int32_t i = 0; i < n / 2; i++) {
        uint32_t id = ids[i];
        ids[i] = ids[n - 1 - i];
        ids[n - 1 - i] = id;
    }
    for (int32_t i = 0; i < n; i++)
        ids[i] = s->blocks[ids[i]];
    s->blocks = ids;
}

/* A list gives what a sequence of its blocks alone gives, where places do not matter. */
void hc_test_listed(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_random r = {seed ^ 0x44};
    struct hc_shape s;
    struct hc_case a, b;
    uint32_t *ids[HC_SEQS];
    list_shape(&s, k, seed);
    s.geom.kv_heads = 1;
    s.geom.window = s.geom.sinks = 0;
    s.mask = HR_MASK_FULL;
    hc_case_make(&a, &s);
    hc_case_make(&b, &s);
    a.ways = HC_LISTED | HC_SPARSE;
    for (int32_t i = 0; i < s.n_seqs; i++) {
        ids[i] = hc_alloc((size_t)hr_blocks_of(s.n_kv[i]) * 4);
        if (s.n_q[i] * s.geom.group >= k->tile_rows_min) /* chunks have no lists */
            keep_listed(&b, &a, i, ids[i]);
    }
    hc_case_run(&a, k, (struct hc_cut){0, hc_range(&r, 0, 3)});
    hc_case_run(&b, k, (struct hc_cut){0, 0});
    same_rows(&a, &b, "from those of a sequence of the listed blocks", v);
    for (int32_t i = 0; i < s.n_seqs; i++)
        free(ids[i]);
    hc_case_free(&a);
    hc_case_free(&b);
}

/* Blocks all over an arena of 12 GiB; rows of q and out that end behind 2^31 elements. */
void hc_test_offsets(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_shape s;
    struct hc_case a, b;
    if (!hc_gpu_reaches_far())
        return;
    random_shape(&s, k, seed);
    s.head_major = false;
    hc_case_make(&a, &s);
    hc_case_make(&b, &s);
    b.ways = HC_FAR;
    hc_case_run(&a, k, (struct hc_cut){0, 0});
    hc_case_run(&b, k, (struct hc_cut){0, seed % 3 == 0 ? 1 : 0});
    same_rows(&a, &b, "far away", v);
    hc_case_free(&a);
    hc_case_free(&b);
}

/* What lets a missing wait show: every CTA takes several tiles or chunks, of many blocks, so that
 * all its rings go round. By tiles of `tokens`, or by chunks if that is 0. */
static void late_shape(struct hc_shape *s, const struct hr_kernels *k, uint64_t seed,
                       int64_t tokens)
{
    struct hc_random r = {seed ^ 0x55};
    random_shape(s, k, seed);
    s->geom.dim = hc_chance(&r, 50) ? 64 : 128; /* those of the Hopper kernels */
    if (s->geom.group > 8)
        s->geom.group = 8;
    if (tokens == 0)
        s->geom.kv_heads = 32;
    s->n_seqs = tokens > 0 ? 1 : HC_SEQS;
    for (int32_t i = 0; i < s->n_seqs; i++) {
        s->uid[i] = hc_next(&r);
        s->n_q[i] = tokens > 0 ? hc_range(&r, 600, 1000) / s->geom.kv_heads * tokens
                               : hc_range(&r, 1, 63 / s->geom.group);
        s->n_kv[i] = tokens > 0 ? s->n_q[i] + hc_range(&r, 0, 2000) : hc_range(&r, 400, 1000);
    }
}

/* The same problem with room for other results, which is all that is to be freed. */
static void make_twin(struct hc_case *b, const struct hc_case *a)
{
    *b = *a;
    b->out = hc_alloc(a->out_bytes);
    b->lse = hc_alloc(a->lse_bytes);
}

/* Barriers that come late: whole, in waves, with lists. */
void hc_test_delays(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v)
{
    struct hc_random r = {seed ^ 0x22};
    struct hc_shape s;
    struct hc_case a, b;
    int64_t tokens = seed % 2 == 1 ? hc_range(&r, 1, 3) : 0;
    late_shape(&s, k, seed, tokens);
    hc_case_make(&a, &s);
    make_twin(&b, &a);
    for (int n = 0; n < 3; n++) {
        struct hc_cut cut = {tokens, n == 1 ? hc_range(&r, 1, 3) : 0};
        a.ways = n == 2 ? HC_LISTED | HC_SPARSE : 0;
        b.ways = a.ways | HC_LATE;
        hc_case_run(&a, k, cut);
        hc_case_run(&b, k, cut);
        same_rows(&a, &b, "when barriers come late", v);
    }
    hc_case_free(&a);
    free(b.out);
    free(b.lse);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/check/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/ref.h"

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t hc_next(struct hc_random *r)
{
    return mix(r->state++);
}

int64_t hc_range(struct hc_random *r, int64_t low, int64_t high)
{
    return low + (int64_t)(hc_next(r) % (uint64_t)(high - low + 1));
}

bool hc_chance(struct hc_random *r, int percent)
{
    return hc_range(r, 0, 99) < percent;
}

float hc_value(uint64_t uid, uint64_t kind, int64_t token, int64_t head, int64_t d)
{
    uint64_t x = mix(uid * 4 + kind);
    x = mix(x ^ ((uint64_t)token << 20) ^ ((uint64_t)head << 9) ^ (uint64_t)d);
    int64_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (int64_t)((x >> (16 * i)) & 0xffff);
    return (float)(sum - 131070) * (1.7320508f / 65536);
}

void *hc_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!p) {
        fprintf(stderr, "headrace-check: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return p;
}

static int64_t random_length(struct hc_random *r, int64_t most)
{
    static const int64_t edges[] = {0, 1, 2, 7, 127, 128, 129, 255, 256, 257, 385};
    if (hc_chance(r, 30)) {
        int64_t n = edges[hc_range(r, 0, 10)];
        return n < most ? n : most;
    }
    int64_t top = most;
    while (top > 16 && hc_chance(r, 50))
        top /= 2;
    return hc_range(r, 0, top);
}

static void random_geometry(struct hc_random *r, struct hc_shape *s)
{
    static const int32_t dims[] = {64, 128, 64, 128, 96,  256, 8,   16,
                                   24, 40,  72, 80,  104, 136, 200, 248};
    static const int32_t groups[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 33, 71};
    s->geom.kv_heads = (int32_t)hc_range(r, 1, 4);
    s->geom.group = groups[hc_range(r, 0, hc_chance(r, 90) ? 7 : 10)];
    s->geom.dim = dims[hc_range(r, 0, 15)];
    s->geom.dtype = (hr_dtype)hc_range(r, HR_BF16, HR_FP32);
    if (hc_chance(r, 30)) {
        s->geom.window = hc_chance(r, 50) ? hc_range(r, 1, 40) : hc_range(r, 1, 400);
        s->geom.sinks = hc_chance(r, 60) ? hc_range(r, 0, 5) : hc_range(r, 0, 300);
    }
}

void hc_shape_random(struct hc_shape *s, uint64_t seed, int64_t work)
{
    struct hc_random r = {seed};
    memset(s, 0, sizeof *s);
    random_geometry(&r, s);
    s->mask = hc_chance(&r, 70) ? HR_MASK_CAUSAL : HR_MASK_FULL;
    s->q_dtype = hc_chance(&r, 60) ? s->geom.dtype : (hr_dtype)hc_range(&r, HR_BF16, HR_FP32);
    s->out_dtype = hc_chance(&r, 60) ? s->geom.dtype : (hr_dtype)hc_range(&r, HR_BF16, HR_FP32);
    s->scale = 1 / sqrtf((float)s->geom.dim);
    if (hc_chance(&r, 30))
        s->scale *= (float)hc_range(&r, -4, 8) + 0.25f;
    s->softcap = hc_chance(&r, 20) ? (float)hc_range(&r, 1, 60) : 0;
    s->sink_logits = hc_chance(&r, 30);
    s->lse = hc_chance(&r, 85);
    s->head_major = hc_chance(&r, 30);
    s->pad = hc_chance(&r, 40) ? (int32_t)hc_range(&r, 1, 9) : 0;
    s->layout = hc_next(&r);
    s->n_seqs = (int32_t)hc_range(&r, hc_chance(&r, 3) ? 0 : 1, HC_SEQS);
    int64_t most = hc_chance(&r, 10) ? 2000 : 500;
    int64_t unit = (int64_t)s->geom.kv_heads * s->geom.group * s->geom.dim;
    for (int32_t i = 0; i < s->n_seqs; i++) {
        s->uid[i] = hc_next(&r);
        s->n_kv[i] = random_length(&r, most);
        s->n_q[i] = hc_chance(&r, 40) ? hc_range(&r, 0, 3) : random_length(&r, s->n_kv[i] + 3);
        int64_t can = work / (unit * (s->n_kv[i] + 1));
        if (s->n_q[i] > can)
            s->n_q[i] = can > 0 ? can : 1;
        work -= s->n_q[i] * unit * s->n_kv[i];
        if (work <= 0) {
            s->n_seqs = i + 1;
            break;
        }
    }
}

void hc_shape_fit(struct hc_shape *s, const struct hr_kernels *k)
{
    int64_t before = (int64_t)s->geom.group * s->geom.dim;
    if (!hc_on_gpu(k))
        return;
    hc_gpu_shape(&s->geom);
    for (int32_t i = 0; i < s->n_seqs; i++) { /* no more work than before */
        int64_t n = s->n_q[i] * before / ((int64_t)s->geom.group * s->geom.dim);
        s->n_q[i] = n > 0 || s->n_q[i] == 0 ? (n < s->n_q[i] ? n : s->n_q[i]) : 1;
    }
}

void hc_shape_text(const struct hc_shape *s, char *buffer, size_t size)
{
    static const char *const types[] = {"", "bf16", "fp16", "fp32"};
    int n = snprintf(
        buffer, size,
        "heads %d/%d D %d kv %s q %s out %s %s window %ld sinks %ld scale %g softcap %g%s%s "
        "pad %d n_q/n_kv",
        s->geom.kv_heads * s->geom.group, s->geom.kv_heads, s->geom.dim, types[s->geom.dtype],
        types[s->q_dtype], types[s->out_dtype], s->mask == HR_MASK_CAUSAL ? "causal" : "full",
        (long)s->geom.window, (long)s->geom.sinks, (double)s->scale, (double)s->softcap,
        s->sink_logits ? " sink logits" : "", s->head_major ? " head-major" : "", s->pad);
    for (int32_t i = 0; i < s->n_seqs && n > 0 && (size_t)n < size; i++)
        n += snprintf(buffer + n, size - (size_t)n, " %ld/%ld", (long)s->n_q[i], (long)s->n_kv[i]);
}

/* Blocks in a random order, extents in a random order, two blocks more than needed. */
static void make_pool(struct hc_case *c)
{
    struct hc_random r = {c->shape.layout};
    const struct hr_geom *g = &c->shape.geom;
    int64_t n = 0;
    for (int32_t i = 0; i < c->shape.n_seqs; i++)
        n += hr_blocks_of(c->shape.n_kv[i]);
    uint32_t per = (uint32_t)hc_range(&r, 1, 5), total = (uint32_t)n + 2;
    uint32_t extents = (total + per - 1) / per;
    c->extents = hc_alloc(extents * 4);
    c->blocks = hc_alloc((size_t)extents * per * 4);
    for (uint32_t i = 0; i < extents; i++)
        c->extents[i] = i;
    for (uint32_t i = 0; i < extents * per; i++)
        c->blocks[i] = i;
    for (uint32_t i = extents - 1; i > 0; i--) {
        uint32_t j = (uint32_t)hc_range(&r, 0, i), t = c->extents[i];
        c->extents[i] = c->extents[j];
        c->extents[j] = t;
    }
    for (uint32_t i = extents * per - 1; i > 0; i--) {
        uint32_t j = (uint32_t)hc_range(&r, 0, i), t = c->blocks[i];
        c->blocks[i] = c->blocks[j];
        c->blocks[j] = t;
    }
    uint64_t bytes = hr_block_bytes(g);
    struct hr_pool_view view = {NULL, bytes * per + 64, bytes, c->extents, per};
    c->pool_bytes = (size_t)(view.extent_bytes * extents);
    view.base = c->pool = hc_alloc(c->pool_bytes);
    memset(c->pool, HC_POISON, c->pool_bytes);
    c->attend.pool = view;
}

static void fill_sequence(struct hc_case *c, int32_t seq)
{
    const struct hr_geom *g = &c->shape.geom;
    const struct hr_seq_view *s = c->seqs + seq;
    for (int64_t j = 0; j < s->n_kv; j++) {
        for (int32_t h = 0; h < g->kv_heads; h++) {
            unsigned char *page =
                hr_page_addr(g, &c->attend.pool, s->blocks[j / HR_BLOCK_TOKENS], h);
            for (int32_t d = 0; d < g->dim; d++) {
                int64_t at = j % HR_BLOCK_TOKENS * g->dim + d;
                uint64_t uid = c->shape.uid[seq];
                hr_ref_store(page, g->dtype, at, hc_value(uid, 0, j, h, d));
                hr_ref_store(page + hr_page_bytes(g) / 2, g->dtype, at,
                             hc_value(uid, 1, j, h, d) + 0.25f);
            }
        }
    }
}

static struct hr_rows make_rows(const struct hc_shape *s, int64_t rows, int32_t dim, hr_dtype dtype,
                                size_t *bytes)
{
    struct hr_rows r = {.dtype = dtype};
    int64_t heads = (int64_t)s->geom.kv_heads * s->geom.group;
    if (s->head_major) {
        r.stride_token = dim + s->pad;
        r.stride_head = rows * r.stride_token + s->pad;
    } else {
        r.stride_head = dim + s->pad;
        r.stride_token = heads * r.stride_head + s->pad;
    }
    *bytes = (size_t)(rows * heads * (dim + s->pad) + (rows + heads + 2) * (s->pad + 1)) *
             hr_dtype_bytes(dtype);
    return r;
}

static void fill_queries(struct hc_case *c)
{
    const struct hc_shape *s = &c->shape;
    int32_t heads = s->geom.kv_heads * s->geom.group;
    memset(c->q, HC_POISON, c->q_bytes);
    for (int32_t i = 0; i < s->n_seqs; i++)
        for (int64_t t = 0; t < s->n_q[i]; t++)
            for (int32_t h = 0; h < heads; h++)
                for (int32_t d = 0; d < s->geom.dim; d++)
                    hr_ref_store(c->q, s->q_dtype,
                                 (c->seqs[i].q_row + t) * c->attend.q.stride_token +
                                     h * c->attend.q.stride_head + d,
                                 hc_value(s->uid[i], 2, s->n_kv[i] - s->n_q[i] + t, h, d));
}

void hc_case_make(struct hc_case *c, const struct hc_shape *shape)
{
    memset(c, 0, sizeof *c);
    c->shape = *shape;
    int32_t heads = shape->geom.kv_heads * shape->geom.group;
    struct hr_attend *a = &c->attend;
    make_pool(c);
    int64_t block = 0;
    for (int32_t i = 0; i < shape->n_seqs; i++) {
        c->seqs[i] = (struct hr_seq_view){.blocks = c->blocks + block,
                                          .n_kv = shape->n_kv[i],
                                          .n_q = shape->n_q[i],
                                          .q_row = c->rows};
        c->rows += shape->n_q[i];
        block += hr_blocks_of(shape->n_kv[i]);
    }
    a->geom = shape->geom;
    a->seqs = c->seqs;
    a->mask = shape->mask;
    a->scale = shape->scale;
    a->softcap = shape->softcap;
    a->q = make_rows(shape, c->rows, shape->geom.dim, shape->q_dtype, &c->q_bytes);
    a->out = make_rows(shape, c->rows, shape->geom.dim, shape->out_dtype, &c->out_bytes);
    a->lse = make_rows(shape, c->rows, 1, HR_FP32, &c->lse_bytes);
    a->q.data = c->q = hc_alloc(c->q_bytes);
    a->out.data = c->out = hc_alloc(c->out_bytes);
    c->lse = hc_alloc(c->lse_bytes);
    a->lse.data = shape->lse ? c->lse : NULL;
    c->sink_logits = hc_alloc((size_t)heads * 4);
    for (int32_t h = 0; h < heads; h++)
        c->sink_logits[h] = h % 4 == 3 ? -INFINITY : 3 * hc_value(shape->layout, 3, 0, h, 0);
    a->sink_logits = shape->sink_logits ? c->sink_logits : NULL;
    for (int32_t i = 0; i < shape->n_seqs; i++)
        fill_sequence(c, i);
    fill_queries(c);
}

int32_t hc_case_list(const struct hc_case *c, int32_t seq, int32_t head, uint32_t *list)
{
    struct hc_random r = {c->shape.uid[seq] ^ (uint64_t)head};
    int32_t n = 0;
    for (int64_t b = hr_blocks_of(c->seqs[seq].n_kv) - 1; b >= 0; b--)
        if (!(c->ways & HC_SPARSE) || hc_chance(&r, 50))
            list[n++] = (uint32_t)b;
    return n;
}

void hc_case_free(struct hc_case *c)
{
    free(c->pool);
    free(c->out);
    free(c->lse);
    free(c->q);
    free(c->extents);
    free(c->blocks);
    free(c->sink_logits);
    free(c->scratch);
    memset(c, 0, sizeof *c);
}

int64_t hc_out_at(const struct hc_case *c, int32_t seq, int64_t token, int32_t q_head)
{
    return (c->seqs[seq].q_row + token) * c->attend.out.stride_token +
           q_head * c->attend.out.stride_head;
}

int64_t hc_lse_at(const struct hc_case *c, int32_t seq, int64_t token, int32_t q_head)
{
    return (c->seqs[seq].q_row + token) * c->attend.lse.stride_token +
           q_head * c->attend.lse.stride_head;
}

bool hc_same_row(const struct hc_case *a, int32_t seq, int64_t token, const struct hc_case *b,
                 int32_t other_seq, int64_t other_token)
{
    size_t bytes = hr_dtype_bytes(a->shape.out_dtype);
    for (int32_t h = 0; h < a->shape.geom.kv_heads * a->shape.geom.group; h++) {
        if (memcmp(a->out + (size_t)hc_out_at(a, seq, token, h) * bytes,
                   b->out + (size_t)hc_out_at(b, other_seq, other_token, h) * bytes,
                   (size_t)a->shape.geom.dim * bytes) != 0)
            return false;
        if (memcmp(a->lse + hc_lse_at(a, seq, token, h) * 4,
                   b->lse + hc_lse_at(b, other_seq, other_token, h) * 4, 4) != 0)
            return false;
    }
    return true;
}

bool hc_case_spilled(const struct hc_case *c)
{
    size_t bytes = hr_dtype_bytes(c->shape.out_dtype);
    unsigned char *out = hc_alloc(c->out_bytes), *lse = hc_alloc(c->lse_bytes);
    memset(out, HC_CANARY, c->out_bytes);
    memset(lse, HC_CANARY, c->lse_bytes);
    for (int32_t i = 0; i < c->shape.n_seqs; i++) {
        for (int64_t t = 0; t < c->shape.n_q[i]; t++) {
            for (int32_t h = 0; h < c->shape.geom.kv_heads * c->shape.geom.group; h++) {
                size_t at = (size_t)hc_out_at(c, i, t, h) * bytes;
                memcpy(out + at, c->out + at, (size_t)c->shape.geom.dim * bytes);
                at = (size_t)hc_lse_at(c, i, t, h) * 4;
                if (c->shape.lse)
                    memcpy(lse + at, c->lse + at, 4);
            }
        }
    }
    bool spilled = memcmp(out, c->out, c->out_bytes) != 0 || memcmp(lse, c->lse, c->lse_bytes) != 0;
    free(out);
    free(lse);
    return spilled;
}

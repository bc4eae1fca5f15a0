/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

static float from_bits(uint32_t b)
{
    float f;
    memcpy(&f, &b, 4);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
}

static float half_value(uint16_t h)
{
    int exponent = (h >> 10) & 31;
    float mantissa = (float)(h & 1023), x;
    if (exponent == 31)
        x = mantissa != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        x = ldexpf(mantissa, -24);
    else
        x = ldexpf(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -x : x;
}

static uint16_t half_bits(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00);
    x = fabsf(x);
    if (x >= 65520)
        return (uint16_t)(sign | 0x7c00);
    if (x < 0x1p-14f)
        return (uint16_t)(sign + (uint16_t)nearbyintf(ldexpf(x, 24)));
    int exponent;
    float mantissa = frexpf(x, &exponent); /* [0.5, 1) */
    return (uint16_t)(sign + ((exponent + 13) << 10) + (int)nearbyintf(ldexpf(mantissa, 11)));
}

static uint16_t bf16_bits(float x)
{
    uint32_t b = to_bits(x);
    if (isnan(x))
        return (uint16_t)((b >> 16) | 0x40);
    return (uint16_t)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}

float hr_ref_element(const void *data, hr_dtype dtype, int64_t i)
{
    if (dtype == HR_FP32)
        return ((const float *)data)[i];
    uint16_t h = ((const uint16_t *)data)[i];
    return dtype == HR_BF16 ? from_bits((uint32_t)h << 16) : half_value(h);
}

float hr_ref_round(float x, hr_dtype dtype)
{
    if (dtype == HR_FP32)
        return x;
    return dtype == HR_BF16 ? from_bits((uint32_t)bf16_bits(x) << 16) : half_value(half_bits(x));
}

void hr_ref_store(void *data, hr_dtype dtype, int64_t i, float x)
{
    if (dtype == HR_FP32)
        ((float *)data)[i] = x;
    else
        ((uint16_t *)data)[i] = dtype == HR_BF16 ? bf16_bits(x) : half_bits(x);
}

void hr_ref_gather(const struct hr_attend *a, int32_t seq, int32_t head, float *k, float *v)
{
    const struct hr_geom *g = &a->geom;
    const struct hr_seq_view *s = a->seqs + seq;
    for (int64_t j = 0; j < s->n_kv; j++) {
        const unsigned char *page = hr_page_addr(g, &a->pool, s->blocks[j / HR_BLOCK_TOKENS], head);
        for (int32_t d = 0; d < g->dim; d++) {
            int64_t at = j % HR_BLOCK_TOKENS * g->dim + d;
            k[j * g->dim + d] = hr_ref_element(page, g->dtype, at);
            v[j * g->dim + d] = hr_ref_element(page + hr_page_bytes(g) / 2, g->dtype, at);
        }
    }
}

static bool sees(const struct hr_ref_row *r, int64_t key)
{
    const struct hr_attend *a = r->a;
    const struct hr_seq_view *s = a->seqs + r->seq;
    int64_t pos = s->n_kv - s->n_q + r->token;
    if (a->mask == HR_MASK_CAUSAL && key > pos)
        return false;
    return a->geom.window == 0 || key > pos - a->geom.window || key < a->geom.sinks;
}

/* Element d of the row's q, rounded to the K/V type. */
static float query(const struct hr_ref_row *r, int32_t d)
{
    const struct hr_rows *q = &r->a->q;
    int64_t token = r->a->seqs[r->seq].q_row + r->token;
    int64_t at = token * q->stride_token + r->q_head * q->stride_head + d;
    return hr_ref_round(hr_ref_element(q->data, q->dtype, at), r->a->geom.dtype);
}

void hr_ref_exact(const struct hr_ref_row *r, double *out, double *lse)
{
    const struct hr_attend *a = r->a;
    int64_t n = a->seqs[r->seq].n_kv;
    int32_t dim = a->geom.dim;
    double *s = r->work, *q = s + n, top = -INFINITY, sum = 0;
    for (int32_t d = 0; d < dim; d++) {
        q[d] = (double)query(r, d);
        out[d] = 0;
    }
    for (int64_t j = 0; j < n; j++) {
        double dot = 0;
        if (!sees(r, j))
            continue;
        for (int32_t d = 0; d < dim; d++)
            dot += q[d] * (double)r->k[j * dim + d];
        dot *= (double)a->scale;
        s[j] = a->softcap > 0 ? (double)a->softcap * tanh(dot / (double)a->softcap) : dot;
        top = fmax(top, s[j]);
    }
    double sink = a->sink_logits ? (double)a->sink_logits[r->q_head] : -INFINITY;
    top = fmax(top, sink);
    *lse = -INFINITY;
    if (isinf(top))
        return;
    for (int64_t j = 0; j < n; j++) {
        if (!sees(r, j))
            continue;
        double p = exp(s[j] - top);
        sum += p;
        for (int32_t d = 0; d < dim; d++)
            out[d] += p * (double)r->v[j * dim + d];
    }
    sum += exp(sink - top);
    for (int32_t d = 0; d < dim; d++)
        out[d] /= sum;
    *lse = top + log(sum);
}

void hr_ref_naive(const struct hr_ref_row *r, float shift, float *out)
{
    const struct hr_attend *a = r->a;
    int64_t n = a->seqs[r->seq].n_kv;
    int32_t dim = a->geom.dim;
    float *s = (float *)(void *)r->work, *q = s + n, top = -INFINITY, sum = 0;
    for (int32_t d = 0; d < dim; d++) {
        q[d] = query(r, d);
        out[d] = 0;
    }
    for (int64_t j = 0; j < n; j++) {
        float dot = 0;
        if (!sees(r, j))
            continue;
        for (int32_t d = 0; d < dim; d++)
            dot += q[d] * r->k[j * dim + d];
        dot *= a->scale;
        s[j] = a->softcap > 0 ? a->softcap * tanhf(dot / a->softcap) : dot;
        top = fmaxf(top, s[j]);
    }
    float sink = a->sink_logits ? a->sink_logits[r->q_head] : -INFINITY;
    top = fmaxf(top, sink) + shift;
    if (isinf(top))
        return;
    for (int64_t j = 0; j < n; j++) {
        if (!sees(r, j))
            continue;
        float p = expf(s[j] - top);
        sum += p;
        p = hr_ref_round(p, a->geom.dtype);
        for (int32_t d = 0; d < dim; d++)
            out[d] += p * r->v[j * dim + d];
    }
    sum += expf(sink - top);
    for (int32_t d = 0; d < dim; d++)
        out[d] /= sum;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What both paths share: exponents, visibility inside a block, the end of a row.
 *
 * Softmax runs in base 2: with c = scale * log2(e), P = 2^(s*c - m) where m is the fp32 maximum of
 * s*c so far. With a softcap, s is tanh(s * scale / cap) and c is cap * log2(e). */
#ifndef HR_KERNELS_CPU_SOFTMAX_H
#define HR_KERNELS_CPU_SOFTMAX_H

#include <float.h>

struct factors {
    float c;   /* > 0 */
    float pre; /* softcap: factor of s under tanh; 0: no softcap */
};

HR_INLINE struct factors factors_of(const struct hr_attend *a)
{
    const double log2e = 1.4426950408889634;
    double scale = fabs((double)a->scale);
    struct factors f = {(float)(scale * log2e), 0};
    if (a->softcap > 0) {
        f.c = (float)((double)a->softcap * log2e);
        f.pre = (float)(scale / (double)a->softcap);
    }
    return f;
}

/* Keys [lo, hi) and [0, sink) below hi of a block, counted from its first token: all in [0, 128].
 */
struct visible {
    int32_t lo, hi, sink;
};

HR_INLINE int32_t within_block(int64_t key)
{
    return key < 0 ? 0 : key > HR_BLOCK_TOKENS ? HR_BLOCK_TOKENS : (int32_t)key;
}

/* What query row `token` sees of a block. */
HR_INLINE struct visible visible_of(const struct hr_attend *a, const struct hr_seq_view *seq,
                                    int64_t token, int64_t block)
{
    struct hr_visible k = hr_visible_keys(&a->geom, a->mask, seq->n_kv, seq->n_q, token);
    int64_t base = block * HR_BLOCK_TOKENS;
    int64_t sink = k.lo > 0 ? a->geom.sinks : 0;
    struct visible v = {within_block(k.lo - base), within_block(k.hi - base),
                        within_block((sink < k.hi ? sink : k.hi) - base)};
    if (v.lo > v.hi)
        v.lo = v.hi;
    return v;
}

HR_INLINE bool sees_nothing(struct visible v)
{
    return v.lo >= v.hi && v.sink <= 0;
}

/* s where the key is visible, else -inf. */
HR_INLINE vf vf_mask(vf s, vi key, vi lo, vi hi, vi sink)
{
    return vf_pick(vf_set1(-INFINITY), s, (key < hi) & ((key >= lo) | (key < sink)));
}

/* A row's result from its unnormalised sum: out = o * factor. m in base 2. */
struct row_end {
    float factor, lse;
};

HR_INLINE float exp2_one(float x)
{
    return vf_exp2(vf_set1(x))[0];
}

HR_INLINE struct row_end end_row(float m, float l, const float *sink_logit)
{
    const double ln2 = 0.6931471805599453;
    struct row_end end = {0, -INFINITY};
    if (sink_logit && l == 0) {
        end.lse = *sink_logit;
    } else if (sink_logit) {
        float sink = (float)((double)*sink_logit * 1.4426950408889634);
        float top = sink > m ? sink : m;
        float scale = exp2_one(m - top);
        float sum = l * scale + exp2_one(sink - top);
        end.factor = scale / sum;
        end.lse = (float)((double)top * ln2 + log((double)sum));
    } else if (l != 0) {
        end.factor = 1 / l;
        end.lse = (float)((double)m * ln2 + log((double)l));
    }
    return end;
}

/* Stores row (token * G + g) of a sequence; `row` is the finished fp32 row. */
static void store_row(const struct hr_attend *a, const struct hr_seq_view *seq, int32_t head,
                      int64_t row, const float *values, float lse)
{
    int64_t token = seq->q_row + row / a->geom.group;
    int64_t q_head = (int64_t)head * a->geom.group + row % a->geom.group;
    int64_t at = token * a->out.stride_token + q_head * a->out.stride_head;
    unsigned char *out = a->out.data;
    row_store(out + at * (int64_t)hr_dtype_bytes(a->out.dtype), a->out.dtype, values,
              (size_t)a->geom.dim);
    if (a->lse.data)
        ((float *)a->lse.data)[token * a->lse.stride_token + q_head * a->lse.stride_head] = lse;
}

HR_INLINE const float *sink_of(const struct hr_attend *a, int32_t head, int64_t row)
{
    if (!a->sink_logits)
        return NULL;
    return a->sink_logits + (int64_t)head * a->geom.group + row % a->geom.group;
}

#endif

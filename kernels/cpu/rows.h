/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of one dtype to fp32 and back; n is a multiple of 8. */
#ifndef HR_KERNELS_CPU_ROWS_H
#define HR_KERNELS_CPU_ROWS_H

/* HR_VW elements. */
HR_INLINE vf vf_load_as(const unsigned char *p, hr_dtype dtype)
{
    if (dtype == HR_BF16)
        return vf_load_bf16((const uint16_t *)(const void *)p);
    if (dtype == HR_FP16)
        return vf_load_fp16((const uint16_t *)(const void *)p);
    return vf_load((const float *)(const void *)p);
}

/* `n` < HR_VW elements (a multiple of 4), zeros behind them; reads no further. */
HR_INLINE vf vf_load_part(const unsigned char *p, hr_dtype dtype, size_t n)
{
    unsigned char part[4 * HR_VW] = {0};
    memcpy(part, p, n * hr_dtype_bytes(dtype));
    return vf_load_as(part, dtype);
}

HR_INLINE void vf_store_as(unsigned char *p, vf v, hr_dtype dtype)
{
    if (dtype == HR_BF16)
        vf_store_bf16((uint16_t *)(void *)p, v);
    else if (dtype == HR_FP16)
        vf_store_fp16((uint16_t *)(void *)p, v);
    else
        vf_store((float *)(void *)p, v);
}

HR_INLINE void row_load(float *dst, const void *src, hr_dtype dtype, size_t n)
{
    size_t bytes = hr_dtype_bytes(dtype), i = 0;
    const unsigned char *s = src;
    for (; i + HR_VW <= n; i += HR_VW)
        vf_store(dst + i, vf_load_as(s + i * bytes, dtype));
    if (i < n) {
        vf v = vf_load_part(s + i * bytes, dtype, n - i);
        memcpy(dst + i, &v, (n - i) * 4);
    }
}

HR_INLINE void row_store(void *dst, hr_dtype dtype, const float *src, size_t n)
{
    size_t bytes = hr_dtype_bytes(dtype), i = 0;
    unsigned char *d = dst;
    for (; i + HR_VW <= n; i += HR_VW)
        vf_store_as(d + i * bytes, vf_load(src + i), dtype);
    if (i < n) {
        float part[HR_VW] = {0};
        unsigned char out[4 * HR_VW];
        memcpy(part, src + i, (n - i) * 4);
        vf_store_as(out, vf_load(part), dtype);
        memcpy(d + i * bytes, out, (n - i) * bytes);
    }
}

/* Copies a row from one dtype to another, rounding to nearest even. */
static void row_cast(void *dst, hr_dtype to, const void *src, hr_dtype from, size_t n)
{
    float row[HR_DIM_MAX];
    if (from == to) {
        memcpy(dst, src, n * hr_dtype_bytes(to));
        return;
    }
    row_load(row, src, from, n);
    row_store(dst, to, row, n);
}

/* Query head (head * G + g) of row `token` of a sequence. */
HR_INLINE const unsigned char *query_row(const struct hr_attend *a, const struct hr_seq_view *seq,
                                         int32_t head, int64_t row)
{
    int32_t group = a->geom.group;
    int64_t at = (seq->q_row + row / group) * a->q.stride_token +
                 ((int64_t)head * group + row % group) * a->q.stride_head;
    return (const unsigned char *)a->q.data + at * (int64_t)hr_dtype_bytes(a->q.dtype);
}

/* The row rounded to the K/V type, negated if the scale is negative: the softmax wants it >= 0. */
HR_INLINE void load_query(float *dst, const struct hr_attend *a, const struct hr_seq_view *seq,
                          int32_t head, int64_t row)
{
    size_t dim = (size_t)a->geom.dim;
    unsigned char cast[4 * HR_DIM_MAX];
    row_cast(cast, a->geom.dtype, query_row(a, seq, head, row), a->q.dtype, dim);
    row_load(dst, cast, a->geom.dtype, dim);
    if (a->scale < 0)
        for (size_t i = 0; i < dim; i++)
            dst[i] = -dst[i];
}

/* K or V of the block that holds a sequence's tokens from block * 128 on. */
HR_INLINE const unsigned char *page_of(const struct hr_attend *a, const struct hr_seq_view *seq,
                                       int32_t head, int64_t block)
{
    return hr_page_addr(&a->geom, &a->pool, seq->blocks[block], head);
}

#endif

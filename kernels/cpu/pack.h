/* SPDX-License-Identifier: Apache-2.0 */
/* A block's K and V as the micro-tiles read them, made once for all strips of a pass. Rows from n
 * on may hold anything, NaN included: they become zeros here, as far as a micro-tile reads. */
#ifndef HR_KERNELS_CPU_PACK_H
#define HR_KERNELS_CPU_PACK_H

HR_INLINE int32_t round_up(int32_t n, int32_t to)
{
    return (n + to - 1) / to * to;
}

/* k[key][d] */
static void pack_keys(float *k, const unsigned char *page, hr_dtype dtype, size_t dim, int32_t n)
{
    size_t count = (size_t)n * dim;
    if (dtype == HR_BF16)
        row_load(k, page, HR_BF16, count);
    else
        row_load(k, page, HR_FP16, count);
    memset(k + count, 0, ((size_t)round_up(n, HR_KEY_STEP) * dim - count) * 4);
}

/* Columns [d, d + cols) of v[d / HR_MB][key][HR_MB]; cols is HR_VW, or HR_MB for the last ones. */
HR_INLINE void pack_columns(float *to, const unsigned char *from, hr_dtype dtype, size_t row_bytes,
                            size_t cols, size_t n)
{
    float *second = to + HR_BLOCK_TOKENS * HR_MB;
    for (size_t key = 0; key < n; key++, from += row_bytes, to += HR_MB, second += HR_MB) {
        if (cols < HR_VW) {
            vf x = vf_load_part(from, dtype, HR_MB);
            memcpy(to, &x, HR_MB * 4);
        } else {
            vf_store_halves(to, second, vf_load_as(from, dtype));
        }
    }
}

/* v[d / HR_MB][key][HR_MB] */
HR_INLINE void pack_values_as(float *v, const unsigned char *page, hr_dtype dtype, size_t dim,
                              int32_t n)
{
    size_t row_bytes = dim * hr_dtype_bytes(dtype), rows = (size_t)n, d = 0;
    for (; d + HR_VW <= dim; d += HR_VW)
        pack_columns(v + d * HR_BLOCK_TOKENS, page + d * hr_dtype_bytes(dtype), dtype, row_bytes,
                     HR_VW, rows);
    if (d < dim)
        pack_columns(v + d * HR_BLOCK_TOKENS, page + d * hr_dtype_bytes(dtype), dtype, row_bytes,
                     HR_MB, rows);
    size_t pad = (size_t)(round_up(n, HR_KEY_STEP) - n) * HR_MB * 4;
    for (d = 0; d < dim && pad > 0; d += HR_MB)
        memset(v + d * HR_BLOCK_TOKENS + rows * HR_MB, 0, pad);
}

#if HR_PAIRS
/* Columns [d, d + 8) as [key / 2][8][2], bf16. */
HR_INLINE void pack_pair_columns(float *to, const uint16_t *rows, size_t dim, int32_t n)
{
    static const uint16_t zeros[8] = {0};
    int32_t end = round_up(n, HR_KEY_STEP);
    for (int32_t key = 0; key < end; key += 2, to += 8) {
        const uint16_t *a = key < n ? rows + (size_t)key * dim : zeros;
        const uint16_t *b = key + 1 < n ? rows + (size_t)(key + 1) * dim : zeros;
        __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)a));
        __m256i y = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)b));
        x = _mm256_or_si256(x, _mm256_slli_epi32(y, 16));
        _mm256_storeu_si256((__m256i *)(void *)to, x);
    }
}

/* v[d / 8][key / 2][8][2], bf16; with AMX v[d][key]. */
static void pack_value_pairs(float *v, const unsigned char *page, size_t dim, int32_t n)
{
    const uint16_t *rows = (const uint16_t *)(const void *)page;
    for (size_t d = 0; d < dim; d += 8) {
        float *to = v + d * (HR_BLOCK_TOKENS / 2);
#if HR_AMX
        float pairs[HR_BLOCK_TOKENS / 2 * 8];
        pack_pair_columns(pairs, rows + d, dim, n);
        for (int32_t i = 0; i < round_up(n, HR_KEY_STEP) / 2; i += 8)
            transpose8(to + i, HR_BLOCK_TOKENS / 2, pairs + i * 8, 8);
#else
        pack_pair_columns(to, rows + d, dim, n);
#endif
    }
}
#endif

static void pack_values(float *v, const unsigned char *page, hr_dtype dtype, size_t dim, int32_t n,
                        bool pairs)
{
#if HR_PAIRS
    if (pairs) {
        pack_value_pairs(v, page, dim, n);
        return;
    }
#endif
    if (dtype == HR_BF16)
        pack_values_as(v, page, HR_BF16, dim, n);
    else if (dtype == HR_FP16)
        pack_values_as(v, page, HR_FP16, dim, n);
    else
        pack_values_as(v, page, HR_FP32, dim, n);
}

#endif

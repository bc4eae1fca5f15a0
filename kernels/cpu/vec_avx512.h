/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 F, BW, DQ, VL, BF16. HR_PAIRS 1: bf16 products of pairs, by vdpbf16ps or, with HR_AMX, by
 * tiles; 0: by conversion to fp32. */
#ifndef HR_KERNELS_CPU_VEC_AVX512_H
#define HR_KERNELS_CPU_VEC_AVX512_H

#include <immintrin.h>

#define HR_VW 16 /* floats of a vector */
#define HR_NV 3  /* vectors of a strip: rows */
#define HR_MB 8  /* keys or columns of a micro-tile */
#define HR_ND 4  /* split path: vectors of d at once */
#define HR_TILE_STRIPS 12

#define HR_HAVE_LOAD_BF16
#include "kernels/cpu/vec.h"
#include "kernels/cpu/transpose_avx.h"

HR_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* *acc += a * b, in place: left to choose, gcc copies accumulators and spills them. */
HR_INLINE void vf_fma_to(vf *acc, vf a, vf b)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(*acc) : "v"(a), "v"(b));
}

/* *acc += a.even * b.even + a.odd * b.odd, per pair of bf16. */
HR_INLINE void vf_dp_to(vf *acc, vf a, vf b)
{
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(*acc) : "v"(a), "v"(b));
}

HR_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

HR_INLINE vf vf_load_bf16(const uint16_t *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}

/* The first HR_MB lanes, the others. */
HR_INLINE void vf_store_halves(float *a, float *b, vf x)
{
    _mm256_storeu_ps(a, _mm512_castps512_ps256(x));
    _mm256_storeu_ps(b, _mm512_extractf32x8_ps(x, 1));
}

HR_INLINE vf vf_load_fp16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

HR_INLINE void vf_store_fp16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* bf16 pairs (a, b) per lane, rounded to nearest even; a in the lower half. */
HR_INLINE vf vf_pair_bf16(vf a, vf b)
{
    const __m512i low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i pick =
        _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16));
    return (vf)_mm512_permutexvar_epi16(pick, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/* Sums of HR_VW vectors, one per lane, all by the same tree. */
HR_INLINE vf vf_sum_each(const vf x[HR_VW])
{
    __m512 a[8], b[4];
    HR_UNROLL(8)
    for (int i = 0; i < 8; i++)
        a[i] =
            _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]) + _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    HR_UNROLL(4)
    for (int i = 0; i < 4; i++) { /* four sums of quarters in each 128-bit lane */
        __m512d lo = _mm512_castps_pd(a[2 * i]), hi = _mm512_castps_pd(a[2 * i + 1]);
        b[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi)) +
               _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
    }
    __m512 c0 = _mm512_shuffle_f32x4(b[0], b[1], 0x44) + _mm512_shuffle_f32x4(b[0], b[1], 0xee);
    __m512 c1 = _mm512_shuffle_f32x4(b[2], b[3], 0x44) + _mm512_shuffle_f32x4(b[2], b[3], 0xee);
    return _mm512_shuffle_f32x4(c0, c1, 0x88) + _mm512_shuffle_f32x4(c0, c1, 0xdd);
}

#define HR_HAVE_EXP2
/* 2^x, relative error under 2e-7, for x <= 1, -inf included; 2^0 is 1. */
HR_INLINE vf vf_exp2(vf x)
{
    vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* x - floor(x) */
    vf p = vf_fma(f, vf_set1(0.0018671307479962707f), vf_set1(0.009017028845846653f));
    p = vf_fma(p, f, vf_set1(0.05579991266131401f));
    p = vf_fma(p, f, vf_set1(0.24016444385051727f));
    p = vf_fma(p, f, vf_set1(0.6931512951850891f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return _mm512_scalef_ps(p, x);
}

#include "kernels/cpu/exp2.h"

#endif

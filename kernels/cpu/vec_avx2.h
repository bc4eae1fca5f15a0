/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2, FMA, F16C. */
#ifndef HR_KERNELS_CPU_VEC_AVX2_H
#define HR_KERNELS_CPU_VEC_AVX2_H

#include <immintrin.h>

#define HR_VW 8 /* floats of a vector */
#define HR_NV 3 /* vectors of a strip: rows */
#define HR_MB 4 /* keys or columns of a micro-tile */
#define HR_ND 2 /* split path: vectors of d at once */
#define HR_TILE_STRIPS 10
#define HR_PAIRS 0

#include "kernels/cpu/vec.h"
#include "kernels/cpu/transpose_avx.h"

HR_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* *acc += a * b, in place: left to choose, gcc copies accumulators and spills them. */
HR_INLINE void vf_fma_to(vf *acc, vf a, vf b)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*acc) : "x"(a), "x"(b));
}

HR_INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

/* The first HR_MB lanes, the others. */
HR_INLINE void vf_store_halves(float *a, float *b, vf x)
{
    _mm_storeu_ps(a, _mm256_castps256_ps128(x));
    _mm_storeu_ps(b, _mm256_extractf128_ps(x, 1));
}

HR_INLINE vf vf_load_fp16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

HR_INLINE void vf_store_fp16(uint16_t *p, vf v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* Sums of HR_VW vectors, one per lane, all by the same tree. */
HR_INLINE vf vf_sum_each(const vf x[HR_VW])
{
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
}

#include "kernels/cpu/exp2.h"

#endif

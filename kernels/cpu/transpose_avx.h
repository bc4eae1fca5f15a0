/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_KERNELS_CPU_TRANSPOSE_AVX_H
#define HR_KERNELS_CPU_TRANSPOSE_AVX_H

#include <immintrin.h>

/* dst[c][r] = src[r][c], 8 x 8. */
HR_INLINE void transpose8(float *dst, size_t dst_pitch, const float *src, size_t src_pitch)
{
    __m256 a[8], b[8];
    HR_UNROLL(4)
    for (size_t i = 0; i < 4; i++) { /* rows i and i + 4 side by side, halves swapped */
        __m256 x = _mm256_loadu_ps(src + i * src_pitch);
        __m256 y = _mm256_loadu_ps(src + (i + 4) * src_pitch);
        a[i] = _mm256_permute2f128_ps(x, y, 0x20);
        a[i + 4] = _mm256_permute2f128_ps(x, y, 0x31);
    }
    HR_UNROLL(2)
    for (size_t i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
        b[i + 2] = _mm256_unpacklo_ps(a[i + 2], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_ps(a[i + 2], a[i + 3]);
    }
    HR_UNROLL(2)
    for (size_t i = 0; i < 8; i += 4) {
        _mm256_storeu_ps(dst + i * dst_pitch, _mm256_shuffle_ps(b[i], b[i + 2], 0x44));
        _mm256_storeu_ps(dst + (i + 1) * dst_pitch, _mm256_shuffle_ps(b[i], b[i + 2], 0xee));
        _mm256_storeu_ps(dst + (i + 2) * dst_pitch, _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44));
        _mm256_storeu_ps(dst + (i + 3) * dst_pitch, _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee));
    }
}

#endif

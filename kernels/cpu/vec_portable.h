/* SPDX-License-Identifier: Apache-2.0 */
/* Baseline vectors: plain C on any CPU. */
#ifndef HR_KERNELS_CPU_VEC_PORTABLE_H
#define HR_KERNELS_CPU_VEC_PORTABLE_H

#define HR_VW 4 /* floats of a vector */
#define HR_NV 2 /* vectors of a strip: rows */
#define HR_MB 4 /* keys or columns of a micro-tile */
#define HR_ND 2 /* split path: vectors of d at once */
#define HR_TILE_STRIPS 12
#define HR_PAIRS 0

#include "kernels/cpu/vec.h"

HR_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

/* *acc += a * b */
HR_INLINE void vf_fma_to(vf *acc, vf a, vf b)
{
    *acc = *acc + a * b;
}

HR_INLINE vf vf_max(vf a, vf b)
{
    return vf_pick(b, a, a > b);
}

/* A vector is one micro-tile wide here: there is no second half. */
HR_INLINE void vf_store_halves(float *a, float *b, vf x)
{
    vf_store(a, x);
}

HR_INLINE float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(h & 0x7fffu) << 13;
    float f;
    if (rest >= 0x0f800000u) {
        rest += 0x70000000u; /* infinity or NaN */
    } else {
        memcpy(&f, &rest, 4);
        f *= 0x1p112f; /* exact, subnormals included */
        memcpy(&rest, &f, 4);
    }
    rest |= sign;
    memcpy(&f, &rest, 4);
    return f;
}

HR_INLINE uint16_t half_from_float(float f)
{
    uint32_t b, r;
    memcpy(&b, &f, 4);
    uint32_t sign = (b >> 16) & 0x8000u;
    b &= 0x7fffffffu;
    if (b > 0x7f800000u)
        r = 0x7e00u;
    else if (b >= 0x477ff000u)
        r = 0x7c00u;
    else if (b >= 0x38800000u)
        r = (b - 0x38000000u + 0xfffu + ((b >> 13) & 1u)) >> 13;
    else { /* subnormal: let an addition round at 2^-24 */
        memcpy(&f, &b, 4);
        f += 0.5f;
        memcpy(&r, &f, 4);
        r -= 0x3f000000u;
    }
    return (uint16_t)(sign | r);
}

HR_INLINE vf vf_load_fp16(const uint16_t *p)
{
    vf v;
    for (int i = 0; i < HR_VW; i++)
        v[i] = half_to_float(p[i]);
    return v;
}

HR_INLINE void vf_store_fp16(uint16_t *p, vf v)
{
    for (int i = 0; i < HR_VW; i++)
        p[i] = half_from_float(v[i]);
}

/* dst[c][r] = src[r][c], 8 x 8. */
HR_INLINE void transpose8(float *dst, size_t dst_pitch, const float *src, size_t src_pitch)
{
    for (size_t r = 0; r < 8; r++)
        for (size_t c = 0; c < 8; c++)
            dst[c * dst_pitch + r] = src[r * src_pitch + c];
}

/* Sums of HR_VW vectors, one per lane, all by the same tree. */
HR_INLINE vf vf_sum_each(const vf x[HR_VW])
{
    vf sum;
    for (int i = 0; i < HR_VW; i++)
        sum[i] = (x[i][0] + x[i][2]) + (x[i][1] + x[i][3]);
    return sum;
}

#include "kernels/cpu/exp2.h"

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of HR_VW floats, on the compilers' vector extension. A level's vec_*.h sets HR_VW and the
 * shape of the micro-tile before this and adds what the extension cannot say after it.
 *
 * Loads and stores take any alignment. */
#ifndef HR_KERNELS_CPU_VEC_H
#define HR_KERNELS_CPU_VEC_H

#include <math.h>
#include <string.h>

#include "src/base/geom.h"

typedef float vf __attribute__((vector_size(4 * HR_VW)));
typedef int32_t vi __attribute__((vector_size(4 * HR_VW)));
typedef uint32_t vu __attribute__((vector_size(4 * HR_VW)));
typedef uint16_t vh __attribute__((vector_size(2 * HR_VW)));

#define HR_INLINE static inline __attribute__((always_inline))
#define HR_NOINLINE static __attribute__((noinline))
#if defined(__clang__)
#define HR_UNROLL(n) _Pragma("unroll")
#else
#define HR_PRAGMA(x) _Pragma(#x)
#define HR_UNROLL(n) HR_PRAGMA(GCC unroll n)
#endif

#ifndef HR_AMX
#define HR_AMX 0
#endif

enum {
    HR_STRIP = HR_VW * HR_NV,          /* rows of a strip */
    HR_KEY_STEP = HR_AMX ? 32 : HR_MB, /* keys that a strip takes or leaves together */
};

HR_INLINE vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

HR_INLINE void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

HR_INLINE vf vf_set1(float x)
{
    return x - (vf){0};
}

HR_INLINE vi vi_load(const int32_t *p)
{
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* b where mask has ones, else a. */
HR_INLINE vf vf_pick(vf a, vf b, vi mask)
{
    return (vf)(((vi)a & ~mask) | ((vi)b & mask));
}

HR_INLINE vf vf_abs(vf x)
{
    return (vf)((vu)x & 0x7fffffffu);
}

/* To the nearest bf16, ties to even, as bits in the upper half; a NaN stays one. */
HR_INLINE vu vu_bf16_bits(vf x)
{
    vu b = (vu)x;
    vu r = b + 0x7fffu + ((b >> 16) & 1u);
    vu nan = (vu)(x != x);
    return ((r & ~nan) | ((b | 0x400000u) & nan)) & 0xffff0000u;
}

#ifndef HR_HAVE_LOAD_BF16
HR_INLINE vf vf_load_bf16(const uint16_t *p)
{
    vh h;
    memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
}
#endif

HR_INLINE void vf_store_bf16(uint16_t *p, vf v)
{
    vh h = __builtin_convertvector(vu_bf16_bits(v) >> 16, vh);
    memcpy(p, &h, sizeof h);
}

#endif

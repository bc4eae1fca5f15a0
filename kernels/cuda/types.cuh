/* SPDX-License-Identifier: Apache-2.0 */
/* The 16-bit element types. */
#ifndef HR_KERNELS_CUDA_TYPES_CUH
#define HR_KERNELS_CUDA_TYPES_CUH

#include "kernels/cuda/ptx.cuh"

#include <headrace/types.h>

/* pack: two numbers, rounded to nearest even (9.7.9.22 cvt). */
struct bf16 {
    static constexpr int32_t type = HR_BF16;

    static __device__ __forceinline__ uint32_t pack(float low, float high)
    {
        uint32_t pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }

    static __device__ __forceinline__ float value(uint16_t bits)
    {
        return __uint_as_float((uint32_t)bits << 16);
    }
};

struct fp16 {
    static constexpr int32_t type = HR_FP16;

    static __device__ __forceinline__ uint32_t pack(float low, float high)
    {
        uint32_t pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }

    static __device__ __forceinline__ float value(uint16_t bits)
    {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
};

#endif

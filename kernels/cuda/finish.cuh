/* SPDX-License-Identifier: Apache-2.0 */
/* How every kernel ends a row of output: the division, its lse, the type of out. */
#ifndef HR_KERNELS_CUDA_FINISH_CUH
#define HR_KERNELS_CUDA_FINISH_CUH

#include "kernels/cuda/params.h"
#include "kernels/cuda/types.cuh"

#include <math_constants.h>

/* 1 / x within an ulp, without a branch; x is not subnormal. */
HR_DEVICE float reciprocal(float x)
{
    float y = reciprocal_approx(x);
    return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);
}

/* What a finished row's output is multiplied with, and its lse. m: with the factor in it. A product
 * with scale is to be taken as fma(o, scale, 0): -0 becomes 0, or the sign of a zero would tell of
 * keys that the row does not see. */
struct row_end {
    float scale, lse;

    __device__ __forceinline__ row_end(const struct hr_cu_attend &a, float m, float l, int64_t head)
    {
        const float ln2 = 0.693147180559945f, log2e = 1.442695040888963f;
        float shrink = 1.0f;
        if (a.sink_logits) {
            float logit = __fmul_rn(a.sink_logits[head], log2e), both = fmaxf(m, logit);
            float base =
                fmaxf(both, -0x1p127f); /* both may be -inf, and -inf - -inf is no number */
            shrink = exp2f(__fsub_rn(m, base));
            l = __fmaf_rn(l, shrink, exp2f(__fsub_rn(logit, base)));
            m = both;
        }
        float sum = fmaxf(l, 0x1p-60f); /* no branch: where l is 0, o is too */
        scale = __fmul_rn(shrink, reciprocal(sum));
        lse = __fmul_rn(__fadd_rn(l > 0 ? m : -CUDART_INF_F, log2f(sum)), ln2);
    }
};

/* Two neighbours of an output row, of a 16-bit out. */
HR_DEVICE uint32_t pack_out(const struct hr_cu_attend &a, float x, float y)
{
    return a.out_type == HR_BF16 ? bf16::pack(x, y) : fp16::pack(x, y);
}

/* Out may have odd strides. */
HR_DEVICE void store_pair(const struct hr_cu_attend &a, int64_t at, float x, float y)
{
    if (a.out_type == HR_FP32) {
        float *to = static_cast<float *>(a.out) + at;
        to[0] = x;
        to[1] = y;
        return;
    }
    uint16_t *to = static_cast<uint16_t *>(a.out) + at;
    uint32_t pair = pack_out(a, x, y);
    if (reinterpret_cast<uintptr_t>(to) % 4 == 0) {
        *reinterpret_cast<uint32_t *>(to) = pair;
    } else {
        to[0] = (uint16_t)pair;
        to[1] = (uint16_t)(pair >> 16);
    }
}

#endif

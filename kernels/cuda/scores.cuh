/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernels do with scores: reduce over the four lanes of a row, cap, and tell which columns
 * a row sees. */
#ifndef HR_KERNELS_CUDA_SCORES_CUH
#define HR_KERNELS_CUDA_SCORES_CUH

#include "kernels/cuda/walk.cuh"

#include <math_constants.h>

HR_DEVICE float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

HR_DEVICE float quad_sum(float x)
{
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* tanh: near 0 a polynomial of relative error under 1e-7 (a cap multiplies the error of a score),
 * else 1 - 2 / (e^2x + 1) of absolute error under 3e-7. */
HR_DEVICE float tanh_select(float x)
{
    float y = __fmul_rn(x, x), p = -0.0062347082f;
    p = __fmaf_rn(p, y, 0.021088991f);
    p = __fmaf_rn(p, y, -0.05386965f);
    p = __fmaf_rn(p, y, 0.13332888f);
    p = __fmaf_rn(p, y, -0.33333331f);
    float near = __fmaf_rn(__fmul_rn(x, y), p, x);
    float e = exp2_approx(__fmul_rn(x, 2.8853900817779268f));
    float far = __fmaf_rn(-2.0f, reciprocal_approx(__fadd_rn(e, 1.0f)), 1.0f);
    return fabsf(x) < 0.6f ? near : far;
}

/* The thread's columns below `end`, counted from its first: bit i is column 8 (i / 2) + i % 2. */
HR_DEVICE uint32_t columns_below(int64_t end)
{
    int32_t n = (int32_t)min(max(end, (int64_t)0), (int64_t)HR_BLOCK_TOKENS);
    int32_t bits = n / 8 * 2 + min(n % 8, 2);
    return bits < 32 ? (1u << bits) - 1 : 0xffffffffu;
}

/* Those that a token at `position` sees, the first of which is `key`. */
HR_DEVICE uint32_t columns_seen(const struct hr_cu_attend &a, int64_t n_kv, int64_t position,
                                int64_t key)
{
    struct hr_visible v = visible_keys(a, n_kv, position);
    uint32_t seen = columns_below(v.hi - key) & ~columns_below(v.lo - key);
    if (v.lo > 0)
        seen |= columns_below(min(a.sinks, v.hi) - key);
    return seen;
}

#endif

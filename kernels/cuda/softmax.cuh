/* SPDX-License-Identifier: Apache-2.0 */
/* The softmax of a warpgroup's 64 rows in the accumulator layout of wgmma: a thread holds columns
 * 8j + 2t, 8j + 2t + 1 of rows r (x[4j], x[4j + 1]) and r + 8 (x[4j + 2], x[4j + 3]), r = 16 warp +
 * lane / 4, t = lane % 4. Base 2: weight = 2^(s*factor - m*factor), m the row's maximum of s so
 * far; l is summed per thread and reduced at the end. */
#ifndef HR_KERNELS_CUDA_SOFTMAX_CUH
#define HR_KERNELS_CUDA_SOFTMAX_CUH

#include "kernels/cuda/params.h"
#include "kernels/cuda/walk.cuh"
#include "kernels/cuda/wgmma.cuh"

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

/* tanh(x) = 1 - 2 / (e^2x + 1), absolute error under 3e-7. */
HR_DEVICE float tanh_exp(float x)
{
    float e = exp2_approx(__fmul_rn(x, 2.8853900817779268f));
    return __fsub_rn(1.0f, __fdividef(2.0f, __fadd_rn(e, 1.0f)));
}

struct row_state {
    float m[2], l[2];
    float offset[2], sum[2]; /* of the block at hand */
    struct visible sees[2];
    int64_t sink[2];               /* keys [0, sink) are visible beside those */
    int64_t whole_low, whole_high; /* every row of the warpgroup sees all keys in between */

    /* Row r of the tile is token r / G, query head r % G of the KV head; rows past the tile's end
     * do as its last token. */
    __device__ __forceinline__ static int32_t token_of(const struct hr_cu_attend &a,
                                                       const struct hr_cu_tile &tile, int32_t row)
    {
        return min(row / a.group, tile.tokens - 1);
    }

    __device__ __forceinline__ static int32_t first_row(int32_t group)
    {
        int32_t thread = threadIdx.x % 128;
        return group * 64 + thread / 32 * 16 + thread % 32 / 4;
    }

    __device__ __forceinline__ void begin(const struct hr_cu_attend &a,
                                          const struct hr_cu_tile &tile, int32_t group)
    {
        struct hr_cu_seq seq = a.seqs[tile.seq];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int32_t token = token_of(a, tile, first_row(group) + 8 * i);
            sees[i] = visible_keys(a, seq, tile.token + token);
            sink[i] = sees[i].lo > 0 ? min(a.sinks, sees[i].hi) : 0;
        }
        struct visible first = visible_keys(a, seq, tile.token + token_of(a, tile, group * 64));
        struct visible last = visible_keys(a, seq, tile.token + token_of(a, tile, group * 64 + 63));
        whole_low = last.lo;
        whole_high = first.hi;
    }

    __device__ __forceinline__ void mask(int64_t block, float (&s)[HR_BLOCK_TOKENS / 2]) const
    {
        int64_t base = block * HR_BLOCK_TOKENS + threadIdx.x % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int32_t hi = (int32_t)min(max(sees[r].hi - base, (int64_t)0), (int64_t)HR_BLOCK_TOKENS);
            int32_t lo = (int32_t)min(max(sees[r].lo - base, (int64_t)0), (int64_t)HR_BLOCK_TOKENS);
            int32_t to = (int32_t)min(max(sink[r] - base, (int64_t)0), (int64_t)HR_BLOCK_TOKENS);
#pragma unroll
            for (int i = 0; i < HR_BLOCK_TOKENS / 4; i++) {
                int column = i / 2 * 8 + i % 2, at = i / 2 * 4 + r * 2 + i % 2;
                if (column >= hi || (column < lo && column >= to))
                    s[at] = -CUDART_INF_F;
            }
        }
    }

    /* Masks the scores, raises m, gives alpha; then `columns` may be called. */
    __device__ __forceinline__ void raise(const struct hr_cu_attend &a, int64_t block,
                                          float (&s)[HR_BLOCK_TOKENS / 2], float (&alpha)[2])
    {
        if (a.softcap > 0) {
#pragma unroll
            for (int i = 0; i < HR_BLOCK_TOKENS / 2; i++)
                s[i] = tanh_exp(__fmul_rn(s[i], a.softcap));
        }
        if (block * HR_BLOCK_TOKENS < whole_low || (block + 1) * HR_BLOCK_TOKENS > whole_high)
            mask(block, s);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
            for (int j = 1; j < HR_BLOCK_TOKENS / 8; j++)
                top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
            top = fmaxf(m[r], quad_max(top));
            float ref = top == -CUDART_INF_F ? 0.0f : top; /* no key yet: every weight is 0 */
            offset[r] = __fmul_rn(-ref, a.factor);
            alpha[r] = exp2_approx(__fmul_rn(__fsub_rn(m[r], ref), a.factor));
            sum[r] = 0.0f;
            m[r] = top;
        }
    }

    /* Scores to weights, in place: column groups [from, to) of 16, all in rising order. */
    template <int from, int to>
    __device__ __forceinline__ void weigh(const struct hr_cu_attend &a,
                                          float (&s)[HR_BLOCK_TOKENS / 2])
    {
#pragma unroll
        for (int j = from; j < to; j++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float x = exp2_approx(__fmaf_rn(s[4 * j + 2 * r], a.factor, offset[r]));
                float y = exp2_approx(__fmaf_rn(s[4 * j + 2 * r + 1], a.factor, offset[r]));
                s[4 * j + 2 * r] = x;
                s[4 * j + 2 * r + 1] = y;
                sum[r] = __fadd_rn(sum[r], __fadd_rn(x, y));
            }
    }

    __device__ __forceinline__ void add_up(const float (&alpha)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            l[r] = __fmaf_rn(l[r], alpha[r], sum[r]);
    }

    /* Divides by l (and the sink's weight), writes out and lse of one of the thread's rows. */
    template <int D>
    __device__ __forceinline__ void finish_row(const struct hr_cu_attend &a,
                                               const struct hr_cu_tile &tile, int32_t row, int r,
                                               const float (&o)[D / 2]) const
    {
        const float ln2 = 0.693147180559945f, log2e = 1.442695040888963f;
        float sum = quad_sum(l[r]), top = __fmul_rn(m[r], a.factor), scale = 0, lse = -CUDART_INF_F;
        int64_t token = a.seqs[tile.seq].q_row + tile.token + row / a.group;
        int64_t head = (int64_t)tile.head * a.group + row % a.group;
        if (a.sink_logits) {
            float logit = a.sink_logits[head], both = fmaxf(top, __fmul_rn(logit, log2e));
            float shrink = exp2f(__fsub_rn(top, both));
            sum = __fmaf_rn(sum, shrink, exp2f(__fsub_rn(__fmul_rn(logit, log2e), both)));
            scale = __fdiv_rn(shrink, sum);
            lse = __fmul_rn(__fadd_rn(both, log2f(sum)), ln2);
        } else if (sum > 0) {
            scale = __fdiv_rn(1.0f, sum);
            lse = __fmul_rn(__fadd_rn(top, log2f(sum)), ln2);
        }
        if (row >= tile.tokens * a.group)
            return;
        int64_t at = token * a.out_stride_token + head * a.out_stride_head + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            float x = __fmaf_rn(o[4 * j + 2 * r], scale, 0.0f);
            float y = __fmaf_rn(o[4 * j + 2 * r + 1], scale, 0.0f);
            if (a.out_type == HR_FP32)
                *reinterpret_cast<float2 *>(static_cast<float *>(a.out) + at + 8 * j) = {x, y};
            else
                *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(a.out) + at + 8 * j) =
                    a.out_type == HR_BF16 ? bf16::pack(x, y) : fp16::pack(x, y);
        }
        if (a.lse && threadIdx.x % 4 == 0)
            a.lse[token * a.lse_stride_token + head * a.lse_stride_head] = lse;
    }

    template <int D>
    __device__ __forceinline__ void finish(const struct hr_cu_attend &a,
                                           const struct hr_cu_tile &tile, int32_t group,
                                           const float (&o)[D / 2]) const
    {
        finish_row<D>(a, tile, first_row(group), 0, o);
        finish_row<D>(a, tile, first_row(group) + 8, 1, o);
    }
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The softmax of a warpgroup's 64 rows in the accumulator layout of wgmma: a thread holds columns
 * 8j + 2t, 8j + 2t + 1 of rows r (x[4j], x[4j + 1]) and r + 8 (x[4j + 2], x[4j + 3]), r = 16 warp +
 * lane / 4, t = lane % 4. Base 2: weight = 2^(s*factor - m*factor), m the row's maximum of s so
 * far; l is summed per thread and reduced at the end. */
#ifndef HR_KERNELS_CUDA_SOFTMAX_CUH
#define HR_KERNELS_CUDA_SOFTMAX_CUH

#include "kernels/cuda/params.h"
#include "kernels/cuda/scores.cuh"
#include "kernels/cuda/wgmma.cuh"

struct row_state {
    float m[2], l[2];
    float offset[2], sum[2]; /* of the block at hand */

    __device__ __forceinline__ static int32_t first_row(int32_t group)
    {
        int32_t thread = threadIdx.x % 128;
        return group * 64 + thread / 32 * 16 + thread % 32 / 4;
    }

    /* Row r of the tile is token r / G, query head r % G of the KV head; rows past the tile's end
     * do as its last token. */
    __device__ __forceinline__ static void mask(const struct hr_cu_attend &a,
                                                const struct tile_view &tile, int32_t group,
                                                int32_t block, float (&s)[HR_BLOCK_TOKENS / 2])
    {
        int64_t base = (int64_t)block * HR_BLOCK_TOKENS + threadIdx.x % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int32_t token = min(tile.token_of(first_row(group) + 8 * r), tile.tokens - 1);
            uint32_t seen = columns_seen(a, tile.n_kv, tile.position + token, base);
#pragma unroll
            for (int i = 0; i < HR_BLOCK_TOKENS / 4; i++)
                if (!(seen >> i & 1))
                    s[i / 2 * 4 + r * 2 + i % 2] = -CUDART_INF_F;
        }
    }

    /* What a block that is not whole needs before `raise`. */
    __device__ __forceinline__ static void limit(const struct hr_cu_attend &a,
                                                 const struct tile_view &tile, int32_t group,
                                                 int32_t block, float (&s)[HR_BLOCK_TOKENS / 2])
    {
#pragma unroll
        for (int part = 0; part < 4; part++) { /* all at once, registers would spill */
            float softcap = opaque(a.softcap);
            if (softcap > 0) {
#pragma unroll
                for (int i = 0; i < HR_BLOCK_TOKENS / 8; i++) {
                    float &x = s[part * (HR_BLOCK_TOKENS / 8) + i];
                    x = tanh_select(__fmul_rn(x, softcap));
                }
            }
        }
        mask(a, tile, group, block, s);
    }

    /* Raises m, gives alpha; then `weigh` may be called. */
    __device__ __forceinline__ void raise(const struct hr_cu_attend &a,
                                          const float (&s)[HR_BLOCK_TOKENS / 2], float (&alpha)[2])
    {
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

    /* Scores to weights, in place: column group j of 16; the groups come in rising order. */
    __device__ __forceinline__ void weigh(const struct hr_cu_attend &a, int j,
                                          float (&s)[HR_BLOCK_TOKENS / 2])
    {
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
};

#endif

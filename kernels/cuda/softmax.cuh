/* SPDX-License-Identifier: Apache-2.0 */
/* The softmax of a warpgroup's 64 rows in the accumulator layout of wgmma: a thread holds columns
 * 8j + 2t, 8j + 2t + 1 of rows r (x[4j], x[4j + 1]) and r + 8 (x[4j + 2], x[4j + 3]), r = 16 warp +
 * lane / 4, t = lane % 4. Base 2: weight = 2^(s*factor - m*factor); l is summed per thread and
 * reduced at the end.
 *
 * m need not be the largest score so far, only near enough that weights stay in range: it moves up
 * when the weights of a block come out too large (conditional rescaling, FlashAttention-4, but told
 * by their sums, so that no maximum is taken otherwise). They are then taken again. Whether m moves
 * is a row's own affair: beside a row that moves, one that stays is multiplied by 1. */
#ifndef HR_KERNELS_CUDA_SOFTMAX_CUH
#define HR_KERNELS_CUDA_SOFTMAX_CUH

#include "kernels/cuda/params.h"
#include "kernels/cuda/scores.cuh"
#include "kernels/cuda/wgmma.cuh"

/* Of a thread's 32 weights; fp16 weights must stay under 2^16. */
enum { SUM_MAX = 1 << 14 };

struct row_state {
    float m[2], l[2];
    float offset[2]; /* -m*factor */
    float sum[2];    /* of the block at hand */

    __device__ __forceinline__ void refer(const struct hr_cu_attend &a, int r, float reference)
    {
        m[r] = reference;
        /* no key yet: every weight is 0 */
        offset[r] = reference == -CUDART_INF_F ? 0.0f : -__fmul_rn(reference, a.factor);
    }

    __device__ __forceinline__ static int32_t first_row(int32_t group)
    {
        int32_t thread = (int32_t)recomputed(threadIdx.x) % 128;
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

    /* What a block that is not whole needs before its weights are taken. */
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

    __device__ __forceinline__ void restart_sums(void)
    {
        sum[0] = sum[1] = 0.0f;
    }

    /* A row of the warp has no reference yet, or one that is too small. */
    __device__ __forceinline__ bool must_raise(void) const
    {
        bool mine = fmaxf(sum[0], sum[1]) > SUM_MAX || fminf(m[0], m[1]) == -CUDART_INF_F;
        return __any_sync(0xffffffffu, mine);
    }

    /* Moves the references of such rows; alpha is what weights so far are worth then. */
    __device__ __forceinline__ void raise(const struct hr_cu_attend &a,
                                          const float (&s)[HR_BLOCK_TOKENS / 2], float (&alpha)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
            for (int j = 1; j < HR_BLOCK_TOKENS / 8; j++)
                top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
            top = quad_max(top);
            if ((quad_max(sum[r]) > SUM_MAX || m[r] == -CUDART_INF_F) && top > m[r]) {
                alpha[r] = exp2_approx(__fmul_rn(__fsub_rn(m[r], top), a.factor));
                refer(a, r, top);
            }
        }
    }

    /* The weights of pair i of the thread's columns: of row i % 2, column group i / 2. */
    __device__ __forceinline__ float2 weigh(const struct hr_cu_attend &a, int i,
                                            const float (&s)[HR_BLOCK_TOKENS / 2])
    {
        float x = exp2_approx(__fmaf_rn(s[2 * i], a.factor, offset[i % 2]));
        float y = exp2_approx(__fmaf_rn(s[2 * i + 1], a.factor, offset[i % 2]));
        sum[i % 2] = __fadd_rn(sum[i % 2], __fadd_rn(x, y));
        return {x, y};
    }

    __device__ __forceinline__ void add_up(const float (&alpha)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            l[r] = __fmaf_rn(l[r], alpha[r], sum[r]);
    }
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The softmax of a chunk's 64 rows, in the accumulator layout of wgmma: a thread holds columns
 * 8j + 2t, 8j + 2t + 1 of rows r (x[4j], x[4j + 1]) and r + 8 (x[4j + 2], x[4j + 3]), r = 16 warp +
 * lane / 4, t = lane % 4. m and l are those of the partial: whole, and in base 2, so that they can
 * be put down behind any block and taken up again. */
#ifndef HR_KERNELS_CUDA_DECODE_CUH
#define HR_KERNELS_CUDA_DECODE_CUH

#include "kernels/cuda/params.h"
#include "kernels/cuda/scores.cuh"

/* What a chunk's threads know of it. */
struct chunk_view {
    int64_t n_kv, n_q, q_row, partial;
    int32_t head, rows;
    int32_t fresh; /* its newest block is */

    /* `walk` then gives its blocks of this wave; false: there is none. */
    __device__ __forceinline__ bool begin(const struct hr_cu_attend &a,
                                          const struct hr_chunk &chunk, struct walk &walk)
    {
        struct hr_cu_seq seq = a.seqs[chunk.seq];
        int64_t n = hr_blocks_of(seq.n_kv), newest = min(chunk.block + chunk.blocks, n);
        struct hr_cu_tile every = {
            chunk.seq, chunk.head, 0, 0, (int32_t)seq.n_q, -1, 0,
        };
        walk.begin(a, every);
        walk.top = min(walk.top, (int32_t)newest);
        walk.bottom = max(walk.bottom, (int32_t)chunk.block);
        fresh = n - a.wave_begin >= newest;
        n_kv = seq.n_kv;
        n_q = seq.n_q;
        q_row = seq.q_row;
        partial = chunk.partial;
        head = chunk.head;
        rows = (int32_t)seq.n_q * a.group;
        return min(n - a.wave_begin, newest) > max(n - a.wave_end, chunk.block);
    }
};

struct split_rows {
    float m[2], l[2];

    __device__ __forceinline__ static int32_t first_row(void)
    {
        return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    }

    __device__ __forceinline__ static void cap(const struct hr_cu_attend &a,
                                               float (&s)[HR_BLOCK_TOKENS / 2])
    {
#pragma unroll
        for (int i = 0; i < HR_BLOCK_TOKENS / 2; i++)
            s[i] = tanh_select(__fmul_rn(s[i], a.softcap));
    }

    /* Row r is token r / G; rows past the last do as the last token. */
    __device__ __forceinline__ static void mask(const struct hr_cu_attend &a,
                                                const struct chunk_view &chunk, int32_t block,
                                                float (&s)[HR_BLOCK_TOKENS / 2])
    {
        int64_t base = (int64_t)block * HR_BLOCK_TOKENS + threadIdx.x % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t token = min((int64_t)((first_row() + 8 * r) / a.group), chunk.n_q - 1);
            uint32_t seen = columns_seen(a, chunk.n_kv, chunk.n_kv - chunk.n_q + token, base);
#pragma unroll
            for (int i = 0; i < HR_BLOCK_TOKENS / 4; i++)
                if (!(seen >> i & 1))
                    s[i / 2 * 4 + r * 2 + i % 2] = -CUDART_INF_F;
        }
    }

    /* Scores of a block to weights, in place; what is older is to be scaled by alpha. */
    __device__ __forceinline__ void weigh(const struct hr_cu_attend &a,
                                          float (&s)[HR_BLOCK_TOKENS / 2], float (&alpha)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = fmaxf(s[2 * r], s[2 * r + 1]), sum = 0.0f;
#pragma unroll
            for (int j = 1; j < HR_BLOCK_TOKENS / 8; j++)
                top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
            top = fmaxf(m[r], __fmul_rn(quad_max(top), a.factor));
            float ref = top == -CUDART_INF_F ? 0.0f : top; /* no key yet: every weight is 0 */
            alpha[r] = exp2_approx(__fsub_rn(m[r], ref));
            m[r] = top;
#pragma unroll
            for (int j = 0; j < HR_BLOCK_TOKENS / 8; j++) {
                float x = exp2_approx(__fmaf_rn(s[4 * j + 2 * r], a.factor, -ref));
                float y = exp2_approx(__fmaf_rn(s[4 * j + 2 * r + 1], a.factor, -ref));
                s[4 * j + 2 * r] = x;
                s[4 * j + 2 * r + 1] = y;
                sum = __fadd_rn(sum, __fadd_rn(x, y));
            }
            l[r] = __fmaf_rn(l[r], alpha[r], quad_sum(sum));
        }
    }
};

#endif

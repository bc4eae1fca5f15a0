/* SPDX-License-Identifier: Apache-2.0 */
/* The softmax of a warp's rows in the accumulator layout of mma.m16n8k16. x[i][j] of a thread holds
 * columns 8j + 2t and 8j + 2t + 1 of row 16i + g (x[i][j][0], [1]) and of row 16i + 8 + g ([2],
 * [3]), g = lane / 4, t = lane % 4; so its row r is 8r + g, r < 2 * (row tiles).
 *
 * Base 2, with the factor in it: a key's weight is 2^(s * factor - m), l the sum of the weights. In
 * chunks the row's reference m is its largest s * factor so far, in tiles it may be less. */
#ifndef HR_KERNELS_CUDA_SOFTMAX_MMA_CUH
#define HR_KERNELS_CUDA_SOFTMAX_MMA_CUH

#include "kernels/cuda/finish.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/scores.cuh"

/* What scores with keys from `key` on (the thread's first column) need when a row may not see them
 * all, or with a softcap. Row 0 is the thread's first row of the tile; rows past the tile's end do
 * as its last token. */
template <int row_tiles, int groups>
HR_DEVICE void limit_scores(const struct hr_cu_attend &a, const struct tile_view &tile,
                            uint32_t row, int64_t key, float (&s)[row_tiles][groups][4])
{
    if (a.softcap > 0) {
#pragma unroll
        for (int i = 0; i < row_tiles * groups * 4; i++) {
            float &x = s[i / 4 / groups][i / 4 % groups][i % 4];
            x = tanh_select(__fmul_rn(x, a.softcap));
        }
    }
#pragma unroll
    for (int r = 0; r < 2 * row_tiles; r++) {
        int32_t token = min((int32_t)((row + 8 * r) / a.group), tile.tokens - 1);
        uint32_t seen = columns_seen(a, tile.n_kv, tile.position + token, key);
#pragma unroll
        for (int i = 0; i < groups * 2; i++)
            if (!(seen >> i & 1))
                s[r / 2][i / 2][r % 2 * 2 + i % 2] = -CUDART_INF_F;
    }
}

enum { WEIGHT_MAX_LOG = 8 }; /* how far, in powers of two, weights may rise above 1 */

template <int row_tiles> struct row_state {
    static constexpr int rows = 2 * row_tiles;
    float m[rows], l[rows];
    float offset[rows];           /* -m; 0 without a key so far: every weight is 0 then */
    float alpha[rows], sum[rows]; /* of the key tile at hand */

    __device__ __forceinline__ void begin(void)
    {
#pragma unroll
        for (int r = 0; r < rows; r++) {
            m[r] = -CUDART_INF_F;
            l[r] = offset[r] = 0.0f;
        }
    }

    /* The largest score of the thread's row r among its own columns. */
    template <int groups>
    static __device__ __forceinline__ float top(const float (&s)[row_tiles][groups][4], int r)
    {
        float x = -CUDART_INF_F;
#pragma unroll
        for (int j = 0; j < groups; j++)
            x = fmaxf(x, fmaxf(s[r / 2][j][r % 2 * 2], s[r / 2][j][r % 2 * 2 + 1]));
        return x;
    }

    __device__ __forceinline__ void refer_to(int r, float to)
    {
        m[r] = to;
        offset[r] = to == -CUDART_INF_F ? 0.0f : -to;
    }

    /* Moves the reference; what is older is to be scaled by alpha. */
    __device__ __forceinline__ void move(int r, float to)
    {
        float from = m[r];
        refer_to(r, to);
        alpha[r] = exp2_approx(__fadd_rn(from, offset[r]));
    }

    __device__ __forceinline__ bool too_far(int r, float score) const
    {
        return score > __fadd_rn(m[r], WEIGHT_MAX_LOG);
    }

    /* Moves the references of rows whose weights would come out too large, and scales what is
     * older. That is a row's own affair: one that stays beside one that moves is multiplied by 1.
     */
    template <int groups, int columns>
    __device__ __forceinline__ void refer(const float (&s)[row_tiles][groups][4], float factor,
                                          float (&o)[row_tiles][columns][4])
    {
        float score[rows];
        bool far = false;
#pragma unroll
        for (int r = 0; r < rows; r++) {
            score[r] = __fmul_rn(top(s, r), factor);
            far |= too_far(r, score[r]);
        }
        if (columns > 8 && !__any_sync(0xffffffffu, far)) /* at D 64 the look costs as much */
            return;
#pragma unroll
        for (int r = 0; r < rows; r++) {
            score[r] = quad_max(score[r]);
            move(r, too_far(r, score[r]) ? score[r] : m[r]);
            l[r] = __fmul_rn(l[r], alpha[r]);
        }
        scale_output(o);
    }

    /* Scores to weights, in place, and their sum over the thread's columns. */
    template <int groups>
    __device__ __forceinline__ void weigh(float (&s)[row_tiles][groups][4], float factor)
    {
#pragma unroll
        for (int r = 0; r < rows; r++) {
            sum[r] = 0.0f;
#pragma unroll
            for (int j = 0; j < groups; j++) {
                float *pair = &s[r / 2][j][r % 2 * 2];
                pair[0] = exp2_approx(__fmaf_rn(pair[0], factor, offset[r]));
                pair[1] = exp2_approx(__fmaf_rn(pair[1], factor, offset[r]));
                sum[r] = __fadd_rn(sum[r], __fadd_rn(pair[0], pair[1]));
            }
        }
    }

    template <int groups>
    __device__ __forceinline__ void scale_output(float (&o)[row_tiles][groups][4]) const
    {
#pragma unroll
        for (int i = 0; i < row_tiles * groups * 4; i++) {
            float &x = o[i / 4 / groups][i / 4 % groups][i % 4];
            x = __fmul_rn(x, alpha[i / 4 / groups * 2 + i % 4 / 2]);
        }
    }
};

#endif

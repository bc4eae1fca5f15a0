/* SPDX-License-Identifier: Apache-2.0 */
/* The last step of a warpgroup's 64 rows: divide, round, write. Rows that lie in 16-byte pieces go
 * through shared memory, where they become whole lines; others element by element. */
#ifndef HR_KERNELS_CUDA_OUTPUT_CUH
#define HR_KERNELS_CUDA_OUTPUT_CUH

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/finish.cuh"
#include "kernels/cuda/softmax.cuh"

/* First element of a row of the tile in out. */
HR_DEVICE int64_t row_at(const struct hr_cu_attend &a, const struct tile_view &tile, int32_t row)
{
    int32_t token = tile.token_of(row);
    int64_t head = (int64_t)tile.head * a.group + (row - token * a.group);
    return (tile.row + token) * a.out_stride_token + head * a.out_stride_head;
}

/* Divides o, writes lse. The even lanes of a quad see to the first of its two rows, the odd ones to
 * the second. */
template <int D>
HR_DEVICE void close_rows(const struct hr_cu_attend &a, const struct tile_view &tile, int32_t group,
                          const struct row_state &rows, float (&o)[D / 2])
{
    float l[2] = {quad_sum(rows.l[0]), quad_sum(rows.l[1])}, scale[2];
    int32_t lane = threadIdx.x % 4, odd = lane % 2;
    int32_t row = row_state::first_row(group) + 8 * odd, token = tile.token_of(row);
    int64_t head = (int64_t)tile.head * a.group + (row - token * a.group);
    struct row_end end(a, __fmul_rn(odd ? rows.m[1] : rows.m[0], a.factor), odd ? l[1] : l[0],
                       head);
#pragma unroll
    for (int r = 0; r < 2; r++)
        scale[r] = __shfl_sync(0xffffffffu, end.scale, r, 4);
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        o[i] = __fmaf_rn(o[i], scale[i / 2 % 2], 0.0f);
    if (a.lse && lane < 2 && row < tile.tokens * a.group)
        a.lse[(tile.row + token) * a.lse_stride_token + head * a.lse_stride_head] = end.lse;
}

template <int D>
HR_DEVICE void write_elements(const struct hr_cu_attend &a, const struct tile_view &tile,
                              int32_t group, const float (&o)[D / 2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int32_t row = row_state::first_row(group) + 8 * r;
        int64_t at = row_at(a, tile, row) + threadIdx.x % 4 * 2;
        if (row >= tile.tokens * a.group)
            continue;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            store_pair(a, at + 8 * j, o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
    }
}

/* Whether out is of the kernel's type and its rows lie in 16-byte pieces. */
template <class T> HR_DEVICE bool rows_are_lines(const struct hr_cu_attend &a)
{
    return a.out_type == T::type &&
           rows_are_wide(a.out, a.out_stride_token, a.out_stride_head, a.out_type);
}

/* `room`: shared memory of the warpgroup's rows, slabs of 64 columns [row][128 bytes] that lie
 * `slab` bytes apart; a warp uses its own 16 rows, their 16-byte pieces swizzled by the row. */
template <int D, class T>
HR_DEVICE void write_lines(const struct hr_cu_attend &a, const struct tile_view &tile,
                           int32_t group, const float (&o)[D / 2], uint32_t room, uint32_t slab)
{
    constexpr int lanes = D / 8; /* of a row */
    int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = lane % 16;
    room += warp * 16 * 128;
#pragma unroll
    for (int j = 0; j < D / 8; j += 2) {
        int32_t piece = j + lane / 16;
        store_matrices(room + piece / 8 * slab + row * 128 + ((piece % 8 ^ row % 8) << 4),
                       T::pack(o[4 * j], o[4 * j + 1]), T::pack(o[4 * j + 2], o[4 * j + 3]),
                       T::pack(o[4 * j + 4], o[4 * j + 5]), T::pack(o[4 * j + 6], o[4 * j + 7]));
    }
    int32_t first_row = group * 64 + warp * 16, rows = tile.tokens * a.group;
    int64_t lane_row = row_at(a, tile, first_row + row);
    uint4 pieces[lanes / 2];
    int32_t piece = lane % lanes;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < lanes / 2; i++) {
        int32_t mine = (i * 32 + lane) / lanes;
        pieces[i] =
            load_shared16(room + piece / 8 * slab + mine * 128 + ((piece % 8 ^ mine % 8) << 4));
    }
#pragma unroll
    for (int i = 0; i < lanes / 2; i++) {
        int32_t mine = (i * 32 + lane) / lanes;
        int64_t at = __shfl_sync(0xffffffffu, lane_row, mine) + piece * 8;
        if (first_row + mine < rows)
            store_global16(static_cast<uint16_t *>(a.out) + at, pieces[i]);
    }
}

#endif

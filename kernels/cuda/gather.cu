/* SPDX-License-Identifier: Apache-2.0 */
/* Copies many pieces from pinned host memory, or from device memory, with few CTAs. All warps of
 * the grid take chunks in turn, across the borders of pieces, so that a queue of reads is always
 * under way: over PCIe each takes microseconds. 8 CTAs of 256 threads fill the link; every warp
 * reads the whole list, so that long lists of small pieces want few warps. */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/stage.h"

enum {
    LANES = 32,
    DEPTH = 8, /* loads of a lane in flight */
    CHUNK = LANES * 16 * DEPTH,
};

/* At most CHUNK of the `left` bytes. */
HR_DEVICE void copy_chunk(const unsigned char *from, unsigned char *to, int64_t left)
{
    int32_t first = (int32_t)(threadIdx.x % LANES) * 16;
    uint4 x[DEPTH];
    __builtin_assume(__isGlobal(to)); /* no look at the address space */
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        if (first + i * LANES * 16 < left)
            x[i] = load_once(from + first + i * LANES * 16);
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        if (first + i * LANES * 16 < left)
            *reinterpret_cast<uint4 *>(to + first + i * LANES * 16) = x[i];
}

/* Sum of the values of this lane and those before it. */
HR_DEVICE int64_t sum_to_lane(int64_t x)
{
#pragma unroll
    for (int by = 1; by < LANES; by *= 2) {
        int64_t other = __shfl_up_sync(0xffffffffu, x, by);
        x += threadIdx.x % LANES >= by ? other : 0;
    }
    return x;
}

/* Threads: a multiple of 32, at most 512. Each lane holds one of 32 pieces; `end` counts chunks up
 * to its end. */
extern "C" __global__ void __launch_bounds__(512)
    hr_gather(const __grid_constant__ struct hr_cu_gather a)
{
    int32_t warps = blockDim.x / LANES;
    int64_t next = (int64_t)blockIdx.x * warps + threadIdx.x / LANES, before = 0;
    for (int64_t first = 0; first < a.n_pieces; first += LANES) {
        int64_t at = first + threadIdx.x % LANES;
        struct hr_cu_piece p = {nullptr, nullptr, 0};
        if (at < a.n_pieces)
            p = a.pieces[at];
        int64_t chunks = (p.bytes + CHUNK - 1) / CHUNK, end = before + sum_to_lane(chunks);
        before = __shfl_sync(0xffffffffu, end, LANES - 1);
        for (; next < before; next += (int64_t)gridDim.x * warps) {
            int owner = __ffs(__ballot_sync(0xffffffffu, next < end)) - 1;
            int64_t offset = __shfl_sync(0xffffffffu, (next - (end - chunks)) * CHUNK, owner);
            copy_chunk((const unsigned char *)__shfl_sync(0xffffffffu, (uint64_t)p.from, owner) +
                           offset,
                       (unsigned char *)__shfl_sync(0xffffffffu, (uint64_t)p.to, owner) + offset,
                       __shfl_sync(0xffffffffu, p.bytes, owner) - offset);
        }
    }
}

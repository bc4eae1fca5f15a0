/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys a tile sees, and its blocks in order: newest first, those of the wave, the explicit
 * list if there is one, without the gap between a window and its sinks. */
#ifndef HR_KERNELS_CUDA_WALK_CUH
#define HR_KERNELS_CUDA_WALK_CUH

#include "kernels/cuda/params.h"
#include "kernels/cuda/ptx.cuh"

/* Keys [lo, hi) that token `i` of a sequence's n_q sees, besides [0, sinks) below hi. */
struct visible {
    int64_t lo, hi;
};

HR_DEVICE struct visible visible_keys(const struct hr_cu_attend &a, const struct hr_cu_seq &seq,
                                      int64_t i)
{
    int64_t pos = seq.n_kv - seq.n_q + i;
    struct visible v = {0, seq.n_kv};
    if (a.causal)
        v.hi = min(max(pos + 1, (int64_t)0), seq.n_kv);
    if (a.window > 0)
        v.lo = min(max(pos - a.window + 1, (int64_t)0), v.hi);
    return v;
}

struct walk {
    const uint32_t *pages, *list;
    int64_t top, low, sinks, bottom; /* blocks [low, top) and [0, sinks), none below bottom */
    int32_t left;                    /* of the list; < 0: no list */
    int32_t head;

    __device__ __forceinline__ void begin(const struct hr_cu_attend &a,
                                          const struct hr_cu_tile &tile)
    {
        struct hr_cu_seq seq = a.seqs[tile.seq];
        struct visible first = visible_keys(a, seq, tile.token);
        struct visible last = visible_keys(a, seq, tile.token + tile.tokens - 1);
        int64_t n = hr_blocks_of(seq.n_kv);
        pages = a.pages + seq.first_block;
        list = a.lists + tile.list_first;
        left = tile.list_count;
        head = tile.head;
        low = first.lo / HR_BLOCK_TOKENS;
        sinks = last.lo > 0 ? hr_blocks_of(min(a.sinks, last.hi)) : 0;
        top = min(hr_blocks_of(last.hi), n - a.wave_begin);
        bottom = max(n - a.wave_end, (int64_t)0);
    }

    __device__ __forceinline__ bool sees(int64_t block) const
    {
        return block < top && block >= bottom && (block >= low || block < sinks);
    }

    /* The next block, -1: none. */
    __device__ __forceinline__ int64_t next(void)
    {
        if (left < 0) {
            top--;
            if (top < low && top >= sinks)
                top = sinks - 1;
            return top >= bottom && top >= 0 ? top : -1;
        }
        while (left > 0) {
            int64_t block = *list;
            list++;
            left--;
            if (sees(block))
                return block;
        }
        return -1;
    }

    __device__ __forceinline__ uint32_t page(int64_t block) const { return pages[block] + head; }
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys a tile sees, and its blocks in order: newest first, those of the wave, the explicit
 * list if there is one, without the gap between a window and its sinks. */
#ifndef HR_KERNELS_CUDA_WALK_CUH
#define HR_KERNELS_CUDA_WALK_CUH

#include "kernels/cuda/params.h"
#include "kernels/cuda/ptx.cuh"

HR_DEVICE struct hr_visible visible_keys(const struct hr_cu_attend &a, int64_t n_kv,
                                         int64_t position)
{
    return hr_visible_at(a.causal, a.window, n_kv, position);
}

/* What a tile's rows need of its sequence. */
struct tile_view {
    int64_t n_kv;
    int64_t position; /* of its first token; negative: before the first key */
    int64_t row;      /* its first one in q, out and lse */
    int64_t carry;
    int32_t head, tokens;
    uint32_t inverse; /* of G, in units of 2^-16: exact for rows of a tile. Set once */

    __device__ __forceinline__ int32_t token_of(int32_t row) const
    {
        return (int32_t)((uint32_t)row * inverse >> 16);
    }

    __device__ __forceinline__ void begin(const struct hr_cu_attend &a,
                                          const struct hr_cu_tile &tile)
    {
        struct hr_cu_seq seq = a.seqs[tile.seq];
        n_kv = seq.n_kv;
        position = seq.n_kv - seq.n_q + tile.token;
        row = seq.q_row + tile.token;
        carry = tile.carry;
        head = tile.head;
        tokens = tile.tokens;
    }
};

/* Of tiles and chunks; what there is to do for one. */
enum work { NO_MORE, NO_BLOCKS, BLOCKS };

/* What a stage of K tells of its block: block << WORD_BITS and these. */
enum {
    WORD_BITS = 2,
    LAST = 1,   /* no block of the tile or chunk follows */
    PARTLY = 2, /* not every row sees all its keys, or there is a softcap */
};

/* Blocks are counted in 32 bits, as pages are in tensor maps. */
struct walk {
    const uint32_t *pages, *list;
    int32_t top, low, sinks, bottom; /* blocks [low, top) and [0, sinks), none below bottom */
    int32_t whole_low, whole_top;    /* blocks whose scores are used as they are */
    int32_t left;                    /* of the list; < 0: no list */
    int32_t head;

    __device__ __forceinline__ void begin(const struct hr_cu_attend &a,
                                          const struct hr_cu_tile &tile)
    {
        struct hr_cu_seq seq = a.seqs[tile.seq];
        int64_t position = seq.n_kv - seq.n_q + tile.token, n = hr_blocks_of(seq.n_kv);
        struct hr_visible first = visible_keys(a, seq.n_kv, position);
        struct hr_visible last = visible_keys(a, seq.n_kv, position + tile.tokens - 1);
        pages = a.pages + seq.first_block;
        list = a.lists + tile.list_first;
        left = tile.list_count;
        head = tile.head;
        low = (int32_t)(first.lo / HR_BLOCK_TOKENS);
        sinks = last.lo > 0 ? (int32_t)hr_blocks_of(min(a.sinks, last.hi)) : 0;
        top = (int32_t)min(hr_blocks_of(last.hi), n - a.wave_begin);
        bottom = (int32_t)max(n - a.wave_end, (int64_t)0);
        whole_low = (int32_t)hr_blocks_of(last.lo);
        whole_top = a.softcap > 0 ? 0 : (int32_t)(first.hi / HR_BLOCK_TOKENS);
        skip((int32_t)n, top);
    }

    /* The list's entries are below `from` and fall: leaves out those that are not below `to`. */
    __device__ __forceinline__ void skip(int32_t from, int32_t to)
    {
        int32_t none = 0, all = min(left, from - to); /* so many at least, at most, are left out */
        if (all > 0 && (int32_t)list[all - 1] >= to)
            none = all; /* a full list */
        while (none < all) {
            int32_t middle = (none + all) / 2;
            if ((int32_t)list[middle] >= to)
                none = middle + 1;
            else
                all = middle;
        }
        if (none > 0) {
            list += none;
            left -= none;
        }
    }

    /* Every row of the tile sees every key of the block, and there is no softcap. */
    __device__ __forceinline__ bool whole(int32_t block) const
    {
        return block >= whole_low && block < whole_top;
    }

    __device__ __forceinline__ uint32_t word(int32_t block, int32_t following) const
    {
        return (uint32_t)block << WORD_BITS | (following < 0 ? LAST : 0) |
               (whole(block) ? 0 : PARTLY);
    }

    /* The next block, -1: none. */
    __device__ __forceinline__ int32_t next(void)
    {
        if (left < 0) {
            top--;
            if (top < low && top >= sinks)
                top = sinks - 1;
            return top >= bottom && top >= 0 ? top : -1;
        }
        if (left > 0 && (int32_t)*list < low && (int32_t)*list >= sinks)
            skip(low, sinks);
        if (left == 0 || (int32_t)*list < bottom)
            return -1;
        left--;
        return (int32_t)*list++;
    }

    /* At most n blocks follow, as far as can be told at once. */
    __device__ __forceinline__ bool ends_within(int32_t n) const
    {
        return left < 0 ? top - max(low, bottom) <= n : left <= n;
    }

    __device__ __forceinline__ int32_t page(int32_t block) const
    {
        return (int32_t)pages[block] + head;
    }
};

#endif

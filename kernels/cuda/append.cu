/* SPDX-License-Identifier: Apache-2.0 */
/* Appends new K and V to the pages. Grid: KV heads, 2 (K, V), items or fewer. A CTA writes K or V
 * of one head's page at a time; neighbours read neighbouring heads of the same tokens. */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/params.h"

enum { THREADS = 128 };

/* Half a page of one item. Rows [0, row) are there or copied, [row, end) new. */
struct half_page {
    unsigned char *to;
    const unsigned char *copy; /* NULL: none */
    int64_t token;             /* row 0's in k and v: `row` tokens before the first new one */
    int32_t row, end;
};

/* The sequence whose items include `item`: the last one with first_item <= item. The warp's lanes
 * try 32 of them at once. */
HR_DEVICE int32_t seq_of(const struct hr_cu_append &a, int64_t item)
{
    int32_t low = 0, count = a.n_seqs;
    while (count > 1) {
        int32_t step = (count - 1) / 32 + 1, at = (int32_t)(threadIdx.x % 32) * step;
        bool below = at < count && a.first_item[low + at] <= item;
        int32_t skip = max(__popc(__ballot_sync(0xffffffffu, below)) - 1, 0) * step;
        low += skip;
        count = min(step, count - skip);
    }
    return low;
}

HR_DEVICE int32_t row_bytes_of(const struct hr_cu_append &a)
{
    return a.dim * (a.cache_type == HR_FP32 ? 4 : 2);
}

HR_DEVICE struct half_page find_half(const struct hr_cu_append &a, int64_t item)
{
    int32_t s = seq_of(a, item);
    struct hr_cu_seq seq = a.seqs[s];
    int64_t start = seq.n_kv - seq.n_new;
    int64_t block = start / HR_BLOCK_TOKENS + (item - a.first_item[s]);
    int64_t base = block * HR_BLOCK_TOKENS;
    int64_t half_bytes = HR_BLOCK_TOKENS * row_bytes_of(a);
    unsigned char *half = a.arena + (blockIdx.x * 2 + blockIdx.y) * half_bytes;
    struct half_page p;
    p.row = start > base ? (int32_t)(start - base) : 0;
    p.end = (int32_t)min(seq.n_kv - base, (int64_t)HR_BLOCK_TOKENS);
    p.token = seq.new_row + base - start;
    int64_t unit = hr_unit_bytes(a.dim, a.cache_type == HR_FP32 ? 4 : 2);
    p.to = half + unit * a.pages[seq.first_block + block];
    uint32_t source = p.row > 0 ? a.copy_from[s] : UINT32_MAX;
    p.copy = source != UINT32_MAX ? half + unit * source : nullptr;
    return p;
}

/* The threads stand in rows of dim / 8 octets, as many rows as fit. */
template <hr_dtype from, hr_dtype to, bool wide>
HR_DEVICE void append_rows(const struct hr_cu_append &a, const struct half_page &p)
{
    int64_t stride_token = blockIdx.y ? a.v_stride_token : a.k_stride_token;
    int64_t stride_head = blockIdx.y ? a.v_stride_head : a.k_stride_head;
    int32_t columns = a.dim / 8, column = threadIdx.x % columns, pass = THREADS / columns;
    int32_t mine = threadIdx.x / columns;
    int64_t row_bytes = (int64_t)a.dim * element_type<to>::bytes;
    const unsigned char *source =
        static_cast<const unsigned char *>(blockIdx.y ? a.v : a.k) +
        (blockIdx.x * stride_head + column * 8) * element_type<from>::bytes;
    unsigned char *target = p.to + column * 8 * element_type<to>::bytes;
    constexpr int rows = 16 / octet<from>::words; /* in flight */
    if (mine >= pass)
        return;
    for (int32_t row = p.row + mine; row < p.end; row += rows * pass) {
        octet<from> x[rows];
#pragma unroll
        for (int i = 0; i < rows; i++)
            if (row + i * pass < p.end)
                x[i] = load_octet<from, wide>(source + (p.token + row + i * pass) * stride_token *
                                                           element_type<from>::bytes);
#pragma unroll
        for (int i = 0; i < rows; i++)
            if (row + i * pass < p.end)
                store_octet<to>(target + (row + i * pass) * row_bytes, convert<to, from>(x[i]));
    }
}

/* One branch on the types for all rows of the half page. */
HR_DEVICE void append_any(const struct hr_cu_append &a, const struct half_page &p, bool wide)
{
    with_type(a.kv_type, [&](auto from) {
        with_type(a.cache_type, [&](auto to) {
            if (wide)
                append_rows<decltype(from)::value, decltype(to)::value, true>(a, p);
            else
                append_rows<decltype(from)::value, decltype(to)::value, false>(a, p);
        });
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 6)
    hr_append(const __grid_constant__ struct hr_cu_append a)
{
    int32_t row_bytes = row_bytes_of(a), first = (int32_t)threadIdx.x * 16;
    bool wide = rows_are_wide(a.k, a.k_stride_token, a.k_stride_head, a.kv_type) &&
                rows_are_wide(a.v, a.v_stride_token, a.v_stride_head, a.kv_type);
    for (int64_t item = blockIdx.z; item < a.n_items; item += gridDim.z) {
        struct half_page p = find_half(a, item);
        if (p.copy) {
#pragma unroll 4
            for (int32_t at = first; at < p.row * row_bytes; at += THREADS * 16)
                *reinterpret_cast<uint4 *>(p.to + at) = load_once(p.copy + at);
        }
        append_any(a, p, wide);
        if (blockIdx.y == 1 && (p.row == 0 || p.copy)) {
#pragma unroll 4
            for (int32_t at = p.end * row_bytes + first; at < HR_BLOCK_TOKENS * row_bytes;
                 at += THREADS * 16)
                *reinterpret_cast<uint4 *>(p.to + at) = make_uint4(0, 0, 0, 0);
        }
    }
}

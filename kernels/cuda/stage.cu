/* SPDX-License-Identifier: Apache-2.0 */
/* Copies q into packed rows of the layer's type, as tensor maps want them; zeroes V rows that no
 * token owns any more. Both take any grid of one dimension. */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/stage.h"

enum { THREADS = 256 };

template <hr_dtype type> HR_DEVICE octet<type> with_signs(octet<type> o, bool negate)
{
    uint32_t signs = negate ? (type == HR_FP32 ? 0x80000000u : 0x80008000u) : 0;
#pragma unroll
    for (int i = 0; i < octet<type>::words; i++)
        o.word[i] ^= signs;
    return o;
}

/* A CTA takes one token at a time, or as many as it has threads for. */
template <hr_dtype from, hr_dtype to, bool wide> HR_DEVICE void stage(const struct hr_cu_stage &a)
{
    int32_t columns = a.dim / 8, octets = a.heads * columns;
    int32_t together = max(THREADS / octets, 1), mine = threadIdx.x / octets;
    const unsigned char *source = static_cast<const unsigned char *>(a.from);
    unsigned char *target = static_cast<unsigned char *>(a.to);
    if (mine >= together)
        return;
    for (int64_t token = (int64_t)blockIdx.x * together + mine; token < a.rows;
         token += (int64_t)gridDim.x * together) {
#pragma unroll 4
        for (int32_t i = threadIdx.x - mine * octets; i < octets; i += THREADS) {
            int64_t at = token * a.stride_token + i / columns * a.stride_head + i % columns * 8;
            octet<from> x = load_octet<from, wide>(source + at * element_type<from>::bytes);
            store_octet<to>(target + (token * octets + i) * 8 * element_type<to>::bytes,
                            with_signs<to>(convert<to, from>(x), a.negate));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    hr_stage(const __grid_constant__ struct hr_cu_stage a)
{
    bool wide = rows_are_wide(a.from, a.stride_token, a.stride_head, a.from_type);
    with_type(a.from_type, [&](auto from) {
        with_type(a.to_type, [&](auto to) {
            if (wide)
                stage<decltype(from)::value, decltype(to)::value, true>(a);
            else
                stage<decltype(from)::value, decltype(to)::value, false>(a);
        });
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    hr_zero_rows(const __grid_constant__ struct hr_cu_zero_rows a)
{
    int64_t row_bytes = (int64_t)a.dim * (a.cache_type == HR_FP32 ? 4 : 2);
    int64_t half_bytes = HR_BLOCK_TOKENS * row_bytes;
    for (int64_t i = blockIdx.x; i < a.n_list * a.kv_heads; i += gridDim.x) {
        struct hr_cu_rows rows = a.list[i / a.kv_heads];
        int64_t head = i % a.kv_heads, unit = hr_unit_bytes(a.dim, a.cache_type == HR_FP32 ? 4 : 2);
        unsigned char *values = a.arena + rows.page * unit + (2 * head + 1) * half_bytes;
        for (int64_t at = rows.from * row_bytes + threadIdx.x * 16; at < rows.to * row_bytes;
             at += THREADS * 16)
            *reinterpret_cast<uint4 *>(values + at) = make_uint4(0, 0, 0, 0);
    }
}

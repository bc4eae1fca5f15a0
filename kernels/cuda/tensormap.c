/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/tensormap.h"

#include "src/dev/driver.h"

_Static_assert(sizeof(struct hr_cu_map) == sizeof(CUtensorMap), "a tensor map is 128 bytes");

enum { ALIGN = 16, BOX_MAX = 256, SWIZZLE_BYTES = 128 };

struct hr_cu_map_shape hr_cu_map_pages(const struct hr_geom *g, const void *arena,
                                       uint64_t arena_bytes)
{
    uint64_t row = (uint64_t)g->dim * hr_dtype_bytes(g->dtype);
    uint32_t slabs = (uint32_t)g->dim / HR_CU_MAP_COLUMNS;
    uint64_t slab = HR_CU_MAP_COLUMNS * hr_dtype_bytes(g->dtype);
    return (struct hr_cu_map_shape){
        .base = arena,
        .dims = {HR_CU_MAP_COLUMNS, HR_BLOCK_TOKENS, slabs, 2, arena_bytes / hr_page_bytes(g)},
        .strides = {row, slab, HR_BLOCK_TOKENS * row, hr_page_bytes(g)},
        .box = {HR_CU_MAP_COLUMNS, HR_BLOCK_TOKENS, slabs, 1, 1},
        .dtype = g->dtype,
    };
}

struct hr_cu_map_shape hr_cu_map_queries(const struct hr_geom *g, const void *q, int64_t rows,
                                         int64_t stride_token, int64_t stride_head,
                                         int32_t tile_tokens)
{
    uint64_t bytes = hr_dtype_bytes(g->dtype), group = (uint64_t)g->group;
    uint64_t head = (uint64_t)stride_head * bytes, token = (uint64_t)stride_token * bytes;
    return (struct hr_cu_map_shape){
        .base = q,
        .dims = {HR_CU_MAP_COLUMNS, group, (uint64_t)rows, (uint64_t)g->dim / HR_CU_MAP_COLUMNS,
                 (uint64_t)g->kv_heads},
        .strides = {head, token, HR_CU_MAP_COLUMNS * bytes, group * head},
        .box = {HR_CU_MAP_COLUMNS, (uint32_t)g->group, (uint32_t)tile_tokens, 1, 1},
        .dtype = g->dtype,
    };
}

const char *hr_cu_map_refuses(const struct hr_cu_map_shape *s)
{
    if ((uintptr_t)s->base % ALIGN != 0)
        return "its address is no multiple of 16";
    if (s->dtype != HR_BF16 && s->dtype != HR_FP16)
        return "its elements are not of 16 bits";
    for (int i = 0; i < HR_CU_MAP_RANK; i++) {
        if (s->dims[i] == 0 || s->dims[i] > UINT32_MAX)
            return "a dimension is 0 or 2^32 or more";
        if (s->box[i] == 0 || s->box[i] > BOX_MAX)
            return "a copy's dimension is 0 or over 256";
    }
    for (int i = 0; i < HR_CU_MAP_RANK - 1; i++)
        if (s->strides[i] % ALIGN != 0 || s->strides[i] >= 1ull << 40)
            return "a stride is no multiple of 16 bytes or 2^40 bytes or more";
    return s->box[0] * hr_dtype_bytes(s->dtype) > SWIZZLE_BYTES ? "a copy's row is over 128 bytes"
                                                                : NULL;
}

int hr_cu_map_encode(const struct hr_cu_driver *cu, const struct hr_cu_map_shape *s,
                     struct hr_cu_map *map)
{
    static const cuuint32_t every[HR_CU_MAP_RANK] = {1, 1, 1, 1, 1};
    return (int)cu->cuTensorMapEncodeTiled(
        (CUtensorMap *)map,
        s->dtype == HR_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        HR_CU_MAP_RANK, (void *)(uintptr_t)s->base, s->dims, s->strides, s->box, every,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

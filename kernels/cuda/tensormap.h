/* SPDX-License-Identifier: Apache-2.0 */
/* What the copy engine and the tensor cores are told of memory: tensor maps of K/V pages and of q,
 * and matrix descriptors of shared memory. Pure functions of shapes; tiles are slabs of 64 columns,
 * [row][128 bytes], in the 128-byte swizzle. */
#ifndef HR_KERNELS_CUDA_TENSORMAP_H
#define HR_KERNELS_CUDA_TENSORMAP_H

#include "src/base/geom.h"

/* Shared-memory matrix descriptor of wgmma (PTX ISA 9.7.15.5.1.2.2). Offsets in bytes: leading
 * (between slabs of 64 columns, for operands with rows along K) and stride (8 rows). Bits 0-13
 * address, 16-29 leading, 32-45 stride, each in units of 16 bytes; 62-63: 1, the 128-byte swizzle.
 */
static inline HR_ANYWHERE uint64_t hr_wgmma_descriptor(uint32_t address, uint32_t leading,
                                                       uint32_t stride)
{
    uint32_t low = address >> 4 | leading >> 4 << 16, high = stride >> 4 | 1u << 30;
    return (uint64_t)high << 32 | low;
}

#ifndef __CUDACC__

enum { HR_CU_MAP_RANK = 5, HR_CU_MAP_COLUMNS = 64 }; /* of a slab */

/* Arguments of cuTensorMapEncodeTiled: dimensions, innermost first, in elements; strides of all but
 * the innermost, in bytes; what one copy brings. */
struct hr_cu_map_shape {
    const void *base;
    uint64_t dims[HR_CU_MAP_RANK];
    uint64_t strides[HR_CU_MAP_RANK - 1];
    uint32_t box[HR_CU_MAP_RANK];
    hr_dtype dtype;
};

/* A CUtensorMap. */
struct hr_cu_map {
    _Alignas(64) unsigned char bytes[128];
};

/* K/V pages of an arena, counted from its start: {column of a slab, token, slab, K or V, page}; a
 * copy brings K or V of one page. */
struct hr_cu_map_shape hr_cu_map_pages(const struct hr_geom *g, const void *arena,
                                       uint64_t arena_bytes);

/* Rows of q: {column of a slab, g, token, slab, KV head}; a copy brings one slab of the rows
 * (token, g) of so many tokens. Strides in elements. */
struct hr_cu_map_shape hr_cu_map_queries(const struct hr_geom *g, const void *q, int64_t rows,
                                         int64_t stride_token, int64_t stride_head,
                                         int32_t tile_tokens);

/* NULL, or what of the shape the copy engine does not take. */
const char *hr_cu_map_refuses(const struct hr_cu_map_shape *shape);

struct hr_cu_driver;

/* The driver's encoding of a shape that is not refused; a CUresult. */
int hr_cu_map_encode(const struct hr_cu_driver *cu, const struct hr_cu_map_shape *shape,
                     struct hr_cu_map *map);

#endif

#endif

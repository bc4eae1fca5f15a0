/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels beside attention and append take: plain structs, read by C and by CUDA C++.
 * Addresses are the device's; strides count elements. */
#ifndef HR_KERNELS_CUDA_STAGE_H
#define HR_KERNELS_CUDA_STAGE_H

#include "src/base/geom.h"

/* hr_stage: rows of any strides to packed ones of another type. */
struct hr_cu_stage {
    const void *from; /* [rows][heads][dim] */
    void *to;         /* the same, packed, a multiple of 16 */
    int64_t stride_token, stride_head;
    int64_t rows;
    int32_t heads, dim;
    int32_t from_type, to_type; /* hr_dtype */
    int32_t negate;             /* gives -x: kernels want a scale >= 0 */
};

/* V rows [from, to) of the block at this place (see params.h), all KV heads. */
struct hr_cu_rows {
    uint32_t page;
    int32_t from, to;
};

/* hr_zero_rows: blocks of one geometry. */
struct hr_cu_zero_rows {
    const struct hr_cu_rows *list;
    unsigned char *arena;
    int64_t n_list;
    int32_t kv_heads, dim, cache_type;
};

/* hr_gather: multiples of 16; from may be pinned host memory. Pieces do not overlap. */
struct hr_cu_piece {
    const unsigned char *from;
    unsigned char *to;
    int64_t bytes;
};

struct hr_cu_gather {
    const struct hr_cu_piece *pieces;
    int64_t n_pieces;
};

#endif

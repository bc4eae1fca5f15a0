/* SPDX-License-Identifier: Apache-2.0 */
/* The body of every level. A level's .c file includes its vectors, then this, then defines its
 * table with HR_TABLE. All functions here are static: each level has its own. */
#ifndef HR_KERNELS_CPU_LEVEL_H
#define HR_KERNELS_CPU_LEVEL_H

#include "kernels/cpu/tables.h"

#include "kernels/cpu/rows.h"
#include "kernels/cpu/softmax.h"
#include "kernels/cpu/micro.h"
#include "kernels/cpu/pack.h"
#if HR_AMX
#include "kernels/cpu/amx.h"
#endif
#include "kernels/cpu/tile.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fold.h"
#include "kernels/cpu/append.h"

static size_t scratch_bytes(void)
{
    union scratch {
        struct tile_scratch tile;
        struct chunk_scratch chunk;
        struct fold_scratch fold;
    };
    return (sizeof(union scratch) + 63) / 64 * 64;
}

#define HR_TABLE(level_name, level_variant, level_caps, level_id)                                  \
    {                                                                                              \
        .name = level_name, .variant = level_variant, .caps = level_caps, .id = level_id,          \
        .tile_rows_min = HR_CHUNK_ROWS, .tile_rows = tile_rows, .carry_floats = carry_floats,      \
        .chunk_blocks = chunk_blocks, .scratch_bytes = scratch_bytes, .tile = tile_run,            \
        .chunk = chunk_item, .fold = fold_item, .append = append_item                              \
    }

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What plans need to know of the CUDA kernels: the shapes of tiles and chunks, and their order. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shapes.h"

/* tile_rows_min: chunks hold fewer rows. A section's K/V stay in the L2 of an H200 (50 MB). */
enum { CHUNK_ROWS = 64, SECTION_BYTES = 32 << 20 };

static const struct hr_cu_kernel *prefill_of(int level, const struct hr_geom *g)
{
    int32_t i = hr_cu_kernel_find(HR_CU_PREFILL, level, g->dim, g->dtype);
    return i < 0 ? NULL : &hr_cu_kernels_all[i];
}

/* Of a geometry without a kernel there is no cache. */
static int32_t rows(int level, const struct hr_geom *g)
{
    const struct hr_cu_kernel *kernel = prefill_of(level, g);
    return kernel ? kernel->rows : CHUNK_ROWS;
}

static int64_t carry(int level, const struct hr_geom *g)
{
    const struct hr_cu_kernel *kernel = prefill_of(level, g);
    return kernel ? kernel->carry_floats : 0;
}

static int32_t rows_sm80(const struct hr_geom *g)
{
    return rows(HR_CU_SM80, g);
}

static int32_t rows_sm90(const struct hr_geom *g)
{
    return rows(HR_CU_SM90, g);
}

static int64_t carry_sm80(const struct hr_geom *g, int32_t n)
{
    (void)n;
    return carry(HR_CU_SM80, g);
}

static int64_t carry_sm90(const struct hr_geom *g, int32_t n)
{
    (void)n;
    return carry(HR_CU_SM90, g);
}

/* About one chunk per multiprocessor for a sequence alone, two where they would become long;
 * partials up to 5 % of the K/V bytes. */
static int32_t chunk_blocks(int64_t n_kv, int64_t n_q, const struct hr_geom *g, int64_t most)
{
    int64_t work = hr_blocks_of(n_kv) * g->kv_heads, blocks = hr_cu_at_most(work / 128, 32);
    int64_t low = (n_q * g->group * (g->dim + 2) * 10 + 64 * g->dim - 1) / (64 * g->dim);
    if (blocks < work / 256)
        blocks = work / 256;
    if (blocks < low)
        blocks = low;
    return (int32_t)hr_cu_at_most(blocks < 4 ? 4 : blocks, most);
}

static int32_t chunk_blocks_sm80(int64_t n_kv, int64_t n_q, const struct hr_geom *g)
{
    return chunk_blocks(n_kv, n_q, g, HR_CU_CHUNK_BLOCKS_MAX);
}

/* The portable kernel serves some dims here too. */
static int32_t chunk_blocks_sm90(int64_t n_kv, int64_t n_q, const struct hr_geom *g)
{
    int32_t i = hr_cu_kernel_find(HR_CU_DECODE, HR_CU_SM90, g->dim, g->dtype);
    bool own = i >= 0 && hr_cu_kernels_all[i].level >= HR_CU_SM90;
    return chunk_blocks(n_kv, n_q, g, own ? 4 * HR_CU_CHUNK_BLOCKS_MAX : HR_CU_CHUNK_BLOCKS_MAX);
}

const struct hr_kernels *hr_cu_planner(int level)
{
    static const struct hr_kernels sm80 = {
        .name = "sm80",
        .variant = "mma.sync",
        .id = 0x80000001,
        .tile_rows_min = CHUNK_ROWS,
        .tile_rows = rows_sm80,
        .carry_floats = carry_sm80,
        .chunk_blocks = chunk_blocks_sm80,
        .section_bytes = SECTION_BYTES,
    };
    static const struct hr_kernels sm90 = {
        .name = "sm90",
        .variant = "wgmma",
        .id = 0x90000001,
        .tile_rows_min = CHUNK_ROWS,
        .tile_rows = rows_sm90,
        .carry_floats = carry_sm90,
        .chunk_blocks = chunk_blocks_sm90,
        .section_bytes = SECTION_BYTES,
    };
    return level >= HR_CU_SM90 ? &sm90 : &sm80;
}

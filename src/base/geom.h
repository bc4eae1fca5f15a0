/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes and addresses of K/V: the words that the peers of floor 3 share. */
#ifndef HR_BASE_GEOM_H
#define HR_BASE_GEOM_H

#include <headrace/types.h>

/* Small functions that the GPU's kernels call too. */
#ifdef __CUDACC__
#define HR_ANYWHERE __host__ __device__
#else
#define HR_ANYWHERE
#endif

enum { HR_BLOCK_TOKENS = 128, HR_DIM_MAX = 256 };

/* Of a sequence, a batch or a window: far from where sums of lengths could overflow. */
#define HR_TOKENS_MAX (1ll << 40)

/* One layer's geometry, as kernels see it. */
struct hr_geom {
    int32_t kv_heads;
    int32_t group; /* G: query heads per KV head */
    int32_t dim;
    hr_dtype dtype;
    int64_t window; /* 0: none */
    int64_t sinks;  /* visible tokens at the start, with a window */
};

/* Where the blocks of one geometry lie: block id -> address. Blocks never straddle an extent. */
struct hr_pool_view {
    unsigned char *base;
    uint64_t extent_bytes;
    uint64_t block_bytes;
    const uint32_t *extents;    /* [pool extent] -> extent of the arena */
    uint32_t blocks_per_extent; /* of this pool */
};

static inline size_t hr_dtype_bytes(hr_dtype dtype)
{
    return dtype == HR_FP32 ? 4 : 2;
}

/* A page: K[128][dim], then V[128][dim], of one KV head. */
static inline uint64_t hr_page_bytes(const struct hr_geom *g)
{
    return 2ull * HR_BLOCK_TOKENS * (uint64_t)g->dim * hr_dtype_bytes(g->dtype);
}

static inline uint64_t hr_block_bytes(const struct hr_geom *g)
{
    return (uint64_t)g->kv_heads * hr_page_bytes(g);
}

static inline unsigned char *hr_block_addr(const struct hr_pool_view *p, uint32_t block)
{
    uint64_t extent = p->extents[block / p->blocks_per_extent];
    return p->base + extent * p->extent_bytes + (block % p->blocks_per_extent) * p->block_bytes;
}

/* K of a page; V begins hr_page_bytes / 2 behind it. */
static inline unsigned char *hr_page_addr(const struct hr_geom *g, const struct hr_pool_view *p,
                                          uint32_t block, int32_t head)
{
    return hr_block_addr(p, block) + (uint64_t)head * hr_page_bytes(g);
}

/* Blocks begin at multiples of the largest power of two that divides a page, as extents do: in this
 * unit CUDA kernels count where. */
static inline HR_ANYWHERE int64_t hr_unit_bytes(int32_t dim, int32_t element_bytes)
{
    return (int64_t)2 * HR_BLOCK_TOKENS * element_bytes * (dim & -dim);
}

/* Units of a page. */
static inline HR_ANYWHERE int32_t hr_page_units(int32_t dim)
{
    return dim / (dim & -dim);
}

static inline HR_ANYWHERE int64_t hr_blocks_of(int64_t tokens)
{
    return (tokens + HR_BLOCK_TOKENS - 1) / HR_BLOCK_TOKENS;
}

static inline HR_ANYWHERE int64_t hr_clamp(int64_t x, int64_t high)
{
    int64_t y = x > 0 ? x : 0;
    return y < high ? y : high;
}

/* Keys that a query at a position sees: [lo, hi) with a window's sinks [0, sinks) beside it. */
struct hr_visible {
    int64_t lo, hi;
};

static inline HR_ANYWHERE struct hr_visible hr_visible_at(bool causal, int64_t window, int64_t n_kv,
                                                          int64_t pos)
{
    struct hr_visible v = {0, n_kv};
    if (causal)
        v.hi = hr_clamp(pos + 1, n_kv);
    if (window > 0)
        v.lo = hr_clamp(pos - window + 1, v.hi);
    return v;
}

/* The same of row i of n_q. */
static inline struct hr_visible hr_visible_keys(const struct hr_geom *g, hr_mask mask, int64_t n_kv,
                                                int64_t n_q, int64_t i)
{
    return hr_visible_at(mask == HR_MASK_CAUSAL, g->window, n_kv, n_kv - n_q + i);
}

#endif

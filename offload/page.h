/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of pages: XXH3-64 over the bytes, seeded with what the page is, so that a page of
 * another block, head, cache or generation is found out too (docs/format.md). */
#ifndef HR_OFFLOAD_PAGE_H
#define HR_OFFLOAD_PAGE_H

#include "src/base/geom.h"

/* The layout of a cache: starts as 0 and takes in each layer, in order. */
uint64_t hr_page_layout(uint64_t layout, const struct hr_geom *layer);

/* What a page is. As stored: little-endian, in this order, no padding. */
struct hr_page_id {
    uint64_t layout;     /* of the cache (hr_page_layout) */
    uint64_t uid;        /* of the sequence that the block was born in */
    uint64_t generation; /* of the write: no two writes of a context have the same */
    uint64_t block;      /* which block of the layer, counted from token 0 */
    uint32_t layer;
    uint32_t head;
};

uint64_t hr_page_seed(const struct hr_page_id *id);
uint64_t hr_page_sum(const void *page, size_t bytes, uint64_t seed);

#endif

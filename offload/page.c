/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/page.h"

/* From the header alone: the library needs no other one at run time. */
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { LAYER_BYTES = 16, ID_BYTES = 40 };

/* Little-endian on any machine. */
static unsigned char *put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *at++ = (unsigned char)(value >> 8 * i);
    return at;
}

uint64_t hr_page_layout(uint64_t layout, const struct hr_geom *layer)
{
    unsigned char stored[LAYER_BYTES], *at = stored;
    at = put(at, (uint64_t)layer->kv_heads, 4);
    at = put(at, HR_BLOCK_TOKENS, 4);
    at = put(at, (uint64_t)layer->dim, 4);
    put(at, (uint64_t)layer->dtype, 4);
    return XXH3_64bits_withSeed(stored, sizeof(stored), layout);
}

uint64_t hr_page_seed(const struct hr_page_id *id)
{
    unsigned char stored[ID_BYTES], *at = stored;
    at = put(at, id->layout, 8);
    at = put(at, id->uid, 8);
    at = put(at, id->generation, 8);
    at = put(at, id->block, 8);
    at = put(at, id->layer, 4);
    put(at, id->head, 4);
    return XXH3_64bits(stored, sizeof(stored));
}

uint64_t hr_page_sum(const void *page, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(page, bytes, seed);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/pack.h"

#include <stdlib.h>

enum { COPIES = 64 };

/* Copies that are not yet enqueued. */
struct copies {
    struct hr_dev *dev;
    int64_t n;
    struct hr_dev_copy all[COPIES];
};

static void flush(struct copies *c)
{
    if (c->dev && c->n > 0)
        c->dev->ops->copy_batch(c->dev, HR_DEV_WORK, c->all, c->n);
    c->n = 0;
}

static void copy(struct copies *c, void *to, const void *from, uint64_t bytes)
{
    if (c->n == COPIES)
        flush(c);
    c->all[c->n++] = (struct hr_dev_copy){to, from, bytes};
}

static bool is_held(const struct hr_slab *s, uint32_t part)
{
    return s->free_count[part] < s->view.blocks_per_extent;
}

static bool is_beyond(const struct hr_slab *s, uint32_t part)
{
    return (int64_t)s->extents[part] + s->run > s->arena->limit;
}

/* ---- Fewer parts ---- */

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* What to keep first: what costs most copies to give up, one for each slot in use; a part beyond
 * the limit costs as many as it has slots if it is kept. In the low half each entry's part. */
static uint32_t list_parts(const struct hr_slab *s, uint64_t *list)
{
    uint32_t n = 0, per = s->view.blocks_per_extent;
    for (uint32_t part = 0; part < s->parts; part++)
        if (is_held(s, part)) {
            uint64_t cost = s->free_count[part] + (is_beyond(s, part) ? per : 0);
            list[n++] = cost << 32 | part;
        }
    qsort(list, n, sizeof(*list), compare);
    return n;
}

static void empty_parts(struct hr_blocks *b, struct hr_dev *dev, const bool *gone)
{
    struct hr_slab *s = &b->slots;
    struct copies copies = {.dev = dev};
    for (uint32_t i = 0; i < b->high; i++) {
        struct hr_block *x = &b->all[i];
        uint32_t slot;
        if (x->life.phase == HR_LIFE_FREE || x->slot == HR_BLOCK_NONE ||
            !gone[x->slot / s->view.blocks_per_extent] || hr_slab_take(s, &slot, 1) == 0)
            continue;
        copy(&copies, hr_block_addr(&s->view, slot), hr_block_addr(&s->view, x->slot),
             hr_blocks_bytes(b));
        x->slot = slot;
    }
    flush(&copies);
}

bool hr_pack_parts(struct hr_blocks *b, struct hr_dev *dev, uint32_t parts)
{
    struct hr_slab *s = &b->slots;
    if (s->parts_held <= parts)
        return true;
    size_t list_bytes = s->parts * sizeof(uint64_t), gone_bytes = s->parts * sizeof(bool);
    uint64_t *list = hr_alloc_get(b->alloc, list_bytes);
    bool *gone = hr_alloc_zero(b->alloc, gone_bytes);
    uint32_t n = list && gone ? list_parts(s, list) : 0;
    for (uint32_t i = parts; i < n; i++)
        gone[(uint32_t)list[i]] = true;
    if (n > 0) {
        hr_slab_prefer(s, list, n);
        empty_parts(b, dev, gone);
    }
    for (uint32_t i = parts; i < n; i++)
        hr_slab_drop_part(s, (uint32_t)list[i]);
    hr_alloc_put(b->alloc, list, list_bytes);
    hr_alloc_put(b->alloc, gone, gone_bytes);
    return n > 0;
}

/* ---- Other extents ---- */

static unsigned char *address(const struct hr_slab *s, int64_t extent)
{
    return s->view.base + (uint64_t)extent * HR_EXTENT_BYTES;
}

bool hr_pack_extents(struct hr_blocks *b, struct hr_dev *dev)
{
    struct hr_slab *s = &b->slots;
    struct copies copies = {.dev = dev};
    bool all = true;
    for (uint32_t part = 0; all && part < s->parts; part++) {
        if (!is_held(s, part) || !is_beyond(s, part))
            continue;
        int64_t to = hr_extents_take(s->arena, s->run);
        all = to != HR_EXTENT_NONE;
        if (!all)
            break;
        copy(&copies, address(s, to), address(s, s->extents[part]),
             (uint64_t)s->run * HR_EXTENT_BYTES);
        hr_extents_give(s->arena, s->extents[part], s->run);
        s->extents[part] = (uint32_t)to;
    }
    flush(&copies);
    return all;
}

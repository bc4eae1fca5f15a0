/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/blocks.h"

static size_t table_bytes(const struct hr_blocks *b)
{
    return (size_t)b->max * sizeof(*b->all);
}

bool hr_blocks_init(struct hr_blocks *b, const struct hr_blocks_options *o)
{
    *b = (struct hr_blocks){.alloc = o->alloc, .first_free = HR_BLOCK_NONE};
    if (!hr_slab_init(&b->slots, o->alloc, o->arena, o->base, o->block_bytes, o->run))
        return false;
    b->max = b->slots.extents_max * b->slots.view.blocks_per_extent + o->below;
    b->all = hr_alloc_get(o->alloc, table_bytes(b));
    if (b->all)
        return true;
    hr_blocks_close(b);
    return false;
}

void hr_blocks_close(struct hr_blocks *b)
{
    hr_slab_close(&b->slots);
    hr_alloc_put(b->alloc, b->all, table_bytes(b));
    b->all = NULL;
}

void hr_blocks_event(struct hr_blocks *b, uint32_t block, enum hr_life_event event)
{
    if (!hr_life_apply(&b->all[block].life, event))
        hr_blocks_break(b, event);
}

void hr_blocks_break(struct hr_blocks *b, enum hr_life_event event)
{
    if (b->broken)
        return;
    b->broken = true;
    b->broken_event = event;
}

static uint32_t new_number(struct hr_blocks *b)
{
    uint32_t block = b->first_free;
    if (block == HR_BLOCK_NONE)
        block = b->high++;
    else
        b->first_free = b->all[block].next;
    b->all[block] = (struct hr_block){.slot = HR_BLOCK_NONE, .lower = HR_BLOCK_NONE};
    b->used++;
    b->owned++;
    return block;
}

int64_t hr_blocks_take(struct hr_blocks *b, uint32_t *blocks, uint32_t *slots, int64_t count)
{
    int64_t n = hr_slab_take(&b->slots, slots, count);
    struct hr_life placed = {0}; /* the same for all: a million tokens take a quarter as many */
    hr_life_apply(&placed, HR_LIFE_TAKE);
    hr_life_apply(&placed, HR_LIFE_PLACE);
    for (int64_t i = 0; i < n; i++) {
        blocks[i] = new_number(b);
        b->all[blocks[i]].slot = slots[i];
        b->all[blocks[i]].life = placed;
    }
    return n;
}

int64_t hr_blocks_take_unplaced(struct hr_blocks *b, uint32_t *blocks, int64_t count)
{
    int64_t n = 0;
    for (; n < count && (b->first_free != HR_BLOCK_NONE || b->high < b->max); n++) {
        blocks[n] = new_number(b);
        hr_blocks_event(b, blocks[n], HR_LIFE_TAKE);
    }
    return n;
}

bool hr_blocks_place(struct hr_blocks *b, uint32_t block)
{
    if (hr_slab_take(&b->slots, &b->all[block].slot, 1) == 0)
        return false;
    hr_blocks_event(b, block, HR_LIFE_PLACE);
    return true;
}

void hr_blocks_bury(struct hr_blocks *b, uint32_t block)
{
    b->all[block].next = b->first_free;
    b->first_free = block;
    b->used--;
}

void hr_blocks_drop(struct hr_blocks *b, uint32_t block)
{
    struct hr_block *x = &b->all[block];
    hr_blocks_event(b, block, HR_LIFE_DROP);
    b->owned -= x->life.refs == 0;
    if (x->life.phase != HR_LIFE_FREE)
        return;
    hr_slab_give(&b->slots, x->slot);
    hr_blocks_bury(b, block);
}

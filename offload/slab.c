/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/slab.h"

/* Slots without a free block are in no list; a slot's free blocks form a list of their own. The
 * arrays are sized for the whole arena at once (their untouched pages cost nothing), so taking a
 * block never allocates. */

static size_t slot_array_bytes(const struct hr_slab *s)
{
    return (size_t)s->extents_max * sizeof(uint32_t);
}

static size_t block_array_bytes(const struct hr_slab *s)
{
    return slot_array_bytes(s) * s->view.blocks_per_extent;
}

bool hr_slab_init(struct hr_slab *s, struct hr_alloc *alloc, struct hr_extents *arena,
                  unsigned char *base, uint64_t block_bytes)
{
    uint64_t run = (block_bytes + HR_EXTENT_BYTES - 1) / HR_EXTENT_BYTES;
    *s = (struct hr_slab){
        .view = {.base = base,
                 .extent_bytes = HR_EXTENT_BYTES,
                 .block_bytes = block_bytes,
                 .blocks_per_extent = (uint32_t)(run * HR_EXTENT_BYTES / block_bytes)},
        .arena = arena,
        .alloc = alloc,
        .extents_max = (uint32_t)((uint64_t)arena->count / run),
        .run = (uint32_t)run,
        .first_open = HR_BLOCK_NONE,
        .first_empty = HR_BLOCK_NONE,
    };
    s->extents = hr_alloc_get(alloc, slot_array_bytes(s));
    s->next_slot = hr_alloc_get(alloc, slot_array_bytes(s));
    s->prev_slot = hr_alloc_get(alloc, slot_array_bytes(s));
    s->free_head = hr_alloc_get(alloc, slot_array_bytes(s));
    s->free_count = hr_alloc_get(alloc, slot_array_bytes(s));
    s->next_free = hr_alloc_get(alloc, block_array_bytes(s));
    s->refs = hr_alloc_get(alloc, block_array_bytes(s));
    s->view.extents = s->extents;
    if (s->extents && s->next_slot && s->prev_slot && s->free_head && s->free_count &&
        s->next_free && s->refs)
        return true;
    hr_slab_close(s);
    return false;
}

void hr_slab_close(struct hr_slab *s)
{
    for (uint32_t slot = s->first_empty; slot != HR_BLOCK_NONE; slot = s->next_slot[slot])
        s->extents[slot] = HR_BLOCK_NONE;
    for (uint32_t slot = 0; slot < s->slots; slot++)
        if (s->extents[slot] != HR_BLOCK_NONE)
            hr_extents_give(s->arena, s->extents[slot], s->run);
    hr_alloc_put(s->alloc, s->extents, slot_array_bytes(s));
    hr_alloc_put(s->alloc, s->next_slot, slot_array_bytes(s));
    hr_alloc_put(s->alloc, s->prev_slot, slot_array_bytes(s));
    hr_alloc_put(s->alloc, s->free_head, slot_array_bytes(s));
    hr_alloc_put(s->alloc, s->free_count, slot_array_bytes(s));
    hr_alloc_put(s->alloc, s->next_free, block_array_bytes(s));
    hr_alloc_put(s->alloc, s->refs, block_array_bytes(s));
    *s = (struct hr_slab){.first_empty = HR_BLOCK_NONE};
}

static void list_open(struct hr_slab *s, uint32_t slot)
{
    s->next_slot[slot] = s->first_open;
    s->prev_slot[slot] = HR_BLOCK_NONE;
    if (s->first_open != HR_BLOCK_NONE)
        s->prev_slot[s->first_open] = slot;
    s->first_open = slot;
}

static void unlist_open(struct hr_slab *s, uint32_t slot)
{
    uint32_t next = s->next_slot[slot], prev = s->prev_slot[slot];
    if (next != HR_BLOCK_NONE)
        s->prev_slot[next] = prev;
    if (prev != HR_BLOCK_NONE)
        s->next_slot[prev] = next;
    else
        s->first_open = next;
}

/* Backs a slot with an extent of the arena and opens it. */
static bool open_slot(struct hr_slab *s)
{
    int64_t extent = hr_extents_take(s->arena, s->run);
    uint32_t per = s->view.blocks_per_extent, slot = s->first_empty;
    if (extent == HR_EXTENT_NONE)
        return false;
    if (slot != HR_BLOCK_NONE)
        s->first_empty = s->next_slot[slot];
    else
        slot = s->slots++;
    s->extents[slot] = (uint32_t)extent;
    s->free_count[slot] = per;
    s->free_head[slot] = slot * per;
    for (uint32_t i = 0; i < per; i++) {
        s->next_free[slot * per + i] = i + 1 < per ? slot * per + i + 1 : HR_BLOCK_NONE;
        s->refs[slot * per + i] = 0;
    }
    list_open(s, slot);
    return true;
}

int64_t hr_slab_take(struct hr_slab *s, uint32_t *blocks, int64_t count)
{
    int64_t n = 0;
    while (n < count && (s->first_open != HR_BLOCK_NONE || open_slot(s))) {
        uint32_t slot = s->first_open, block = s->free_head[slot];
        int64_t here = s->free_count[slot] < count - n ? s->free_count[slot] : count - n;
        for (int64_t i = 0; i < here; i++) {
            blocks[n + i] = block;
            s->refs[block] = 1;
            block = s->next_free[block];
        }
        n += here;
        s->free_head[slot] = block;
        s->free_count[slot] -= (uint32_t)here;
        if (s->free_count[slot] == 0)
            unlist_open(s, slot);
    }
    s->blocks_used += (uint64_t)n;
    return n;
}

void hr_slab_share(struct hr_slab *s, uint32_t block)
{
    s->refs[block]++;
}

/* Takes a slot out of the open list and returns its extent. */
static void close_slot(struct hr_slab *s, uint32_t slot)
{
    unlist_open(s, slot);
    hr_extents_give(s->arena, s->extents[slot], s->run);
    s->next_slot[slot] = s->first_empty;
    s->first_empty = slot;
}

void hr_slab_give(struct hr_slab *s, uint32_t block)
{
    uint32_t slot = block / s->view.blocks_per_extent;
    if (--s->refs[block] > 0)
        return;
    s->blocks_used--;
    s->next_free[block] = s->free_head[slot];
    s->free_head[slot] = block;
    if (s->free_count[slot]++ == 0)
        list_open(s, slot);
    if (s->free_count[slot] == s->view.blocks_per_extent)
        close_slot(s, slot);
}

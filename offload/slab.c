/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/slab.h"

/* Parts without a free slot are in no list; a part's free slots form a list of their own. The
 * arrays are sized for the whole arena at once (their untouched pages cost nothing), so taking a
 * slot never allocates. */

static size_t part_array_bytes(const struct hr_slab *s)
{
    return (size_t)s->extents_max * sizeof(uint32_t);
}

static size_t slot_array_bytes(const struct hr_slab *s)
{
    return part_array_bytes(s) * s->view.blocks_per_extent;
}

uint32_t hr_slab_run(uint64_t block_bytes)
{
    return (uint32_t)((block_bytes + HR_EXTENT_BYTES - 1) / HR_EXTENT_BYTES);
}

bool hr_slab_init(struct hr_slab *s, struct hr_alloc *alloc, struct hr_extents *arena,
                  unsigned char *base, uint64_t block_bytes, uint32_t run)
{
    *s = (struct hr_slab){
        .view = {.base = base,
                 .extent_bytes = HR_EXTENT_BYTES,
                 .block_bytes = block_bytes,
                 .blocks_per_extent = (uint32_t)((uint64_t)run * HR_EXTENT_BYTES / block_bytes)},
        .arena = arena,
        .alloc = alloc,
        .extents_max = (uint32_t)((uint64_t)arena->count / run),
        .parts_limit = (uint32_t)((uint64_t)arena->count / run),
        .run = run,
        .first_open = HR_BLOCK_NONE,
        .first_empty = HR_BLOCK_NONE,
    };
    s->extents = hr_alloc_get(alloc, part_array_bytes(s));
    s->next_part = hr_alloc_get(alloc, part_array_bytes(s));
    s->prev_part = hr_alloc_get(alloc, part_array_bytes(s));
    s->free_head = hr_alloc_get(alloc, part_array_bytes(s));
    s->free_count = hr_alloc_get(alloc, part_array_bytes(s));
    s->next_free = hr_alloc_get(alloc, slot_array_bytes(s));
    s->view.extents = s->extents;
    if (s->extents && s->next_part && s->prev_part && s->free_head && s->free_count && s->next_free)
        return true;
    hr_slab_close(s);
    return false;
}

static size_t use_array_bytes(const struct hr_slab *s)
{
    return (size_t)s->extents_max * s->view.blocks_per_extent * sizeof(*s->used_by);
}

bool hr_slab_watch(struct hr_slab *s, const uint64_t *now)
{
    s->now = now;
    s->used_by = hr_alloc_zero(s->alloc, use_array_bytes(s));
    return s->used_by != NULL;
}

void hr_slab_close(struct hr_slab *s)
{
    for (uint32_t part = s->first_empty; part != HR_BLOCK_NONE; part = s->next_part[part])
        s->extents[part] = HR_BLOCK_NONE;
    for (uint32_t part = 0; part < s->parts; part++)
        if (s->extents[part] != HR_BLOCK_NONE)
            hr_extents_give(s->arena, s->extents[part], s->run);
    hr_alloc_put(s->alloc, s->extents, part_array_bytes(s));
    hr_alloc_put(s->alloc, s->next_part, part_array_bytes(s));
    hr_alloc_put(s->alloc, s->prev_part, part_array_bytes(s));
    hr_alloc_put(s->alloc, s->free_head, part_array_bytes(s));
    hr_alloc_put(s->alloc, s->free_count, part_array_bytes(s));
    hr_alloc_put(s->alloc, s->next_free, slot_array_bytes(s));
    hr_alloc_put(s->alloc, s->used_by, use_array_bytes(s));
    *s = (struct hr_slab){.first_empty = HR_BLOCK_NONE};
}

static void list_open(struct hr_slab *s, uint32_t part)
{
    s->next_part[part] = s->first_open;
    s->prev_part[part] = HR_BLOCK_NONE;
    if (s->first_open != HR_BLOCK_NONE)
        s->prev_part[s->first_open] = part;
    s->first_open = part;
}

static void unlist_open(struct hr_slab *s, uint32_t part)
{
    uint32_t next = s->next_part[part], prev = s->prev_part[part];
    if (next != HR_BLOCK_NONE)
        s->prev_part[next] = prev;
    if (prev != HR_BLOCK_NONE)
        s->next_part[prev] = next;
    else
        s->first_open = next;
}

/* Backs a part with an extent of the arena and opens it. */
static bool open_part(struct hr_slab *s)
{
    uint32_t per = s->view.blocks_per_extent, part = s->first_empty;
    int64_t extent = HR_EXTENT_NONE;
    if (s->parts_held < s->parts_limit)
        extent = hr_extents_take(s->arena, s->run);
    if (extent == HR_EXTENT_NONE)
        return false;
    s->parts_held++;
    if (part != HR_BLOCK_NONE)
        s->first_empty = s->next_part[part];
    else
        part = s->parts++;
    s->extents[part] = (uint32_t)extent;
    s->free_count[part] = per;
    s->free_head[part] = part * per;
    for (uint32_t i = 0; i < per; i++)
        s->next_free[part * per + i] = i + 1 < per ? part * per + i + 1 : HR_BLOCK_NONE;
    for (uint32_t i = 0; s->used_by && i < per; i++)
        s->used_by[part * per + i] = *s->now;
    list_open(s, part);
    return true;
}

int64_t hr_slab_take(struct hr_slab *s, uint32_t *slots, int64_t count)
{
    int64_t n = 0;
    while (n < count && (s->first_open != HR_BLOCK_NONE || open_part(s))) {
        uint32_t part = s->first_open, slot = s->free_head[part];
        int64_t here = s->free_count[part] < count - n ? s->free_count[part] : count - n;
        for (int64_t i = 0; i < here; i++) {
            slots[n + i] = slot;
            slot = s->next_free[slot];
        }
        n += here;
        s->free_head[part] = slot;
        s->free_count[part] -= (uint32_t)here;
        if (s->free_count[part] == 0)
            unlist_open(s, part);
    }
    s->slots_used += (uint64_t)n;
    return n;
}

/* Takes a part out of the open list and returns its extent. */
static void close_part(struct hr_slab *s, uint32_t part)
{
    unlist_open(s, part);
    hr_extents_give(s->arena, s->extents[part], s->run);
    s->next_part[part] = s->first_empty;
    s->first_empty = part;
    s->parts_held--;
}

void hr_slab_give(struct hr_slab *s, uint32_t slot)
{
    uint32_t part = slot / s->view.blocks_per_extent;
    s->slots_used--;
    s->next_free[slot] = s->free_head[part];
    s->free_head[part] = slot;
    if (s->free_count[part]++ == 0)
        list_open(s, part);
    if (s->free_count[part] == s->view.blocks_per_extent)
        close_part(s, part);
}

void hr_slab_prefer(struct hr_slab *s, const uint64_t *parts, uint32_t n)
{
    s->first_open = HR_BLOCK_NONE;
    for (uint32_t i = n; i-- > 0;)
        if (s->free_count[(uint32_t)parts[i]] > 0)
            list_open(s, (uint32_t)parts[i]);
}

void hr_slab_drop_part(struct hr_slab *s, uint32_t part)
{
    uint32_t per = s->view.blocks_per_extent;
    if (s->free_count[part] == 0)
        list_open(s, part);
    s->slots_used -= per - s->free_count[part];
    s->free_count[part] = per;
    close_part(s, part);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/ring.h"

#include <string.h>

static struct hr_alloc *alloc_of(const struct hr_ring *r)
{
    return r->lower->blocks->alloc;
}

bool hr_ring_init(struct hr_ring *r, struct hr_lower *lower, uint32_t most)
{
    struct hr_alloc *alloc = lower->blocks->alloc;
    *r = (struct hr_ring){.lower = lower, .most = most};
    r->slots = hr_alloc_get(alloc, most * sizeof(*r->slots));
    r->held_by = hr_alloc_get(alloc, most * sizeof(*r->held_by));
    if (r->slots && r->held_by)
        return true;
    hr_ring_close(r);
    return false;
}

void hr_ring_fill(struct hr_ring *r, uint32_t size, uint32_t wave_most)
{
    r->size = (uint32_t)hr_slab_take(&r->lower->blocks->slots, r->slots, size);
    r->wave_most = wave_most;
    if (r->size < size)
        hr_blocks_break(r->lower->blocks, HR_LIFE_STREAM);
}

void hr_ring_empty(struct hr_ring *r)
{
    for (uint32_t i = 0; i < r->size; i++)
        hr_slab_give(&r->lower->blocks->slots, r->slots[i]);
    r->size = 0;
}

void hr_ring_close(struct hr_ring *r)
{
    struct hr_alloc *alloc = alloc_of(r);
    hr_alloc_put(alloc, r->slots, r->most * sizeof(*r->slots));
    hr_alloc_put(alloc, r->held_by, r->most * sizeof(*r->held_by));
    hr_alloc_put(alloc, r->entries, r->entries_max * sizeof(*r->entries));
    hr_alloc_put(alloc, r->waves, r->waves_max * sizeof(*r->waves));
    *r = (struct hr_ring){.lower = r->lower};
}

/* ---- The list ---- */

void hr_ring_reset(struct hr_ring *r)
{
    r->n_entries = r->n_waves = r->next_entry = r->next_wave = 0;
    r->freed = r->taken;
    r->list++;
    r->failed = false;
}

bool hr_ring_reserve(struct hr_ring *r, size_t entries, size_t waves)
{
    return hr_alloc_grow(alloc_of(r), (void **)&r->entries, &r->entries_max, r->n_entries + entries,
                         sizeof(*r->entries)) &&
           hr_alloc_grow(alloc_of(r), (void **)&r->waves, &r->waves_max, r->n_waves + waves,
                         sizeof(*r->waves));
}

void hr_ring_add_wave(struct hr_ring *r, int32_t layer, int64_t begin, int64_t end)
{
    r->waves[r->n_waves++] =
        (struct hr_wave){.begin = begin, .end = end, .first = r->n_entries, .layer = layer};
}

/* The list's last entry of a block, or NULL. */
static struct hr_fetch *entry_of(struct hr_ring *r, uint32_t block)
{
    const struct hr_birth *birth = &r->lower->births[block];
    if (birth->list != r->list || birth->entry >= r->n_entries ||
        r->entries[birth->entry].block != block)
        return NULL;
    return &r->entries[birth->entry];
}

/* Whether an earlier entry still has its block when this wave wants it: all that comes between them
 * and in this wave has room behind it. What stays is always there. */
static bool in_reach(const struct hr_ring *r, const struct hr_fetch *f)
{
    uint32_t first = r->waves[r->n_waves - 1].first;
    return f->stays || first + r->wave_most - (uint32_t)(f - r->entries) <= r->size;
}

void hr_ring_add(struct hr_ring *r, uint32_t block, bool stays)
{
    struct hr_fetch *f = entry_of(r, block);
    uint32_t wave = r->n_waves - 1;
    if (f && (stays || in_reach(r, f))) {
        f->stays = f->stays || stays;
        f->last_wave = wave;
        return;
    }
    r->entries[r->n_entries] = (struct hr_fetch){
        .block = block,
        .first_wave = wave,
        .last_wave = wave,
        .earlier = f ? (uint32_t)(f - r->entries) : HR_BLOCK_NONE,
        .stays = stays,
    };
    r->lower->births[block].entry = r->n_entries++;
    r->lower->births[block].list = r->list;
    r->waves[wave].count++;
}

/* ---- Reads ---- */

/* Finds an entry its slot. False: not yet. */
static bool find_slot(struct hr_ring *r, struct hr_fetch *f)
{
    struct hr_lower *l = r->lower;
    if (f->stays) {
        if (hr_slab_take(&l->blocks->slots, &f->slot, 1) == 0)
            return false;
        if (hr_tickets_done(&l->tier->tickets, *hr_lower_used_by(l, f->slot)))
            return true;
        hr_slab_give(&l->blocks->slots, f->slot);
        return false;
    }
    f->slot = r->slots[r->taken % r->size];
    return r->taken - r->freed < r->size &&
           hr_tickets_done(&l->tier->tickets, *hr_lower_used_by(l, f->slot));
}

/* The entry is under way to its slot. */
static void depart(struct hr_ring *r, struct hr_fetch *f)
{
    struct hr_blocks *blocks = r->lower->blocks;
    f->state = HR_FETCH_COMING;
    hr_blocks_event(blocks, f->block, f->stays ? HR_LIFE_FETCH : HR_LIFE_STREAM);
    if (f->stays)
        blocks->all[f->block].slot = f->slot;
    else
        r->held_by[r->taken++ % r->size] = (uint32_t)(f - r->entries);
}

static void begin_move(struct hr_ring *r, struct hr_move *move, const struct hr_fetch *f)
{
    struct hr_lower *l = r->lower;
    struct hr_store_place place = hr_lower_place(l, l->blocks->all[f->block].lower);
    move->transfer = (struct hr_transfer){
        .fd = place.fd,
        .offset = place.offset,
        .memory = hr_block_addr(&l->blocks->slots.view, f->slot),
    };
    move->owner = r;
    move->layout = l->layout;
    move->block_bytes = hr_blocks_bytes(l->blocks);
    move->count = 0;
}

static void add_to_move(struct hr_ring *r, struct hr_move *move, struct hr_fetch *f)
{
    move->blocks[move->count] = hr_lower_moved(r->lower, f->block);
    move->blocks[move->count++].tag = (uint32_t)(f - r->entries);
    move->transfer.bytes += hr_blocks_bytes(r->lower->blocks);
    depart(r, f);
    r->next_entry++;
}

/* Whether the entry's bytes lie behind those of the move, in the file. */
static bool lies_behind(const struct hr_ring *r, const struct hr_move *move,
                        const struct hr_fetch *f)
{
    const struct hr_lower *l = r->lower;
    const struct hr_block *x = &l->blocks->all[f->block];
    const struct hr_transfer *t = &move->transfer;
    if (x->life.lower != HR_LIFE_THERE || move->count == HR_MOVE_BLOCKS ||
        t->bytes + hr_blocks_bytes(l->blocks) > HR_IO_PIECE_BYTES)
        return false;
    struct hr_store_place place = hr_lower_place(l, x->lower);
    return place.fd == t->fd && place.offset == t->offset + t->bytes;
}

/* Adds the entries behind the first one, as long as they are neighbours on both sides. */
static void extend(struct hr_ring *r, struct hr_move *move)
{
    struct hr_lower *l = r->lower;
    while (r->next_entry < r->n_entries) {
        struct hr_fetch *f = &r->entries[r->next_entry];
        if (!lies_behind(r, move, f) || !find_slot(r, f))
            return;
        if (hr_block_addr(&l->blocks->slots.view, f->slot) !=
            move->transfer.memory + move->transfer.bytes) {
            if (f->stays)
                hr_slab_give(&l->blocks->slots, f->slot);
            return;
        }
        add_to_move(r, move, f);
    }
}

/* A block that is here after all: its write failed, or a fetch of another entry brought it. */
static bool is_here(struct hr_ring *r, struct hr_fetch *f)
{
    if (hr_lower_away(r->lower, f->block) ||
        r->lower->blocks->all[f->block].life.device != HR_LIFE_THERE)
        return false;
    f->slot = r->lower->blocks->all[f->block].slot;
    f->state = HR_FETCH_HERE;
    f->stays = true; /* holds no place of the ring */
    r->next_entry++;
    return true;
}

void hr_ring_pump(struct hr_ring *r)
{
    struct hr_lower *l = r->lower;
    while (r->next_entry < r->n_entries) {
        struct hr_fetch *f = &r->entries[r->next_entry];
        if (is_here(r, f))
            continue;
        if (l->blocks->all[f->block].life.lower != HR_LIFE_THERE || !find_slot(r, f))
            return;
        struct hr_move *move = hr_tier_take_move(l->tier, false);
        if (!move) {
            if (f->stays)
                hr_slab_give(&l->blocks->slots, f->slot);
            return;
        }
        begin_move(r, move, f);
        add_to_move(r, move, f);
        extend(r, move);
        r->coming++;
        hr_mover_start(l->tier->mover, move);
    }
}

static void note_failure(struct hr_ring *r, const struct hr_move *move, uint32_t block)
{
    if (r->failed)
        return;
    r->failed = true;
    r->failed_block = block;
    r->failed_head = move->transfer.error ? -1 : move->bad_head;
    r->error = move->transfer.error;
}

void hr_ring_arrived(struct hr_ring *r, const struct hr_move *move)
{
    struct hr_blocks *blocks = r->lower->blocks;
    r->coming--;
    for (int32_t i = 0; i < move->count; i++) {
        struct hr_fetch *f = &r->entries[move->blocks[i].tag];
        bool bad = move->transfer.error || i == move->bad_block;
        /* What lies behind a bad page was not compared. */
        bool unknown = !bad && move->bad_block >= 0 && i > move->bad_block;
        bool failed = bad || unknown;
        if (bad)
            note_failure(r, move, f->block);
        f->state = failed ? HR_FETCH_FAILED : HR_FETCH_HERE;
        if (!f->stays) {
            hr_blocks_event(blocks, f->block, HR_LIFE_STREAMED);
        } else {
            hr_blocks_event(blocks, f->block, failed ? HR_LIFE_FETCH_FAILED : HR_LIFE_FETCHED);
            if (failed && blocks->all[f->block].life.phase != HR_LIFE_FREE) {
                hr_slab_give(&blocks->slots, f->slot);
                blocks->all[f->block].slot = HR_BLOCK_NONE;
            }
        }
        hr_lower_bury(r->lower, f->block);
    }
}

bool hr_ring_ready(struct hr_ring *r, uint32_t wave)
{
    const struct hr_wave *w = &r->waves[wave];
    if (r->failed)
        return true;
    for (uint32_t i = w->first; i < w->first + w->count; i++)
        if (r->entries[i].state < HR_FETCH_HERE)
            return false;
    return true;
}

static void touch(struct hr_ring *r, const struct hr_fetch *f, uint64_t ticket)
{
    uint64_t *by = hr_lower_used_by(r->lower, f->slot);
    *by = *by < ticket ? ticket : *by;
}

void hr_ring_retire(struct hr_ring *r, uint64_t ticket)
{
    const struct hr_wave *w = &r->waves[r->next_wave++];
    for (uint32_t i = w->first; i < w->first + w->count; i++)
        touch(r, &r->entries[i], ticket);
    while (r->freed < r->taken) {
        uint32_t entry = r->held_by[r->freed % r->size];
        if (r->entries[entry].last_wave >= r->next_wave)
            return;
        touch(r, &r->entries[entry], ticket);
        r->freed++;
    }
}

uint32_t hr_ring_slot(struct hr_ring *r, uint32_t block)
{
    const struct hr_fetch *f = entry_of(r, block);
    while (f && f->first_wave > r->next_wave)
        f = f->earlier == HR_BLOCK_NONE ? NULL : &r->entries[f->earlier];
    if (f && f->state == HR_FETCH_HERE && f->last_wave >= r->next_wave)
        return f->slot;
    hr_blocks_break(r->lower->blocks, HR_LIFE_STREAMED);
    return r->slots[0];
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/lower.h"

static size_t birth_bytes(const struct hr_lower *l)
{
    return (size_t)l->blocks->max * sizeof(*l->births);
}

static size_t sum_bytes(const struct hr_lower *l)
{
    return (size_t)l->slots.extents_max * l->slots.view.blocks_per_extent * (size_t)l->heads *
           sizeof(*l->sums);
}

bool hr_lower_init(struct hr_lower *l, const struct hr_lower_options *o)
{
    struct hr_alloc *alloc = o->blocks->alloc;
    *l = (struct hr_lower){
        .tier = o->tier,
        .blocks = o->blocks,
        .layout = o->layout,
        .heads = o->heads,
        .first_leaving = HR_BLOCK_NONE,
    };
    if (!hr_slab_init(&l->slots, alloc, &o->tier->extents, NULL, hr_blocks_bytes(o->blocks),
                      o->blocks->slots.run))
        return false;
    if (o->extents / l->slots.run < l->slots.parts_limit)
        l->slots.parts_limit = (uint32_t)(o->extents / l->slots.run);
    l->births = hr_alloc_get(alloc, birth_bytes(l));
    l->sums = hr_alloc_get(alloc, sum_bytes(l));
    if (l->births && l->sums && hr_slab_watch(&l->blocks->slots, &o->tier->tickets.issued))
        return true;
    hr_lower_close(l);
    return false;
}

void hr_lower_close(struct hr_lower *l)
{
    struct hr_alloc *alloc = l->blocks->alloc;
    hr_alloc_put(alloc, l->births, birth_bytes(l));
    hr_alloc_put(alloc, l->sums, sum_bytes(l));
    hr_slab_close(&l->slots);
    l->births = NULL;
    l->sums = NULL;
}

int64_t hr_lower_room(const struct hr_lower *l)
{
    return (int64_t)l->slots.parts_limit * l->slots.view.blocks_per_extent -
           (int64_t)l->slots.slots_used;
}

struct hr_store_place hr_lower_place(const struct hr_lower *l, uint32_t slot)
{
    const struct hr_pool_view *view = &l->slots.view;
    struct hr_store_place place =
        hr_store_place(&l->tier->store, view->extents[slot / view->blocks_per_extent]);
    place.offset += slot % view->blocks_per_extent * view->block_bytes;
    return place;
}

struct hr_moved hr_lower_moved(const struct hr_lower *l, uint32_t block)
{
    const struct hr_birth *birth = &l->births[block];
    return (struct hr_moved){
        .block = block,
        .layer = birth->layer,
        .uid = birth->uid,
        .generation = birth->generation,
        .index = birth->index,
        .heads = birth->heads,
        .sums = l->sums + (size_t)l->blocks->all[block].lower * (size_t)l->heads,
    };
}

/* ---- Leaving ---- */

static void enqueue(struct hr_lower *l, uint32_t block)
{
    l->births[block].next = HR_BLOCK_NONE;
    if (l->first_leaving == HR_BLOCK_NONE)
        l->first_leaving = block;
    else
        l->births[l->last_leaving].next = block;
    l->last_leaving = block;
}

static void free_slot(struct hr_lower *l, uint32_t block)
{
    struct hr_block *x = &l->blocks->all[block];
    if (x->slot != HR_BLOCK_NONE)
        hr_slab_give(&l->blocks->slots, x->slot);
    x->slot = HR_BLOCK_NONE;
}

static void free_lower(struct hr_lower *l, uint32_t block)
{
    struct hr_block *x = &l->blocks->all[block];
    if (x->lower != HR_BLOCK_NONE)
        hr_slab_give(&l->slots, x->lower);
    x->lower = HR_BLOCK_NONE;
}

/* The slot is given up: a copy is below. */
static void leave(struct hr_lower *l, uint32_t block)
{
    hr_blocks_event(l->blocks, block, HR_LIFE_LEAVE);
    free_slot(l, block);
}

bool hr_lower_evict(struct hr_lower *l, uint32_t block)
{
    struct hr_block *x = &l->blocks->all[block];
    if (l->births[block].leaving)
        return true;
    if (x->life.lower == HR_LIFE_THERE) {
        leave(l, block);
        return true;
    }
    if (x->life.lower == HR_LIFE_COMING) { /* it had stayed after all */
        l->births[block].leaving = true;
        l->leaving++;
        return true;
    }
    if (hr_lower_room(l) == 0 || hr_slab_take(&l->slots, &x->lower, 1) == 0)
        return false;
    if (l->slots.slots_used > l->slots_peak)
        l->slots_peak = l->slots.slots_used;
    hr_blocks_event(l->blocks, block, HR_LIFE_EVICT);
    l->births[block].generation = ++l->tier->generation;
    l->births[block].leaving = true;
    l->leaving++;
    enqueue(l, block);
    return true;
}

void hr_lower_stay(struct hr_lower *l, uint32_t block)
{
    l->leaving -= l->births[block].leaving;
    l->births[block].leaving = false;
}

int64_t hr_lower_reclaim(struct hr_lower *l)
{
    int64_t n = 0;
    for (uint32_t b = 0; b < l->blocks->high; b++) {
        const struct hr_block *x = &l->blocks->all[b];
        bool spare = x->life.device == HR_LIFE_THERE && x->life.lower == HR_LIFE_THERE;
        if (!spare || x->life.pins > 0)
            continue;
        hr_lower_forget(l, b);
        n++;
    }
    return n;
}

void hr_lower_forget(struct hr_lower *l, uint32_t block)
{
    if (l->blocks->all[block].life.lower != HR_LIFE_THERE)
        return;
    hr_blocks_event(l->blocks, block, HR_LIFE_FORGET);
    free_lower(l, block);
}

void hr_lower_bury(struct hr_lower *l, uint32_t block)
{
    if (l->blocks->all[block].life.phase != HR_LIFE_FREE)
        return;
    l->leaving -= l->births[block].leaving;
    l->births[block].leaving = false;
    free_slot(l, block);
    free_lower(l, block);
    hr_blocks_bury(l->blocks, block);
}

void hr_lower_drop(struct hr_lower *l, uint32_t block)
{
    hr_blocks_event(l->blocks, block, HR_LIFE_DROP);
    l->blocks->owned -= l->blocks->all[block].life.refs == 0;
    hr_lower_bury(l, block);
}

/* ---- Writes ---- */

/* Whether block `b` can join the move behind its last one. */
static bool joins(const struct hr_lower *l, const struct hr_move *move, uint32_t b)
{
    const struct hr_block *x = &l->blocks->all[b];
    struct hr_store_place place = hr_lower_place(l, x->lower);
    const struct hr_transfer *t = &move->transfer;
    return move->count < HR_MOVE_BLOCKS &&
           t->bytes + hr_blocks_bytes(l->blocks) <= HR_IO_PIECE_BYTES && place.fd == t->fd &&
           place.offset == t->offset + t->bytes &&
           hr_block_addr(&l->blocks->slots.view, x->slot) == t->memory + t->bytes;
}

static void add(const struct hr_lower *l, struct hr_move *move, uint32_t block)
{
    move->blocks[move->count++] = hr_lower_moved(l, block);
    move->transfer.bytes += hr_blocks_bytes(l->blocks);
}

/* A move that begins with this block. */
static void begin_move(struct hr_lower *l, struct hr_move *move, uint32_t block)
{
    const struct hr_block *x = &l->blocks->all[block];
    struct hr_store_place place = hr_lower_place(l, x->lower);
    move->transfer = (struct hr_transfer){
        .fd = place.fd,
        .write = true,
        .offset = place.offset,
        .memory = hr_block_addr(&l->blocks->slots.view, x->slot),
    };
    move->owner = l;
    move->layout = l->layout;
    move->block_bytes = hr_blocks_bytes(l->blocks);
    move->count = 0;
    add(l, move, block);
}

static bool may_write(struct hr_lower *l, uint32_t block)
{
    return hr_tickets_done(&l->tier->tickets, *hr_lower_used_by(l, l->blocks->all[block].slot));
}

static uint32_t dequeue(struct hr_lower *l)
{
    uint32_t block = l->first_leaving;
    l->first_leaving = l->births[block].next;
    return block;
}

void hr_lower_pump(struct hr_lower *l)
{
    while (l->first_leaving != HR_BLOCK_NONE && may_write(l, l->first_leaving)) {
        struct hr_move *move = hr_tier_take_move(l->tier, true);
        if (!move)
            return;
        begin_move(l, move, dequeue(l));
        while (l->first_leaving != HR_BLOCK_NONE && joins(l, move, l->first_leaving) &&
               may_write(l, l->first_leaving))
            add(l, move, dequeue(l));
        l->writing++;
        hr_mover_start(l->tier->mover, move);
    }
}

void hr_lower_written(struct hr_lower *l, const struct hr_move *move)
{
    l->writing--;
    for (int32_t i = 0; i < move->count; i++) {
        uint32_t block = move->blocks[i].block;
        bool failed = move->transfer.error != 0;
        hr_blocks_event(l->blocks, block, failed ? HR_LIFE_WRITE_FAILED : HR_LIFE_WRITTEN);
        hr_lower_bury(l, block);
        if (l->blocks->all[block].life.phase == HR_LIFE_FREE)
            continue;
        bool leaves = l->births[block].leaving;
        hr_lower_stay(l, block);
        if (failed)
            free_lower(l, block);
        else if (leaves)
            leave(l, block);
    }
    if (move->transfer.error != 0) {
        l->tier->write_error = move->transfer.error;
        l->tier->write_failures++;
    }
}

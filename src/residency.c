/* SPDX-License-Identifier: Apache-2.0 */
#include "src/residency.h"

#include "src/fetch.h"
#include "src/progress.h"

/* What a pool has to share out, in blocks; `layers` of them a block of a sequence. */
struct share {
    int64_t slots;  /* for blocks, the ring's not counted */
    int64_t layers; /* of the pool */
    int64_t adds;   /* slots of one layer's new blocks, and of copies */
    int64_t opens;  /* open blocks that must stay until commit */
    int64_t others; /* what other open steps have reserved */
};

static bool in_batch(const hr_seq *seq, const hr_step *step)
{
    return seq->step == step;
}

/* Blocks of each layer behind the step that holds the sequence, if one does. */
static int64_t blocks_after(const hr_seq *seq)
{
    return hr_blocks_of(seq->step ? seq->step->views[seq->batch_index].n_kv : seq->length);
}

/* Least and most blocks of each layer that the sequence keeps. */
static void bounds(const hr_seq *seq, const hr_step *step, int32_t pool, int64_t *least,
                   int64_t *most)
{
    int64_t n = blocks_after(seq);
    *least = 0;
    *most = seq->advice == HR_ADVISE_PARK && !in_batch(seq, step) ? 0 : n;
    if (seq->advice == HR_ADVISE_PIN)
        *least = n;
    else if (in_batch(seq, step))
        *least = n < 1 ? n : 1;
    else if (seq->step) /* another step counts on it */
        *least = seq->keep[pool];
    if (*most < *least)
        *most = *least;
}

static int64_t kept_at(const hr_seq *seq, const hr_step *step, int32_t pool, int64_t level)
{
    int64_t least, most;
    bounds(seq, step, pool, &least, &most);
    int64_t keep = level < most ? level : most;
    return keep > least ? keep : least;
}

/* Slots that all sequences together would keep. */
static int64_t slots_at(const hr_step *step, int32_t pool, int64_t layers, int64_t level)
{
    int64_t sum = 0;
    for (const hr_seq *s = step->cache->first_seq; s; s = s->next)
        sum += layers * kept_at(s, step, pool, level);
    return sum;
}

static struct share share_of(const hr_step *step, int32_t pool)
{
    const hr_cache *cache = step->cache;
    const struct hr_tiered *t = &cache->tiered[pool];
    struct share share = {
        .slots = t->slots - t->ring_slots, .layers = t->layers, .others = t->reserved};
    for (int32_t i = 0; i < step->n_seqs; i++) {
        struct hr_span span = hr_step_written(step, i);
        share.adds += span.end - span.first;
        share.opens += span.end > 0 && step->seqs[i]->length % HR_BLOCK_TOKENS != 0;
    }
    share.opens *= share.layers;
    return share;
}

/* Slots that pinned sequences keep. */
static int64_t pinned(const hr_step *step, int64_t layers)
{
    int64_t sum = 0;
    for (const hr_seq *s = step->cache->first_seq; s; s = s->next)
        sum += s->advice == HR_ADVISE_PIN ? layers * blocks_after(s) : 0;
    return sum;
}

static hr_status too_small(const hr_step *step, int32_t pool, const struct share *s)
{
    hr_context *c = step->cache->context;
    const struct hr_tiered *t = &step->cache->tiered[pool];
    uint64_t bytes = hr_blocks_bytes(&step->cache->pools[pool]);
    int64_t least = slots_at(step, pool, s->layers, 0);
    return hr_fail(
        &c->error, HR_E_BUDGET,
        "%lld bytes of device memory are needed, %lld are there: the newest blocks of all "
        "layers take %lld (of pinned sequences %lld), open ones %lld, the new ones of two layers "
        "%lld, other steps %lld, the "
        "ring %lld",
        (long long)((uint64_t)(least + s->opens + 2 * s->adds + s->others + t->ring_slots) * bytes),
        (long long)((uint64_t)t->slots * bytes), (long long)((uint64_t)least * bytes),
        (long long)((uint64_t)pinned(step, s->layers) * bytes),
        (long long)((uint64_t)s->opens * bytes), (long long)((uint64_t)(2 * s->adds) * bytes),
        (long long)((uint64_t)s->others * bytes), (long long)((uint64_t)t->ring_slots * bytes));
}

/* The highest level at which all fits; -1: none. */
static int64_t find_level(const hr_step *step, int32_t pool, const struct share *s)
{
    int64_t room = s->slots - s->others - s->opens - 2 * s->adds, low = 0, high = 0;
    if (slots_at(step, pool, s->layers, 0) > room)
        return -1;
    for (const hr_seq *q = step->cache->first_seq; q; q = q->next)
        high = blocks_after(q) > high ? blocks_after(q) : high;
    while (low < high) {
        int64_t mid = low + (high - low + 1) / 2;
        if (slots_at(step, pool, s->layers, mid) <= room)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* ---- Marks ---- */

/* In begin every block of a sequence's level gets the step's mark, or the one before it if it is
 * above the level once the step's rows are there. Returns how many got the step's mark just now:
 * blocks that sequences share count once. */
static int64_t mark_layer(const hr_seq *seq, const hr_step *step, int32_t layer)
{
    struct hr_tiered *t = hr_cache_tiered(seq->cache, layer);
    const uint32_t *blocks = hr_seq_blocks(seq, layer);
    int64_t have = hr_blocks_of(seq->length), after = blocks_after(seq), marked = 0;
    int64_t keep = hr_seq_keep(seq, layer);
    for (int64_t b = have > keep ? have - keep : 0; b < have; b++) {
        uint32_t *mark = &t->lower.births[blocks[b]].mark;
        uint32_t want = b >= after - keep ? step->mark : step->mark - 1;
        if (want != step->mark && seq->step != step && seq->step)
            continue; /* another step's, which will evict it */
        marked += want == step->mark && *mark < want;
        *mark = *mark < want ? want : *mark;
    }
    int64_t first_new = have > after - keep ? have : after - keep;
    return marked + (after > first_new ? after - first_new : 0);
}

/* Rows past the end of a sequence's last block may hold what others wrote in its slot: none of it
 * goes to disk. */
static void clean_tail(hr_seq *seq, int32_t layer, int64_t b)
{
    hr_context *c = seq->cache->context;
    struct hr_lower *l = &hr_cache_tiered(seq->cache, layer)->lower;
    const struct hr_block *x = &l->blocks->all[hr_seq_blocks(seq, layer)[b]];
    const struct hr_geom *g = hr_cache_geom(seq->cache, layer);
    int64_t fill = seq->length - b * HR_BLOCK_TOKENS;
    if (x->life.phase != HR_LIFE_OPEN || x->life.refs > 1 || fill >= HR_BLOCK_TOKENS || c->dry)
        return;
    uint64_t row_bytes = (uint64_t)g->dim * hr_dtype_bytes(g->dtype), half = hr_page_bytes(g) / 2;
    for (int32_t h = 0; h < 2 * g->kv_heads; h++) {
        unsigned char *rows = hr_block_addr(&l->blocks->slots.view, x->slot) + (uint64_t)h * half;
        c->dev->ops->zero(c->dev, rows + (uint64_t)fill * row_bytes,
                          (uint64_t)(HR_BLOCK_TOKENS - fill) * row_bytes);
    }
    *hr_lower_used_by(l, x->slot) = hr_tickets_issue(&c->tier->tickets);
}

/* Evicts resident blocks [from, end) of a layer, but not open ones that a step holds, nor shared
 * ones whose mark is at least `least`. False: there is no room below. */
static bool evict(hr_seq *seq, int32_t layer, int64_t from, int64_t end, uint32_t least)
{
    struct hr_tiered *t = hr_cache_tiered(seq->cache, layer);
    const uint32_t *blocks = hr_seq_blocks(seq, layer);
    for (int64_t b = from; b < end; b++) {
        const struct hr_life *life = &t->lower.blocks->all[blocks[b]].life;
        bool marked = t->lower.births[blocks[b]].mark >= least && life->refs > 1;
        if (hr_lower_away(&t->lower, blocks[b]) || life->device != HR_LIFE_THERE || marked ||
            (life->held && life->phase == HR_LIFE_OPEN))
            continue;
        if (life->lower == HR_LIFE_NONE)
            clean_tail(seq, layer, b);
        if (!hr_lower_evict(&t->lower, blocks[b]))
            return false;
        seq->cache->evictions++;
    }
    return true;
}

/* An open block from before the step; -1: there is none. Abort wants its rows back: it stays. (Of a
 * shared one that is the block that a copy stands in for.) */
static int64_t opened_before(const hr_step *step, int32_t i, int32_t layer)
{
    int64_t length = step->seqs[i]->length;
    bool open = hr_step_new(step, i) > 0 && length % HR_BLOCK_TOKENS != 0;
    bool copied = *hr_step_replaced(step, i, layer) != HR_BLOCK_NONE;
    return open && !copied ? length / HR_BLOCK_TOKENS : -1;
}

/* Evicts blocks [0, end) of one sequence of the step, as evict does, but for that block. */
static bool evict_of(const hr_step *step, int32_t i, int32_t layer, int64_t end, uint32_t least)
{
    int64_t opened = opened_before(step, i, layer);
    if (opened < 0 || opened >= end)
        return evict(step->seqs[i], layer, 0, end, least);
    return evict(step->seqs[i], layer, 0, opened, least) &&
           evict(step->seqs[i], layer, opened + 1, end, least);
}

/* Evicts what the sequence has above its level when `step` begins. Another open step's has such
 * blocks where a third sequence that shared them held them back, and is gone. */
static bool evict_above(hr_seq *seq, const hr_step *step, int32_t layer)
{
    const hr_step *of = seq->step;
    bool grown = of && of != step && of->attended[layer];
    int64_t n = grown ? blocks_after(seq) : hr_blocks_of(seq->length);
    int64_t end = n - hr_seq_keep(seq, layer);
    return of ? evict_of(of, seq->batch_index, layer, end, step->mark - 1)
              : evict(seq, layer, 0, end, step->mark - 1);
}

/* Blocks that may lie below, with those that do. */
static int64_t most_below(const struct hr_lower *l)
{
    return hr_lower_room(l) + (int64_t)l->slots.slots_used;
}

static hr_status no_room_below(const hr_step *step, int32_t pool, int64_t want)
{
    const struct hr_lower *l = &step->cache->tiered[pool].lower;
    uint64_t bytes = hr_blocks_bytes(l->blocks);
    int64_t have = most_below(l);
    return hr_fail(&step->cache->context->error, HR_E_BUDGET,
                   "%lld bytes of K/V would have to lie on disk; there is room for %lld",
                   (long long)((uint64_t)want * bytes), (long long)((uint64_t)have * bytes));
}

/* Room below for all that is not kept, of the pool. */
static hr_status make_room_below(hr_step *step, int32_t pool, int64_t kept)
{
    struct hr_tiered *t = &step->cache->tiered[pool];
    struct share s = share_of(step, pool);
    int64_t below = (int64_t)t->lower.blocks->used + s.layers * s.adds - kept;
    int64_t room = hr_lower_room(&t->lower);
    if (below > room)
        room += hr_lower_reclaim(&t->lower);
    /* What is below already is part of it. */
    if (below > room + (int64_t)t->lower.slots.slots_used)
        return no_room_below(step, pool, below);
    return HR_OK;
}

static bool all_fits(const hr_step *step, int32_t pool)
{
    for (const hr_seq *s = step->cache->first_seq; s; s = s->next)
        if (s->keep[pool] < blocks_after(s))
            return false;
    return step->cache->tiered[pool].lower.slots.slots_used == 0;
}

bool hr_residency_fits(const hr_step *step)
{
    bool fits = true;
    for (int32_t p = 0; p < step->cache->n_tiered; p++)
        fits = fits && all_fits(step, p);
    return fits;
}

static hr_status mark_and_evict(hr_step *step, int32_t pool)
{
    hr_cache *cache = step->cache;
    int64_t kept = 0;
    for (int32_t l = 0; l < cache->n_layers; l++)
        for (const hr_seq *s = cache->first_seq; s; s = s->next)
            if (hr_cache_pool_of(cache, l) == pool)
                kept += mark_layer(s, step, l);
    hr_status status = make_room_below(step, pool, kept);
    for (int32_t l = 0; status == HR_OK && l < cache->n_layers; l++)
        for (hr_seq *s = cache->first_seq; status == HR_OK && s; s = s->next)
            if (hr_cache_pool_of(cache, l) == pool && !evict_above(s, step, l))
                status = no_room_below(step, pool, 1 + most_below(&cache->tiered[pool].lower));
    return status;
}

static hr_status begin_pool(hr_step *step, int32_t pool)
{
    struct share share = share_of(step, pool);
    int64_t level = find_level(step, pool, &share);
    if (level < 0)
        return too_small(step, pool, &share);
    for (hr_seq *s = step->cache->first_seq; s; s = s->next)
        s->keep[pool] = kept_at(s, step, pool, level);
    return all_fits(step, pool) ? HR_OK : mark_and_evict(step, pool);
}

/* Finds the level, and evicts what is above it. */
static hr_status settle(hr_step *step)
{
    hr_cache *cache = step->cache;
    hr_status status = HR_OK;
    hr_fetch_drop(cache); /* what is still coming would be resident behind the evictions */
    step->mark = cache->mark += 2;
    for (int32_t p = 0; status == HR_OK && p < cache->n_tiered; p++)
        status = begin_pool(step, p);
    return status;
}

hr_status hr_residency_begin(hr_step *step)
{
    hr_cache *cache = step->cache;
    hr_status status = settle(step);
    for (int32_t p = 0; status == HR_OK && p < cache->n_tiered; p++) {
        struct share share = share_of(step, p);
        step->reserved[p] = 2 * share.adds + share.opens;
        cache->tiered[p].reserved += step->reserved[p];
    }
    return status;
}

void hr_residency_end(hr_step *step)
{
    for (int32_t p = 0; p < step->cache->n_tiered; p++) {
        step->cache->tiered[p].reserved -= step->reserved[p];
        step->reserved[p] = 0;
    }
}

/* ---- Append and attend ---- */

/* What a layer's append waits for. */
struct writes {
    hr_step *step;
    int32_t layer;
};

/* Gives a block that append writes to what it needs; false: not yet. */
static bool make_ready(const struct writes *w, uint32_t block)
{
    struct hr_tiered *t = hr_cache_tiered(w->step->cache, w->layer);
    struct hr_block *x = &t->lower.blocks->all[block];
    if (x->life.device == HR_LIFE_NONE && x->life.lower == HR_LIFE_NONE)
        return hr_blocks_place(t->lower.blocks, block); /* a new one */
    if (x->life.device != HR_LIFE_THERE || x->life.lower == HR_LIFE_COMING || x->life.pins > 0)
        return false;
    hr_lower_forget(&t->lower, block);
    return true;
}

static bool writes_ready(void *arg)
{
    const struct writes *w = arg;
    bool ready = true;
    for (int32_t i = 0; i < w->step->n_seqs; i++) {
        const uint32_t *blocks = hr_seq_blocks(w->step->seqs[i], w->layer);
        struct hr_span span = hr_step_written(w->step, i);
        for (int64_t b = span.first; ready && b < span.end; b++)
            ready = make_ready(w, blocks[b]);
    }
    return ready;
}

/* Layers that were appended and have not attended make room: they will read their blocks again.
 * Blocks of this layer that others share may be what the step at hand counts on: they stay. */
static void spill_of(hr_step *from, const hr_step *step, int32_t layer)
{
    for (int32_t l = 0; l < from->cache->n_layers; l++)
        for (int32_t i = 0; i < from->n_seqs; i++)
            if ((from != step || l != layer) && from->appended[l] && !from->attended[l] &&
                hr_cache_pool_of(from->cache, l) == hr_cache_pool_of(from->cache, layer))
                evict_of(from, i, l, hr_blocks_of(from->views[i].n_kv),
                         l == layer ? 0 : UINT32_MAX);
}

static void spill(const hr_step *step, int32_t layer)
{
    for (hr_step *s = step->cache->first_open; s; s = s->next_open)
        if (s->cut)
            spill_of(s, step, layer);
}

struct wait {
    const struct hr_tiered *tiered;
    bool (*ready)(void *arg);
    void *arg;
};

/* Or nothing is on its way that could still give a slot. */
static bool ready_or_stuck(void *arg)
{
    const struct wait *w = arg;
    return w->ready(w->arg) || (w->tiered->lower.leaving == 0 && w->tiered->ring.coming == 0);
}

hr_status hr_residency_await(hr_step *step, int32_t layer, bool (*ready)(void *arg), void *arg,
                             const char *what)
{
    struct wait w = {hr_cache_tiered(step->cache, layer), ready, arg};
    const struct hr_tier *tier = step->cache->context->tier;
    int64_t failures = INT64_MAX; /* of writes, when it last made room */
    hr_status status = HR_OK;
    while (status == HR_OK) {
        uint64_t before = step->cache->evictions;
        status = hr_progress_until(step, ready_or_stuck, &w, what);
        if (status == HR_OK && !ready(arg) && tier->write_failures <= failures) {
            failures = tier->write_failures;
            spill(step, layer);
        }
        if (status != HR_OK || step->cache->evictions == before)
            break;
    }
    return status == HR_OK ? hr_progress_until(step, ready, arg, what) : status;
}

hr_status hr_residency_append(hr_step *step, int32_t layer)
{
    struct writes w = {step, layer};
    hr_status status = hr_fetch_for_append(step, layer);
    if (status != HR_OK)
        return status;
    return hr_residency_await(step, layer, writes_ready, &w, "slots for new K/V");
}

void hr_residency_trim(hr_step *step, int32_t layer)
{
    int32_t pool = hr_cache_pool_of(step->cache, layer);
    uint64_t before = step->cache->evictions;
    for (int32_t i = 0; i < step->n_seqs; i++) {
        int64_t end = hr_blocks_of(step->views[i].n_kv) - step->seqs[i]->keep[pool];
        evict_of(step, i, layer, end, step->mark);
    }
    if (step->evictions == before) /* of a layer that the list has behind it */
        step->evictions = step->cache->evictions;
    hr_progress(step->cache->context);
}

bool hr_residency_evict(hr_seq *seq, int32_t layer, int64_t from, int64_t end)
{
    hr_fetch_stop(seq->cache);
    return evict(seq, layer, from, end, 0);
}

static void park(hr_seq *seq)
{
    for (int32_t l = 0; l < seq->cache->n_layers; l++)
        hr_residency_evict(seq, l, 0, hr_blocks_of(seq->length));
    hr_progress(seq->cache->context);
}

hr_status hr_residency_settle(hr_cache *cache)
{
    hr_step nobody = {.cache = cache}; /* a step without a batch */
    return settle(&nobody);
}

/* While a step is open the budget is its own: the next begin finds a level for the sequence. */
static hr_status warm(hr_seq *seq)
{
    if (seq->cache->first_open)
        return HR_OK;
    hr_status status = hr_residency_settle(seq->cache);
    if (status == HR_OK)
        status = hr_fetch_warm(seq);
    return status == HR_E_BUDGET ? HR_OK : status;
}

hr_status hr_residency_advise(hr_seq *seq, hr_advice advice)
{
    seq->advice = advice;
    if (!hr_seq_tiered(seq))
        return HR_OK;
    if (advice == HR_ADVISE_PARK)
        park(seq);
    return advice == HR_ADVISE_WARM ? warm(seq) : HR_OK;
}

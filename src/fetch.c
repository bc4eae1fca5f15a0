/* SPDX-License-Identifier: Apache-2.0 */
#include "src/fetch.h"

#include <string.h>

#include "src/progress.h"
#include "src/residency.h"

/* Blocks of a sequence that the step's rows of a layer may see: [first, end), and [0, sinks). */
struct seen {
    int64_t first, end, sinks;
};

static struct seen seen_by(const hr_step *step, int32_t i, int32_t layer)
{
    const struct hr_geom *g = hr_cache_geom(step->cache, layer);
    const struct hr_seq_view *v = &step->views[i];
    struct seen s = {0, v->n_q > 0 ? hr_blocks_of(v->n_kv) : 0, 0};
    if (g->window == 0 || v->n_q == 0)
        return s;
    int64_t oldest = v->n_kv - v->n_q - g->window + 1; /* key that the first row still sees */
    s.first = oldest > 0 ? oldest / HR_BLOCK_TOKENS : 0;
    s.sinks = hr_blocks_of(g->sinks);
    s.sinks = s.sinks < s.end ? s.sinks : s.end;
    return s;
}

static bool is_seen(const struct seen *s, int64_t block)
{
    return (block >= s->first && block < s->end) || block < s->sinks;
}

/* Blocks that may be below when the layer attends. What it has yet to append is not. */
static int64_t old_blocks(const hr_step *step, int32_t i, int32_t layer)
{
    int64_t length = step->seqs[i]->length;
    if (step->appended[layer])
        return hr_blocks_of(step->views[i].n_kv);
    return hr_step_new(step, i) > 0 ? length / HR_BLOCK_TOKENS : hr_blocks_of(length);
}

static bool is_away(const hr_step *step, int32_t layer, uint32_t block)
{
    return hr_lower_away(&hr_cache_tiered(step->cache, layer)->lower, block);
}

/* Blocks that the new rows need before they can be written. */
static void add_append(hr_step *step, int32_t layer)
{
    struct hr_ring *ring = &hr_cache_tiered(step->cache, layer)->ring;
    hr_ring_add_wave(ring, layer, 0, 0);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        const hr_seq *seq = step->seqs[i];
        uint32_t copied = *hr_step_replaced(step, i, layer);
        if (hr_step_new(step, i) == 0 || seq->length % HR_BLOCK_TOKENS == 0 ||
            step->appended[layer])
            continue;
        uint32_t last = hr_seq_blocks(seq, layer)[seq->length / HR_BLOCK_TOKENS];
        bool copy = copied != HR_BLOCK_NONE;
        if (is_away(step, layer, copy ? copied : last))
            hr_ring_add(ring, copy ? copied : last, !copy);
    }
}

/* Counts, at each distance from the newest block, what has to be fetched; returns the longest
 * sequence. */
static int64_t count_away(hr_step *step, int32_t layer)
{
    int64_t longest = 0;
    for (int32_t i = 0; i < step->n_seqs; i++) {
        struct seen seen = seen_by(step, i, layer);
        longest = seen.end > longest ? seen.end : longest;
    }
    memset(step->distances, 0, (size_t)longest * sizeof(*step->distances));
    for (int32_t i = 0; i < step->n_seqs; i++) {
        struct seen seen = seen_by(step, i, layer);
        const uint32_t *blocks = hr_seq_blocks(step->seqs[i], layer);
        int64_t old = old_blocks(step, i, layer), end = old < seen.end ? old : seen.end;
        for (int64_t b = 0; b < end; b++)
            if (is_seen(&seen, b) && is_away(step, layer, blocks[b]))
                step->distances[seen.end - 1 - b]++;
    }
    return longest;
}

/* Whether it becomes resident. What a step that began earlier has marked may be above the level by
 * now. */
static bool stays(const hr_step *step, int32_t layer, uint32_t block)
{
    const struct hr_birth *birth = &hr_cache_tiered(step->cache, layer)->lower.births[block];
    return step->mark == step->cache->mark && birth->mark == step->mark;
}

/* Entries of blocks at distances [begin, end), each sequence's oldest first: neighbours on disk. */
static void add_entries(hr_step *step, int32_t layer, int64_t begin, int64_t end)
{
    struct hr_tiered *t = hr_cache_tiered(step->cache, layer);
    hr_ring_add_wave(&t->ring, layer, begin, end);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        struct seen seen = seen_by(step, i, layer);
        const uint32_t *blocks = hr_seq_blocks(step->seqs[i], layer);
        int64_t old = old_blocks(step, i, layer), from = seen.end - end, to = seen.end - begin;
        for (int64_t b = from > 0 ? from : 0; b < to && b < old; b++)
            if (is_seen(&seen, b) && is_away(step, layer, blocks[b]))
                hr_ring_add(&t->ring, blocks[b], stays(step, layer, blocks[b]));
    }
}

/* Cuts a layer into waves: as few as the ring allows. */
static hr_status add_attend(hr_step *step, int32_t layer)
{
    hr_context *c = step->cache->context;
    struct hr_ring *ring = &hr_cache_tiered(step->cache, layer)->ring;
    int64_t longest = count_away(step, layer), begin = 0, sum = 0;
    int64_t most = ring->wave_most, cut = c->wave_blocks > 0 ? c->wave_blocks : INT64_MAX;
    for (int64_t d = 0; d < longest; d++) {
        int64_t here = step->distances[d];
        if (here > ring->size)
            return hr_fail(&c->error, HR_E_BUDGET,
                           "%lld sequences of the batch read from disk at a time; the ring has %u "
                           "slots: fewer sequences, or a larger device budget, will do",
                           (long long)here, ring->size);
        if (d > begin && (d - begin == cut || (sum > 0 && sum + here > most))) {
            add_entries(step, layer, begin, d);
            begin = d;
            sum = 0;
        }
        sum += here;
    }
    add_entries(step, layer, begin, longest);
    return HR_OK;
}

/* Most entries and waves that a layer can have. */
static bool make_room(hr_step *step, int32_t layer)
{
    size_t entries = (size_t)step->n_seqs, longest = 0;
    for (int32_t i = 0; i < step->n_seqs; i++) {
        size_t n = (size_t)hr_blocks_of(step->views[i].n_kv);
        entries += n;
        longest = n > longest ? n : longest;
    }
    return hr_ring_reserve(&hr_cache_tiered(step->cache, layer)->ring, entries, longest + 2);
}

/* Nothing is under way to a ring, and nothing is listed. */
static void reset(hr_cache *cache)
{
    hr_progress_drain_reads(cache);
    for (int32_t p = 0; p < cache->n_tiered; p++)
        hr_ring_reset(&cache->tiered[p].ring);
}

/* The rings are this step's. */
static void claim(hr_step *step)
{
    hr_cache *cache = step->cache;
    reset(cache);
    for (int32_t l = 0; l < cache->n_layers; l++)
        step->first_wave[l] = UINT32_MAX;
    cache->fetching = step;
    step->evictions = cache->evictions;
}

hr_status hr_fetch_plan(hr_step *step, int32_t layer)
{
    hr_cache *cache = step->cache;
    claim(step);
    for (int32_t l = layer; l < cache->n_layers; l++) {
        if (!make_room(step, l))
            return hr_fail(&cache->context->error, HR_E_NO_MEMORY, "no memory for a fetch list");
        step->first_wave[l] = hr_cache_tiered(cache, l)->ring.n_waves;
        add_append(step, l);
        hr_status status = add_attend(step, l);
        if (status != HR_OK)
            return status;
    }
    hr_progress(cache->context);
    return HR_OK;
}

/* ---- Without a step ---- */

/* Oldest first: neighbours on disk. */
static void add_kept(const hr_seq *seq, int32_t layer)
{
    struct hr_tiered *t = hr_cache_tiered(seq->cache, layer);
    const uint32_t *blocks = hr_seq_blocks(seq, layer);
    int64_t n = hr_blocks_of(seq->length), keep = hr_seq_keep(seq, layer);
    hr_ring_add_wave(&t->ring, layer, 0, 0);
    for (int64_t b = n > keep ? n - keep : 0; b < n; b++)
        if (hr_lower_away(&t->lower, blocks[b]))
            hr_ring_add(&t->ring, blocks[b], true);
}

hr_status hr_fetch_warm(const hr_seq *seq)
{
    hr_cache *cache = seq->cache;
    for (int32_t l = 0; l < cache->n_layers; l++) {
        struct hr_ring *ring = &hr_cache_tiered(cache, l)->ring;
        if (!hr_ring_reserve(ring, (size_t)hr_blocks_of(seq->length), 1))
            return hr_fail(&cache->context->error, HR_E_NO_MEMORY, "no memory for a fetch list");
        add_kept(seq, l);
    }
    hr_progress(cache->context);
    return HR_OK;
}

void hr_fetch_drop(hr_cache *cache)
{
    reset(cache);
    cache->fetching = NULL;
}

void hr_fetch_stop(hr_cache *cache)
{
    if (cache->n_tiered && !cache->fetching)
        reset(cache);
}

/* ---- Running it ---- */

/* The list is at the layer's append wave (0) or its first attend wave (1). */
static bool is_at(const hr_step *step, int32_t layer, uint32_t behind)
{
    const hr_cache *cache = step->cache;
    const struct hr_ring *ring = &hr_cache_tiered(cache, layer)->ring;
    return cache->fetching == step && step->evictions == cache->evictions &&
           step->first_wave[layer] != UINT32_MAX &&
           ring->next_wave == step->first_wave[layer] + behind;
}

struct awaited {
    struct hr_ring *ring;
    uint32_t wave;
};

static bool wave_ready(void *arg)
{
    const struct awaited *a = arg;
    return hr_ring_ready(a->ring, a->wave);
}

/* The failed block as its users know it. */
static hr_status failure(const hr_step *step, int32_t layer)
{
    const struct hr_ring *r = &hr_cache_tiered(step->cache, layer)->ring;
    const struct hr_birth *birth = &r->lower->births[r->failed_block];
    struct hr_error *error = &step->cache->context->error;
    int32_t seq = 0, of = (int32_t)birth->layer;
    for (int32_t i = 0; i < step->n_seqs; i++) {
        int64_t n = hr_blocks_of(step->seqs[i]->length);
        bool has = (int64_t)birth->index < n &&
                   hr_seq_blocks(step->seqs[i], of)[birth->index] == r->failed_block;
        if (has || *hr_step_replaced(step, i, of) == r->failed_block)
            seq = i;
    }
    if (r->failed_head < 0)
        return hr_fail(error, HR_E_IO,
                       "sequence %d of the batch (%llu), layer %u, block %llu: read from disk: %s",
                       seq, (unsigned long long)step->seqs[seq]->uid, birth->layer,
                       (unsigned long long)birth->index, strerror(r->error));
    return hr_fail(
        error, HR_E_CORRUPT,
        "sequence %d of the batch (%llu), layer %u, block %llu, head %d: the checksum of "
        "what came from disk is wrong",
        seq, (unsigned long long)step->seqs[seq]->uid, birth->layer,
        (unsigned long long)birth->index, r->failed_head);
}

static hr_status await(hr_step *step, int32_t layer, uint32_t wave)
{
    struct awaited a = {&hr_cache_tiered(step->cache, layer)->ring, wave};
    hr_status status = hr_residency_await(step, layer, wave_ready, &a, "K/V from disk");
    if (status == HR_OK && a.ring->failed)
        status = failure(step, layer);
    return status;
}

hr_status hr_fetch_for_append(hr_step *step, int32_t layer)
{
    hr_status status = is_at(step, layer, 0) ? HR_OK : hr_fetch_plan(step, layer);
    return status == HR_OK ? await(step, layer, step->first_wave[layer]) : status;
}

uint32_t hr_fetch_slot(const hr_step *step, int32_t layer, uint32_t block)
{
    struct hr_tiered *t = hr_cache_tiered(step->cache, layer);
    if (!is_away(step, layer, block))
        return t->lower.blocks->all[block].slot;
    return hr_ring_slot(&t->ring, block);
}

void hr_fetch_appended(hr_step *step, int32_t layer)
{
    struct hr_tiered *t = hr_cache_tiered(step->cache, layer);
    uint64_t ticket = hr_tickets_issue(&step->cache->context->tier->tickets);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        const uint32_t *blocks = hr_seq_blocks(step->seqs[i], layer);
        struct hr_span span = hr_step_written(step, i);
        for (int64_t b = span.first; b < span.end; b++)
            *hr_lower_used_by(&t->lower, t->lower.blocks->all[blocks[b]].slot) = ticket;
        if (*hr_step_replaced(step, i, layer) != HR_BLOCK_NONE)
            *hr_lower_used_by(&t->lower, step->copy_from[i]) = ticket;
    }
    hr_ring_retire(&t->ring, ticket);
}

hr_status hr_fetch_for_attend(hr_step *step, int32_t layer, uint32_t *first, uint32_t *end)
{
    struct hr_ring *ring = &hr_cache_tiered(step->cache, layer)->ring;
    if (is_at(step, layer, 0) && (step->new_tokens == 0 || step->appended[layer]))
        hr_ring_retire(ring, 0); /* nothing to append, or it was by an earlier list */
    if (!is_at(step, layer, 1)) {
        hr_status status = hr_fetch_plan(step, layer);
        if (status != HR_OK)
            return status;
        hr_ring_retire(ring, 0);
    }
    *first = step->first_wave[layer] + 1;
    for (*end = *first; *end < ring->n_waves && ring->waves[*end].layer == layer;)
        ++*end;
    return HR_OK;
}

hr_status hr_fetch_wave(hr_step *step, int32_t layer, uint32_t wave)
{
    const struct hr_wave *w = &hr_cache_tiered(step->cache, layer)->ring.waves[wave];
    hr_status status = await(step, layer, wave);
    if (status != HR_OK)
        return status;
    for (int32_t i = 0; i < step->n_seqs; i++) {
        struct seen seen = seen_by(step, i, layer);
        const uint32_t *blocks = hr_seq_blocks(step->seqs[i], layer);
        uint32_t *slots = step->slots + step->first_slot[i];
        int64_t from = seen.end - w->end, to = seen.end - w->begin;
        for (int64_t b = from > 0 ? from : 0; b < to; b++)
            slots[b] = is_seen(&seen, b) ? hr_fetch_slot(step, layer, blocks[b]) : 0;
    }
    return HR_OK;
}

void hr_fetch_waved(hr_step *step, int32_t layer)
{
    struct hr_tiered *t = hr_cache_tiered(step->cache, layer);
    const struct hr_wave *w = &t->ring.waves[t->ring.next_wave];
    uint64_t ticket = hr_tickets_issue(&step->cache->context->tier->tickets);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        struct seen seen = seen_by(step, i, layer);
        const uint32_t *slots = step->slots + step->first_slot[i];
        int64_t from = seen.end - w->end, to = seen.end - w->begin;
        for (int64_t b = from > 0 ? from : 0; b < to; b++)
            if (is_seen(&seen, b))
                *hr_lower_used_by(&t->lower, slots[b]) = ticket;
    }
    hr_ring_retire(&t->ring, ticket);
    hr_progress(step->cache->context);
}

void hr_fetch_end(hr_step *step)
{
    if (step->cache->fetching != step)
        return;
    claim(step);
    step->cache->fetching = NULL;
}

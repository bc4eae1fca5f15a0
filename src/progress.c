/* SPDX-License-Identifier: Apache-2.0 */
#include "src/progress.h"

#include <string.h>

#include "src/trace.h"

static void trace_move(const hr_context *c, const struct hr_move *move)
{
    hr_trace_emit(c, &(hr_trace_event){
                         .kind = move->transfer.write ? HR_TRACE_WRITE : HR_TRACE_READ,
                         .layer = (int32_t)move->blocks[0].layer,
                         .begin_ns = move->begin_ns,
                         .end_ns = move->end_ns,
                         .bytes = move->transfer.bytes,
                     });
}

static void take_back(hr_context *c)
{
    struct hr_move *move;
    while ((move = hr_mover_done(c->tier->mover))) {
        trace_move(c, move);
        if (move->transfer.write)
            hr_lower_written(move->owner, move);
        else
            hr_ring_arrived(move->owner, move);
        hr_tier_give_move(c->tier, move);
    }
}

void hr_progress(hr_context *c)
{
    if (!c->tier)
        return;
    take_back(c);
    for (hr_cache *cache = c->first_cache; cache; cache = cache->next)
        for (int32_t p = 0; p < cache->n_tiered; p++)
            hr_ring_pump(&cache->tiered[p].ring); /* reads first */
    for (hr_cache *cache = c->first_cache; cache; cache = cache->next)
        for (int32_t p = 0; p < cache->n_tiered; p++)
            hr_lower_pump(&cache->tiered[p].lower);
}

/* Waits for whatever ends next, a move or work on the device. False: nothing is under way. */
static bool wait_for_any(hr_context *c, int64_t deadline_ns)
{
    struct hr_tickets *t = &c->tier->tickets;
    if (hr_mover_running(c->tier->mover) > 0) {
        hr_mover_wait(c->tier->mover, deadline_ns);
        return true;
    }
    if (t->done == t->issued)
        return false;
    hr_tickets_wait(t, t->done + 1, deadline_ns);
    return true;
}

static hr_status never(hr_step *step, const char *what)
{
    hr_context *c = step->cache->context;
    if (c->tier->write_failures == 0)
        return hr_fail(&c->error, HR_E_BUG, "nothing is under way, and %s are still missing", what);
    return hr_fail(&c->error, HR_E_IO,
                   "%s are missing: %lld writes of K/V failed, the last with %s", what,
                   (long long)c->tier->write_failures, strerror(c->tier->write_error));
}

hr_status hr_progress_until(hr_step *step, bool (*ready)(void *arg), void *arg, const char *what)
{
    hr_context *c = step->cache->context;
    hr_progress(c);
    if (ready(arg))
        return HR_OK;
    int64_t start_ns = hr_clock_ns(), deadline_ns = start_ns + c->patience_ns;
    hr_status status = HR_OK;
    while (status == HR_OK) {
        if (atomic_load(&step->cancelled))
            status =
                hr_fail(&c->error, HR_E_CANCELLED, "the step was cancelled, waiting for %s", what);
        else if (hr_clock_ns() >= deadline_ns)
            status = hr_fail(&c->error, HR_E_TIMEOUT, "%s did not come within %lld ms", what,
                             (long long)(c->patience_ns / 1000000));
        else if (!wait_for_any(c, deadline_ns))
            status = never(step, what);
        hr_progress(c);
        if (status != HR_OK || ready(arg))
            break;
    }
    int64_t end_ns = hr_clock_ns();
    c->waited_ns += (uint64_t)(end_ns - start_ns);
    hr_trace_emit(c, &(hr_trace_event){HR_TRACE_WAIT, -1, start_ns, end_ns, 0});
    return status;
}

static bool is_reading(const hr_cache *cache)
{
    for (int32_t p = 0; p < cache->n_tiered; p++)
        if (cache->tiered[p].ring.coming > 0)
            return true;
    return false;
}

/* What has ended is taken back, nothing new is read. */
void hr_progress_drain_reads(hr_cache *cache)
{
    take_back(cache->context);
    while (is_reading(cache) && wait_for_any(cache->context, INT64_MAX))
        take_back(cache->context);
}

static bool is_quiet(const hr_cache *cache)
{
    for (int32_t p = 0; p < cache->n_tiered; p++) {
        const struct hr_tiered *t = &cache->tiered[p];
        if (t->ring.coming > 0 || t->lower.writing > 0 || t->lower.first_leaving != HR_BLOCK_NONE)
            return false;
    }
    return true;
}

static uint64_t bytes_moved(const hr_context *c)
{
    struct hr_mover_counts counts = hr_mover_counts(c->tier->mover);
    return counts.read_bytes + counts.write_bytes;
}

bool hr_progress_drain(hr_cache *cache, int64_t patience_ns)
{
    hr_context *c = cache->context;
    hr_progress(c);
    while (!is_quiet(cache)) {
        int64_t now_ns = hr_clock_ns(), left_ns = INT64_MAX - now_ns;
        int64_t deadline_ns = now_ns + (patience_ns < left_ns ? patience_ns : left_ns);
        uint64_t before = bytes_moved(c);
        bool any = wait_for_any(c, deadline_ns);
        hr_progress(c);
        if (!any || (bytes_moved(c) == before && hr_clock_ns() >= deadline_ns))
            return is_quiet(cache);
    }
    return true;
}

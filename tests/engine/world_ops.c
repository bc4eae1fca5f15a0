/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/residency.h"
#include "tests/engine/scheduler.h"

/* Values that all three types hold exactly, so that the model can keep floats. */
static float value(void)
{
    return (float)world_pick(-64, 64) / 32.0f;
}

static void fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value();
}

static int64_t total(const int64_t *counts, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

/* ---- Sequences ---- */

/* V rows that no token owns are zero, unless they belong to another sequence. */
static void expect_zero_tail(struct world *w, const struct model_seq *m)
{
    int64_t fill = m->length % HR_BLOCK_TOKENS, last = m->length / HR_BLOCK_TOKENS;
    if (w->o.kind == WORLD_SCHEDULED)
        sched_drain();
    for (int l = 0; l < WORLD_LAYERS && fill > 0 && !m->seq->foreign_tail; l++) {
        const struct hr_geom *g = hr_cache_geom(w->cache, l);
        const struct hr_blocks *pool = hr_cache_pool(w->cache, l);
        const struct hr_block *block = &pool->all[hr_seq_blocks(m->seq, l)[last]];
        size_t row_bytes = (size_t)g->dim * hr_dtype_bytes(g->dtype);
        bool there = block->life.device == HR_LIFE_THERE;
        for (int32_t h = 0; h < g->kv_heads && block->life.refs == 1 && there; h++) {
            unsigned char *page = hr_page_addr(g, &pool->slots.view, block->slot, h);
            unsigned char *v = page + hr_page_bytes(g) / 2;
            for (size_t i = (size_t)fill * row_bytes; i < HR_BLOCK_TOKENS * row_bytes; i++)
                if (v[i] != 0)
                    world_die("V rows past the fill are not zero", w->c);
        }
    }
}

static void expect_length(struct world *w, const struct model_seq *m)
{
    if (hr_seq_length(m->seq) != m->length)
        world_die("length differs", w->c);
    if (!m->in_step)
        expect_zero_tail(w, m);
}

void world_create(struct world *w, struct model_seq *m)
{
    if (m->seq)
        return;
    if (hr_seq_create(w->cache, &m->seq) != HR_OK)
        world_die("create", w->c);
    m->length = 0;
}

void world_fork(struct world *w, struct model_seq *parent, struct model_seq *child)
{
    if (!parent->seq || child->seq || parent == child)
        return;
    int64_t length = world_pick(0, parent->length);
    hr_status status = hr_seq_fork(parent->seq, length, &child->seq);
    if (parent->in_step) {
        if (status != HR_E_BUSY || child->seq)
            world_die("fork of a busy sequence", w->c);
        return;
    }
    if (status != HR_OK)
        world_die("fork", w->c);
    child->length = length;
    for (int l = 0; l < WORLD_LAYERS; l++) {
        size_t bytes = sizeof(float) * (size_t)length * (size_t)world_width(&w->layers[l]);
        memcpy(child->k[l], parent->k[l], bytes);
        memcpy(child->v[l], parent->v[l], bytes);
    }
    expect_length(w, child);
}

void world_truncate(struct world *w, struct model_seq *m)
{
    if (!m->seq)
        return;
    int64_t length = world_pick(0, 2) ? world_pick(m->length - m->length / 8, m->length)
                                      : world_pick(0, m->length);
    hr_status status = hr_seq_truncate(m->seq, length);
    if (m->in_step ? status != HR_E_BUSY : status != HR_OK)
        world_die("truncate", w->c);
    if (!m->in_step)
        m->length = length;
    expect_length(w, m);
}

void world_destroy(struct world *w, struct model_seq *m)
{
    if (!m->seq)
        return;
    hr_status status = hr_seq_destroy(&m->seq);
    if (m->in_step ? status != HR_E_BUSY || !m->seq : status != HR_OK || m->seq)
        world_die("destroy", w->c);
}

void world_advise(struct world *w, struct model_seq *m)
{
    static const hr_advice often[] = {HR_ADVISE_NORMAL, HR_ADVISE_PARK, HR_ADVISE_WARM};
    if (!m->seq || !world_capped(w))
        return;
    hr_advice advice = world_pick(0, 9) ? often[world_pick(0, 2)] : HR_ADVISE_PIN;
    hr_status status = hr_seq_advise(m->seq, advice);
    if (m->in_step ? status != HR_E_BUSY : status != HR_OK)
        world_die("advise", w->c);
}

void world_evict(struct world *w, struct model_seq *m)
{
    if (!m->seq || m->in_step || !world_capped(w) || m->length == 0)
        return;
    int64_t n = hr_blocks_of(m->length), first = world_pick(0, n - 1);
    hr_residency_evict(m->seq, (int32_t)world_pick(0, WORLD_LAYERS - 1), first,
                       world_pick(first, n));
}

/* ---- Steps ---- */

void world_begin(struct world *w, struct open_step *s)
{
    hr_seq *seqs[WORLD_BATCH];
    bool taken[1024] = {false};
    s->n = 0;
    for (int64_t i = 0, n = world_pick(0, w->o.batch); i < n; i++) {
        int32_t at = (int32_t)world_pick(0, w->o.seqs - 1);
        struct model_seq *m = &w->seqs[at];
        if (!m->seq || m->in_step || m->idle || taken[at])
            continue;
        int64_t room = m->most - m->length;
        room = room < w->o.new_max ? room : w->o.new_max;
        int64_t n_new = world_pick(0, 3) && !w->o.prefill ? world_pick(0, room < 6 ? room : 6)
                                                          : world_pick(0, room);
        taken[at] = true;
        seqs[s->n] = m->seq;
        s->members[s->n] = at;
        s->n_new[s->n] = n_new;
        s->n_query[s->n++] = world_pick(0, 2) ? n_new : world_pick(0, n_new + 8);
    }
    hr_batch batch = {.struct_size = sizeof(batch),
                      .n_seqs = s->n,
                      .seqs = seqs,
                      .n_new = s->n_new,
                      .n_query = s->n_query};
    int64_t start_ns = hr_clock_ns();
    hr_status status = hr_step_begin(s->step, &batch);
    s->spent_ns = hr_clock_ns() - start_ns;
    if (status == HR_E_BUDGET) {
        w->refused++;
        return;
    }
    if (status != HR_OK)
        world_die("begin", w->c);
    memset(s->appended, 0, sizeof(s->appended));
    s->open = true;
    s->cancelled = false;
    for (int32_t i = 0; i < s->n; i++)
        w->seqs[s->members[i]].in_step = true;
}

void world_abort(struct world *w, struct open_step *s)
{
    if (hr_step_abort(s->step) != HR_OK)
        world_die("abort", w->c);
    s->open = false;
    for (int32_t i = 0; i < s->n; i++) {
        w->seqs[s->members[i]].in_step = false;
        expect_length(w, &w->seqs[s->members[i]]);
    }
}

/* Whether the call did its work. A step may fail because it was cancelled, or because the disk did;
 * then it ends. */
static bool worked(struct world *w, struct open_step *s, hr_status status, const char *what)
{
    if (status == HR_OK)
        return true;
    bool excused = (status == HR_E_CANCELLED && s->cancelled) ||
                   (status == HR_E_IO && sched_counted.errors > 0);
    if (!excused)
        world_die(what, w->c);
    sched_drain();
    world_abort(w, s);
    w->failed++;
    return false;
}

/* False: the step has ended. */
static bool append_layer(struct world *w, struct open_step *s, int l)
{
    int32_t width = world_width(&w->layers[l]);
    int64_t rows = total(s->n_new, s->n), row = 0;
    hr_append_args args = {
        .struct_size = sizeof(args), .dtype = HR_FP32, .k = w->rows[0], .v = w->rows[1]};
    fill(w->rows[0], rows * width);
    fill(w->rows[1], rows * width);
    for (int32_t i = 0; i < s->n; i++) {
        struct model_seq *m = &w->seqs[s->members[i]];
        size_t bytes = sizeof(float) * (size_t)(s->n_new[i] * width);
        memcpy(m->k[l] + m->length * width, w->rows[0] + row * width, bytes);
        memcpy(m->v[l] + m->length * width, w->rows[1] + row * width, bytes);
        row += s->n_new[i];
    }
    int64_t start_ns = hr_clock_ns();
    hr_status status = hr_step_append(s->step, l, &args);
    s->spent_ns += hr_clock_ns() - start_ns;
    s->appended[l] = worked(w, s, status, "append");
    return s->appended[l];
}

/* What one sequence must give, from its flat arrays. */
static void attend_flat(struct world *w, int l, const struct model_seq *m, int64_t n_kv,
                        const hr_attend_args *args, int64_t n_q, int64_t row, float *out)
{
    const hr_layer_options *layer = &w->layers[l];
    int64_t cu_q[2] = {0, n_q}, cu_k[2] = {0, n_kv}, width = layer->q_heads * layer->dim_k;
    hr_attention_args flat = {
        .struct_size = sizeof(flat),
        .layer = *layer,
        .n_seqs = 1,
        .cu_seqlens_q = cu_q,
        .cu_seqlens_k = cu_k,
        .append = {.struct_size = sizeof(flat.append),
                   .dtype = HR_FP32,
                   .k = m->k[l],
                   .v = m->v[l]},
        .attend = *args,
    };
    flat.attend.q = (const float *)args->q + row * width;
    flat.attend.out = out;
    flat.attend.lse = NULL;
    if (hr_attention(w->flat, &flat) != HR_OK)
        world_die("flat", w->flat);
}

static void expect_flat(struct world *w, const struct open_step *s, int l,
                        const hr_attend_args *args)
{
    const hr_layer_options *layer = &w->layers[l];
    int64_t width = layer->q_heads * layer->dim_k, row = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const struct model_seq *m = &w->seqs[s->members[i]];
        int64_t n_kv = m->length + s->n_new[i];
        attend_flat(w, l, m, n_kv, args, s->n_query[i], row, w->rows[3]);
        if (memcmp(w->rows[3], w->rows[1] + row * width,
                   sizeof(float) * (size_t)(s->n_query[i] * width)) != 0) {
            printf("layer %d, %lld queries, %lld keys, kv_heads %d, q_heads %d, dim %d, dtype %d, "
                   "window %lld\n",
                   l, (long long)s->n_query[i], (long long)n_kv, layer->kv_heads, layer->q_heads,
                   layer->dim_k, layer->dtype, (long long)layer->window);
            world_die("bits differ from the flat model", w->c);
        }
        row += s->n_query[i];
    }
}

static void attend_layer(struct world *w, struct open_step *s, int l)
{
    const hr_layer_options *layer = &w->layers[l];
    int64_t width = layer->q_heads * layer->dim_k, rows = total(s->n_query, s->n);
    static float sink_logits[8];
    hr_attend_args args = {
        .struct_size = sizeof(args),
        .mask = world_pick(0, 3) ? HR_MASK_CAUSAL : HR_MASK_FULL,
        .q_dtype = HR_FP32,
        .out_dtype = HR_FP32,
        .q = w->rows[0],
        .out = w->rows[1],
        .lse = w->rows[2],
        .softcap = world_pick(0, 3) ? 0 : 3.0f,
        .sink_logits = world_pick(0, 3) ? NULL : sink_logits,
    };
    fill(sink_logits, 8);
    fill(w->rows[0], rows * width);
    memset(w->rows[1], 0xff, sizeof(float) * (size_t)(rows * width));
    int64_t start_ns = hr_clock_ns();
    hr_status status = hr_step_attend(s->step, l, &args);
    if (status == HR_OK && hr_step_wait(s->step, l, INT64_MAX) != HR_OK)
        world_die("wait", w->c);
    s->spent_ns += hr_clock_ns() - start_ns;
    if (!worked(w, s, status, "attend"))
        return;
    expect_flat(w, s, l, &args);
    w->attends++;
}

void world_forward(struct world *w, struct open_step *s, int l)
{
    if (s->appended[l] || append_layer(w, s, l))
        attend_layer(w, s, l);
}

void world_layer(struct world *w, struct open_step *s)
{
    int l = (int)world_pick(0, WORLD_LAYERS - 1);
    if (world_capped(w) && world_pick(0, 99) == 0) {
        hr_step_cancel(s->step);
        s->cancelled = true;
    }
    if (!s->appended[l] && !append_layer(w, s, l))
        return;
    if (world_pick(0, 1))
        attend_layer(w, s, l);
}

void world_commit(struct world *w, struct open_step *s)
{
    int64_t kept[WORLD_BATCH];
    bool all = world_pick(0, 1);
    for (int l = 0; l < WORLD_LAYERS; l++)
        if (!s->appended[l] && !append_layer(w, s, l))
            return;
    for (int32_t i = 0; i < s->n; i++)
        kept[i] = all ? s->n_new[i] : world_pick(0, s->n_new[i]);
    hr_commit_args args = {.struct_size = sizeof(args),
                           .kept = all && world_pick(0, 1) ? NULL : kept};
    int64_t start_ns = hr_clock_ns();
    if (hr_step_commit(s->step, &args) != HR_OK)
        world_die("commit", w->c);
    s->spent_ns += hr_clock_ns() - start_ns;
    s->open = false;
    for (int32_t i = 0; i < s->n; i++) {
        struct model_seq *m = &w->seqs[s->members[i]];
        m->in_step = false;
        m->length += kept[i];
        expect_length(w, m);
    }
}

/* ---- The budget ---- */

static uint64_t budget(const struct world *w)
{
    hr_stats stats = {.struct_size = sizeof(stats)};
    if (hr_context_stats(w->c, &stats) != HR_OK)
        world_die("stats", w->c);
    return stats.kv_bytes_total;
}

void world_budget(struct world *w)
{
    uint64_t before = budget(w), most = w->c->dev->arena_bytes >> 21;
    uint64_t want = (uint64_t)world_pick(world_pick(0, 3) ? (int64_t)most / 2 : 1, (int64_t)most);
    bool open = false;
    for (int i = 0; i < WORLD_STEPS; i++) {
        if (w->steps[i].open && world_pick(0, 7))
            world_commit(w, &w->steps[i]);
        open = open || w->steps[i].open;
    }
    hr_status status = hr_context_set_device_bytes(w->c, want << 21);
    bool excused = want << 21 < before &&
                   (status == HR_E_BUDGET || (status == HR_E_IO && sched_counted.errors > 0));
    if (open ? status != HR_E_BUSY : status != HR_OK && !excused)
        world_die("a change of the budget", w->c);
    if (budget(w) != (status == HR_OK ? want << 21 : before))
        world_die("the budget is another one", w->c);
    w->budgets += status == HR_OK && want << 21 != before;
}

/* ---- One of them ---- */

static void sometimes(struct world *w, struct model_seq *m)
{
    int64_t choice = world_pick(0, 11);
    if (choice < 5)
        world_advise(w, m);
    else if (choice < 8)
        world_evict(w, m);
    else if (choice < 10)
        world_budget(w);
    else if (world_capped(w))
        hr_poll(w->c, 0);
}

void world_step(struct world *w)
{
    struct model_seq *m = &w->seqs[world_pick(0, w->o.seqs - 1)];
    struct open_step *s = &w->steps[world_pick(0, WORLD_STEPS - 1)];
    int64_t choice = world_pick(0, 99);
    if (choice < 8)
        world_create(w, m);
    else if (choice < 20)
        world_fork(w, m, &w->seqs[world_pick(0, w->o.seqs - 1)]);
    else if (choice < 26)
        world_truncate(w, m);
    else if (choice < 30)
        world_destroy(w, m);
    else if (choice < 36)
        sometimes(w, m);
    else if (!s->open)
        world_begin(w, s);
    else if (choice < 75)
        world_layer(w, s);
    else if (choice < 94)
        world_commit(w, s);
    else
        world_abort(w, s);
    if (w->o.kind == WORLD_SCHEDULED)
        world_check_races();
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/life_model.h"

#include <string.h>

#define LENGTH(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum {
    FRESH = 255, /* a row that was never written before */
    RING_SLOTS = 1,
};

static void wrong(struct life_model *m, const char *what)
{
    if (!m->wrong)
        m->wrong = what;
}

bool life_holds(const struct life_seq *q, int i)
{
    return q->step != LIFE_STEP_NONE && i >= q->first;
}

static uint32_t owners_of(const struct life_world *w, int b)
{
    uint32_t n = 0;
    for (int s = 0; s < LIFE_SEQS; s++) {
        const struct life_seq *q = &w->seq[s];
        for (int i = 0; i < q->n; i++)
            n += q->entry[i].block == b;
        n += q->step == LIFE_STEP_REPLACES && q->old.block == b;
    }
    return n;
}

static bool has_copy(const struct hr_life *l)
{
    return l->device == HR_LIFE_THERE || l->lower == HR_LIFE_THERE;
}

/* Whether rows of a block are what an entry must see; one of another block does not mind. */
static bool entry_fits(const struct life_entry *e, int b, const struct life_rows *rows)
{
    return e->block != b || memcmp(&e->rows, rows, e->n) == 0;
}

/* Whether rows are what every owner of a block must see. */
static bool fits(const struct life_world *w, int b, const struct life_rows *rows)
{
    bool all = true;
    for (int s = 0; s < LIFE_SEQS; s++) {
        const struct life_seq *q = &w->seq[s];
        for (int i = 0; i < q->n; i++)
            all &= entry_fits(&q->entry[i], b, rows);
        all &= q->step != LIFE_STEP_REPLACES || entry_fits(&q->old, b, rows);
    }
    return all;
}

static void cut_entry(struct life_entry *e, int n)
{
    e->n = (uint8_t)(e->n < n ? e->n : n);
    memset(e->rows.id + e->n, 0, (size_t)(LIFE_ROWS - e->n));
}

static bool allows(const struct life_model *m, const struct life_world *w, int b,
                   enum hr_life_event event)
{
    struct hr_life life = w->block[b].life;
    return hr_life_apply_without(&life, event, m->guard);
}

static void give_back(struct life_model *m, bool *slot, struct life_rows *rows, bool used)
{
    if (used)
        wrong(m, "a slot is given back while a transfer uses it");
    *slot = false;
    *rows = (struct life_rows){{0}};
}

/* Applies an event, and gives back the slots that the block has no more use for. */
static bool act(struct life_model *m, struct life_world *w, int b, enum hr_life_event event)
{
    static const bool ends[HR_LIFE_EVENTS] = {
        [HR_LIFE_WRITTEN] = true,      [HR_LIFE_WRITE_FAILED] = true, [HR_LIFE_FETCHED] = true,
        [HR_LIFE_FETCH_FAILED] = true, [HR_LIFE_STREAMED] = true,
    };
    struct life_block *x = &w->block[b];
    bool free = x->life.phase == HR_LIFE_FREE, owned = x->life.refs > 0;
    bool moves = x->evict.runs || x->fetch.runs;
    if (!hr_life_apply_without(&x->life, event, m->guard))
        return false;
    m->applied[event]++;
    if (!owned && !ends[event] && !(free && event == HR_LIFE_TAKE))
        wrong(m, "a block without an owner takes an event");
    if (x->device_slot && x->life.device == HR_LIFE_NONE)
        give_back(m, &x->device_slot, &x->device, moves);
    if (x->lower_slot && x->life.lower == HR_LIFE_NONE)
        give_back(m, &x->lower_slot, &x->lower, moves || x->stream.runs);
    return true;
}

/* Moves: what a cache may ask of any block at any time. */

static bool has_room(const struct life_model *m, const struct life_world *w,
                     enum hr_life_event event)
{
    int device = 0, lower = 0, ring = 0;
    for (int b = 0; b < m->size->blocks; b++) {
        device += w->block[b].device_slot;
        lower += w->block[b].lower_slot;
        ring += w->block[b].stream.runs;
    }
    if (event == HR_LIFE_PLACE || event == HR_LIFE_FETCH)
        return device < m->size->device_slots;
    if (event == HR_LIFE_EVICT)
        return lower < m->size->lower_slots;
    return event != HR_LIFE_STREAM || ring < RING_SLOTS;
}

struct route {
    struct life_transfer *transfer;
    const struct life_rows *from;
    struct life_rows *to; /* NULL: into the ring, or nowhere */
};

static struct route route_of(struct life_block *x, enum hr_life_event event)
{
    switch (event) {
    case HR_LIFE_EVICT:
    case HR_LIFE_WRITTEN:
        return (struct route){&x->evict, &x->device, &x->lower};
    case HR_LIFE_WRITE_FAILED:
        return (struct route){&x->evict, &x->device, NULL};
    case HR_LIFE_FETCH:
    case HR_LIFE_FETCHED:
        return (struct route){&x->fetch, &x->lower, &x->device};
    case HR_LIFE_FETCH_FAILED:
        return (struct route){&x->fetch, &x->lower, NULL};
    default:
        return (struct route){&x->stream, &x->lower, NULL};
    }
}

static void take_slot(struct life_model *m, bool *slot)
{
    if (*slot)
        wrong(m, "a block gets a second slot in a tier: one leaks");
    *slot = true;
}

static void begin_transfer(struct life_model *m, struct life_block *x, enum hr_life_event event)
{
    struct route r = route_of(x, event);
    if (r.transfer->runs)
        wrong(m, "a transfer of a block is begun twice");
    *r.transfer = (struct life_transfer){true, *r.from};
}

static void try_move(struct life_model *m, const struct life_world *from, int b,
                     enum hr_life_event event)
{
    if (!allows(m, from, b, event) || !has_room(m, from, event))
        return;
    struct life_world w = *from;
    struct life_block *x = &w.block[b];
    uint8_t source = event == HR_LIFE_EVICT ? x->life.device : x->life.lower;
    bool transfer = event == HR_LIFE_EVICT || event == HR_LIFE_FETCH || event == HR_LIFE_STREAM;
    act(m, &w, b, event);
    if (event == HR_LIFE_PLACE || event == HR_LIFE_FETCH)
        take_slot(m, &x->device_slot);
    if (event == HR_LIFE_EVICT)
        take_slot(m, &x->lower_slot);
    if (transfer && source != HR_LIFE_THERE)
        wrong(m, "a transfer reads a copy that is not there");
    if (transfer)
        begin_transfer(m, x, event);
    m->emit(m, &w, (struct life_label){hr_life_event_name(event), b, -1, -1});
}

/* What arrives is what lay in the source when the transfer began, or, late, what lies there now. */
static void end_transfer(struct life_model *m, struct life_world *w, int b,
                         enum hr_life_event event, bool late)
{
    struct route r = route_of(&w->block[b], event);
    struct life_rows rows = late ? *r.from : r.transfer->early;
    if (!r.transfer->runs)
        wrong(m, "a transfer ends that does not run");
    *r.transfer = (struct life_transfer){0};
    if (r.to)
        *r.to = rows;
    if (event == HR_LIFE_STREAMED && !fits(w, b, &rows))
        wrong(m, "wrong rows come into the ring");
    if (!act(m, w, b, event))
        wrong(m, "the end of a transfer is refused");
    const struct hr_life *l = &w->block[b].life;
    if (r.to && l->refs > 0 && (event == HR_LIFE_WRITTEN ? l->lower : l->device) != HR_LIFE_THERE)
        wrong(m, "a transfer that ended well leaves no copy");
}

static void try_end(struct life_model *m, const struct life_world *from, int b,
                    enum hr_life_event event)
{
    struct life_world w = *from;
    struct route r = route_of(&w.block[b], event);
    if (!r.transfer->runs && !allows(m, from, b, event))
        return;
    bool same = memcmp(&r.transfer->early, r.from, sizeof *r.from) == 0;
    for (int late = 0; late < (same ? 1 : 2); late++) {
        w = *from;
        end_transfer(m, &w, b, event, late);
        m->emit(m, &w, (struct life_label){hr_life_event_name(event), b, -1, -1});
    }
}

/* Steps. */

/* A step takes a new block: behind the others, or in place of the last one when that has room but
 * may not be held. Any block is tried, not only a free one. */
static void try_take(struct life_model *m, const struct life_world *from, int s, int b)
{
    struct life_world w = *from;
    struct life_seq *q = &w.seq[s];
    const struct life_entry *last = &q->entry[q->n > 0 ? q->n - 1 : 0];
    bool partial = q->step == LIFE_STEP_NONE && q->n > 0 && last->n < m->size->rows;
    if (partial ? allows(m, from, last->block, HR_LIFE_HOLD) : q->n == m->size->blocks)
        return;
    if (!act(m, &w, b, HR_LIFE_TAKE))
        return;
    if (partial) {
        q->old = *last;
        q->step = LIFE_STEP_REPLACES;
        q->first = --q->n;
    } else if (q->step == LIFE_STEP_NONE) {
        q->step = LIFE_STEP_NEW;
        q->first = q->n;
    }
    q->entry[q->n++] = (struct life_entry){.block = (uint8_t)b};
    m->emit(m, &w, (struct life_label){"TAKE", b, s, -1});
}

/* Also tried when the last block is not open, or held already. */
static void try_hold(struct life_model *m, const struct life_world *from, int s)
{
    struct life_world w = *from;
    struct life_seq *q = &w.seq[s];
    if (q->n == 0)
        return;
    int b = q->entry[q->n - 1].block;
    if (!act(m, &w, b, HR_LIFE_HOLD))
        return;
    if (from->block[b].life.held)
        wrong(m, "two steps hold one block");
    q->step = LIFE_STEP_HOLDS;
    q->first = (uint8_t)(q->n - 1);
    q->old = q->entry[q->n - 1];
    m->emit(m, &w, (struct life_label){"HOLD", b, s, -1});
}

/* Appends to entry i: a row, or first the rows of the block that it replaces. */
static void try_write(struct life_model *m, const struct life_world *from, int s, int i)
{
    struct life_world w = *from;
    struct life_seq *q = &w.seq[s];
    struct life_entry *e = &q->entry[i];
    struct life_block *x = &w.block[e->block];
    const struct life_block *source = &w.block[q->old.block];
    bool copies = q->step == LIFE_STEP_REPLACES && i == q->first && e->n == 0;
    if ((copies && source->life.device != HR_LIFE_THERE) || !act(m, &w, e->block, HR_LIFE_WRITE))
        return;
    if (copies && !entry_fits(&q->old, q->old.block, &source->device))
        wrong(m, "wrong rows are copied");
    if (e->n >= m->size->rows)
        wrong(m, "a row is written past the end of its block");
    for (int n = copies ? q->old.n : 1; n > 0 && e->n < m->size->rows; n--, e->n++) {
        e->rows.id[e->n] = copies ? q->old.rows.id[e->n] : FRESH;
        if (x->device_slot)
            x->device.id[e->n] = e->rows.id[e->n];
    }
    if (e->n == m->size->rows && life_holds(q, i) && !act(m, &w, e->block, HR_LIFE_FILL))
        wrong(m, "a block whose last row was written is not full");
    m->emit(m, &w, (struct life_label){"WRITE", e->block, s, -1});
}

/* A step appends to the first of its blocks that has room. All other appends, to blocks without
 * room or of no step, are tried too: they must be refused or do no harm. */
static void try_writes(struct life_model *m, const struct life_world *from, int s)
{
    const struct life_seq *q = &from->seq[s];
    bool done = false;
    for (int i = 0; i < q->n; i++) {
        bool next = life_holds(q, i) && q->entry[i].n < m->size->rows;
        if (!next || !done)
            try_write(m, from, s, i);
        done |= next;
    }
}

/* Events of a step on a block that no step holds, or that has no row yet. */
static void try_stray(struct life_model *m, const struct life_world *from, int s, int i,
                      enum hr_life_event event)
{
    struct life_world w = *from;
    const struct life_entry *e = &w.seq[s].entry[i];
    bool held = life_holds(&w.seq[s], i);
    if (held && (e->n > 0 || event == HR_LIFE_FILL))
        return;
    if (!act(m, &w, e->block, event))
        return;
    if (held && has_copy(&w.block[e->block].life))
        return; /* nothing is lost; but a sequence has no use for a block without rows */
    if (held)
        wrong(m, "a step lets go of a block that has no copy");
    m->emit(m, &w, (struct life_label){hr_life_event_name(event), e->block, s, -1});
}

/* A step ends; of its new rows the sequence keeps the first `kept`. */
static void end_step(struct life_model *m, struct life_world *w, int s, int kept)
{
    struct life_seq *q = &w->seq[s];
    struct life_entry old = q->old;
    bool replaces = q->step == LIFE_STEP_REPLACES, undo = kept == 0, done = true;
    int n = q->first;
    for (int i = q->first; i < q->n; i++) {
        struct life_entry *e = &q->entry[i];
        int before = i == q->first && q->step != LIFE_STEP_NEW ? old.n : 0, rows = e->n;
        int more = kept < rows - before ? kept : rows - before;
        kept -= more;
        cut_entry(e, replaces && undo ? 0 : before + more);
        bool all = e->n == rows && more > 0;
        n += e->n > 0;
        done &= act(m, w, e->block, e->n == 0 ? HR_LIFE_DROP : all ? HR_LIFE_COMMIT : HR_LIFE_BACK);
    }
    if (replaces && undo)
        q->entry[n++] = old;
    else if (replaces)
        done &= act(m, w, old.block, HR_LIFE_DROP);
    if (!done)
        wrong(m, "a step cannot end");
    q->n = (uint8_t)n;
    q->step = LIFE_STEP_NONE;
}

static void try_step_ends(struct life_model *m, const struct life_world *from, int s)
{
    const struct life_seq *q = &from->seq[s];
    int rows = q->step == LIFE_STEP_NEW ? 0 : -q->old.n;
    if (q->step == LIFE_STEP_NONE)
        return;
    for (int i = q->first; i < q->n; i++)
        rows += q->entry[i].n;
    for (int kept = 0; kept == 0 || kept <= rows; kept++) {
        struct life_world w = *from;
        end_step(m, &w, s, kept);
        m->emit(m, &w, (struct life_label){kept ? "commit" : "abort", -1, s, kept ? kept : -1});
    }
}

/* Sequences. */

/* The other sequence, an empty one, becomes the first `length` rows of this one; or not, if a block
 * may not be shared. */
static void try_fork(struct life_model *m, const struct life_world *from, int s, int length)
{
    struct life_world w = *from;
    const struct life_seq *parent = &w.seq[s];
    struct life_seq *child = &w.seq[1 - s];
    int left = length;
    for (; left > 0 && child->n < parent->n; child->n++) {
        struct life_entry *e = &child->entry[child->n];
        *e = parent->entry[child->n];
        if (!act(m, &w, e->block, HR_LIFE_SHARE))
            return;
        cut_entry(e, left);
        left -= e->n;
    }
    m->emit(m, &w, (struct life_label){"fork", -1, s, length});
}

static void truncate_seq(struct life_model *m, struct life_world *w, int s, int length)
{
    struct life_seq *q = &w->seq[s];
    int n = 0;
    for (int i = 0; i < q->n; i++) {
        struct life_entry *e = &q->entry[i];
        cut_entry(e, length);
        length -= e->n;
        n += e->n > 0;
        if (e->n == 0 && !act(m, w, e->block, HR_LIFE_DROP))
            wrong(m, "an owner cannot let go");
    }
    q->n = (uint8_t)n;
}

/* What a truncate inside the last block asks for, before it zeroes the rows past its end; also
 * tried later, and while a step holds the block. */
static void try_reopen(struct life_model *m, const struct life_world *from, int s)
{
    struct life_world w = *from;
    const struct life_seq *q = &w.seq[s];
    const struct life_entry *last = &q->entry[q->n > 0 ? q->n - 1 : 0];
    struct life_block *x = &w.block[last->block];
    if (q->n == 0 || (q->step == LIFE_STEP_NONE && last->n == m->size->rows))
        return;
    if (!act(m, &w, last->block, HR_LIFE_REOPEN))
        return;
    if (x->life.device != HR_LIFE_THERE)
        wrong(m, "rows are zeroed in a copy that is not there");
    if (x->evict.runs)
        wrong(m, "rows are zeroed while they are written below");
    memset(x->device.id + last->n, 0, (size_t)(LIFE_ROWS - last->n));
    m->emit(m, &w, (struct life_label){"REOPEN", last->block, s, -1});
}

static void try_lengths(struct life_model *m, const struct life_world *from, int s)
{
    const struct life_seq *q = &from->seq[s], *other = &from->seq[1 - s];
    int length = 0;
    for (int i = 0; i < q->n; i++)
        length += q->entry[i].n;
    for (int to = 0; q->step == LIFE_STEP_NONE && to < length; to++) {
        struct life_world w = *from;
        truncate_seq(m, &w, s, to);
        m->emit(m, &w, (struct life_label){"truncate", -1, s, to});
    }
    for (int to = 1; other->n == 0 && to <= length; to++)
        try_fork(m, from, s, to);
}

void life_try_all(struct life_model *m, const struct life_world *w)
{
    static const enum hr_life_event moves[] = {HR_LIFE_PLACE,  HR_LIFE_EVICT, HR_LIFE_LEAVE,
                                               HR_LIFE_FORGET, HR_LIFE_FETCH, HR_LIFE_STREAM};
    static const enum hr_life_event ends[] = {HR_LIFE_WRITTEN, HR_LIFE_WRITE_FAILED,
                                              HR_LIFE_FETCHED, HR_LIFE_FETCH_FAILED,
                                              HR_LIFE_STREAMED};
    /* By nobody: on a block without an owner all must be refused. */
    static const enum hr_life_event uses[] = {HR_LIFE_HOLD,   HR_LIFE_WRITE, HR_LIFE_FILL,
                                              HR_LIFE_COMMIT, HR_LIFE_BACK,  HR_LIFE_REOPEN,
                                              HR_LIFE_SHARE,  HR_LIFE_DROP};
    static const enum hr_life_event strays[] = {HR_LIFE_FILL, HR_LIFE_COMMIT, HR_LIFE_BACK};
    for (int b = 0; b < m->size->blocks; b++) {
        for (int i = 0; i < LENGTH(moves); i++)
            try_move(m, w, b, moves[i]);
        for (int i = 0; i < LENGTH(ends); i++)
            try_end(m, w, b, ends[i]);
        for (int i = 0; i < LENGTH(uses) && w->block[b].life.refs == 0; i++)
            try_move(m, w, b, uses[i]);
    }
    for (int s = 0; s < LIFE_SEQS; s++) {
        for (int b = 0; b < m->size->blocks; b++)
            try_take(m, w, s, b);
        try_hold(m, w, s);
        try_writes(m, w, s);
        for (int i = 0; i < w->seq[s].n; i++)
            for (int j = 0; j < LENGTH(strays); j++)
                try_stray(m, w, s, i, strays[j]);
        try_step_ends(m, w, s);
        try_lengths(m, w, s);
        try_reopen(m, w, s);
    }
}

/* What must be true. */

static bool is_zero(const struct hr_life *l)
{
    return !l->phase && !l->device && !l->lower && !l->held && !l->pins && !l->refs;
}

static void check_block(struct life_model *m, const struct life_world *w, int b)
{
    const struct life_block *x = &w->block[b];
    const struct hr_life *l = &x->life;
    bool runs = x->evict.runs || x->fetch.runs || x->stream.runs;
    uint32_t owners = owners_of(w, b);
    if (l->refs != owners)
        wrong(m, "the record has another number of owners than the block");
    if (owners == 0 && (runs ? l->phase != HR_LIFE_DYING || l->held : !is_zero(l)))
        wrong(m, "a block without an owner is neither free nor dying");
    if (x->device_slot != (l->device != HR_LIFE_NONE) ||
        x->lower_slot != (l->lower != HR_LIFE_NONE))
        wrong(m, "a copy is recorded that has no slot");
    if (x->evict.runs != (l->lower == HR_LIFE_COMING) ||
        x->fetch.runs != (l->device == HR_LIFE_COMING) || l->pins != x->fetch.runs + x->stream.runs)
        wrong(m, "a transfer is recorded that does not run");
    if (l->device == HR_LIFE_THERE && !fits(w, b, &x->device))
        wrong(m, "a device copy has wrong rows");
    if (l->lower == HR_LIFE_THERE && !fits(w, b, &x->lower))
        wrong(m, "a lower copy has wrong rows");
    if (owners > 0 && !l->held && !has_copy(l))
        wrong(m, "an owned block has no copy");
    if (l->held && owners > 1)
        wrong(m, "a held block is shared");
    if (l->phase == HR_LIFE_FULL && !l->held)
        wrong(m, "a full block is held by no step");
}

/* A step that could append to its block once must be able to until the block is full. */
static void check_seq(struct life_model *m, struct life_world *w, int s)
{
    const struct life_seq *q = &w->seq[s];
    for (int i = 0; i < q->n; i++) {
        const struct life_entry *e = &q->entry[i];
        struct life_block *x = &w->block[e->block];
        bool next = life_holds(q, i) && e->n < m->size->rows;
        bool may = next && allows(m, w, e->block, HR_LIFE_WRITE);
        if (x->life.held != life_holds(q, i))
            wrong(m, "the record and the steps differ on who holds a block");
        if (e->n > 0 && !has_copy(&x->life))
            wrong(m, "an owned block has no copy");
        if (next && x->ready && !may)
            wrong(m, "a step can no longer append to its block");
        x->ready = may;
    }
}

void life_check(struct life_model *m, struct life_world *w)
{
    for (int b = 0; b < m->size->blocks; b++)
        check_block(m, w, b);
    for (int s = 0; s < LIFE_SEQS; s++)
        check_seq(m, w, s);
    for (int b = 0; b < m->size->blocks; b++)
        w->block[b].ready &= w->block[b].life.held;
}

static void end_transfers(struct life_model *m, struct life_world *w, bool well)
{
    for (int b = 0; b < m->size->blocks; b++) {
        const struct life_block *x = &w->block[b];
        if (x->evict.runs)
            end_transfer(m, w, b, well ? HR_LIFE_WRITTEN : HR_LIFE_WRITE_FAILED, true);
        if (x->fetch.runs)
            end_transfer(m, w, b, well ? HR_LIFE_FETCHED : HR_LIFE_FETCH_FAILED, true);
        if (x->stream.runs)
            end_transfer(m, w, b, HR_LIFE_STREAMED, true);
    }
}

/* Without transfers nothing keeps a step from a block that it holds on the device. */
static void check_ready(struct life_model *m, const struct life_world *w)
{
    for (int b = 0; b < m->size->blocks; b++) {
        const struct hr_life *l = &w->block[b].life;
        if (l->held && l->phase == HR_LIFE_OPEN && l->device == HR_LIFE_THERE &&
            !allows(m, w, b, HR_LIFE_WRITE))
            wrong(m, "a step can never append to its block");
    }
}

void life_check_drain(struct life_model *m, const struct life_world *from)
{
    enum { TRANSFERS_LAST, TRANSFERS_WELL, TRANSFERS_FAIL, ORDERS };
    for (int order = 0; order < ORDERS; order++) {
        struct life_world w = *from;
        if (order != TRANSFERS_LAST) {
            end_transfers(m, &w, order == TRANSFERS_WELL);
            check_ready(m, &w);
        }
        for (int s = 0; s < LIFE_SEQS; s++) {
            if (w.seq[s].step != LIFE_STEP_NONE)
                end_step(m, &w, s, 0);
            truncate_seq(m, &w, s, 0);
        }
        end_transfers(m, &w, true);
        for (int b = 0; b < m->size->blocks; b++)
            if (!is_zero(&w.block[b].life) || w.block[b].device_slot || w.block[b].lower_slot)
                wrong(m, "a block or a slot leaks");
    }
}

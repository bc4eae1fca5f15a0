/* SPDX-License-Identifier: Apache-2.0 */
/* Times a few steps of the model with the run's memory and disks: the first chunk of the document,
 * then a chunk and decode behind as many tokens as the run will have. What stands before those is
 * stored without being computed. Where that would be much, fewer tokens with their share of memory
 * stand for it. */
#include "tools/run_predict.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t stored_most = 512 << 20, measured_bytes = 256 << 20;
/* Memory whose ring holds as many bytes as the disk takes at a time. */
static const uint64_t ram_enough = 64 << 20;

enum { DECODE_STEPS = 4, WARM_ROWS = 64, BLOCK = 128 };

/* Of some steps. */
struct spent {
    double all, attend, waited;
    uint64_t read_bytes;
};

struct calibration {
    struct run run; /* of its own, with the model */
    struct run_costs *costs;
    int64_t rows;   /* of a chunk */
    int64_t length; /* tokens behind which the run ends; fewer where they are many */
    struct spent first, last, decode;
    int64_t decode_keys;
};

static struct spent so_far(const struct run *run)
{
    struct model_run_times t = model_run_times(run->forward);
    hr_stats stats = {.struct_size = sizeof(stats)};
    hr_context_stats(model_run_context(run->forward), &stats);
    return (struct spent){(double)run_now_ns() * 1e-9, (double)t.attend_ns * 1e-9,
                          (double)stats.waited_ns * 1e-9, stats.disk_read_bytes};
}

/* Attention that waits computes nothing meanwhile. */
static struct spent since(const struct run *run, struct spent before)
{
    struct spent s = so_far(run);
    s.all -= before.all;
    s.waited -= before.waited;
    s.attend -= before.attend + s.waited;
    s.attend = s.attend > 0 ? s.attend : 0;
    s.read_bytes -= before.read_bytes;
    return s;
}

static const struct tokens *text_of(const struct run *run)
{
    return run->document.n || run->options.n_branches == 0 ? &run->document
                                                           : &run->options.branches[0].input;
}

static uint64_t token_bytes(const struct run *run, const struct model_dims *d)
{
    return (uint64_t)d->layers * 2 * (uint64_t)d->kv_heads * (uint64_t)d->head *
           (run->options.kv_dtype == HR_FP32 ? 4 : 2);
}

static uint64_t share_of(uint64_t ram, double share, uint64_t least)
{
    uint64_t part = (uint64_t)((double)ram * share);
    least = least > ram_enough ? least : ram_enough;
    part = part > least ? part : least;
    return part < ram ? part : ram;
}

/* The run's options, for the first chunk alone; of its branches only how many there are. */
static bool take_options(struct calibration *c, const struct run *of, uint64_t least, double share)
{
    struct run_options *o = &c->run.options;
    const struct tokens *text = text_of(of);
    *o = of->options;
    o->text = o->json = o->trace = o->dump_tokens = o->dump_logits = NULL;
    o->progress = o->compare = false;
    o->beyond_context = true;
    o->generate = DECODE_STEPS;
    o->n_branches = o->n_branches < RUN_BATCH ? o->n_branches : RUN_BATCH - 1;
    o->branches = calloc((size_t)o->n_branches + 1, sizeof(*o->branches));
    for (int i = 0; i < o->n_disks; i++) {
        o->disks[i].path = strdup(of->options.disks[i].path);
        if (o->disks[i].bytes > 3 * stored_most)
            o->disks[i].bytes = 3 * stored_most;
    }
    if (share < 1)
        o->kv_ram = share_of(o->kv_ram, share, least);
    for (int64_t i = 0; o->branches && i < c->rows; i++)
        if (!tokens_push(&c->run.document, text->ids[i]))
            return false;
    return o->branches != NULL;
}

static bool warm_up(struct run *run)
{
    int64_t rows = (int64_t)run->document.n < WARM_ROWS ? (int64_t)run->document.n : WARM_ROWS;
    hr_seq *seq = model_run_seq(run->forward, run->error);
    bool ok = seq && model_run_step(run->forward, &seq, &rows, 1, run->document.ids, run->error);
    if (ok)
        model_run_logits(run->forward, 0, rows, run->logits);
    hr_seq_destroy(&seq);
    return ok;
}

/* The document's first chunk, as run does it. */
static bool time_first(struct calibration *c)
{
    struct spent before = so_far(&c->run);
    bool ok = run_document(&c->run);
    c->first = since(&c->run, before);
    return ok;
}

static bool time_last(struct calibration *c)
{
    struct run *run = &c->run;
    int64_t stored = c->length - 2 * c->rows;
    if (stored > 0 && !model_run_store(run->forward, run->seq, stored, run->error))
        return false;
    if (stored < 0 && hr_seq_truncate(run->seq, c->length - c->rows) != HR_OK)
        return run_fail(run, "a sequence could not be cut");
    hr_poll(model_run_context(run->forward), INT64_MAX);
    struct spent before = so_far(run);
    bool ok = model_run_step(run->forward, &run->seq, &c->rows, 1, run->document.ids, run->error);
    c->last = since(run, before);
    return ok;
}

static bool decode_step(struct run *run, hr_seq **seqs, int32_t n)
{
    int64_t ones[RUN_BATCH];
    int32_t ids[RUN_BATCH];
    for (int32_t i = 0; i < n; i++) {
        ones[i] = 1;
        ids[i] = run->document.ids[0];
    }
    if (!model_run_step(run->forward, seqs, ones, n, ids, run->error))
        return false;
    model_run_logits(run->forward, 0, n, run->logits);
    for (int32_t i = 0; i < n; i++)
        run_argmax(run, run->logits + i * gemm_stride(run->model->dims.vocab));
    return true;
}

static bool time_decode(struct calibration *c)
{
    struct run *run = &c->run;
    hr_seq *seqs[RUN_BATCH] = {NULL};
    int32_t n = run->options.n_branches > 0 ? run->options.n_branches : 1;
    bool ok = true;
    for (int32_t i = 0; ok && i < n; i++)
        ok = (seqs[i] = model_run_fork(run->forward, run->seq, run->error)) != NULL;
    ok = ok && decode_step(run, seqs, n); /* copies the last blocks */
    struct spent before = so_far(run);
    for (int32_t i = 0; ok && i < DECODE_STEPS; i++) {
        ok = decode_step(run, seqs, n);
        c->decode_keys += n * hr_seq_length(seqs[0]);
    }
    c->decode = since(run, before);
    c->costs->seqs = n;
    for (int32_t i = 0; i < n; i++)
        hr_seq_destroy(&seqs[i]);
    return ok;
}

/* A line through the two chunks where they are far enough apart, else through the origin. */
static void fit_attention(const struct calibration *c, struct run_costs *costs)
{
    double rows = (double)c->rows, near = rows * (rows + 1) / 2;
    double far = near + rows * (double)(c->length - c->rows);
    costs->row = 0;
    costs->pair = c->last.attend / far;
    if (far < 2 * near || c->last.attend <= c->first.attend)
        return;
    double slope = (c->last.attend - c->first.attend) / (far - near);
    if (slope * near > c->first.attend)
        return;
    costs->pair = slope;
    costs->row = (c->first.attend - slope * near) / rows;
}

static void fit(const struct calibration *c, struct run_costs *costs)
{
    const struct spent *d = &c->decode;
    double rows = (double)c->rows;
    costs->document_row = (c->first.all - c->first.attend - c->first.waited) / rows;
    costs->rows = c->rows;
    costs->step = c->last.all - c->last.attend - c->last.waited;
    costs->decode = (d->all - d->attend - d->waited) / DECODE_STEPS;
    costs->key = d->attend / (double)c->decode_keys;
    costs->tokens = c->length;
    double read =
        (double)d->read_bytes / d->all; /* held back by the disk, or faster than measured */
    bool bound = d->waited > 0.1 * d->all;
    costs->stream = bound || read > costs->disk.read ? read : costs->disk.read;
    fit_attention(c, costs);
}

static bool time_all(struct calibration *c)
{
    return run_prepare(&c->run) && warm_up(&c->run) && time_first(c) && time_last(c) &&
           time_decode(c);
}

bool run_calibrate(struct run *run, const struct model_dims *dims, uint64_t least,
                   struct run_costs *costs)
{
    struct calibration c = {.run = {.start_ns = run_now_ns()}, .costs = costs};
    const struct run_options *o = &run->options;
    int64_t n = (int64_t)text_of(run)->n, most = (int64_t)(stored_most / token_bytes(run, dims));
    *costs = (struct run_costs){.seqs = 1};
    if (n == 0)
        return run_fail(run, "there is no token to read");
    if (o->n_disks &&
        !disk_rates_measure(o->disks, o->n_disks, o->io, measured_bytes, &costs->disk))
        return run_fail(run, "%.400s", hr_error_text(NULL));
    int64_t chunk = o->chunk > WARM_ROWS ? o->chunk : WARM_ROWS;
    c.rows = n < chunk ? n : chunk;
    c.length = n < most ? n : most;
    /* A chunk that begins with a block, as the run's do, takes no block more than theirs. */
    c.length = c.length > c.rows ? c.rows + (c.length - c.rows) / BLOCK * BLOCK : c.rows;
    bool ok = take_options(&c, run, least, (double)c.length / (double)n) ||
              run_fail(&c.run, "out of memory");
    ok = ok && time_all(&c);
    if (ok)
        fit(&c, costs);
    else
        run_fail(run, "timing a few steps: %.400s (--no-measure leaves the times out)",
                 c.run.error);
    costs->seconds = (double)(run_now_ns() - c.run.start_ns) * 1e-9;
    run_close(&c.run);
    return ok;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a run will read and write, before it runs: all its steps are planned on a context that
 * stores, reads and computes nothing (hr_options.dry_run). Answers are taken to be as long as they
 * may be. */
#include "tools/run.h"

#include <stdlib.h>
#include <string.h>

struct dry {
    const struct run_options *options;
    hr_context *context;
    hr_cache *cache;
    hr_step *step;
    hr_seq *seq;
    hr_seq *forks[RUN_BATCH];
    int64_t least;        /* tokens of a step that takes the tile path */
    run_planned_fn *each; /* or NULL */
    void *user;
    struct run_planned planned;       /* the step that is being planned */
    uint64_t read_bytes, write_bytes; /* before it */
    bool no_memory;
};

static int64_t rows_max(const struct run *run)
{
    int64_t longest = (int64_t)run->document.n;
    for (int i = 0; i < run->options.n_branches; i++) {
        int64_t n = (int64_t)run->options.branches[i].input.n;
        longest = n > longest ? n : longest;
    }
    int64_t rows = longest < 2 * run->options.chunk ? longest : 2 * run->options.chunk;
    return rows < 1024 ? 1024 : rows;
}

static bool open_dry(struct dry *d, const struct run *run, const struct model_dims *dims,
                     uint64_t kv_ram)
{
    const struct run_options *o = &run->options;
    hr_options open = {.struct_size = sizeof(open), .threads = 1, .dry_run = true};
    open.device_bytes = kv_ram;
    open.disks = o->n_disks ? o->disks : NULL;
    open.n_disks = o->n_disks;
    open.debug_wave_blocks = o->wave_blocks;
    d->options = o;
    hr_layer_options *layers = model_run_layers(dims, o->kv_dtype);
    d->no_memory = !layers;
    hr_cache_options cache = {sizeof(cache), sizeof(*layers), layers, dims->layers};
    hr_step_limits limits = {.struct_size = sizeof(limits), .seqs = RUN_BATCH};
    limits.new_tokens = limits.query_tokens = rows_max(run);
    hr_layer_info info = {.struct_size = sizeof(info)};
    bool ok = layers && hr_open(&open, &d->context) == HR_OK &&
              hr_cache_create(d->context, &cache, &d->cache) == HR_OK &&
              hr_cache_layer_info(d->cache, 0, &info) == HR_OK &&
              hr_step_create(d->cache, &limits, &d->step) == HR_OK &&
              hr_seq_create(d->cache, &d->seq) == HR_OK;
    d->least = info.tile_tokens_min;
    free(layers);
    return ok;
}

static void close_dry(struct dry *d)
{
    for (int i = 0; i < RUN_BATCH; i++)
        hr_seq_destroy(&d->forks[i]);
    hr_seq_destroy(&d->seq);
    hr_step_destroy(&d->step);
    hr_cache_destroy(&d->cache);
    hr_close(&d->context);
}

/* Pairs of rows and keys of a step. */
static double pairs_of(hr_seq *const *seqs, const int64_t *n, int32_t n_seqs)
{
    double pairs = 0;
    for (int32_t i = 0; i < n_seqs; i++)
        pairs += (double)n[i] * ((double)hr_seq_length(seqs[i]) + (double)(n[i] + 1) / 2);
    return pairs;
}

/* Tells of the step; what is still being written counts as the next one's. */
static void tell(struct dry *d, const int64_t *n, int32_t n_seqs)
{
    hr_stats stats = {.struct_size = sizeof(stats)};
    hr_context_stats(d->context, &stats);
    d->planned.rows = 0;
    for (int32_t i = 0; i < n_seqs; i++)
        d->planned.rows += n[i];
    d->planned.read_bytes = stats.disk_read_bytes - d->read_bytes;
    d->planned.write_bytes = stats.disk_write_bytes - d->write_bytes;
    d->read_bytes = stats.disk_read_bytes;
    d->write_bytes = stats.disk_write_bytes;
    d->each(d->user, &d->planned);
}

/* One step, as model_run_step takes it. */
static bool dry_step(struct dry *d, hr_seq *const *seqs, const int64_t *n, int32_t n_seqs,
                     int32_t layers)
{
    static float nothing[1]; /* is never read or written */
    hr_batch batch = {.struct_size = sizeof(batch), .n_seqs = n_seqs, .seqs = seqs, .n_new = n};
    hr_append_args append = {
        .struct_size = sizeof(append), .dtype = HR_FP32, .k = nothing, .v = nothing};
    hr_attend_args attend = {.struct_size = sizeof(attend),
                             .q_dtype = HR_FP32,
                             .out_dtype = HR_FP32,
                             .q = nothing,
                             .out = nothing};
    d->planned.pairs = pairs_of(seqs, n, n_seqs);
    bool ok = hr_step_begin(d->step, &batch) == HR_OK;
    for (int32_t l = 0; ok && l < layers; l++)
        ok = hr_step_append(d->step, l, &append) == HR_OK &&
             hr_step_attend(d->step, l, &attend) == HR_OK;
    ok = ok && hr_step_commit(d->step, NULL) == HR_OK;
    if (ok && d->each)
        tell(d, n, n_seqs);
    return ok;
}

/* As run_prefill. */
static bool dry_prefill(struct dry *d, hr_seq *seq, int64_t n, int32_t layers)
{
    for (int64_t first = 0, rows = 0; first < n; first += rows) {
        rows = run_step_rows(d->options, d->least, n - first);
        if (!dry_step(d, &seq, &rows, 1, layers))
            return false;
    }
    return true;
}

/* A group of branches: forks, their inputs, and tokens until all are as long as they may be. */
static bool dry_group(struct dry *d, const struct run_branch *branches, int32_t n, int32_t layers)
{
    int64_t ones[RUN_BATCH];
    d->planned.kind = RUN_PLANNED_BRANCH;
    for (int32_t i = 0; i < n; i++) {
        ones[i] = 1;
        if (hr_seq_fork(d->seq, hr_seq_length(d->seq), &d->forks[i]) != HR_OK ||
            !dry_prefill(d, d->forks[i], (int64_t)branches[i].input.n, layers))
            return false;
    }
    d->planned.kind = RUN_PLANNED_DECODE;
    for (int64_t t = 1; t < d->options->generate; t++)
        if (!dry_step(d, d->forks, ones, n, layers))
            return false;
    for (int32_t i = 0; i < n; i++)
        hr_seq_destroy(&d->forks[i]);
    return true;
}

static bool dry_run(struct dry *d, const struct run *run, int32_t layers)
{
    const struct run_options *o = &run->options;
    d->planned.kind = RUN_PLANNED_DOCUMENT;
    bool ok = dry_prefill(d, d->seq, (int64_t)run->document.n, layers);
    for (int32_t i = 0; ok && i < o->n_branches; i += RUN_BATCH)
        ok = dry_group(d, o->branches + i,
                       o->n_branches - i < RUN_BATCH ? o->n_branches - i : RUN_BATCH, layers);
    return ok;
}

static void note_error(const struct dry *d, char *error)
{
    snprintf(error, GGUF_ERROR_BYTES, "%.400s",
             d->no_memory ? "out of memory" : hr_error_text(d->context));
}

static bool try_budget(const struct run *run, const struct model_dims *dims, uint64_t kv_ram,
                       struct run_forecast *f, char *error)
{
    struct dry d = {0};
    hr_stats stats = {.struct_size = sizeof(stats)};
    bool ok = open_dry(&d, run, dims, kv_ram) && dry_run(&d, run, dims->layers);
    if (!ok && error)
        note_error(&d, error);
    if (ok)
        hr_poll(d.context, INT64_MAX); /* what is being written counts too */
    if (ok && hr_context_stats(d.context, &stats) == HR_OK)
        *f = (struct run_forecast){.kv_bytes = stats.kv_bytes_peak,
                                   .ram_bytes = stats.kv_bytes_total,
                                   .disk_bytes = stats.disk_bytes_peak,
                                   .read_bytes = stats.disk_read_bytes,
                                   .write_bytes = stats.disk_write_bytes};
    close_dry(&d);
    return ok;
}

bool run_forecast(const struct run *run, const struct model_dims *dims, struct run_forecast *f,
                  char *error)
{
    return try_budget(run, dims, run->options.kv_ram, f, error);
}

bool run_forecast_steps(const struct run *run, const struct model_dims *dims, run_planned_fn *each,
                        void *user, char *error)
{
    struct dry d = {.each = each, .user = user};
    bool ok = open_dry(&d, run, dims, run->options.kv_ram) && dry_run(&d, run, dims->layers);
    if (!ok)
        note_error(&d, error);
    close_dry(&d);
    return ok;
}

uint64_t run_least_ram(const struct run *run, const struct model_dims *dims, uint64_t most)
{
    const uint64_t extent = 2 << 20;
    struct run_forecast f;
    uint64_t low = 0, high = (most + extent - 1) / extent + 1; /* extents: too few, enough */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (try_budget(run, dims, middle * extent, &f, NULL))
            high = middle;
        else
            low = middle;
    }
    return high * extent;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/model_run.h"
#include "tools/gemm_weight.h"
#include "tools/model_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct model_run {
    const struct model *model;
    struct gemm *gemm;
    hr_context *context;
    hr_cache *cache;
    hr_step *step;
    struct model_rows rows;
    int64_t rows_max, rows_min;
    struct model_run_times times;
    struct run_trace *trace;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Turns a failed call into a sentence. */
static bool check(const struct model_run *run, hr_status status, const char *call, char *error)
{
    if (status == HR_OK)
        return true;
    const char *text = hr_error_text(run->context);
    snprintf(error, GGUF_ERROR_BYTES, "%s: %s", call, *text ? text : hr_status_text(status));
    return false;
}

hr_layer_options *model_run_layers(const struct model_dims *d, hr_dtype kv_dtype)
{
    hr_layer_options *layers = calloc((size_t)d->layers, sizeof(*layers));
    for (int i = 0; layers && i < d->layers; i++)
        layers[i] = (hr_layer_options){
            .q_heads = d->q_heads, .kv_heads = d->kv_heads, .dim_k = d->head, .dtype = kv_dtype};
    return layers;
}

static bool open_cache(struct model_run *run, const struct model_run_options *options, char *error)
{
    const struct model_dims *d = &run->model->dims;
    hr_options open = {.struct_size = sizeof(open), .threads = options->threads};
    open.debug_wave_blocks = options->wave_blocks;
    open.device_bytes = options->kv_ram;
    open.disks = options->disks;
    open.n_disks = options->n_disks;
    open.io = options->io;
    open.trace = options->trace ? run_trace_event : NULL;
    open.trace_user = options->trace;
    if (!check(run, hr_open(&open, &run->context), "hr_open", error))
        return false;
    hr_layer_options *layers = model_run_layers(d, options->kv_dtype);
    hr_cache_options cache = {.struct_size = sizeof(cache), .layer_size = sizeof(*layers)};
    cache.layers = layers;
    cache.n_layers = d->layers;
    hr_step_limits limits = {.struct_size = sizeof(limits), .seqs = options->seqs};
    limits.new_tokens = limits.query_tokens = options->rows;
    hr_layer_info info = {.struct_size = sizeof(info)};
    bool ok =
        check(run, hr_cache_create(run->context, &cache, &run->cache), "hr_cache_create", error) &&
        check(run, hr_cache_layer_info(run->cache, 0, &info), "hr_cache_layer_info", error) &&
        check(run, hr_step_create(run->cache, &limits, &run->step), "hr_step_create", error);
    run->rows_min = info.tile_tokens_min;
    free(layers);
    return ok;
}

struct model_run *model_run_create(const struct model *model, struct gemm *gemm,
                                   const struct model_run_options *options, char *error)
{
    struct model_run *run = calloc(1, sizeof(*run));
    if (!run) {
        snprintf(error, GGUF_ERROR_BYTES, "out of memory");
        return NULL;
    }
    *run = (struct model_run){
        .model = model, .gemm = gemm, .rows_max = options->rows, .trace = options->trace};
    if (model_rows_create(&run->rows, model, gemm, options->rows, error) &&
        open_cache(run, options, error))
        return run;
    model_run_destroy(run);
    return NULL;
}

void model_run_destroy(struct model_run *run)
{
    if (!run)
        return;
    if (run->step)
        hr_step_destroy(&run->step);
    if (run->cache)
        hr_cache_destroy(&run->cache);
    hr_close(&run->context);
    model_rows_destroy(&run->rows);
    free(run);
}

hr_seq *model_run_seq(struct model_run *run, char *error)
{
    hr_seq *seq = NULL;
    return check(run, hr_seq_create(run->cache, &seq), "hr_seq_create", error) ? seq : NULL;
}

hr_seq *model_run_fork(struct model_run *run, hr_seq *parent, char *error)
{
    hr_seq *seq = NULL;
    hr_status status = hr_seq_fork(parent, hr_seq_length(parent), &seq);
    return check(run, status, "hr_seq_fork", error) ? seq : NULL;
}

static void product(struct model_run *run, const float *x, int64_t x_stride, int64_t rows,
                    const struct gemm_part *parts, int n_parts)
{
    int64_t start = now_ns();
    gemm_run(run->gemm, x, x_stride, rows, parts, n_parts);
    int64_t end = now_ns();
    run->times.gemm_ns += end - start;
    if (run->trace)
        run_trace_product(run->trace, start, end);
}

static bool attention(struct model_run *run, int layer, char *error)
{
    const struct model_rows *r = &run->rows;
    const int64_t head = run->model->dims.head;
    hr_append_args append = {.struct_size = sizeof(append), .dtype = HR_FP32};
    append.k = r->k;
    append.v = r->v;
    append.k_stride_token = append.v_stride_token = r->qkv_stride;
    append.k_stride_head = append.v_stride_head = head;
    hr_attend_args attend = {.struct_size = sizeof(attend), .mask = HR_MASK_CAUSAL};
    attend.q_dtype = attend.out_dtype = HR_FP32;
    attend.q = r->q;
    attend.out = r->attended;
    attend.q_stride_token = r->qkv_stride;
    attend.out_stride_token = r->attended_stride;
    attend.q_stride_head = attend.out_stride_head = head;
    int64_t start = now_ns();
    if (!check(run, hr_step_append(run->step, layer, &append), "hr_step_append", error))
        return false;
    int64_t middle = now_ns();
    if (!check(run, hr_step_attend(run->step, layer, &attend), "hr_step_attend", error))
        return false;
    run->times.append_ns += middle - start;
    run->times.attend_ns += now_ns() - middle;
    return true;
}

static bool layer(struct model_run *run, int index, char *error)
{
    struct model_rows *r = &run->rows;
    const struct model_layer *l = &run->model->layers[index];
    const struct gemm_part qkv[] = {
        {l->q, r->q, r->qkv_stride}, {l->k, r->k, r->qkv_stride}, {l->v, r->v, r->qkv_stride}};
    const struct gemm_part out[] = {{l->o, r->delta, r->delta_stride}};
    const struct gemm_part gate_up[] = {{l->gate, r->gate, r->ffn_stride},
                                        {l->up, r->up, r->ffn_stride}};
    const struct gemm_part down[] = {{l->down, r->delta, r->delta_stride}};
    model_rows_norm(r, l->attn_norm, index > 0);
    product(run, r->normed, r->width, r->n, qkv, 3);
    model_rows_rope(r, l);
    if (!attention(run, index, error))
        return false;
    product(run, r->attended, r->attended_stride, r->n, out, 1);
    model_rows_norm(r, l->ffn_norm, true);
    product(run, r->normed, r->width, r->n, gate_up, 2);
    model_rows_silu(r);
    product(run, r->gate, r->ffn_stride, r->n, down, 1);
    return true;
}

bool model_run_step(struct model_run *run, hr_seq *const *seqs, const int64_t *n, int32_t n_seqs,
                    const int32_t *tokens, char *error)
{
    struct model_rows *r = &run->rows;
    r->n = 0;
    for (int32_t i = 0; i < n_seqs; i++)
        for (int64_t j = 0; j < n[i]; j++)
            r->positions[r->n++] = hr_seq_length(seqs[i]) + j;
    model_rows_embed(r, tokens);
    hr_batch batch = {.struct_size = sizeof(batch), .n_seqs = n_seqs, .seqs = seqs, .n_new = n};
    if (!check(run, hr_step_begin(run->step, &batch), "hr_step_begin", error))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < run->model->dims.layers; i++)
        ok = layer(run, i, error);
    if (!ok) {
        hr_step_abort(run->step);
        return false;
    }
    model_rows_norm(r, run->model->out_norm, true);
    return check(run, hr_step_commit(run->step, NULL), "hr_step_commit", error);
}

static bool store_rows(struct model_run *run, hr_seq *seq, int64_t n, char *error)
{
    static const int64_t none[1];
    const struct model_rows *r = &run->rows;
    hr_batch batch = {.struct_size = sizeof(batch), .n_seqs = 1, .seqs = &seq, .n_new = &n};
    hr_append_args append = {.struct_size = sizeof(append), .dtype = HR_FP32};
    batch.n_query = none;
    append.k = append.v = r->normed;
    append.k_stride_token = append.v_stride_token = r->width;
    bool ok = check(run, hr_step_begin(run->step, &batch), "hr_step_begin", error);
    for (int i = 0; ok && i < run->model->dims.layers; i++)
        ok = check(run, hr_step_append(run->step, i, &append), "hr_step_append", error);
    if (ok)
        return check(run, hr_step_commit(run->step, NULL), "hr_step_commit", error);
    hr_step_abort(run->step);
    return false;
}

bool model_run_store(struct model_run *run, hr_seq *seq, int64_t n, char *error)
{
    /* A token's K and V may be longer than a row: they then reach into the rows behind it. */
    const struct model_rows *r = &run->rows;
    int64_t kv_width = (int64_t)run->model->dims.kv_heads * run->model->dims.head;
    int64_t most = (r->n * r->width - kv_width) / r->width + 1;
    for (int64_t some; n > 0; n -= some) {
        some = n < most ? n : most;
        if (some < 1) {
            snprintf(error, GGUF_ERROR_BYTES, "the last step had too few rows");
            return false;
        }
        if (!store_rows(run, seq, some, error))
            return false;
    }
    return true;
}

void model_run_logits(struct model_run *run, int64_t first, int64_t rows, float *out)
{
    const struct model_rows *r = &run->rows;
    struct gemm_part part = {run->model->head, out, gemm_stride(run->model->dims.vocab)};
    product(run, r->normed + first * r->width, r->width, rows, &part, 1);
}

struct model_run_times model_run_times(const struct model_run *run)
{
    return run->times;
}

hr_context *model_run_context(const struct model_run *run)
{
    return run->context;
}

int64_t model_run_rows_min(const struct model_run *run)
{
    return run->rows_min;
}

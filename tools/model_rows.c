/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/model_rows.h"
#include "tools/gemm_weight.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEM_ROWS = 16 };

/* What an item needs beyond the rows. */
struct job {
    struct model_rows *rows;
    const int32_t *tokens;
    const struct model_layer *layer;
    const float *weight;
    bool add;
};

typedef void row_fn(const struct job *job, int64_t row);

struct row_job {
    struct job job;
    row_fn *fn;
};

static void run_item(const void *args, int64_t item, int thread)
{
    (void)thread;
    const struct row_job *j = args;
    int64_t end = (item + 1) * ITEM_ROWS;
    for (int64_t row = item * ITEM_ROWS; row < end && row < j->job.rows->n; row++)
        j->fn(&j->job, row);
}

static void for_rows(row_fn *fn, const struct job *job)
{
    struct row_job j = {*job, fn};
    gemm_pool_run(job->rows->pool, run_item, &j, (job->rows->n + ITEM_ROWS - 1) / ITEM_ROWS);
}

static void embed_row(const struct job *job, int64_t row)
{
    const struct model_rows *r = job->rows;
    const struct gguf_tensor *t = r->model->embedding;
    const int32_t half = r->model->dims.rope / 2;
    float *turned = r->cosines + row * 2 * half;
    size_t row_bytes = quant_bytes(t->type, (uint64_t)r->width);
    quant_to_f32(t->type, (const unsigned char *)t->data + (size_t)job->tokens[row] * row_bytes,
                 (uint64_t)r->width, r->residual + row * r->width);
    for (int32_t i = 0; i < half; i++) {
        double angle = (double)r->positions[row] * r->turns[i];
        turned[i] = (float)cos(angle);
        turned[half + i] = (float)sin(angle);
    }
}

void model_rows_embed(struct model_rows *rows, const int32_t *tokens)
{
    for_rows(embed_row, &(struct job){.rows = rows, .tokens = tokens});
}

static void norm_row(const struct job *job, int64_t row)
{
    const struct model_rows *r = job->rows;
    float *x = r->residual + row * r->width;
    if (job->add)
        r->ops->add(x, r->delta + row * r->delta_stride, r->width);
    r->ops->rms_norm(r->normed + row * r->width, x, job->weight, r->width, r->model->dims.norm_eps);
}

void model_rows_norm(struct model_rows *rows, const float *weight, bool add)
{
    for_rows(norm_row, &(struct job){.rows = rows, .weight = weight, .add = add});
}

static void rotate_neighbours(float *x, const float *cosines, int32_t half)
{
    for (int32_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1], c = cosines[i], s = cosines[half + i];
        x[2 * i] = a * c - b * s;
        x[2 * i + 1] = a * s + b * c;
    }
}

static void rotate_halves(float *x, const float *cosines, int32_t half)
{
    for (int32_t i = 0; i < half; i++) {
        float a = x[i], b = x[half + i], c = cosines[i], s = cosines[half + i];
        x[i] = a * c - b * s;
        x[half + i] = a * s + b * c;
    }
}

static void turn_heads(const struct model_rows *r, float *x, int32_t heads, const float *norm,
                       const float *cosines)
{
    const struct model_dims *d = &r->model->dims;
    for (int32_t h = 0; h < heads; h++, x += d->head) {
        if (norm)
            r->ops->rms_norm(x, x, norm, d->head, d->norm_eps);
        if (d->rope_halves)
            rotate_halves(x, cosines, d->rope / 2);
        else
            rotate_neighbours(x, cosines, d->rope / 2);
    }
}

static void rope_row(const struct job *job, int64_t row)
{
    const struct model_rows *r = job->rows;
    const struct model_dims *d = &r->model->dims;
    const struct model_layer *l = job->layer;
    const float *cosines = r->cosines + row * d->rope;
    float *q = r->q + row * r->qkv_stride, *k = r->k + row * r->qkv_stride;
    if (l->q_bias) {
        r->ops->add(q, l->q_bias, (int64_t)d->q_heads * d->head);
        r->ops->add(k, l->k_bias, (int64_t)d->kv_heads * d->head);
        r->ops->add(r->v + row * r->qkv_stride, l->v_bias, (int64_t)d->kv_heads * d->head);
    }
    turn_heads(r, q, d->q_heads, l->q_norm, cosines);
    turn_heads(r, k, d->kv_heads, l->k_norm, cosines);
}

void model_rows_rope(struct model_rows *rows, const struct model_layer *layer)
{
    for_rows(rope_row, &(struct job){.rows = rows, .layer = layer});
}

static void silu_row(const struct job *job, int64_t row)
{
    const struct model_rows *r = job->rows;
    float *gate = r->gate + row * r->ffn_stride;
    r->ops->silu_mul(gate, gate, r->up + row * r->ffn_stride, r->model->dims.ffn);
}

void model_rows_silu(struct model_rows *rows)
{
    for_rows(silu_row, &(struct job){.rows = rows});
}

/* Zeroed, for the padding of the last tile, which products read. */
static void *reserve(int64_t rows, int64_t row_bytes)
{
    size_t bytes = ((size_t)rows * (size_t)row_bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes ? bytes : 64);
    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

static void set_strides(struct model_rows *r, const struct model_dims *d)
{
    r->width = d->width;
    r->attended_stride = gemm_stride((int64_t)d->q_heads * d->head);
    r->qkv_stride = r->attended_stride + 2 * gemm_stride((int64_t)d->kv_heads * d->head);
    r->ffn_stride = 2 * gemm_stride(d->ffn);
    r->delta_stride = gemm_stride(d->width);
}

bool model_rows_create(struct model_rows *r, const struct model *model, struct gemm *gemm,
                       int64_t n_max, char *error)
{
    const struct model_dims *d = &model->dims;
    int64_t rows = gemm_padded_rows(n_max) + GEMM_TILE; /* logits start at any row */
    *r = (struct model_rows){.model = model, .pool = gemm_threads(gemm), .ops = gemm_ops(gemm)};
    set_strides(r, d);
    int64_t wide = r->qkv_stride > r->ffn_stride ? r->qkv_stride : r->ffn_stride;
    const int64_t bytes[] = {8,
                             d->rope * 4,
                             r->width * 4,
                             r->width * 4,
                             wide * 4,
                             r->attended_stride * 4,
                             r->delta_stride * 4};
    bool ok = (r->turns = malloc(sizeof(double) * (size_t)(d->rope / 2))) != NULL;
    int64_t total = 0;
    for (int i = 0; i < 7; i++) {
        ok = ok && (r->memory[i] = reserve(rows, bytes[i])) != NULL;
        total += bytes[i] * rows;
    }
    if (!ok) {
        snprintf(error, GGUF_ERROR_BYTES,
                 "out of memory: steps of %lld tokens need %lld bytes; lower --chunk",
                 (long long)n_max, (long long)total);
        return false;
    }
    r->positions = r->memory[0], r->cosines = r->memory[1], r->residual = r->memory[2];
    r->normed = r->memory[3], r->q = r->gate = r->memory[4];
    r->attended = r->memory[5], r->delta = r->memory[6];
    r->k = r->q + r->attended_stride;
    r->v = r->k + gemm_stride((int64_t)d->kv_heads * d->head);
    r->up = r->gate + gemm_stride(d->ffn);
    for (int32_t i = 0; i < d->rope / 2; i++)
        r->turns[i] = pow((double)d->rope_base, -2.0 * i / d->rope);
    return true;
}

void model_rows_destroy(struct model_rows *rows)
{
    for (int i = 0; i < 7; i++)
        free(rows->memory[i]);
    free(rows->turns);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "src/request.h"

#include <math.h>

static const int64_t STRIDE_MAX = 1ll << 40;

static hr_status check_seq(const hr_step *step, const hr_batch *b, int32_t i)
{
    struct hr_error *error = &step->cache->context->error;
    const hr_seq *seq = b->seqs[i];
    int64_t n_new = b->n_new[i], n_query = b->n_query ? b->n_query[i] : n_new;
    if (!seq || seq->cache != step->cache)
        return hr_fail(error, HR_E_INVALID, "batch.seqs[%d] is %s", i,
                       seq ? "a sequence of another cache" : "NULL");
    if (seq->step == step)
        return hr_fail(error, HR_E_INVALID, "batch.seqs[%d] stands in the batch twice", i);
    if (seq->step)
        return hr_fail(error, HR_E_BUSY, "batch.seqs[%d] is in another open step", i);
    if (n_new < 0 || n_query < 0)
        return hr_fail(error, HR_E_INVALID,
                       "batch: sequence %d has n_new %lld and n_query %lld; both must be >= 0", i,
                       (long long)n_new, (long long)n_query);
    if (n_new > step->limits.new_tokens - step->new_tokens)
        return hr_fail(
            error, HR_E_LIMIT, "batch: %lld new tokens up to sequence %d; the step's limit is %lld",
            (long long)(step->new_tokens + n_new), i, (long long)step->limits.new_tokens);
    if (n_query > step->limits.query_tokens - step->query_tokens)
        return hr_fail(error, HR_E_LIMIT,
                       "batch: %lld query tokens up to sequence %d; the step's limit is %lld",
                       (long long)(step->query_tokens + n_query), i,
                       (long long)step->limits.query_tokens);
    if (n_query > HR_TOKENS_MAX - step->query_tokens)
        return hr_fail(error, HR_E_INVALID,
                       "batch: %lld queries before sequence %d and %lld of it; at most 2^40",
                       (long long)step->query_tokens, i, (long long)n_query);
    if (n_new > HR_TOKENS_MAX - seq->length)
        return hr_fail(error, HR_E_INVALID, "batch: sequence %d would have %lld + %lld tokens", i,
                       (long long)seq->length, (long long)n_new);
    return HR_OK;
}

static void take_seq(hr_step *step, const hr_batch *b, int32_t i)
{
    hr_seq *seq = b->seqs[i];
    int64_t n_new = b->n_new[i], n_query = b->n_query ? b->n_query[i] : n_new;
    seq->step = step;
    seq->batch_index = i;
    step->seqs[i] = seq;
    step->n_seqs = i + 1;
    step->shapes[i] = (struct hr_shape){.n_kv = seq->length + n_new, .n_q = n_query};
    step->views[i] = (struct hr_seq_view){
        .n_kv = seq->length + n_new,
        .n_q = n_query,
        .n_new = n_new,
        .q_row = step->query_tokens,
        .new_row = step->new_tokens,
    };
    int64_t touched = n_new ? hr_blocks_of(seq->length + n_new) - seq->length / HR_BLOCK_TOKENS : 0;
    step->first_item[i + 1] = step->first_item[i] + touched;
    step->new_tokens += n_new;
    step->query_tokens += n_query;
}

hr_status hr_request_take(hr_step *step, const hr_batch *b)
{
    struct hr_error *error = &step->cache->context->error;
    if (b->n_seqs < 0 || (b->n_seqs > 0 && (!b->seqs || !b->n_new)))
        return hr_fail(error, HR_E_INVALID,
                       "batch.n_seqs is %d with seqs %s and n_new %s; n_seqs must be >= 0 and both "
                       "arrays set",
                       b->n_seqs, b->seqs ? "set" : "NULL", b->n_new ? "set" : "NULL");
    if (b->n_seqs > step->limits.seqs)
        return hr_fail(error, HR_E_LIMIT, "batch.n_seqs is %d; the step's limit is %d", b->n_seqs,
                       step->limits.seqs);
    step->n_seqs = 0;
    step->new_tokens = step->query_tokens = 0;
    step->first_item[0] = 0;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        hr_status status = check_seq(step, b, i);
        if (status != HR_OK) {
            hr_request_drop(step);
            return status;
        }
        take_seq(step, b, i);
    }
    return HR_OK;
}

void hr_request_drop(hr_step *step)
{
    for (int32_t i = 0; i < step->n_seqs; i++)
        step->seqs[i]->step = NULL;
    step->n_seqs = 0;
}

/* A tensor [rows][heads][dim]: fills packed strides and checks what was given. */
static hr_status check_rows(const hr_step *step, const char *name, const struct hr_rows *given,
                            int64_t rows, int32_t heads, int32_t dim, struct hr_rows *out)
{
    struct hr_error *error = &step->cache->context->error;
    *out = *given;
    if ((int)given->dtype < HR_BF16 || (int)given->dtype > HR_FP32)
        return hr_fail(error, HR_E_INVALID,
                       "the dtype of %s is %d; HR_BF16 (1), HR_FP16 (2) and HR_FP32 (3) exist",
                       name, (int)given->dtype);
    if (!given->data && rows > 0)
        return hr_fail(error, HR_E_INVALID, "%s is NULL but the batch has %lld rows", name,
                       (long long)rows);
    if (given->stride_token < 0 || given->stride_head < 0 || given->stride_token > STRIDE_MAX ||
        given->stride_head > STRIDE_MAX)
        return hr_fail(error, HR_E_INVALID,
                       "the strides of %s are %lld (token) and %lld (head); 0 to 2^40 are allowed",
                       name, (long long)given->stride_token, (long long)given->stride_head);
    if (out->stride_head == 0)
        out->stride_head = dim;
    if (out->stride_token == 0)
        out->stride_token = (int64_t)heads * dim;
    return HR_OK;
}

hr_status hr_request_append(const hr_step *step, int32_t layer, const hr_append_args *a,
                            struct hr_rows *k, struct hr_rows *v)
{
    const struct hr_geom *g = hr_cache_geom(step->cache, layer);
    struct hr_rows k_given = {(void *)(uintptr_t)a->k, a->k_stride_token, a->k_stride_head,
                              a->dtype};
    struct hr_rows v_given = {(void *)(uintptr_t)a->v, a->v_stride_token, a->v_stride_head,
                              a->dtype};
    hr_status status = check_rows(step, "k", &k_given, step->new_tokens, g->kv_heads, g->dim, k);
    if (status == HR_OK)
        status = check_rows(step, "v", &v_given, step->new_tokens, g->kv_heads, g->dim, v);
    return status;
}

/* 0, or so that neither it nor a ratio of two leaves the range of fp32. */
static bool in_range(float x)
{
    return x == 0 || (x >= 0x1p-60f && x <= 0x1p60f);
}

static hr_status check_numbers(const hr_step *step, const hr_attend_args *a, int32_t q_heads)
{
    struct hr_error *error = &step->cache->context->error;
    if (a->mask != HR_MASK_CAUSAL && a->mask != HR_MASK_FULL)
        return hr_fail(error, HR_E_INVALID, "args.mask is %d; 0 (causal) and 1 (full) exist",
                       (int)a->mask);
    if (!in_range(a->scale))
        return hr_fail(error, HR_E_INVALID, "args.scale is %g; it must be 0 or from 2^-60 to 2^60",
                       (double)a->scale);
    if (!in_range(a->softcap))
        return hr_fail(error, HR_E_INVALID,
                       "args.softcap is %g; it must be 0 (off) or from 2^-60 to 2^60",
                       (double)a->softcap);
    bool readable = !step->cache->context->cuda;
    for (int32_t h = 0; readable && a->sink_logits && h < q_heads; h++)
        if (isnan(a->sink_logits[h]) || a->sink_logits[h] == INFINITY)
            return hr_fail(error, HR_E_INVALID, "args.sink_logits[%d] is %g; it must be below +inf",
                           h, (double)a->sink_logits[h]);
    return HR_OK;
}

hr_status hr_request_attend(const hr_step *step, int32_t layer, const hr_attend_args *a,
                            struct hr_attend *out)
{
    const struct hr_geom *g = hr_cache_geom(step->cache, layer);
    int32_t heads = g->kv_heads * g->group;
    int64_t rows = step->query_tokens;
    struct hr_rows q = {(void *)(uintptr_t)a->q, a->q_stride_token, a->q_stride_head, a->q_dtype};
    struct hr_rows o = {a->out, a->out_stride_token, a->out_stride_head, a->out_dtype};
    struct hr_rows lse = {a->lse, a->lse_stride_token, a->lse_stride_head, HR_FP32};
    hr_status status = check_numbers(step, a, heads);
    if (status == HR_OK)
        status = check_rows(step, "q", &q, rows, heads, g->dim, &out->q);
    if (status == HR_OK)
        status = check_rows(step, "out", &o, rows, heads, g->dim, &out->out);
    if (status == HR_OK)
        status = check_rows(step, "lse", &lse, a->lse ? rows : 0, heads, 1, &out->lse);
    out->geom = *g;
    out->mask = a->mask;
    out->scale = a->scale != 0 ? a->scale : 1.0f / sqrtf((float)g->dim);
    out->softcap = a->softcap;
    out->sink_logits = a->sink_logits;
    return status;
}

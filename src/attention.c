/* SPDX-License-Identifier: Apache-2.0 */
#include "src/attention.h"

#include "src/exec.h"
#include "src/request.h"
#include "src/reserve.h"

struct run {
    hr_context *context;
    hr_cache *cache;
    hr_step *step;
    hr_seq **seqs;    /* [n_seqs] */
    int64_t *n_new;   /* [n_seqs] */
    int64_t *n_query; /* [n_seqs] */
    int32_t n_seqs;
};

static hr_status check_lengths(hr_context *c, const char *name, const int64_t *cu, int32_t n)
{
    if (!cu || cu[0] != 0)
        return hr_fail(&c->error, HR_E_INVALID, "%s is %s; it must be set and start with 0", name,
                       cu ? "nonzero at 0" : "NULL");
    for (int32_t i = 0; i < n; i++)
        if (cu[i + 1] < cu[i])
            return hr_fail(&c->error, HR_E_INVALID, "%s falls from %lld to %lld at sequence %d",
                           name, (long long)cu[i], (long long)cu[i + 1], i);
    return HR_OK;
}

static hr_status make_seqs(struct run *run, const hr_attention_args *a)
{
    struct hr_alloc *alloc = &run->context->alloc;
    size_t n = (size_t)a->n_seqs;
    run->seqs = hr_alloc_zero(alloc, n * sizeof(*run->seqs));
    run->n_new = hr_alloc_zero(alloc, n * sizeof(*run->n_new));
    run->n_query = hr_alloc_zero(alloc, n * sizeof(*run->n_query));
    run->n_seqs = a->n_seqs;
    if (!run->seqs || !run->n_new || !run->n_query)
        return hr_fail(&run->context->error, HR_E_NO_MEMORY, "no memory for %d sequences",
                       a->n_seqs);
    for (int32_t i = 0; i < a->n_seqs; i++) {
        hr_status status = hr_seq_make(run->cache, &run->seqs[i]);
        if (status != HR_OK)
            return status;
        run->n_new[i] = a->cu_seqlens_k[i + 1] - a->cu_seqlens_k[i];
        run->n_query[i] = a->cu_seqlens_q[i + 1] - a->cu_seqlens_q[i];
    }
    return HR_OK;
}

static hr_status open_step(struct run *run, const hr_attention_args *a)
{
    hr_step_limits limits = {
        .struct_size = sizeof(limits),
        .seqs = a->n_seqs > 0 ? a->n_seqs : 1,
        .new_tokens = a->cu_seqlens_k[a->n_seqs],
        .query_tokens = a->cu_seqlens_q[a->n_seqs],
    };
    hr_batch batch = {
        .struct_size = sizeof(batch),
        .n_seqs = a->n_seqs,
        .seqs = run->seqs,
        .n_new = run->n_new,
        .n_query = run->n_query,
    };
    hr_status status = hr_step_make(run->cache, &limits, &run->step);
    return status == HR_OK ? hr_step_open(run->step, &batch) : status;
}

static hr_status compute(struct run *run, const hr_attention_args *a)
{
    struct hr_rows k, v;
    struct hr_attend attend = {0};
    hr_status status = hr_request_append(run->step, 0, &a->append, &k, &v);
    if (status == HR_OK)
        status = hr_request_attend(run->step, 0, &a->attend, &attend);
    if (status != HR_OK)
        return status;
    hr_context *c = run->context;
    status = c->exec->append(run->step, 0, &k, &v);
    if (status != HR_OK)
        return status;
    hr_reserve_written(run->step, 0);
    run->step->appended[0] = true;
    status = c->exec->attend(run->step, 0, &attend);
    if (status != HR_OK)
        return status;
    c->exec->wait(run->step, INT64_MAX);
    return hr_context_device_status(c);
}

static void clean(struct run *run)
{
    struct hr_alloc *alloc = &run->context->alloc;
    size_t n = (size_t)run->n_seqs;
    if (run->step && run->step->open)
        hr_step_undo(run->step);
    if (run->step)
        hr_step_free(run->step);
    for (int32_t i = 0; run->seqs && i < run->n_seqs; i++)
        if (run->seqs[i])
            hr_seq_free(run->seqs[i]);
    hr_alloc_put(alloc, run->seqs, n * sizeof(*run->seqs));
    hr_alloc_put(alloc, run->n_new, n * sizeof(*run->n_new));
    hr_alloc_put(alloc, run->n_query, n * sizeof(*run->n_query));
    if (run->cache)
        hr_cache_free(run->cache);
}

hr_status hr_attention_run(hr_context *c, const hr_attention_args *a)
{
    struct run run = {.context = c};
    hr_cache_options options = {
        .struct_size = sizeof(options),
        .layer_size = sizeof(a->layer),
        .layers = &a->layer,
        .n_layers = 1,
    };
    hr_status status = a->n_seqs >= 0 ? HR_OK
                                      : hr_fail(&c->error, HR_E_INVALID,
                                                "args.n_seqs is %d; it must be >= 0", a->n_seqs);
    if (status == HR_OK)
        status = check_lengths(c, "args.cu_seqlens_q", a->cu_seqlens_q, a->n_seqs);
    if (status == HR_OK)
        status = check_lengths(c, "args.cu_seqlens_k", a->cu_seqlens_k, a->n_seqs);
    if (status == HR_OK)
        status = hr_cache_make(c, &options, &run.cache);
    if (status == HR_OK)
        status = make_seqs(&run, a);
    if (status == HR_OK)
        status = open_step(&run, a);
    if (status == HR_OK)
        status = compute(&run, a);
    clean(&run);
    return status;
}

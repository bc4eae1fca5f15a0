/* SPDX-License-Identifier: Apache-2.0 */
/* The public entry points: checks of handles and of states, nothing else. */
#include "src/attention.h"
#include "src/base/clock.h"
#include "src/budget.h"
#include "src/exec.h"
#include "src/measure.h"
#include "src/request.h"
#include "src/progress.h"
#include "src/reserve.h"
#include "src/residency.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)

/* For calls without a context. */
static _Thread_local struct hr_error thread_error;

static hr_status check_size(struct hr_error *error, const char *name, size_t got, size_t want)
{
    if (got == want)
        return HR_OK;
    return hr_fail(error, HR_E_INVALID, "%s.struct_size is %zu; this library's has %zu bytes", name,
                   got, want);
}

/* A required pointer and the size field at its start. */
#define CHECK_ARGS(error, args)                                                                    \
    do {                                                                                           \
        if (!(args))                                                                               \
            return hr_fail(error, HR_E_INVALID, #args " is NULL");                                 \
        hr_status size_status_ = check_size(error, #args, (args)->struct_size, sizeof(*(args)));   \
        if (size_status_ != HR_OK)                                                                 \
            return size_status_;                                                                   \
    } while (0)

#define CHECK_SET(error, pointer)                                                                  \
    do {                                                                                           \
        if (!(pointer))                                                                            \
            return hr_fail(error, HR_E_INVALID, #pointer " is NULL");                              \
    } while (0)

const char *hr_version(void)
{
    return STRING(HR_VERSION_MAJOR) "." STRING(HR_VERSION_MINOR) "." STRING(HR_VERSION_PATCH);
}

hr_status hr_open(const hr_options *options, hr_context **context)
{
    thread_error = (struct hr_error){0};
    CHECK_SET(&thread_error, context);
    *context = NULL;
    if (options)
        CHECK_ARGS(&thread_error, options);
    hr_status status = hr_context_open(options, NULL, &thread_error, context);
    thread_error.log = NULL;
    return status;
}

hr_status hr_close(hr_context **context)
{
    if (!context || !*context)
        return HR_OK;
    if ((*context)->caches > 0)
        return hr_fail(&(*context)->error, HR_E_BUSY, "%d caches of the context still exist",
                       (*context)->caches);
    hr_context_close(*context);
    *context = NULL;
    return HR_OK;
}

const char *hr_error_text(const hr_context *context)
{
    return context ? context->error.text : thread_error.text;
}

hr_status hr_context_stats(const hr_context *context, hr_stats *stats)
{
    CHECK_SET(&thread_error, context);
    struct hr_error *error = &((hr_context *)(uintptr_t)context)->error;
    CHECK_ARGS(error, stats);
    hr_context_fill_stats(context, stats);
    return HR_OK;
}

const char *hr_context_disk_text(const hr_context *context)
{
    return context && context->tier ? context->tier->text : "";
}

hr_status hr_context_set_device_bytes(hr_context *context, uint64_t device_bytes)
{
    CHECK_SET(&thread_error, context);
    return hr_budget_set(context, device_bytes);
}

hr_status hr_poll(hr_context *context, int64_t deadline_ns)
{
    CHECK_SET(&thread_error, context);
    hr_progress(context);
    while (context->tier && hr_mover_running(context->tier->mover) > 0 &&
           hr_mover_wait(context->tier->mover, deadline_ns))
        hr_progress(context);
    return HR_OK;
}

const char *hr_context_kernel(const hr_context *context)
{
    return context ? context->kernels->name : "";
}

hr_status hr_cache_create(hr_context *context, const hr_cache_options *options, hr_cache **cache)
{
    CHECK_SET(&thread_error, context);
    CHECK_SET(&context->error, cache);
    *cache = NULL;
    CHECK_ARGS(&context->error, options);
    return hr_cache_make(context, options, cache);
}

hr_status hr_cache_destroy(hr_cache **cache)
{
    if (!cache || !*cache)
        return HR_OK;
    if ((*cache)->users > 0)
        return hr_fail(&(*cache)->context->error, HR_E_BUSY,
                       "%d sequences and steps of the cache still exist", (*cache)->users);
    hr_cache_free(*cache);
    *cache = NULL;
    return HR_OK;
}

static hr_status check_layer(const hr_cache *cache, int32_t layer)
{
    if (layer >= 0 && layer < cache->n_layers)
        return HR_OK;
    return hr_fail(&cache->context->error, HR_E_INVALID,
                   "layer is %d; the cache has layers 0 to %d", layer, cache->n_layers - 1);
}

hr_status hr_cache_layer_info(const hr_cache *cache, int32_t layer, hr_layer_info *info)
{
    CHECK_SET(&thread_error, cache);
    CHECK_ARGS(&cache->context->error, info);
    hr_status status = check_layer(cache, layer);
    if (status != HR_OK)
        return status;
    const struct hr_geom *g = hr_cache_geom(cache, layer);
    info->block_bytes = hr_block_bytes(g);
    info->kernel_id = cache->kernels->id;
    info->tile_tokens_min = (cache->kernels->tile_rows_min + g->group - 1) / g->group;
    return HR_OK;
}

hr_status hr_seq_create(hr_cache *cache, hr_seq **seq)
{
    CHECK_SET(&thread_error, cache);
    CHECK_SET(&cache->context->error, seq);
    *seq = NULL;
    return hr_seq_make(cache, seq);
}

/* A sequence that no step holds, and a length within it. */
static hr_status check_cut(const hr_seq *seq, int64_t length)
{
    struct hr_error *error = &seq->cache->context->error;
    if (seq->step)
        return hr_fail(error, HR_E_BUSY, "the sequence is in an open step");
    if (length < 0 || length > seq->length)
        return hr_fail(error, HR_E_INVALID, "length is %lld; the sequence has %lld tokens",
                       (long long)length, (long long)seq->length);
    return HR_OK;
}

hr_status hr_seq_fork(hr_seq *parent, int64_t length, hr_seq **child)
{
    CHECK_SET(&thread_error, parent);
    CHECK_SET(&parent->cache->context->error, child);
    *child = NULL;
    hr_status status = check_cut(parent, length);
    return status == HR_OK ? hr_seq_make_fork(parent, length, child) : status;
}

hr_status hr_seq_truncate(hr_seq *seq, int64_t length)
{
    CHECK_SET(&thread_error, seq);
    hr_status status = check_cut(seq, length);
    if (status == HR_OK)
        hr_seq_cut(seq, length);
    return status;
}

hr_status hr_seq_advise(hr_seq *seq, hr_advice advice)
{
    CHECK_SET(&thread_error, seq);
    struct hr_error *error = &seq->cache->context->error;
    if (seq->step)
        return hr_fail(error, HR_E_BUSY, "the sequence is in an open step");
    if ((int)advice < HR_ADVISE_NORMAL || (int)advice > HR_ADVISE_WARM)
        return hr_fail(error, HR_E_INVALID,
                       "advice is %d; 0 (normal), 1 (park), 2 (pin) and 3 (warm) exist",
                       (int)advice);
    return hr_residency_advise(seq, advice);
}

int64_t hr_seq_length(const hr_seq *seq)
{
    return seq ? seq->length : 0;
}

hr_status hr_seq_destroy(hr_seq **seq)
{
    if (!seq || !*seq)
        return HR_OK;
    if ((*seq)->step)
        return hr_fail(&(*seq)->cache->context->error, HR_E_BUSY,
                       "the sequence is in an open step");
    hr_seq_free(*seq);
    *seq = NULL;
    return HR_OK;
}

hr_status hr_step_create(hr_cache *cache, const hr_step_limits *limits, hr_step **step)
{
    CHECK_SET(&thread_error, cache);
    CHECK_SET(&cache->context->error, step);
    *step = NULL;
    CHECK_ARGS(&cache->context->error, limits);
    return hr_step_make(cache, limits, step);
}

hr_status hr_step_destroy(hr_step **step)
{
    if (!step || !*step)
        return HR_OK;
    if ((*step)->open)
        hr_step_undo(*step);
    hr_step_free(*step);
    *step = NULL;
    return HR_OK;
}

hr_status hr_step_begin(hr_step *step, const hr_batch *batch)
{
    CHECK_SET(&thread_error, step);
    struct hr_error *error = &step->cache->context->error;
    CHECK_ARGS(error, batch);
    if (step->open)
        return hr_fail(error, HR_E_STATE, "the step is open: commit or abort it first");
    hr_status status = hr_context_device_status(step->cache->context);
    if (status == HR_OK)
        status = hr_cache_status(step->cache);
    return status == HR_OK ? hr_step_open(step, batch) : status;
}

static hr_status check_open(const hr_step *step, int32_t layer)
{
    if (!step->open)
        return hr_fail(&step->cache->context->error, HR_E_STATE, "the step is not open");
    if (step->failed != HR_OK)
        return hr_fail(&step->cache->context->error, HR_E_STATE,
                       "the step has failed (%s): abort it", hr_status_text(step->failed));
    return check_layer(step->cache, layer);
}

hr_status hr_step_append(hr_step *step, int32_t layer, const hr_append_args *args)
{
    CHECK_SET(&thread_error, step);
    struct hr_error *error = &step->cache->context->error;
    struct hr_rows k, v;
    CHECK_ARGS(error, args);
    hr_status status = check_open(step, layer);
    if (status == HR_OK && step->appended[layer])
        status = hr_fail(error, HR_E_STATE, "layer %d was appended already in this step", layer);
    if (status == HR_OK)
        status = hr_request_append(step, layer, args, &k, &v);
    if (status != HR_OK)
        return status;
    status = step->cache->context->exec->append(step, layer, &k, &v);
    if (status != HR_OK)
        return step->failed = status;
    hr_reserve_written(step, layer);
    step->appended[layer] = true;
    return HR_OK;
}

hr_status hr_step_attend(hr_step *step, int32_t layer, const hr_attend_args *args)
{
    CHECK_SET(&thread_error, step);
    hr_context *c = step->cache->context;
    struct hr_attend attend = {0};
    CHECK_ARGS(&c->error, args);
    hr_status status = check_open(step, layer);
    if (status == HR_OK && step->new_tokens > 0 && !step->appended[layer])
        status = hr_fail(&c->error, HR_E_STATE,
                         "layer %d must be appended before it attends: the batch has %lld new "
                         "tokens",
                         layer, (long long)step->new_tokens);
    if (status == HR_OK)
        status = hr_request_attend(step, layer, args, &attend);
    if (status != HR_OK)
        return status;
    int64_t start_ns = hr_clock_ns();
    status = c->exec->attend(step, layer, &attend);
    c->attend_ns += (uint64_t)(hr_clock_ns() - start_ns);
    step->attended[layer] = status == HR_OK;
    return step->failed = status;
}

hr_status hr_step_wait(hr_step *step, int32_t layer, int64_t deadline_ns)
{
    CHECK_SET(&thread_error, step);
    hr_status status = check_open(step, layer);
    if (status == HR_OK && !step->attended[layer])
        status = hr_fail(&step->cache->context->error, HR_E_STATE,
                         "layer %d has not attended in this step", layer);
    if (status != HR_OK)
        return status;
    hr_context *c = step->cache->context;
    if (c->exec->wait(step, deadline_ns) == HR_DEV_PENDING)
        return hr_fail(&c->error, HR_E_TIMEOUT, "layer %d had not attended by %lld ns", layer,
                       (long long)deadline_ns);
    return hr_context_device_status(c);
}

hr_status hr_step_commit(hr_step *step, const hr_commit_args *args)
{
    CHECK_SET(&thread_error, step);
    struct hr_error *error = &step->cache->context->error;
    if (args)
        CHECK_ARGS(error, args);
    if (!step->open)
        return hr_fail(error, HR_E_STATE, "the step is not open");
    if (step->failed != HR_OK)
        return hr_fail(error, HR_E_STATE, "the step has failed (%s): abort it",
                       hr_status_text(step->failed));
    hr_status status = hr_step_close(step, args ? args->kept : NULL);
    return status == HR_OK ? hr_context_device_status(step->cache->context) : status;
}

hr_status hr_step_cancel(hr_step *step)
{
    CHECK_SET(&thread_error, step);
    atomic_store(&step->cancelled, true);
    if (step->cache->context->tier)
        hr_mover_interrupt(step->cache->context->tier->mover);
    return HR_OK;
}

hr_status hr_step_abort(hr_step *step)
{
    CHECK_SET(&thread_error, step);
    if (!step->open)
        return hr_fail(&step->cache->context->error, HR_E_STATE, "the step is not open");
    hr_step_undo(step);
    return HR_OK;
}

int64_t hr_step_plan_text(const hr_step *step, int32_t layer, char *buffer, size_t size)
{
    CHECK_SET(&thread_error, step);
    hr_status status = check_open(step, layer);
    if (status != HR_OK)
        return status;
    int32_t class = step->cache->class_of[layer];
    struct hr_plan_input input = {
        .kernels = step->cache->kernels,
        .geom = &step->cache->classes[class].geom,
        .shapes = step->shapes,
        .n_seqs = step->n_seqs,
    };
    return hr_plan_text(&step->plans[class], &input, buffer, size);
}

hr_status hr_disk_measure(const hr_disk *disk, const char *io, hr_disk_rates *rates)
{
    thread_error = (struct hr_error){0};
    CHECK_SET(&thread_error, disk);
    CHECK_ARGS(&thread_error, rates);
    return hr_measure(disk, io, NULL, &thread_error, rates);
}

hr_status hr_attention(hr_context *context, const hr_attention_args *args)
{
    CHECK_SET(&thread_error, context);
    CHECK_ARGS(&context->error, args);
    hr_status status =
        check_size(&context->error, "args.append", args->append.struct_size, sizeof(args->append));
    if (status == HR_OK)
        status = check_size(&context->error, "args.attend", args->attend.struct_size,
                            sizeof(args->attend));
    return status == HR_OK ? hr_attention_run(context, args) : status;
}

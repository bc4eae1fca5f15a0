/* SPDX-License-Identifier: Apache-2.0 */
/* A step: one forward step of a model over a batch of sequences. begin reserves all memory, then
 * for each layer, in any layer order, append gives the new K and V and attend computes attention;
 * commit makes the new tokens part of the sequences, abort leaves the cache as it was before begin.
 *
 * Batches are ragged: each sequence has its own numbers of new and query tokens, zero included. The
 * rows of all sequences lie one after the other, in the order of hr_batch.seqs. */
#ifndef HEADRACE_STEP_H
#define HEADRACE_STEP_H

#include <headrace/status.h>
#include <headrace/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hr_step_limits {
    /* sizeof(hr_step_limits). */
    size_t struct_size;
    int32_t seqs;         /* most sequences in a batch, 1 .. 2^20 */
    int64_t new_tokens;   /* most new tokens in a batch, all sequences together, >= 0 */
    int64_t query_tokens; /* most query tokens in a batch, all sequences together, >= 0 */
} hr_step_limits;

typedef struct hr_batch {
    /* sizeof(hr_batch). */
    size_t struct_size;
    int32_t n_seqs;
    /* n_seqs different sequences of the step's cache, in no other open step. */
    hr_seq *const *seqs;
    /* [n_seqs] tokens that this step appends to each. */
    const int64_t *n_new;
    /* [n_seqs] rows of q: the newest n_query[i] positions after the append (more than the sequence
     * has: the first rows then see no key under HR_MASK_CAUSAL). NULL: n_new. */
    const int64_t *n_query;
    /* CUDA: the cudaStream_t or CUstream on which the step runs; NULL: the context's own, which is
     * in order with the legacy default stream. Needed until commit or abort has returned;
     * afterwards other streams of the context wait for it by themselves. */
    void *stream;
} hr_batch;

/* Creates a step, owned by the caller; it can be used for any number of batches within the limits.
 * Errors: HR_E_INVALID, HR_E_NO_MEMORY. */
HR_API hr_status hr_step_create(hr_cache *cache, const hr_step_limits *limits, hr_step **step);

/* Aborts what is open, destroys the step and sets *step to NULL. */
HR_API hr_status hr_step_destroy(hr_step **step);

/* Checks the batch, reserves every block it needs and plans the work. On error nothing has changed.
 * Allocates only when a plan is larger than any this step had before; append, attend, commit and
 * abort never do. Errors: HR_E_INVALID, HR_E_LIMIT, HR_E_BUSY (a sequence is in another step),
 * HR_E_BUDGET, HR_E_NO_MEMORY, HR_E_STATE (the step is open), HR_E_DEVICE. */
HR_API hr_status hr_step_begin(hr_step *step, const hr_batch *batch);

/* k and v: [new tokens of the batch][kv_heads][dim] with these strides in elements; a stride of 0
 * means packed in that order. Read during the call only; with CUDA by work on the step's stream, so
 * they must stay as they are until the stream has passed the call. V must be finite in the layer's
 * type (fp16: up to 65504): an infinity or NaN in a V row that a mask hides may spread to rows that
 * cannot see it, since 0 * inf is NaN. */
typedef struct hr_append_args {
    /* sizeof(hr_append_args). */
    size_t struct_size;
    hr_dtype dtype; /* of k and v; converted to the layer's type (round to nearest even) */
    const void *k;
    const void *v;
    int64_t k_stride_token;
    int64_t k_stride_head;
    int64_t v_stride_token;
    int64_t v_stride_head;
} hr_append_args;

/* Stores the new K and V of one layer. Once for each layer in a step that has new tokens. On the
 * host device the call blocks until the data are stored. Errors: HR_E_INVALID, HR_E_STATE; the step
 * is then as it was before the call. HR_E_DEVICE, and with disks HR_E_IO, HR_E_CORRUPT,
 * HR_E_TIMEOUT, HR_E_CANCELLED: only abort is left. */
HR_API hr_status hr_step_append(hr_step *step, int32_t layer, const hr_append_args *args);

/* q, out: [query tokens of the batch][q_heads][dim]; lse: [query tokens][q_heads]; strides in
 * elements, 0 means packed in that order. out and lse must not overlap q. With CUDA all of them,
 * and sink_logits, belong to the step's stream until it has passed the call. */
typedef struct hr_attend_args {
    /* sizeof(hr_attend_args). */
    size_t struct_size;
    hr_mask mask;
    hr_dtype q_dtype; /* q is rounded to the layer's type before use */
    hr_dtype out_dtype;
    const void *q;
    void *out;
    /* Natural-log log-sum-exp of each row's scaled logits (sink logit included), or NULL. A row
     * that sees no key: out 0 and lse -inf (with a sink logit: lse is that logit). FlashInfer's is
     * base 2: multiply by log2(e) for it. */
    float *lse;
    int64_t q_stride_token;
    int64_t q_stride_head;
    int64_t out_stride_token;
    int64_t out_stride_head;
    int64_t lse_stride_token;
    int64_t lse_stride_head;
    /* Factor of q.k; 0: 1 / sqrt(dim). */
    float scale; /* else 2^-60 to 2^60 */
    /* > 0: logits become softcap * tanh(logit / softcap) (Gemma 2, arXiv 2408.00118). 0: off; else
     * 2^-60 to 2^60. */
    float softcap;
    /* [q_heads], learned sink logits that join each row's softmax without a value (gpt-oss), or
     * NULL. The host device refuses +inf and NaN. */
    const float *sink_logits;
} hr_attend_args;

/* Attention of the batch's query rows over their sequences, this step's new tokens of the layer
 * included (append first). May be called more than once for a layer. On the host device the call
 * blocks until out is written; with CUDA the first call whose q has another type than the layer or
 * rows that are not aligned to 16 bytes takes device memory for a copy. Errors: HR_E_INVALID,
 * HR_E_STATE; the step is then as it was. HR_E_NO_MEMORY, HR_E_DEVICE, and with disks as append. */
HR_API hr_status hr_step_attend(hr_step *step, int32_t layer, const hr_attend_args *args);

/* Waits until the layer's last attend has written its output, or until `deadline_ns` of
 * CLOCK_MONOTONIC. On the host device it has. To be called before commit, which does not wait:
 * after it, only waiting for the step's stream tells when out is written. Errors: HR_E_INVALID,
 * HR_E_STATE, HR_E_TIMEOUT, HR_E_DEVICE. */
HR_API hr_status hr_step_wait(hr_step *step, int32_t layer, int64_t deadline_ns);

typedef struct hr_commit_args {
    /* sizeof(hr_commit_args). */
    size_t struct_size;
    /* [n_seqs] how many of its new tokens each sequence keeps (the first ones), for speculative
     * decoding. NULL: all. */
    const int64_t *kept;
} hr_commit_args;

/* Makes the kept tokens part of the sequences and closes the step. `args` may be NULL. Every layer
 * must have been appended if the batch has new tokens. Errors, with the step still open:
 * HR_E_INVALID (kept), HR_E_STATE (a layer was not appended: the text names it). HR_E_DEVICE: the
 * device had reported an error; the step is closed. */
HR_API hr_status hr_step_commit(hr_step *step, const hr_commit_args *args);

/* Makes a call that waits for this step's K/V, or the next one that would wait, fail with
 * HR_E_CANCELLED; the step is then to be aborted, and begin clears it. From any thread. */
HR_API hr_status hr_step_cancel(hr_step *step);

/* Closes the step; sequences and cache are as before begin. Waits for reads that are under way.
 * Errors: HR_E_STATE (not open). */
HR_API hr_status hr_step_abort(hr_step *step);

/* Writes the plan of an open step's layer as text (tiles, chunks, folds, waves, workspace) into
 * buffer[size], always terminated. Returns the length of the whole text without the terminator, as
 * snprintf does, or a negative hr_status. */
HR_API int64_t hr_step_plan_text(const hr_step *step, int32_t layer, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif

#endif

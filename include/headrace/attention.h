/* SPDX-License-Identifier: Apache-2.0 */
/* Stateless attention over a ragged batch, for research and tests. Runs on the same path as a step:
 * K and V are copied into blocks first, so callers that query the same K/V again use a cache. */
#ifndef HEADRACE_ATTENTION_H
#define HEADRACE_ATTENTION_H

#include <headrace/cache.h>
#include <headrace/step.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hr_attention_args {
    /* sizeof(hr_attention_args). */
    size_t struct_size;
    /* Geometry, window and sinks; its dtype is that in which K and V are multiplied. */
    hr_layer_options layer;
    /* Sequences; 0 is allowed. */
    int32_t n_seqs;
    /* [n_seqs + 1] first row of each sequence in q and out / in k and v; starts at 0, never falls.
     */
    const int64_t *cu_seqlens_q;
    const int64_t *cu_seqlens_k;
    /* [cu_seqlens_k[n_seqs]][kv_heads][dim], with strides; rounded to the layer's dtype. */
    hr_append_args append;
    /* [cu_seqlens_q[n_seqs]][q_heads][dim], with strides, mask, scale and the rest. */
    hr_attend_args attend;
} hr_attention_args;

/* Computes attention and returns when out is written. With CUDA the work runs on the context's own
 * stream, in order with the legacy default stream: what other streams write to q, k and v must be
 * there before the call. K/V count against the context's budget during the call; a context with
 * disks must have no cache. The struct_size of `append` and `attend` must be set. Errors: as
 * hr_cache_create, hr_step_begin, hr_step_append and hr_step_attend. */
HR_API hr_status hr_attention(hr_context *context, const hr_attention_args *args);

#ifdef __cplusplus
}
#endif

#endif

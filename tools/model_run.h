/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass: a model, its K/V in headrace, and the buffers of one step. */
#ifndef HEADRACE_TOOLS_MODEL_RUN_H
#define HEADRACE_TOOLS_MODEL_RUN_H

#include "tools/model.h"
#include "tools/run_trace.h"

#include <headrace/headrace.h>

struct model_run_options {
    int64_t rows; /* most tokens of one step */
    int32_t seqs; /* most sequences of one step */
    int32_t threads;
    hr_dtype kv_dtype;
    int64_t wave_blocks; /* hr_options.debug_wave_blocks */
    uint64_t kv_ram;     /* bytes; 0: as the library takes */
    const hr_disk *disks;
    int32_t n_disks;
    const char *io;
    struct run_trace *trace; /* or NULL */
};

/* Wall time so far. */
struct model_run_times {
    int64_t attend_ns, append_ns, gemm_ns;
};

struct model_run;

/* The geometry of the model's layers; the caller frees. NULL: out of memory. */
hr_layer_options *model_run_layers(const struct model_dims *dims, hr_dtype kv_dtype);

/* All arguments must outlive the result. NULL and a sentence in error[GGUF_ERROR_BYTES]. */
struct model_run *model_run_create(const struct model *model, struct gemm *gemm,
                                   const struct model_run_options *options, char *error);
void model_run_destroy(struct model_run *run); /* its sequences must be gone; NULL is fine */

hr_seq *model_run_seq(struct model_run *run, char *error); /* an empty one; NULL on failure */
hr_seq *model_run_fork(struct model_run *run, hr_seq *parent, char *error);

/* Appends n[i] tokens to seqs[i], all of `tokens` one after the other, and computes their final
 * states, which stay until the next step. */
bool model_run_step(struct model_run *run, hr_seq *const *seqs, const int64_t *n, int32_t n_seqs,
                    const int32_t *tokens, char *error);

/* Appends `n` tokens without computing them: K and V are made up from the last step's states. What
 * comes behind costs what it would behind a text. */
bool model_run_store(struct model_run *run, hr_seq *seq, int64_t n, char *error);

/* Logits of the last step's rows [first, first + rows) -> out[padded rows][gemm_stride(vocab)]. */
void model_run_logits(struct model_run *run, int64_t first, int64_t rows, float *out);

struct model_run_times model_run_times(const struct model_run *run);
hr_context *model_run_context(const struct model_run *run);
/* Fewer tokens than this in one step may give other bits: hr_layer_info.tile_tokens_min. */
int64_t model_run_rows_min(const struct model_run *run);

#endif

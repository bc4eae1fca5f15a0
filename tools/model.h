/* SPDX-License-Identifier: Apache-2.0 */
/* A Llama-family model from a GGUF file: its dimensions and its weights, packed for products. What
 * the forward pass would not use or does not know is an error that names it. */
#ifndef HEADRACE_TOOLS_MODEL_H
#define HEADRACE_TOOLS_MODEL_H

#include "tools/gemm.h"
#include "tools/gguf.h"

#include <stdbool.h>

struct model_dims {
    const char *arch; /* "llama" */
    bool rope_halves; /* rotates (i, i + n/2); else neighbours (2i, 2i + 1) */
    bool qk_norm;     /* RMSNorm of every head of q and k */
    bool qkv_bias;
    int32_t layers;
    int32_t context; /* tokens it was trained for */
    int32_t width;   /* of the residual stream */
    int32_t ffn;
    int32_t q_heads, kv_heads, head;
    int32_t rope; /* dimensions of a head that rotate */
    int32_t vocab;
    float rope_base;
    float norm_eps;
};

struct model_layer {
    float *attn_norm, *ffn_norm;
    float *q_norm, *k_norm;          /* [head], with qk_norm */
    float *q_bias, *k_bias, *v_bias; /* with qkv_bias */
    struct gemm_weight *q, *k, *v, *o, *gate, *up, *down;
};

struct model {
    struct model_dims dims;
    const struct gguf_tensor *embedding; /* [vocab][width], in the file */
    float *out_norm;
    struct gemm_weight *head; /* the embedding again where the file has no output.weight */
    struct model_layer *layers;
    size_t weight_bytes;
};

/* `file` and `gemm` must outlive the model. NULL and a sentence in error[GGUF_ERROR_BYTES]. */
struct model *model_open(const struct gguf *file, struct gemm *gemm, char *error);
void model_close(struct model *model); /* NULL is fine */

/* Reads and checks the dimensions alone. */
bool model_read_dims(const struct gguf *file, struct model_dims *dims, char *error);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the forward pass: the rows of one step, and what is done to each row alone. */
#ifndef HEADRACE_TOOLS_MODEL_ROWS_H
#define HEADRACE_TOOLS_MODEL_ROWS_H

#include "tools/model.h"

struct model_rows {
    const struct model *model;
    struct gemm_pool *pool;
    const struct model_ops *ops;
    int64_t n;                                                            /* rows of this step */
    int64_t width, qkv_stride, attended_stride, ffn_stride, delta_stride; /* floats a row */
    int64_t *positions; /* [rows] of its token in its sequence */
    double *turns;      /* [rope / 2] radians per position */
    float *cosines;     /* [rows][rope]: cosines, then sines */
    float *residual;    /* [rows][width] */
    float *normed;      /* [rows][width] */
    float *q, *k, *v;   /* [rows][qkv_stride], in one buffer */
    float *gate, *up;   /* [rows][ffn_stride], in the same buffer */
    float *attended;    /* [rows][attended_stride] */
    float *delta;       /* [rows][delta_stride]: what is added to the residual next */
    void *memory[7];
};

bool model_rows_create(struct model_rows *rows, const struct model *model, struct gemm *gemm,
                       int64_t n_max, char *error);
void model_rows_destroy(struct model_rows *rows);

/* residual = embedding[tokens]; the rotations of this step's positions */
void model_rows_embed(struct model_rows *rows, const int32_t *tokens);
/* residual += delta, if `add`; normed = rms_norm(residual) * weight */
void model_rows_norm(struct model_rows *rows, const float *weight, bool add);
/* bias and norm of the heads where the layer has them, then rotation of q and k */
void model_rows_rope(struct model_rows *rows, const struct model_layer *layer);
/* gate = silu(gate) * up */
void model_rows_silu(struct model_rows *rows);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of gemm: packed weights. */
#ifndef HEADRACE_TOOLS_GEMM_WEIGHT_H
#define HEADRACE_TOOLS_GEMM_WEIGHT_H

#include "tools/gemm.h"
#include "tools/model_ops.h"

#include <stdbool.h>

enum gemm_form {
    GEMM_FLOATS, /* panel: float[inputs][64] */
    GEMM_CODES4, /* panel: struct ops_group4[inputs / 32] */
    GEMM_CODES8, /* panel: struct ops_group8[inputs / 32] */
};

struct gemm_weight {
    enum gemm_form form;
    bool single_row; /* the kernel for one row gives the bits of the one for a tile */
    int64_t outputs, inputs, panels;
    size_t panel_bytes;
    unsigned char *data; /* [panels][panel_bytes]; outputs past the last are zero */
};

/* fp32 values of the panel's inputs [first, first + inputs), [inputs][64]: in `room` if they have
 * to be expanded. first is a multiple of GEMM_SLAB. */
const float *gemm_weight_slab(const struct gemm_weight *weight, const struct model_ops *ops,
                              int64_t panel, int64_t first, int64_t inputs, float *room);

const struct model_ops *gemm_ops(const struct gemm *gemm);
struct gemm_pool *gemm_threads(const struct gemm *gemm);
/* A slab's room of one thread: float[GEMM_SLAB][64]. */
float *gemm_room(const struct gemm *gemm, int thread);
/* Whether one row may skip its tile's padding: tried on this CPU, bit for bit. */
bool gemm_single_row(struct gemm *gemm, int64_t inputs);

#endif

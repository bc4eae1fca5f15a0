/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weight matrices, on libxsmm's kernels. Weights are packed once into panels of 64
 * outputs, quantised ones as codes; a slab of GEMM_SLAB inputs of a panel is expanded to fp32 in
 * the first cache and then meets all rows, in tiles of GEMM_TILE, padded. Every element is one fp32
 * sum over all inputs in one order, so that a row's bits depend neither on the number of rows nor
 * on the threads. */
#ifndef HEADRACE_TOOLS_GEMM_H
#define HEADRACE_TOOLS_GEMM_H

#include "tools/gemm_pool.h"
#include "tools/quant.h"

#include <stddef.h>

enum { GEMM_PANEL = 64, GEMM_TILE = 6, GEMM_SLAB = 96 };

struct gemm;
struct gemm_weight;

/* NULL and a sentence in error[GGUF_ERROR_BYTES] on failure. `pool` must outlive it. */
struct gemm *gemm_create(struct gemm_pool *pool, char *error);
void gemm_destroy(struct gemm *gemm); /* NULL is fine */

/* Packs rows[outputs][inputs] of a file's type; the rows are not kept. inputs is a multiple of the
 * type's block. NULL and a sentence on failure. */
struct gemm_weight *gemm_weight_create(struct gemm *gemm, enum quant_type type, const void *rows,
                                       int64_t outputs, int64_t inputs, char *error);
void gemm_weight_destroy(struct gemm_weight *weight); /* NULL is fine */
size_t gemm_weight_bytes(const struct gemm_weight *weight);

/* A row buffer of a product: `width` rounded up to panels. */
static inline int64_t gemm_stride(int64_t width)
{
    return (width + GEMM_PANEL - 1) / GEMM_PANEL * GEMM_PANEL;
}

/* Rows that buffers of x and out must have room for. */
static inline int64_t gemm_padded_rows(int64_t rows)
{
    return (rows + GEMM_TILE - 1) / GEMM_TILE * GEMM_TILE;
}

struct gemm_part {
    const struct gemm_weight *weight;
    float *out; /* [padded rows][out_stride]; columns up to gemm_stride(outputs) are written */
    int64_t out_stride;
};

enum { GEMM_PARTS_MAX = 3 };

/* out = x . weight^T for each part; x[padded rows][x_stride], its padding rows finite. The parts'
 * weights have the same number of inputs. */
void gemm_run(struct gemm *gemm, const float *x, int64_t x_stride, int64_t rows,
              const struct gemm_part *parts, int n_parts);

#endif

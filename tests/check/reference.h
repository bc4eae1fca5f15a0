/* SPDX-License-Identifier: Apache-2.0 */
/* The float64 reference on the GPU (reference.cu): what kernels/ref/ref.c gives, row by row, from
 * the structs of the CUDA kernels. */
#ifndef HR_CHECK_REFERENCE_H
#define HR_CHECK_REFERENCE_H

#include "kernels/cuda/params.h"

/* Token `token` of the sequence's n_q. */
struct hr_cu_reference_row {
    int32_t seq, q_head;
    int64_t token;
};

/* Largest of a row's elements: error of a.out, error of a naive implementation of the same
 * precision rounded to the type of a.out, and |out|. Infinite where a.out has a NaN. */
struct hr_cu_reference_errors {
    double ours, naive, top;
};

/* Launch: any grid of one dimension, 128 threads. */
struct hr_cu_reference {
    /* NULL: all rows, by sequence, token and query head. */
    const struct hr_cu_reference_row *rows;
    const unsigned char *arena;
    double *out;                           /* [n_rows][dim]; NULL: not wanted */
    double *lse;                           /* [n_rows] */
    struct hr_cu_reference_errors *errors; /* [n_rows]; NULL: not wanted, a.out is not read */
    int64_t n_rows;
    int32_t n_seqs, q_heads, dim;
    int32_t q_type, kv_type; /* hr_dtype */
    int32_t shifts;          /* naive runs, 1 to 4: each with its maximum raised by 0.3 more */
    float scale, softcap;    /* as hr_attend's */
};

#endif

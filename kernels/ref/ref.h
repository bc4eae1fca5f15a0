/* SPDX-License-Identifier: Apache-2.0 */
/* Attention row by row, straight from its definition, for tests. Both read q, K and V through the
 * same structs as the kernels. */
#ifndef HR_KERNELS_REF_REF_H
#define HR_KERNELS_REF_REF_H

#include "kernels/kernel.h"

/* Element i of an array of `dtype`. */
float hr_ref_element(const void *data, hr_dtype dtype, int64_t i);

/* x rounded to `dtype`, to nearest even; a NaN stays one. */
float hr_ref_round(float x, hr_dtype dtype);

/* Stores x as element i. */
void hr_ref_store(void *data, hr_dtype dtype, int64_t i, float x);

/* K and V of (sequence, KV head) as fp32, [n_kv][dim] each. */
void hr_ref_gather(const struct hr_attend *a, int32_t seq, int32_t head, float *k, float *v);

/* One row of query head `q_head`: token `token` of the sequence's n_q. */
struct hr_ref_row {
    const struct hr_attend *a;
    int32_t seq, q_head;
    int64_t token;
    const float *k, *v; /* of its KV head, by hr_ref_gather */
    double *work;       /* [n_kv + 2 * dim] */
};

/* In float64. out[dim]; *lse. */
void hr_ref_exact(const struct hr_ref_row *row, double *out, double *lse);

/* What a plain implementation of the same precision gives: fp32 throughout, one pass for the
 * maximum, one for P (rounded to the K/V type for P * V) and their sum. The reference maximum is
 * raised by `shift`, which moves every rounding of P but nothing else. */
void hr_ref_naive(const struct hr_ref_row *row, float shift, float *out);

#endif

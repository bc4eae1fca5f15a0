/* SPDX-License-Identifier: Apache-2.0 */
/* Cases on a GPU: memory is brought there, the CUDA kernels run, results are brought back. */
#ifndef HR_CHECK_GPU_H
#define HR_CHECK_GPU_H

#include "tests/check/case.h"
#include "tests/check/reference.h"

/* False: there is no GPU; why[256] says so. `far`: with an arena of over 2^32 elements, if the GPU
 * has room for it. */
bool hc_gpu_open(bool far, char *why);
bool hc_gpu_reaches_far(void);
void hc_gpu_close(void);

/* i = 0, 1, ...: the tables of the GPU; NULL behind the last. */
const struct hr_kernels *hc_gpu_at(int32_t i);

/* A table of the GPU, whose launchers are not called by the item. */
static inline bool hc_on_gpu(const struct hr_kernels *k)
{
    return !k->tile;
}

/* Makes what no CUDA kernel takes into what one does: dims, fp32, many query heads. */
void hc_gpu_shape(struct hr_geom *g);

/* Runs the lists in attend, waves of `wave` blocks, `blocks` in all. */
void hc_gpu_attend(struct hc_case *c, const struct hr_kernels *k, const int64_t lists[3],
                   int64_t state_floats, int64_t wave, int64_t blocks);

/* What the reference on the GPU says of n rows of a case that has been run. */
void hc_gpu_reference(const struct hc_case *c, const struct hr_cu_reference_row *rows, int64_t n,
                      int32_t shifts, struct hr_cu_reference_errors *errors, double *lse);

/* `blocks`: of the pool. */
void hc_gpu_append(const struct hr_append *a, uint32_t blocks, int64_t tokens);

#endif

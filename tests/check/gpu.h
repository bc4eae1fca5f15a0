/* SPDX-License-Identifier: Apache-2.0 */
/* Cases on a GPU: memory is brought there, the CUDA kernels run, results are brought back. */
#ifndef HR_CHECK_GPU_H
#define HR_CHECK_GPU_H

#include "tests/check/case.h"

/* False: there is no GPU; why[256] says so. */
bool hc_gpu_open(char *why);
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

/* `blocks`: of the pool. */
void hc_gpu_append(const struct hr_append *a, uint32_t blocks, int64_t tokens);

#endif

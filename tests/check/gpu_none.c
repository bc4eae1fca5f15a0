/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.c of a build without the CUDA part. */
#include <stdio.h>

#include "tests/check/gpu.h"

bool hc_gpu_open(bool far, char *why)
{
    (void)far;
    snprintf(why, 256, "this build has no CUDA part");
    return false;
}

void hc_gpu_close(void) {}

bool hc_gpu_reaches_far(void)
{
    return false;
}

const struct hr_kernels *hc_gpu_at(int32_t i)
{
    (void)i;
    return NULL;
}

void hc_gpu_shape(struct hr_geom *g)
{
    (void)g;
}

void hc_gpu_attend(struct hc_case *c, const struct hr_kernels *k, const int64_t lists[3],
                   int64_t state_floats, int64_t wave, int64_t blocks)
{
    (void)c, (void)k, (void)lists, (void)state_floats, (void)wave, (void)blocks;
}

void hc_gpu_reference(const struct hc_case *c, const struct hr_cu_reference_row *rows, int64_t n,
                      int32_t shifts, struct hr_cu_reference_errors *errors, double *lse)
{
    (void)c, (void)rows, (void)n, (void)shifts, (void)errors, (void)lse;
}

void hc_gpu_append(const struct hr_append *a, uint32_t blocks, int64_t tokens)
{
    (void)a, (void)blocks, (void)tokens;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.c of a build without the CUDA part. */
#include <stdio.h>

#include "tests/check/gpu.h"

bool hc_gpu_open(char *why)
{
    snprintf(why, 256, "this build has no CUDA part");
    return false;
}

void hc_gpu_close(void) {}

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

void hc_gpu_append(const struct hr_append *a, uint32_t blocks, int64_t tokens)
{
    (void)a, (void)blocks, (void)tokens;
}

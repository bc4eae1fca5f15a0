/* SPDX-License-Identifier: Apache-2.0 */
/* All tables of this build, the better ones later, and the choice among them. */
#include "kernels/cpu/tables.h"

static const struct hr_kernels *const tables[] = {
    &hr_kernels_portable,
#if defined(__x86_64__)
    &hr_kernels_avx2,     &hr_kernels_avx512_fma, &hr_kernels_avx512_dp, &hr_kernels_amx,
#endif
};

enum { N_TABLES = sizeof tables / sizeof tables[0] };

/* On the Intel CPU measured (family 6 model 207) vdpbf16ps has a quarter of the rate of the fp32
 * FMA, so half the FLOPs. Other vendors' have not been measured. */
static bool dp_is_fast(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return !__builtin_cpu_is("intel");
#else
    return false;
#endif
}

const struct hr_kernels *hr_kernels_at(int32_t i)
{
    return i >= 0 && i < N_TABLES ? tables[i] : NULL;
}

const struct hr_kernels *hr_kernels_select(enum hr_caps caps)
{
    const struct hr_kernels *best = &hr_kernels_portable;
    for (int i = 0; i < N_TABLES; i++)
        if (tables[i]->caps <= caps)
            best = tables[i];
#if defined(__x86_64__)
    if (best == &hr_kernels_avx512_dp && !dp_is_fast())
        best = &hr_kernels_avx512_fma;
#endif
    return best;
}

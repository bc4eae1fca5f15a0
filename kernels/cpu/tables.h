/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_KERNELS_CPU_TABLES_H
#define HR_KERNELS_CPU_TABLES_H

#include "kernels/kernel.h"

extern const struct hr_kernels hr_kernels_portable;
#if defined(__x86_64__)
extern const struct hr_kernels hr_kernels_avx2;
extern const struct hr_kernels hr_kernels_avx512_fma;
extern const struct hr_kernels hr_kernels_avx512_dp;
extern const struct hr_kernels hr_kernels_amx;
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/vec_avx2.h"
#include "kernels/cpu/level.h"

const struct hr_kernels hr_kernels_avx2 = HR_TABLE("avx2", "fma", HR_CAPS_AVX2, 0x0101u);

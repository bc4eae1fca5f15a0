/* SPDX-License-Identifier: Apache-2.0 */
/* For CPUs whose vdpbf16ps does less per cycle than two fp32 FMAs (Xeon of family 6 model 207:
 * half). */
#define HR_PAIRS 0
#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/level.h"

const struct hr_kernels hr_kernels_avx512_fma =
    HR_TABLE("avx512bf16", "fma", HR_CAPS_AVX512BF16, 0x0201u);

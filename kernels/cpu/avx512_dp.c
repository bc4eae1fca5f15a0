/* SPDX-License-Identifier: Apache-2.0 */
#define HR_PAIRS 1
#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/level.h"

const struct hr_kernels hr_kernels_avx512_dp =
    HR_TABLE("avx512bf16", "vdpbf16ps", HR_CAPS_AVX512BF16, 0x0301u);

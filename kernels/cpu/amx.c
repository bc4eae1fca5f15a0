/* SPDX-License-Identifier: Apache-2.0 */
#define HR_PAIRS 1
#define HR_AMX 1
#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/level.h"

const struct hr_kernels hr_kernels_amx = HR_TABLE("amx", "tdpbf16ps", HR_CAPS_AMX, 0x0401u);

/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/vec_portable.h"
#include "kernels/cpu/level.h"

const struct hr_kernels hr_kernels_portable = HR_TABLE("portable", "c", HR_CAPS_PORTABLE, 0x0001u);

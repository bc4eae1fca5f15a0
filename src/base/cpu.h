/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU can do, as levels: each level includes the ones below. */
#ifndef HR_BASE_CPU_H
#define HR_BASE_CPU_H

#include <stddef.h>

enum hr_caps {
    HR_CAPS_PORTABLE = 0,
    HR_CAPS_AVX2 = 1,       /* AVX2, FMA, F16C */
    HR_CAPS_AVX512BF16 = 2, /* AVX-512 F, BW, DQ, VL and BF16 */
    HR_CAPS_AMX = 3,        /* AMX-TILE and AMX-BF16, which the kernel lets the process use */
    HR_CAPS_COUNT = 4,
};

/* The highest level that CPU and operating system support. */
enum hr_caps hr_caps_detect(void);

/* "portable", "avx2", "avx512bf16", "amx". */
const char *hr_caps_name(enum hr_caps caps);

/* The level of a name, or -1. */
int hr_caps_parse(const char *name);

#endif

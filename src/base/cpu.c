/* SPDX-License-Identifier: Apache-2.0 */
#include "src/base/cpu.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const caps_names[HR_CAPS_COUNT] = {"portable", "avx2", "avx512bf16", "amx"};

#if defined(__x86_64__)
/* Register state that the operating system saves (XCR0). */
static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has(uint32_t reg, uint32_t bits)
{
    return (reg & bits) == bits;
}

/* Linux hands tile state to a process that asks for it (arch_prctl(2), ARCH_REQ_XCOMP_PERM); it
 * grows the signal frame, so an alternate signal stack that is too small makes it refuse. */
static bool amx_allowed(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    const uint64_t tile_state = 1u << 17 | 1u << 18;
    return (saved_state() & tile_state) == tile_state &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* Bits as in the Intel SDM, volume 2, CPUID leaves 1 and 7. */
enum hr_caps hr_caps_detect(void)
{
    const uint32_t fma_osxsave_f16c = 1u << 12 | 1u << 27 | 1u << 29;
    const uint32_t avx2 = 1u << 5;
    const uint32_t avx512_f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    const uint32_t avx512_bf16 = 1u << 5;
    const uint32_t amx_bf16_tile = 1u << 22 | 1u << 24; /* leaf 7, EDX */
    const uint64_t ymm_state = 0x6, zmm_state = 0xe6;
    uint32_t a, b, c, d, b7, c7, d7, a71 = 0, b71, c71, d71;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, fma_osxsave_f16c))
        return HR_CAPS_PORTABLE;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) || !has(b7, avx2) ||
        (saved_state() & ymm_state) != ymm_state)
        return HR_CAPS_PORTABLE;
    if (!has(b7, avx512_f_dq_bw_vl) || (saved_state() & zmm_state) != zmm_state || a < 1)
        return HR_CAPS_AVX2;
    __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71);
    if (!has(a71, avx512_bf16))
        return HR_CAPS_AVX2;
    return has(d7, amx_bf16_tile) && amx_allowed() ? HR_CAPS_AMX : HR_CAPS_AVX512BF16;
}
#else
enum hr_caps hr_caps_detect(void)
{
    return HR_CAPS_PORTABLE;
}
#endif

const char *hr_caps_name(enum hr_caps caps)
{
    return caps_names[caps];
}

int hr_caps_parse(const char *name)
{
    for (int i = 0; i < HR_CAPS_COUNT; i++)
        if (strcmp(name, caps_names[i]) == 0)
            return i;
    return -1;
}

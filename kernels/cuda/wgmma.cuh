/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma.mma_async (PTX ISA 9.7.15.5.2): D[64][n] += A[64][16] * B[16][n], fp32 accumulators. An asm
 * statement takes each register by name, so the lists are written out once here. */
#ifndef HR_KERNELS_CUDA_WGMMA_CUH
#define HR_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/types.cuh"

#define HR_ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HR_ACC16(d, i) HR_ACC4(d, i), HR_ACC4(d, i + 4), HR_ACC4(d, i + 8), HR_ACC4(d, i + 12)
#define HR_ACC32(d) HR_ACC16(d, 0), HR_ACC16(d, 16)
#define HR_ACC64(d) HR_ACC32(d), HR_ACC16(d, 32), HR_ACC16(d, 48)

#define HR_LIST32                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "                       \
    "%30, %31"
#define HR_LIST64                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "                       \
    "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "                       \
    "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "                       \
    "%58, %59, %60, %61, %62, %63"

/* D is zeroed first unless `more`. Shared A and B, both with K innermost. */
#define HR_WGMMA_SHARED(type, ptx, n, regs, a, b, add)                                             \
    HR_DEVICE void wgmma_shared(type, float(&d)[regs], uint64_t desc_a, uint64_t desc_b, int more) \
    {                                                                                              \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add ", 0;\n\t"                        \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ptx "." ptx                 \
                     " {" HR_LIST##regs "}, " a ", " b ", p, 1, 1, 0, 0;\n\t}"                     \
                     : HR_ACC##regs(d)                                                             \
                     : "l"(desc_a), "l"(desc_b), "r"(more));                                       \
    }

/* A in registers; B in shared memory with N innermost. Always adds. */
#define HR_WGMMA_REGISTERS(type, ptx, n, regs, a0, a1, a2, a3, b)                                  \
    HR_DEVICE void wgmma_registers(type, float(&d)[regs], const uint32_t *p, uint64_t desc_b)      \
    {                                                                                              \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.eq.b32 p, 0, 0;\n\t"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ptx "." ptx                 \
                     " {" HR_LIST##regs "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b                  \
                                        ", p, 1, 1, 1;\n\t}"                                       \
                     : HR_ACC##regs(d)                                                             \
                     : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(desc_b));                   \
    }

HR_WGMMA_SHARED(bf16, "bf16", 128, 64, "%64", "%65", "%66")
HR_WGMMA_SHARED(fp16, "f16", 128, 64, "%64", "%65", "%66")
HR_WGMMA_REGISTERS(bf16, "bf16", 64, 32, "%32", "%33", "%34", "%35", "%36")
HR_WGMMA_REGISTERS(fp16, "f16", 64, 32, "%32", "%33", "%34", "%35", "%36")
HR_WGMMA_REGISTERS(bf16, "bf16", 128, 64, "%64", "%65", "%66", "%67", "%68")
HR_WGMMA_REGISTERS(fp16, "f16", 128, 64, "%64", "%65", "%66", "%67", "%68")

#endif

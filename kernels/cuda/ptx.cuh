/* SPDX-License-Identifier: Apache-2.0 */
/* One thin wrapper per instruction, each with its section of the PTX ISA (9.0). Shared-memory
 * addresses are 32-bit ones of the shared window. */
#ifndef HR_KERNELS_CUDA_PTX_CUH
#define HR_KERNELS_CUDA_PTX_CUH

#include "kernels/cuda/tensormap.h"

#include <cuda.h>
#include <stdint.h>

#define HR_DEVICE static __device__ __forceinline__

HR_DEVICE uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* For tests: barriers that come late must not change a bit. The warp waits for 0 to 2,047 clocks,
 * now and then for 16 times as long, as the clock's low bits have it. */
HR_DEVICE void come_late(void)
{
#ifdef HR_CU_DELAYS
    asm volatile("{\n\t"
                 ".reg .u32 now, end;\n\t"
                 ".reg .pred long, early;\n\t"
                 "mov.u32 now, %%clock;\n\t"
                 "mov.u32 end, %%warpid;\n\t"
                 "mad.lo.u32 end, end, 0x85ebca6b, now;\n\t"
                 "mul.lo.u32 end, end, 0x9e3779b1;\n\t"
                 "shr.u32 end, end, 17;\n\t"
                 "setp.lt.u32 long, end, 1024;\n\t"
                 "@long shl.b32 end, end, 5;\n\t"
                 "@!long and.b32 end, end, %0;\n\t"
                 "add.u32 end, end, now;\n\t"
                 "late:\n\t"
                 "mov.u32 now, %%clock;\n\t"
                 "sub.u32 now, now, end;\n\t"
                 "setp.lt.s32 early, now, 0;\n\t"
                 "@early bra late;\n\t"
                 "}" ::"n"(2047)
                 : "memory");
#endif
}

/* 9.7.13.15.9 mbarrier.init */
HR_DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/* 9.7.13.15.13 mbarrier.arrive */
HR_DEVICE void barrier_arrive(uint32_t barrier)
{
    come_late();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* 9.7.13.15.11 mbarrier.arrive.expect_tx */
HR_DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    come_late();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* 9.7.13.15.16 mbarrier.try_wait: until the phase of this parity is over. With a hint (of 10 ms) a
 * waiting thread sleeps until then instead of asking again and again. */
HR_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity)
{
    come_late();
    asm volatile("{\n\t"
                 ".reg .pred done;\n\t"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n\t"
                 "@done bra over;\n\t"
                 "bra again;\n\t"
                 "over:\n\t"
                 "}" ::"r"(barrier),
                 "r"(parity), "r"(10000000)
                 : "memory");
}

/* 9.7.13.15.16 mbarrier.test_wait: whether the phase of this parity is over; does not wait */
HR_DEVICE bool barrier_test(uint32_t barrier, uint32_t parity)
{
    uint32_t over;
    asm volatile("{\n\t"
                 ".reg .pred done;\n\t"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, done;\n\t"
                 "}"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return over != 0;
}

/* 9.7.13.4 fence.mbarrier_init: to other CTAs and the copy engine */
HR_DEVICE void barrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* 9.7.9.25.5.2 cp.async.bulk.tensor, five dimensions */
HR_DEVICE void tensor_load5(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0, int c1,
                            int c2, int c3, int c4)
{
    come_late();
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}

/* The same of what is read once, which leaves the L2 first; 9.7.9.18 createpolicy */
HR_DEVICE void tensor_load5_once(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0,
                                 int c1, int c2, int c3, int c4)
{
    come_late();
    asm volatile("{\n\t"
                 ".reg .b64 once;\n\t"
                 "createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n\t"
                 "cp.async.bulk.tensor.5d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], once;\n\t"
                 "}" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}

/* 9.7.9.25.5.5 prefetch.tensormap */
HR_DEVICE void tensor_map_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* 9.7.19.5 setmaxnreg */
template <int count> HR_DEVICE void registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count> HR_DEVICE void registers_give(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

/* 9.7.13.1 bar.sync, bar.arrive */
HR_DEVICE void named_sync(uint32_t id, uint32_t threads)
{
    come_late();
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

HR_DEVICE void named_arrive(uint32_t id, uint32_t threads)
{
    come_late();
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* 9.7.14.5.16 stmatrix: four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8
 */
HR_DEVICE void store_matrices(uint32_t to, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}

/* 9.7.9.8 ld.shared */
HR_DEVICE uint4 load_shared16(uint32_t from)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

/* 9.7.9.12 st.global */
HR_DEVICE void store_global16(void *to, uint4 x)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

/* 9.7.13.4 fence.proxy.async: the thread's accesses to shared memory come before those of wgmma and
 * of the copy engine behind it */
HR_DEVICE void shared_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* 9.7.13.14 griddepcontrol: until the kernels before this one are over and seen */
HR_DEVICE void grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* 9.7.13.14 griddepcontrol: the next kernel may begin, as far as its own grid_wait */
HR_DEVICE void grid_launch_dependents(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* 9.7.3.21 ex2, subnormals kept out of the way by .ftz */
HR_DEVICE float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 9.7.3.13 rcp */
HR_DEVICE float reciprocal_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 9.7.15.6 wgmma.fence, commit_group, wait_group */
HR_DEVICE void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

HR_DEVICE void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int pending> HR_DEVICE void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* Keeps what depends on x where it is used, out of registers in the loop around. */
HR_DEVICE uint32_t recomputed(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* A value of which the compiler knows nothing. */
HR_DEVICE float opaque(float x)
{
    asm volatile("" : "+f"(x)::"memory");
    return x;
}

/* Keeps accumulators in place across a wait: the compiler does not know that wgmma writes them. */
template <int count> HR_DEVICE void registers_fence(float (&x)[count])
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

/* An operand of wgmma in shared memory (tensormap.h). */
struct wgmma_matrix {
    uint32_t low, high;

    __device__ __forceinline__ wgmma_matrix(uint32_t address, uint32_t leading, uint32_t stride)
    {
        uint64_t descriptor = hr_wgmma_descriptor(address, leading, stride);
        low = (uint32_t)descriptor;
        high = (uint32_t)(descriptor >> 32);
    }

    /* The descriptor of what begins so many bytes behind it. */
    __device__ __forceinline__ uint64_t at(uint32_t bytes) const
    {
        return (uint64_t)high << 32 | (low + (bytes >> 4));
    }
};

#endif

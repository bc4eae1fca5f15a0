/* SPDX-License-Identifier: Apache-2.0 */
/* What every GPU from compute capability 8.0 on has: copies into shared memory that run beside the
 * arithmetic, and matrix products of one warp. Sections are those of the PTX ISA (9.0). */
#ifndef HR_KERNELS_CUDA_MMA_CUH
#define HR_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/types.cuh"

/* 9.7.9.25.3.1 cp.async: 16 bytes, or zeros where there are none */
HR_DEVICE void copy_async(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}

HR_DEVICE void copy_async_or_zero(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/* 9.7.9.25.3.2 cp.async.commit_group */
HR_DEVICE void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* 9.7.9.25.3.3 cp.async.wait_group: until at most so many of the thread's groups are pending */
template <int pending> HR_DEVICE void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* 9.7.14.5.15 ldmatrix: four matrices of 8 rows of 16 bytes; lane i gives the address of row i % 8
 * of matrix i / 8, and gets the pair of columns 2 (i % 4) of row i / 4 of each. */
HR_DEVICE void load_matrices(uint32_t (&x)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

HR_DEVICE void load_matrices_transposed(uint32_t (&x)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

/* 9.7.9.12 st */
HR_DEVICE void store_shared(uint32_t to, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

/* 9.7.14.5.14 mma.m16n8k16: D[16][8] += A[16][16] B[16][8] in fp32, fragments as in 9.7.14.5.8 */
#define HR_MMA(type, ptx)                                                                          \
    HR_DEVICE void mma(type, float(&d)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1)        \
    {                                                                                              \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." ptx "." ptx ".f32"                            \
            " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                     \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                       \
    }

HR_MMA(bf16, "bf16")
HR_MMA(fp16, "f16")

/* Where rows of 16-byte pieces lie in shared memory, from an address divisible by 128 on: permuted
 * so that one piece of 8 rows in a row touches every bank once. */
template <int row_bytes> struct swizzle {
    static_assert(row_bytes % 64 == 0, "");
    static constexpr int period = row_bytes % 128 ? 4 : 8;

    static __device__ __forceinline__ uint32_t at(uint32_t row, uint32_t piece)
    {
        uint32_t key = period == 8 ? row % 8 : row / 2 % 4;
        return row * row_bytes + (piece ^ key) * 16;
    }

    /* From the address of piece p of a row to that of piece p + pieces, where pieces is a multiple
     * of a power of two above p. */
    static __device__ __forceinline__ uint32_t on(uint32_t address, uint32_t pieces)
    {
        return (address ^ (pieces % period * 16)) + pieces / period * period * 16;
    }
};

#endif

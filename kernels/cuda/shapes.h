/* SPDX-License-Identifier: Apache-2.0 */
/* How the attention kernels are launched: read by the launchers, and checked by the kernels
 * themselves when they are compiled. */
#ifndef HR_KERNELS_CUDA_SHAPES_H
#define HR_KERNELS_CUDA_SHAPES_H

/* A lane of the portable kernel looks at one. */
enum { HR_CU_CHUNK_BLOCKS_MAX = 32 };

/* X(kind, level, dim, threads, dynamic shared bytes, registers at most, rows at most, floats of
 * carry of a tile). Shared memory: q, the stages of K and V, then words. */
#define HR_CU_SHAPES(X)                                                                            \
    X(prefill, 90, 64, 512, 2 * 192 * 128 + 8 * 128 * 128 + 1024, 128, 192, 384 * (32 + 4))        \
    X(prefill, 90, 128, 384, 2 * 128 * 256 + 4 * 128 * 256 + 1024, 168, 128, 256 * (64 + 4))       \
    X(decode, 90, 64, 256, 64 * 128 + 6 * 128 * 128 + 1024, 128, 64, 0)                            \
    X(decode, 90, 128, 256, 64 * 256 + 3 * 128 * 256 + 1024, 128, 64, 0)                           \
    X(prefill, 80, 64, 128, 128 * 128 + 2 * 128 * 128 + 512, 255, 128, 128 * 2 * (32 + 4))         \
    X(prefill, 80, 96, 128, 128 * 192 + 3 * 64 * 192 + 512, 255, 128, 128 * 2 * (48 + 4))          \
    X(prefill, 80, 128, 128, 128 * 256 + 3 * 64 * 256 + 512, 255, 128, 128 * 2 * (64 + 4))         \
    X(prefill, 80, 256, 128, 64 * 512 + 2 * 64 * 512 + 512, 255, 64, 128 * (128 + 4))              \
    X(decode, 80, 64, 128, 99 << 10, 255, 64, 0)                                                   \
    X(decode, 80, 96, 128, 99 << 10, 255, 64, 0)                                                   \
    X(decode, 80, 128, 128, 99 << 10, 255, 64, 0)                                                  \
    X(decode, 80, 256, 128, 99 << 10, 255, 64, 0)

/* A kernel's file defines CHECK_kind_level(dim, threads, shared, rows, carry) for its own and
 * leaves the others empty. */
#define HR_CU_CHECK(kind, level, dim, threads, shared, registers, rows, carry)                     \
    CHECK_##kind##_##level(dim, threads, shared, rows, carry)

#endif

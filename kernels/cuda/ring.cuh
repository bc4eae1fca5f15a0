/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of stages between a thread that loads and warps that compute. */
#ifndef HR_KERNELS_CUDA_RING_CUH
#define HR_KERNELS_CUDA_RING_CUH

#include "kernels/cuda/ptx.cuh"

/* Where one of them stands: the stage, and the parity of the round. */
struct ring {
    uint32_t at = 0, phase = 0;

    __device__ __forceinline__ void next(uint32_t size)
    {
        at++;
        if (at == size) {
            at = 0;
            phase ^= 1;
        }
    }
};

#endif

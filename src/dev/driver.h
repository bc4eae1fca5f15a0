/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver as a table of functions, found at run time: the same library runs where there is
 * none. Names and types are those of <cuda.h>, whose macros also give each name its version
 * (cuMemAlloc stands for cuMemAlloc_v2, in the member's name and in the symbol's). */
#ifndef HR_DEV_DRIVER_H
#define HR_DEV_DRIVER_H

#include <cuda.h>
#include <stdbool.h>

#define HR_CU_FUNCTIONS(X)                                                                         \
    X(cuDriverGetVersion)                                                                          \
    X(cuInit)                                                                                      \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuCtxPushCurrent)                                                                            \
    X(cuCtxPopCurrent)                                                                             \
    X(cuMemGetInfo)                                                                                \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemHostAlloc)                                                                              \
    X(cuMemFreeHost)                                                                               \
    X(cuMemcpyHtoDAsync)                                                                           \
    X(cuMemcpyDtoHAsync)                                                                           \
    X(cuMemcpyAsync)                                                                               \
    X(cuMemsetD8Async)                                                                             \
    X(cuStreamCreate)                                                                              \
    X(cuStreamDestroy)                                                                             \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamWaitEvent)                                                                           \
    X(cuEventCreate)                                                                               \
    X(cuEventDestroy)                                                                              \
    X(cuEventRecord)                                                                               \
    X(cuEventQuery)                                                                                \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleUnload)                                                                              \
    X(cuModuleGetFunction)                                                                         \
    X(cuFuncGetAttribute)                                                                          \
    X(cuFuncSetAttribute)                                                                          \
    X(cuTensorMapEncodeTiled)                                                                      \
    X(cuLaunchKernelEx)

/* NULL where the driver has it not. */
#if CUDA_VERSION >= 13000
#define HR_CU_OPTIONAL(X) X(cuMemcpyBatchAsync)
#else
#define HR_CU_OPTIONAL(X)
#endif

struct hr_cu_driver {
#define HR_CU_MEMBER(name) __typeof__(&name) name;
    HR_CU_FUNCTIONS(HR_CU_MEMBER)
    HR_CU_OPTIONAL(HR_CU_MEMBER)
#undef HR_CU_MEMBER
};

/* Code of a toolkit runs on drivers of its CUDA major version and later ones. */
enum { HR_CU_DRIVER_NEEDED = CUDA_VERSION / 1000 * 1000 };

/* Fills the table from the shared library ("libcuda.so.1"). False: why[HR_DEV_TEXT_BYTES] says what
 * is missing. */
bool hr_cu_driver_load(struct hr_cu_driver *cu, const char *library, char *why);

/* Initialises the driver and counts the GPUs. False: it is too old, or there is none. */
bool hr_cu_driver_init(const struct hr_cu_driver *cu, int *version, int *devices, char *why);

/* "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory" */
void hr_cu_driver_say(const struct hr_cu_driver *cu, CUresult result, const char *call, char *text);

#endif

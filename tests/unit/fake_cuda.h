/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver made of host memory: copies happen at once, objects are counted, calls are written
 * down, and the call with a chosen number fails. */
#ifndef HR_TESTS_FAKE_CUDA_H
#define HR_TESTS_FAKE_CUDA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/dev/driver.h"

enum { FAKE_LOG = 256 };

/* What was enqueued: "copy", "zero", "record", "wait" or a kernel's name. */
struct fake_entry {
    const char *what;
    void *stream, *event;
    unsigned grid[3], block[3], shared, attributes;
};

struct fake_object {
    struct fake_object *next, **at;
};

static struct fake {
    int version, devices, major, minor;
    size_t free_bytes;
    int64_t calls, fail_at; /* the call with this number fails; -1: none */
    const char *failed;     /* its name */
    CUresult how;
    int pushed;   /* contexts on the stack */
    int retained; /* primary contexts */
    int held;     /* objects of the context: memory, streams, events, modules */
    struct fake_object *objects;
    int left;     /* held when the last context was released */
    bool pending; /* events have not happened */
    struct fake_entry log[FAKE_LOG];
    int logged;
} fake;

static bool fake_fails(const char *name)
{
    if (fake.calls++ != fake.fail_at)
        return false;
    fake.failed = name;
    return true;
}

#define FAKE_CALL                                                                                  \
    if (fake_fails(__func__ + 5))                                                                  \
    return fake.how

/* What a call needs that has to do with memory, streams, events, code or maps. */
#define FAKE_CALL_WITHIN                                                                           \
    FAKE_CALL;                                                                                     \
    if (fake.pushed <= 0)                                                                          \
    return CUDA_ERROR_INVALID_CONTEXT

static struct fake_entry *fake_log(const char *what, CUstream stream)
{
    struct fake_entry *e = &fake.log[fake.logged < FAKE_LOG - 1 ? fake.logged++ : fake.logged];
    *e = (struct fake_entry){.what = what, .stream = stream};
    return e;
}

static CUresult fake_DriverGetVersion(int *version)
{
    FAKE_CALL;
    *version = fake.version;
    return CUDA_SUCCESS;
}

static CUresult fake_Init(unsigned flags)
{
    FAKE_CALL;
    return CUDA_SUCCESS;
}

static CUresult fake_GetErrorName(CUresult e, const char **text)
{
    *text = e == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

static CUresult fake_GetErrorString(CUresult e, const char **text)
{
    *text = "made up";
    return CUDA_SUCCESS;
}

static CUresult fake_DeviceGetCount(int *count)
{
    FAKE_CALL;
    *count = fake.devices;
    return CUDA_SUCCESS;
}

static CUresult fake_DeviceGet(CUdevice *device, int ordinal)
{
    FAKE_CALL;
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult fake_DeviceGetName(char *name, int size, CUdevice device)
{
    FAKE_CALL;
    snprintf(name, (size_t)size, "fake %d", device);
    return CUDA_SUCCESS;
}

static CUresult fake_DeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    FAKE_CALL;
    *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? fake.major
             : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? fake.minor
             : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? 132
                                                                     : 232448;
    return CUDA_SUCCESS;
}

static CUresult fake_DevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    FAKE_CALL;
    fake.retained++;
    *context = (CUcontext)&fake;
    return CUDA_SUCCESS;
}

static CUresult fake_CtxPushCurrent(CUcontext context)
{
    FAKE_CALL;
    fake.pushed++;
    return CUDA_SUCCESS;
}

static CUresult fake_CtxPopCurrent(CUcontext *context)
{
    fake.pushed--;
    FAKE_CALL;
    return CUDA_SUCCESS;
}

static CUresult fake_MemGetInfo(size_t *free_bytes, size_t *all)
{
    FAKE_CALL_WITHIN;
    *free_bytes = fake.free_bytes;
    *all = 2 * fake.free_bytes;
    return CUDA_SUCCESS;
}

static void *fake_object(size_t bytes)
{
    struct fake_object *o = aligned_alloc(256, 256 + (bytes + 255) / 256 * 256);
    *o = (struct fake_object){.next = fake.objects, .at = &fake.objects};
    if (o->next)
        o->next->at = &o->next;
    fake.objects = o;
    fake.held++;
    return (char *)o + 256;
}

/* Gone even if the call fails: nobody can do more. */
static void fake_drop(void *object)
{
    struct fake_object *o = (struct fake_object *)((char *)object - 256);
    *o->at = o->next;
    if (o->next)
        o->next->at = o->at;
    free(o);
    fake.held--;
}

/* The last one takes what is left with it. */
static CUresult fake_DevicePrimaryCtxRelease(CUdevice device)
{
    fake.retained--;
    fake.left = fake.held;
    while (fake.objects)
        fake_drop((char *)fake.objects + 256);
    FAKE_CALL;
    return CUDA_SUCCESS;
}

static CUresult fake_MemAlloc(CUdeviceptr *memory, size_t bytes)
{
    FAKE_CALL_WITHIN;
    if (bytes > fake.free_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = (CUdeviceptr)(uintptr_t)fake_object(bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_MemFree(CUdeviceptr memory)
{
    fake_drop((void *)(uintptr_t)memory);
    FAKE_CALL_WITHIN;
    return CUDA_SUCCESS;
}

static CUresult fake_MemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    FAKE_CALL_WITHIN;
    *memory = fake_object(bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_MemFreeHost(void *memory)
{
    fake_drop(memory);
    FAKE_CALL_WITHIN;
    return CUDA_SUCCESS;
}

static void fake_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    fake_log("copy", stream);
}

static CUresult fake_MemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream s)
{
    FAKE_CALL_WITHIN;
    fake_copy(to, (CUdeviceptr)(uintptr_t)from, bytes, s);
    return CUDA_SUCCESS;
}

static CUresult fake_MemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
    FAKE_CALL_WITHIN;
    fake_copy((CUdeviceptr)(uintptr_t)to, from, bytes, s);
    return CUDA_SUCCESS;
}

static CUresult fake_MemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    FAKE_CALL_WITHIN;
    fake_copy(to, from, bytes, s);
    return CUDA_SUCCESS;
}

static CUresult fake_MemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream s)
{
    FAKE_CALL_WITHIN;
    memset((void *)(uintptr_t)to, value, bytes);
    fake_log("zero", s);
    return CUDA_SUCCESS;
}

static CUresult fake_StreamCreate(CUstream *stream, unsigned flags)
{
    FAKE_CALL_WITHIN;
    *stream = fake_object(1);
    return CUDA_SUCCESS;
}

static CUresult fake_StreamDestroy(CUstream stream)
{
    fake_drop(stream);
    FAKE_CALL_WITHIN;
    return CUDA_SUCCESS;
}

static CUresult fake_StreamSynchronize(CUstream stream)
{
    FAKE_CALL_WITHIN;
    return CUDA_SUCCESS;
}

static CUresult fake_StreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    FAKE_CALL_WITHIN;
    fake_log("wait", stream)->event = event;
    return CUDA_SUCCESS;
}

static CUresult fake_EventCreate(CUevent *event, unsigned flags)
{
    FAKE_CALL_WITHIN;
    *event = fake_object(1);
    return CUDA_SUCCESS;
}

static CUresult fake_EventDestroy(CUevent event)
{
    fake_drop(event);
    FAKE_CALL_WITHIN;
    return CUDA_SUCCESS;
}

static CUresult fake_EventRecord(CUevent event, CUstream stream)
{
    FAKE_CALL_WITHIN;
    fake_log("record", stream)->event = event;
    return CUDA_SUCCESS;
}

static CUresult fake_EventQuery(CUevent event)
{
    FAKE_CALL_WITHIN;
    return fake.pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult fake_ModuleLoadData(CUmodule *module, const void *bytes)
{
    FAKE_CALL_WITHIN;
    *module = fake_object(1);
    return CUDA_SUCCESS;
}

static CUresult fake_ModuleUnload(CUmodule module)
{
    fake_drop(module);
    FAKE_CALL_WITHIN;
    return CUDA_SUCCESS;
}

/* A function is its name. */
static CUresult fake_ModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    FAKE_CALL_WITHIN;
    *function = (CUfunction)(uintptr_t)name;
    return CUDA_SUCCESS;
}

static CUresult fake_FuncGetAttribute(int *value, CUfunction_attribute which, CUfunction f)
{
    FAKE_CALL_WITHIN;
    *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 512
             : which == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
             : which == CU_FUNC_ATTRIBUTE_PTX_VERSION         ? 90
                                                              : 0;
    return CUDA_SUCCESS;
}

static CUresult fake_FuncSetAttribute(CUfunction f, CUfunction_attribute which, int value)
{
    FAKE_CALL_WITHIN;
    return value <= 232448 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_TensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type,
                                          cuuint32_t rank, void *base, const cuuint64_t *dims,
                                          const cuuint64_t *strides, const cuuint32_t *box,
                                          const cuuint32_t *every, CUtensorMapInterleave interleave,
                                          CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                                          CUtensorMapFloatOOBfill fill)
{
    FAKE_CALL_WITHIN;
    if ((uintptr_t)map % 64 != 0 || rank != 5 || swizzle != CU_TENSOR_MAP_SWIZZLE_128B)
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 7, sizeof(*map));
    return CUDA_SUCCESS;
}

static CUresult fake_LaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters,
                                    void **extra)
{
    FAKE_CALL_WITHIN;
    struct fake_entry *e = fake_log((const char *)f, c->hStream);
    memcpy(e->grid, (unsigned[]){c->gridDimX, c->gridDimY, c->gridDimZ}, sizeof(e->grid));
    memcpy(e->block, (unsigned[]){c->blockDimX, c->blockDimY, c->blockDimZ}, sizeof(e->block));
    e->shared = c->sharedMemBytes;
    e->attributes = c->numAttrs;
    return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
static CUresult fake_MemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n,
                                      CUmemcpyAttributes *how, size_t *firsts, size_t hows,
                                      CUstream stream)
{
    FAKE_CALL_WITHIN;
    for (size_t i = 0; i < n; i++)
        memcpy((void *)(uintptr_t)to[i], (const void *)(uintptr_t)from[i], bytes[i]);
    fake_log("batch", stream);
    return CUDA_SUCCESS;
}
#endif

/* `fail_at` as in the struct; `batches`: the driver has batches of copies. */
static struct hr_cu_driver fake_driver(int64_t fail_at, bool batches)
{
    struct hr_cu_driver cu = {
        .cuDriverGetVersion = fake_DriverGetVersion,
        .cuInit = fake_Init,
        .cuGetErrorName = fake_GetErrorName,
        .cuGetErrorString = fake_GetErrorString,
        .cuDeviceGetCount = fake_DeviceGetCount,
        .cuDeviceGet = fake_DeviceGet,
        .cuDeviceGetName = fake_DeviceGetName,
        .cuDeviceGetAttribute = fake_DeviceGetAttribute,
        .cuDevicePrimaryCtxRetain = fake_DevicePrimaryCtxRetain,
        .cuDevicePrimaryCtxRelease = fake_DevicePrimaryCtxRelease,
        .cuCtxPushCurrent = fake_CtxPushCurrent,
        .cuCtxPopCurrent = fake_CtxPopCurrent,
        .cuMemGetInfo = fake_MemGetInfo,
        .cuMemAlloc = fake_MemAlloc,
        .cuMemFree = fake_MemFree,
        .cuMemHostAlloc = fake_MemHostAlloc,
        .cuMemFreeHost = fake_MemFreeHost,
        .cuMemcpyHtoDAsync = fake_MemcpyHtoDAsync,
        .cuMemcpyDtoHAsync = fake_MemcpyDtoHAsync,
        .cuMemcpyAsync = fake_MemcpyAsync,
        .cuMemsetD8Async = fake_MemsetD8Async,
        .cuStreamCreate = fake_StreamCreate,
        .cuStreamDestroy = fake_StreamDestroy,
        .cuStreamSynchronize = fake_StreamSynchronize,
        .cuStreamWaitEvent = fake_StreamWaitEvent,
        .cuEventCreate = fake_EventCreate,
        .cuEventDestroy = fake_EventDestroy,
        .cuEventRecord = fake_EventRecord,
        .cuEventQuery = fake_EventQuery,
        .cuModuleLoadData = fake_ModuleLoadData,
        .cuModuleUnload = fake_ModuleUnload,
        .cuModuleGetFunction = fake_ModuleGetFunction,
        .cuFuncGetAttribute = fake_FuncGetAttribute,
        .cuFuncSetAttribute = fake_FuncSetAttribute,
        .cuTensorMapEncodeTiled = fake_TensorMapEncodeTiled,
        .cuLaunchKernelEx = fake_LaunchKernelEx,
    };
#if CUDA_VERSION >= 13000
    if (batches)
        cu.cuMemcpyBatchAsync = fake_MemcpyBatchAsync;
#endif
    fake = (struct fake){.version = HR_CU_DRIVER_NEEDED,
                         .devices = 1,
                         .major = 9,
                         .free_bytes = 1 << 26,
                         .fail_at = fail_at,
                         .how = CUDA_ERROR_UNKNOWN};
    return cu;
}

#endif

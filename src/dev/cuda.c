/* SPDX-License-Identifier: Apache-2.0 */
#include "src/dev/cuda.h"

#include <stdio.h>

#ifndef HR_HAVE_CUDA

enum hr_dev_cuda_fault hr_dev_cuda_open(const struct hr_dev_cuda_options *options,
                                        struct hr_dev **dev)
{
    *dev = NULL;
    snprintf(options->why, HR_DEV_TEXT_BYTES,
             "this build has no CUDA part: it was made without nvcc of CUDA 12.6 or later, or with "
             "-Dcuda=disabled");
    return HR_DEV_CUDA_ABSENT;
}

#else

#include <string.h>
#include <time.h>

#include "src/base/clock.h"
#include "src/dev/driver.h"

enum { BATCH = 512, MAJOR_NEEDED = 8 };

struct cuda_dev {
    struct hr_dev dev;
    struct hr_alloc *alloc;
    struct hr_cu_driver cu;
    struct hr_dev_cuda_info info;
    CUdevice device;
    CUcontext context; /* NULL: not retained */
    CUstream own[HR_DEV_QUEUES];
    CUstream streams[HR_DEV_QUEUES]; /* in use: own, but for the caller's */
    CUevent change;                  /* of the work queue's stream */
    char error[HR_DEV_TEXT_BYTES];   /* the first one; "": alive */
    /* One batch of copies. */
    CUdeviceptr to[BATCH], from[BATCH];
    size_t bytes[BATCH];
};

static struct cuda_dev *cuda_of(const struct hr_dev *dev)
{
    return (struct cuda_dev *)dev;
}

static CUdeviceptr address_of(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

/* ---- Errors and the current context ---- */

bool hr_dev_cuda_went(struct hr_dev *dev, int result, const char *call)
{
    struct cuda_dev *c = cuda_of(dev);
    if (result != CUDA_SUCCESS && !c->error[0])
        hr_cu_driver_say(&c->cu, (CUresult)result, call, c->error);
    return result == CUDA_SUCCESS;
}

void hr_dev_cuda_kill(struct hr_dev *dev, const char *text)
{
    struct cuda_dev *c = cuda_of(dev);
    if (!c->error[0])
        snprintf(c->error, sizeof(c->error), "%s", text);
}

/* Calls a function of the driver by its name. */
#define TRY(c, function, ...) hr_dev_cuda_went(&(c)->dev, (c)->cu.function(__VA_ARGS__), #function)

bool hr_dev_cuda_enter_to_free(struct hr_dev *dev)
{
    struct cuda_dev *c = cuda_of(dev);
    return TRY(c, cuCtxPushCurrent, c->context);
}

bool hr_dev_cuda_enter(struct hr_dev *dev)
{
    return !cuda_of(dev)->error[0] && hr_dev_cuda_enter_to_free(dev);
}

void hr_dev_cuda_leave(struct hr_dev *dev)
{
    struct cuda_dev *c = cuda_of(dev);
    CUcontext ours;
    TRY(c, cuCtxPopCurrent, &ours);
}

static const char *cuda_error(const struct hr_dev *dev)
{
    const struct cuda_dev *c = cuda_of(dev);
    return c->error[0] ? c->error : NULL;
}

const struct hr_dev_cuda_info *hr_dev_cuda_info(const struct hr_dev *dev)
{
    return &cuda_of(dev)->info;
}

const struct hr_cu_driver *hr_dev_cuda_driver(const struct hr_dev *dev)
{
    return &cuda_of(dev)->cu;
}

void *hr_dev_cuda_stream(const struct hr_dev *dev, enum hr_dev_queue queue)
{
    return cuda_of(dev)->streams[queue];
}

/* ---- Memory ---- */

static bool no_memory(CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY;
}

static void *cuda_memory_get(struct hr_dev *dev, size_t bytes)
{
    struct cuda_dev *c = cuda_of(dev);
    CUdeviceptr memory = 0;
    if (!hr_dev_cuda_enter(dev))
        return NULL;
    CUresult result = c->cu.cuMemAlloc(&memory, bytes ? bytes : 1);
    if (!no_memory(result))
        hr_dev_cuda_went(dev, result, "cuMemAlloc");
    hr_dev_cuda_leave(dev);
    return result == CUDA_SUCCESS ? (void *)(uintptr_t)memory : NULL;
}

static void cuda_memory_put(struct hr_dev *dev, void *memory, size_t bytes)
{
    struct cuda_dev *c = cuda_of(dev);
    if (!memory || !hr_dev_cuda_enter_to_free(dev))
        return;
    TRY(c, cuMemFree, address_of(memory));
    hr_dev_cuda_leave(dev);
}

static void *cuda_pinned_get(struct hr_dev *dev, size_t bytes)
{
    struct cuda_dev *c = cuda_of(dev);
    void *memory = NULL;
    if (!hr_dev_cuda_enter(dev))
        return NULL;
    CUresult result = c->cu.cuMemHostAlloc(&memory, bytes ? bytes : 1, CU_MEMHOSTALLOC_PORTABLE);
    if (!no_memory(result))
        hr_dev_cuda_went(dev, result, "cuMemHostAlloc");
    hr_dev_cuda_leave(dev);
    return result == CUDA_SUCCESS ? memory : NULL;
}

static void cuda_pinned_put(struct hr_dev *dev, void *memory, size_t bytes)
{
    struct cuda_dev *c = cuda_of(dev);
    if (!memory || !hr_dev_cuda_enter_to_free(dev))
        return;
    TRY(c, cuMemFreeHost, memory);
    hr_dev_cuda_leave(dev);
}

/* ---- Copies ---- */

static void cuda_upload(struct hr_dev *dev, enum hr_dev_queue queue, void *to, const void *from,
                        size_t bytes)
{
    struct cuda_dev *c = cuda_of(dev);
    if (bytes == 0 || !hr_dev_cuda_enter(dev))
        return;
    TRY(c, cuMemcpyHtoDAsync, address_of(to), from, bytes, c->streams[queue]);
    hr_dev_cuda_leave(dev);
}

static void cuda_download(struct hr_dev *dev, enum hr_dev_queue queue, void *to, const void *from,
                          size_t bytes)
{
    struct cuda_dev *c = cuda_of(dev);
    if (bytes == 0 || !hr_dev_cuda_enter(dev))
        return;
    TRY(c, cuMemcpyDtoHAsync, to, address_of(from), bytes, c->streams[queue]);
    hr_dev_cuda_leave(dev);
}

/* The arena is one allocation. */
static void cuda_release(struct hr_dev *dev, void *memory, size_t bytes) {}

static void cuda_zero(struct hr_dev *dev, void *memory, size_t bytes)
{
    struct cuda_dev *c = cuda_of(dev);
    if (bytes == 0 || !hr_dev_cuda_enter(dev))
        return;
    TRY(c, cuMemsetD8Async, address_of(memory), 0, bytes, c->streams[HR_DEV_WORK]);
    hr_dev_cuda_leave(dev);
}

/* The driver's batches are not for the default streams. */
static bool takes_batches(const struct cuda_dev *c, CUstream stream)
{
    return c->info.batches && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

static bool copy_some(struct cuda_dev *c, CUstream stream, size_t count)
{
#if CUDA_VERSION >= 13000
    if (takes_batches(c, stream)) {
        CUmemcpyAttributes how = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                                  .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE};
        size_t from_first = 0;
        return TRY(c, cuMemcpyBatchAsync, c->to, c->from, c->bytes, count, &how, &from_first, 1,
                   stream);
    }
#endif
    for (size_t i = 0; i < count; i++)
        if (!TRY(c, cuMemcpyAsync, c->to[i], c->from[i], c->bytes[i], stream))
            return false;
    return true;
}

static void cuda_copy_batch(struct hr_dev *dev, enum hr_dev_queue queue,
                            const struct hr_dev_copy *copies, int64_t count)
{
    struct cuda_dev *c = cuda_of(dev);
    bool good = true;
    if (count == 0 || !hr_dev_cuda_enter(dev))
        return;
    for (int64_t i = 0; good && i < count;) {
        size_t n = 0;
        for (; n < BATCH && i < count; i++) {
            c->to[n] = address_of(copies[i].to);
            c->from[n] = address_of(copies[i].from);
            c->bytes[n] = copies[i].bytes;
            n += copies[i].bytes > 0;
        }
        good = n == 0 || copy_some(c, c->streams[queue], n);
    }
    hr_dev_cuda_leave(dev);
}

/* ---- Order ---- */

static void cuda_set_stream(struct hr_dev *dev, void *stream)
{
    struct cuda_dev *c = cuda_of(dev);
    CUstream next = stream ? stream : c->own[HR_DEV_WORK], now = c->streams[HR_DEV_WORK];
    if (next == now || !hr_dev_cuda_enter(dev))
        return;
    if (TRY(c, cuEventRecord, c->change, now) && TRY(c, cuStreamWaitEvent, next, c->change, 0))
        c->streams[HR_DEV_WORK] = next;
    hr_dev_cuda_leave(dev);
}

/* The event is the driver's. */
static CUevent event_of(struct hr_dev_event *event)
{
    return (CUevent)event;
}

static struct hr_dev_event *cuda_event_make(struct hr_dev *dev)
{
    struct cuda_dev *c = cuda_of(dev);
    CUevent event = NULL;
    if (!hr_dev_cuda_enter(dev))
        return NULL;
    bool made = TRY(c, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    hr_dev_cuda_leave(dev);
    return made ? (struct hr_dev_event *)event : NULL;
}

static void cuda_event_free(struct hr_dev *dev, struct hr_dev_event *event)
{
    struct cuda_dev *c = cuda_of(dev);
    if (!event || !hr_dev_cuda_enter_to_free(dev))
        return;
    TRY(c, cuEventDestroy, event_of(event));
    hr_dev_cuda_leave(dev);
}

static void cuda_event_record(struct hr_dev *dev, struct hr_dev_event *event,
                              enum hr_dev_queue queue)
{
    struct cuda_dev *c = cuda_of(dev);
    if (!hr_dev_cuda_enter(dev))
        return;
    TRY(c, cuEventRecord, event_of(event), c->streams[queue]);
    hr_dev_cuda_leave(dev);
}

static void cuda_event_await(struct hr_dev *dev, struct hr_dev_event *event,
                             enum hr_dev_queue queue)
{
    struct cuda_dev *c = cuda_of(dev);
    if (!hr_dev_cuda_enter(dev))
        return;
    TRY(c, cuStreamWaitEvent, c->streams[queue], event_of(event), 0);
    hr_dev_cuda_leave(dev);
}

static enum hr_dev_wait look(struct hr_dev *dev, CUevent event)
{
    struct cuda_dev *c = cuda_of(dev);
    if (!hr_dev_cuda_enter(dev))
        return HR_DEV_DEAD;
    CUresult result = c->cu.cuEventQuery(event);
    if (result != CUDA_ERROR_NOT_READY)
        hr_dev_cuda_went(dev, result, "cuEventQuery");
    hr_dev_cuda_leave(dev);
    if (c->error[0])
        return HR_DEV_DEAD;
    return result == CUDA_SUCCESS ? HR_DEV_DONE : HR_DEV_PENDING;
}

/* Looks without pause at first, then every 20 microseconds: the driver's own wait has no deadline.
 */
static enum hr_dev_wait cuda_event_wait(struct hr_dev *dev, struct hr_dev_event *event,
                                        int64_t deadline_ns)
{
    enum { SPIN_NS = 50000 };
    static const struct timespec pause = {.tv_nsec = 20000};
    int64_t begin_ns = hr_clock_ns();
    for (;;) {
        enum hr_dev_wait wait = look(dev, event_of(event));
        int64_t now_ns = hr_clock_ns();
        if (wait != HR_DEV_PENDING || now_ns >= deadline_ns)
            return wait;
        if (now_ns - begin_ns > SPIN_NS)
            nanosleep(&pause, NULL);
    }
}

/* ---- Open and close ---- */

static void free_all(struct cuda_dev *c)
{
    for (int i = 0; i < HR_DEV_QUEUES; i++)
        if (c->own[i])
            TRY(c, cuStreamSynchronize, c->own[i]);
    if (c->dev.arena)
        TRY(c, cuMemFree, address_of(c->dev.arena));
    if (c->change)
        TRY(c, cuEventDestroy, c->change);
    for (int i = 0; i < HR_DEV_QUEUES; i++)
        if (c->own[i])
            TRY(c, cuStreamDestroy, c->own[i]);
}

static void cuda_close(struct hr_dev *dev)
{
    struct cuda_dev *c = cuda_of(dev);
    if (c->context) {
        cuda_set_stream(dev, NULL);
        if (hr_dev_cuda_enter_to_free(dev)) {
            free_all(c);
            hr_dev_cuda_leave(dev);
        }
        TRY(c, cuDevicePrimaryCtxRelease, c->device);
    }
    hr_alloc_put(c->alloc, c, sizeof(*c));
}

static const struct hr_dev_ops cuda_ops = {
    .name = "cuda",
    .zero = cuda_zero,
    .release = cuda_release,
    .close = cuda_close,
    .memory_get = cuda_memory_get,
    .memory_put = cuda_memory_put,
    .pinned_get = cuda_pinned_get,
    .pinned_put = cuda_pinned_put,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy_batch = cuda_copy_batch,
    .set_stream = cuda_set_stream,
    .event_make = cuda_event_make,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_await = cuda_event_await,
    .event_wait = cuda_event_wait,
    .error = cuda_error,
};

static bool read_attributes(struct cuda_dev *c)
{
    struct hr_dev_cuda_info *info = &c->info;
    const struct {
        int32_t *to;
        CUdevice_attribute which;
    } list[] = {
        {&info->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
        {&info->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
        {&info->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
        {&info->shared_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (!TRY(c, cuDeviceGetAttribute, list[i].to, list[i].which, c->device))
            return false;
    return TRY(c, cuDeviceGetName, info->name, sizeof(info->name), c->device);
}

/* Driver and GPU. */
static enum hr_dev_cuda_fault find_device(struct cuda_dev *c, const struct hr_dev_cuda_options *o)
{
    int devices = 0;
    if (o->driver)
        c->cu = *o->driver;
    else if (!hr_cu_driver_load(&c->cu, "libcuda.so.1", c->error))
        return HR_DEV_CUDA_ABSENT;
    if (!hr_cu_driver_init(&c->cu, &c->info.driver_version, &devices, c->error))
        return HR_DEV_CUDA_ABSENT;
    if (o->ordinal < 0 || o->ordinal >= devices) {
        snprintf(c->error, sizeof(c->error), "there is no GPU %d: the driver sees %d", o->ordinal,
                 devices);
        return HR_DEV_CUDA_ABSENT;
    }
    c->info.ordinal = o->ordinal;
#if CUDA_VERSION >= 13000
    c->info.batches = c->cu.cuMemcpyBatchAsync != NULL;
#endif
    if (!TRY(c, cuDeviceGet, &c->device, o->ordinal) || !read_attributes(c))
        return HR_DEV_CUDA_FAILED;
    if (c->info.major < MAJOR_NEEDED) {
        snprintf(c->error, sizeof(c->error),
                 "GPU %d (%s) has compute capability %d.%d; %d.0 or later is needed", o->ordinal,
                 c->info.name, c->info.major, c->info.minor, MAJOR_NEEDED);
        return HR_DEV_CUDA_ABSENT;
    }
    return HR_DEV_CUDA_OK;
}

static bool make_queues(struct cuda_dev *c)
{
    /* A caller who passes no stream means the default one: work is in order with it. */
    for (int i = 0; i < HR_DEV_QUEUES; i++) {
        unsigned flags = i == HR_DEV_WORK ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
        if (!TRY(c, cuStreamCreate, &c->own[i], flags))
            return false;
        c->streams[i] = c->own[i];
    }
    return TRY(c, cuEventCreate, &c->change, CU_EVENT_DISABLE_TIMING);
}

static enum hr_dev_cuda_fault make_arena(struct cuda_dev *c, const struct hr_dev_cuda_options *o)
{
    size_t free_bytes = 0, all_bytes = 0;
    CUdeviceptr arena = 0;
    if (!TRY(c, cuMemGetInfo, &free_bytes, &all_bytes))
        return HR_DEV_CUDA_FAILED;
    c->info.free_bytes_at_open = free_bytes;
    c->info.memory_bytes = all_bytes;
    uint64_t bytes = o->arena_bytes;
    if (bytes == 0)
        bytes = free_bytes / 10 * 9 / o->arena_unit * o->arena_unit;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes > 0)
        result = c->cu.cuMemAlloc(&arena, bytes);
    if (no_memory(result)) {
        snprintf(c->error, sizeof(c->error),
                 "GPU %d (%s) has no %llu bytes for the K/V arena; %llu of %llu are free",
                 o->ordinal, c->info.name, (unsigned long long)bytes,
                 (unsigned long long)free_bytes, (unsigned long long)all_bytes);
        return HR_DEV_CUDA_NO_ARENA;
    }
    if (!hr_dev_cuda_went(&c->dev, result, "cuMemAlloc"))
        return HR_DEV_CUDA_FAILED;
    c->dev.arena = (unsigned char *)(uintptr_t)arena;
    c->dev.arena_bytes = bytes;
    if (!TRY(c, cuMemsetD8Async, arena, 0, bytes, c->own[HR_DEV_WORK]) ||
        !TRY(c, cuStreamSynchronize, c->own[HR_DEV_WORK]))
        return HR_DEV_CUDA_FAILED;
    return HR_DEV_CUDA_OK;
}

static enum hr_dev_cuda_fault open_in(struct cuda_dev *c, const struct hr_dev_cuda_options *o)
{
    enum hr_dev_cuda_fault fault = find_device(c, o);
    if (fault != HR_DEV_CUDA_OK)
        return fault;
    if (!TRY(c, cuDevicePrimaryCtxRetain, &c->context, c->device)) {
        c->context = NULL;
        return HR_DEV_CUDA_FAILED;
    }
    if (!hr_dev_cuda_enter(&c->dev))
        return HR_DEV_CUDA_FAILED;
    fault = make_queues(c) ? make_arena(c, o) : HR_DEV_CUDA_FAILED;
    hr_dev_cuda_leave(&c->dev);
    return fault == HR_DEV_CUDA_OK && c->error[0] ? HR_DEV_CUDA_FAILED : fault;
}

enum hr_dev_cuda_fault hr_dev_cuda_open(const struct hr_dev_cuda_options *options,
                                        struct hr_dev **dev)
{
    *dev = NULL;
    struct cuda_dev *c = hr_alloc_zero(options->alloc, sizeof(*c));
    if (!c) {
        snprintf(options->why, HR_DEV_TEXT_BYTES, "no host memory for the CUDA device");
        return HR_DEV_CUDA_NO_MEMORY;
    }
    c->dev.ops = &cuda_ops;
    c->alloc = options->alloc;
    enum hr_dev_cuda_fault fault = open_in(c, options);
    if (fault != HR_DEV_CUDA_OK) {
        memcpy(options->why, c->error, HR_DEV_TEXT_BYTES);
        cuda_close(&c->dev);
        return fault;
    }
    *dev = &c->dev;
    return HR_DEV_CUDA_OK;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device: an NVIDIA GPU of compute capability 8.0 or later, in its primary context, so
 * that it shares memory and streams with other users of the CUDA runtime in the process. */
#ifndef HR_DEV_CUDA_H
#define HR_DEV_CUDA_H

#include "src/dev/dev.h"

struct hr_cu_driver;

enum hr_dev_cuda_fault {
    HR_DEV_CUDA_OK,
    HR_DEV_CUDA_ABSENT,    /* not in this build; no driver, no such GPU, or one too old */
    HR_DEV_CUDA_NO_MEMORY, /* of the host */
    HR_DEV_CUDA_NO_ARENA,  /* the GPU has not so much memory free */
    HR_DEV_CUDA_FAILED,    /* another error of the driver */
};

struct hr_dev_cuda_options {
    struct hr_alloc *alloc;
    int32_t ordinal;
    /* A multiple of arena_unit; 0: nine tenths of what is free. */
    uint64_t arena_bytes;
    uint64_t arena_unit;
    const struct hr_cu_driver *driver; /* NULL: the system's. For tests. Copied */
    char *why;                         /* [HR_DEV_TEXT_BYTES] set on a fault */
};

struct hr_dev_cuda_info {
    char name[64];
    int32_t driver_version; /* 13000: CUDA 13.0 */
    int32_t ordinal;
    int32_t major, minor;        /* compute capability */
    int32_t multiprocessors;     /* SMs */
    int32_t shared_bytes;        /* that a block may have */
    uint64_t memory_bytes;       /* of the GPU */
    uint64_t free_bytes_at_open; /* before the arena */
    bool batches;                /* the driver copies many pieces in one call */
};

/* Blocks while the driver starts and the arena is zeroed. On a fault *dev is NULL.
 *
 * In the table: stream NULL is the device's own; CUDA's legacy and per-thread default streams are
 * (void *)1 and (void *)2. Only a lack of memory is no error of the device. */
enum hr_dev_cuda_fault hr_dev_cuda_open(const struct hr_dev_cuda_options *options,
                                        struct hr_dev **dev);

/* The rest is for launchers of kernels; results are CUresult. */
const struct hr_dev_cuda_info *hr_dev_cuda_info(const struct hr_dev *dev);
const struct hr_cu_driver *hr_dev_cuda_driver(const struct hr_dev *dev);
void *hr_dev_cuda_stream(const struct hr_dev *dev, enum hr_dev_queue queue);

/* Around calls of the driver: makes the device's context current, and the caller's again. False:
 * the device is dead, and there is nothing to leave. */
bool hr_dev_cuda_enter(struct hr_dev *dev);
void hr_dev_cuda_leave(struct hr_dev *dev);
/* Makes the current context the device's even if it is dead, to free what it holds. */
bool hr_dev_cuda_enter_to_free(struct hr_dev *dev);

/* Whether a call went well; its failure kills the device. */
bool hr_dev_cuda_went(struct hr_dev *dev, int result, const char *call);
/* Kills the device for a reason of the caller's. */
void hr_dev_cuda_kill(struct hr_dev *dev, const char *text);

#endif

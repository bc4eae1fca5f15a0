/* SPDX-License-Identifier: Apache-2.0 */
/* The context: device, extents, kernels, allocator, statistics. */
#ifndef HR_CONTEXT_H
#define HR_CONTEXT_H

#include <headrace/headrace.h>

#include "kernels/kernel.h"
#include "offload/extent.h"
#include "src/base/error.h"
#include "src/dev/dev.h"

struct hr_exec_ops;
struct hr_cu_kernels;

struct hr_context {
    struct hr_alloc alloc;
    struct hr_error error;
    struct hr_dev *dev;
    struct hr_extents extents;
    const struct hr_kernels *kernels;
    const struct hr_exec_ops *exec;
    struct hr_cu_kernels *cuda; /* loaded kernels of a CUDA device, or NULL */
    int64_t wave_blocks;        /* debugging: cut waves; 0: never */
    int32_t caches;             /* not yet destroyed */
    uint64_t kv_bytes_used;
    uint64_t kv_bytes_peak;
    uint64_t steps_committed;
    uint64_t steps_aborted;
    uint64_t tokens_appended;
    uint64_t attend_ns;
};

hr_status hr_context_open(const hr_options *options, struct hr_error *error, hr_context **context);
void hr_context_close(hr_context *context);
/* HR_E_DEVICE once the device has reported an error. */
hr_status hr_context_device_status(hr_context *context);
void hr_context_fill_stats(const hr_context *context, hr_stats *stats);

#endif

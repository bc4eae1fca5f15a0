/* SPDX-License-Identifier: Apache-2.0 */
/* The context: device, extents, kernels, allocator, statistics. */
#ifndef HR_CONTEXT_H
#define HR_CONTEXT_H

#include <headrace/headrace.h>

#include "kernels/kernel.h"
#include "offload/tier.h"
#include "src/base/error.h"
#include "src/dev/dev.h"

struct hr_exec_ops;
struct hr_cu_kernels;

/* A century: a clock's time and this still fit 63 bits of nanoseconds. */
#define HR_PATIENCE_MS_MAX 3155760000000ll

struct hr_context {
    struct hr_alloc alloc;
    struct hr_error error;
    struct hr_dev *dev;
    struct hr_extents extents;
    const struct hr_kernels *kernels;
    struct hr_kernels dry_kernels; /* of a dry run: as planned with, but they do nothing */
    bool dry;
    const struct hr_exec_ops *exec;
    struct hr_cu_kernels *cuda; /* loaded kernels of a CUDA device, or NULL */
    int64_t wave_blocks;        /* debugging: cut waves; 0: never */
    struct hr_tier *tier;       /* below the device, or NULL */
    hr_cache *first_cache;
    int64_t patience_ns; /* of one wait for K/V from disk */
    int64_t promised;    /* extents of the device that caches with a tier below have */
    uint64_t waited_ns;
    uint64_t last_uid; /* of sequences */
    int32_t caches;    /* not yet destroyed */
    uint64_t kv_bytes_used;
    uint64_t kv_bytes_peak;
    uint64_t steps_committed;
    uint64_t steps_aborted;
    uint64_t tokens_appended;
    uint64_t attend_ns;
    hr_trace_fn *trace; /* or NULL */
    void *trace_user;
};

/* What tests put in place of the system. */
struct hr_hooks {
    const struct hr_io_calls *calls;     /* of files, or NULL */
    const struct hr_io_sim_options *sim; /* a simulated disk, or NULL */
    /* An I/O engine of the test's own, or NULL; called once, for the context to own. */
    struct hr_io *(*open_io)(void *user, const struct hr_io_options *options, char *why);
    /* Called when the device is there and nothing uses it yet; or NULL. */
    void (*device_opened)(void *user, hr_context *context);
    void *user;
};

hr_status hr_context_open(const hr_options *options, const struct hr_hooks *hooks,
                          struct hr_error *error, hr_context **context);
void hr_context_close(hr_context *context);
/* Bytes that K/V may take of the device. */
static inline uint64_t hr_context_budget(const hr_context *c)
{
    return (uint64_t)c->extents.limit * HR_EXTENT_BYTES;
}
/* HR_E_DEVICE once the device has reported an error. */
hr_status hr_context_device_status(hr_context *context);
void hr_context_fill_stats(const hr_context *context, hr_stats *stats);

#endif

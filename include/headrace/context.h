/* SPDX-License-Identifier: Apache-2.0 */
/* The context: opens a device with a K/V budget, its worker threads and its kernels.
 *
 * Threads: a context, with all caches, sequences and steps made from it, is used by one thread at a
 * time. Contexts are independent of each other. After fork() the child may only exit or exec. */
#ifndef HEADRACE_CONTEXT_H
#define HEADRACE_CONTEXT_H

#include <headrace/status.h>
#include <headrace/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hr_log_level {
    HR_LOG_ERROR = 0,
    HR_LOG_WARN = 1,
    HR_LOG_INFO = 2,
    HR_LOG_DEBUG = 3,
} hr_log_level;

/* Called on the thread that made the call being logged; `text` is one line without a newline, valid
 * during the call. Must not call headrace. */
typedef void hr_log_fn(void *user, hr_log_level level, const char *text);

/* Host memory for metadata, workspaces and thread scratch (K/V live in one arena that the context
 * maps itself). `alloc` returns `bytes` > 0 bytes aligned to `align` (a power of two), or NULL.
 * `free` gets the same sizes back. Called on the thread that uses the context only. */
typedef struct hr_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *memory, size_t bytes, size_t align);
    void *user;
} hr_allocator;

/* A directory that K/V may go to when they exceed the device's budget. */
typedef struct hr_disk {
    const char *path;
    uint64_t bytes; /* preallocated at open, in extents of 2 MiB, at least one; 128 TiB at most in
                       all directories; the file has no name and goes with the context */
} hr_disk;

typedef enum hr_trace_kind {
    HR_TRACE_APPEND = 0, /* the new K and V of a layer were stored */
    HR_TRACE_ATTEND = 1, /* a wave of a layer was computed, with its last one the folds */
    HR_TRACE_READ = 2,   /* from disk: neighbouring blocks */
    HR_TRACE_WRITE = 3,  /* to disk */
    HR_TRACE_WAIT = 4,   /* a call waited for K/V to come or go: hr_stats.waited_ns is their sum */
} hr_trace_kind;

/* Something that a context did. */
typedef struct hr_trace_event {
    hr_trace_kind kind;
    int32_t layer; /* of a read or write: of its first block; of a wait -1 */
    /* CLOCK_MONOTONIC. Of reads and writes: when they were handed to the I/O engine's queue, and
     * when their last request had ended. They overlap each other and everything else; the others
     * do not. */
    int64_t begin_ns;
    int64_t end_ns;
    uint64_t bytes; /* read or written; else 0 */
} hr_trace_event;

/* Called on the thread that uses the context, inside its calls, when something has ended; `event`
 * is valid during the call. Reads and writes come when a call, hr_poll too, learns of their end.
 * Must not call headrace. */
typedef void hr_trace_fn(void *user, const hr_trace_event *event);

typedef struct hr_options {
    /* sizeof(hr_options). */
    size_t struct_size;
    /* "host" (CPU kernels; NULL means it) or "cuda", "cuda:1", ...: an NVIDIA GPU of compute
     * capability 8.0 or later. With CUDA, q, k, v, out, lse and sink_logits are device memory,
     * calls enqueue work on the batch's stream and return, and an error of the device makes the
     * context dead: all that is left is to close it. */
    const char *device;
    /* Threads that compute, the caller's included. 0: one per core that this process may use. Not
     * used with CUDA. */
    int32_t threads;
    /* Leave the worker threads where the system puts them; by default each is bound to a core. */
    bool unbound;
    /* K/V budget in bytes, rounded down to extents of 2 MiB. Address space is reserved at open,
     * memory is touched as blocks are used; with io_uring (see `io`) all of it is at open, when it
     * is registered with the kernel, unless it is more than the memory available. 0: three quarters
     * of the memory available to this process (cgroup limits respected); with CUDA nine tenths of
     * the GPU's free memory. */
    uint64_t device_bytes;
    /* Highest kernel level to use: "portable", "avx2", "avx512bf16" or "amx", with CUDA "sm80" or
     * "sm90"; NULL: the environment's HEADRACE_CAPS (of the CPU), else the best that there is.
     * HR_E_INVALID: no such level; HR_E_UNSUPPORTED: the machine lacks it. */
    const char *caps;
    /* NULL: no log. */
    hr_log_fn *log;
    void *log_user;
    /* NULL: the C library's aligned_alloc and free. Copied. */
    const hr_allocator *allocator;
    /* [n_disks] directories below the device tier, or NULL: K/V beyond device_bytes then go to disk
     * and stream back while attention is computed. Several are striped. Host device only. */
    const hr_disk *disks;
    int32_t n_disks;
    /* I/O engine: "uring", "threads"; NULL: io_uring where it works, else threads. */
    const char *io;
    /* No progress thread: files are read and written while calls of headrace wait, and in hr_poll.
     */
    bool manual_progress;
    /* How long a call waits for K/V from disk before it fails with HR_E_TIMEOUT; 0: 60 seconds. At
     * most a hundred years. */
    int64_t patience_ms;
    /* Plans only: no K/V is stored or read, no file made, nothing computed; out and lse stay as
     * they are. Steps otherwise go their way, so hr_context_stats tells what real ones would read
     * and write, and begin whether they would fit; directories are not looked at. Host device only.
     */
    bool dry_run;
    /* Debugging: cut every attend into waves of this many blocks (0: no cut). Changes no bit of any
     * output; shows that state carried between waves is complete. */
    int64_t debug_wave_blocks;
    /* Sees what the context does, or NULL: that costs a branch where an event would be. Host device
     * only: with CUDA calls enqueue, and no event comes. Changes no bit of any output. */
    hr_trace_fn *trace;
    void *trace_user;
} hr_options;

/* Opens a context. `options` may be NULL (all defaults). On success *context is owned by the caller
 * and closed by hr_close; on failure it is NULL and hr_error_text(NULL) says why. Blocks while
 * threads or the device start. Errors: HR_E_INVALID, HR_E_UNSUPPORTED (caps), HR_E_NO_MEMORY,
 * HR_E_SYSTEM, HR_E_DEVICE. */
HR_API hr_status hr_open(const hr_options *options, hr_context **context);

/* Closes a context and sets *context to NULL; NULL and pointer to NULL are fine. Every cache of the
 * context must have been destroyed before: otherwise HR_E_BUSY, and the context stays open. */
HR_API hr_status hr_close(hr_context **context);

/* The sentence for the last call that failed on this context, with the numbers in it; "" if none
 * did. Valid until the next failing call. With NULL: of this thread's last failing call that had no
 * context: hr_open, or any call whose handle was NULL. */
HR_API const char *hr_error_text(const hr_context *context);

typedef struct hr_stats {
    /* sizeof(hr_stats), set by the caller. */
    size_t struct_size;
    int32_t threads;          /* that compute */
    uint64_t kv_bytes_total;  /* the budget, in whole extents */
    uint64_t kv_bytes_used;   /* in blocks that belong to a sequence or an open step */
    uint64_t kv_bytes_peak;   /* highest kv_bytes_used so far */
    uint64_t host_bytes_used; /* from the allocator: metadata, workspaces, scratch */
    uint64_t host_allocs;     /* calls of the allocator so far */
    uint64_t steps_committed;
    uint64_t steps_aborted;
    uint64_t tokens_appended;  /* kept by commits */
    uint64_t attend_ns;        /* wall time inside hr_step_attend */
    uint64_t disk_bytes_total; /* of all directories, in whole extents */
    uint64_t disk_bytes_used;  /* in blocks that lie there */
    uint64_t disk_bytes_peak;  /* highest disk_bytes_used so far */
    uint64_t disk_read_bytes;  /* so far, of K/V */
    uint64_t disk_write_bytes;
    uint64_t waited_ns; /* wall time that calls waited for K/V to come or go: exposed */
} hr_stats;

/* Fills *stats. Errors: HR_E_INVALID (struct_size). */
HR_API hr_status hr_context_stats(const hr_context *context, hr_stats *stats);

/* One line about the disk tier: the I/O engine, the directories and how they are read; "" without
 * disks. Valid until the budget changes. */
HR_API const char *hr_context_disk_text(const hr_context *context);

/* Changes the K/V budget of an open context: to `device_bytes`, rounded down to extents of 2 MiB;
 * at most what it was opened with. No step may be open. With disks K/V go there until the rest
 * fits, oldest first, and come back by themselves as later steps read them; blocks move together
 * and the memory of what goes is given back to the system, on the host device (a CUDA device keeps
 * its arena). Changes no bit of any output. Blocks while K/V are written and moved. Errors, with
 * the budget as it was and nothing lost: HR_E_INVALID, HR_E_BUSY; HR_E_BUDGET: too little for what
 * sequences have there, pinned ones with disks, or for what a step needs at least; HR_E_IO: writes
 * failed; HR_E_TIMEOUT: none ended within options.patience_ms; HR_E_NO_MEMORY, HR_E_DEVICE. */
HR_API hr_status hr_context_set_device_bytes(hr_context *context, uint64_t device_bytes);

/* Lets K/V come and go until nothing is left to do or the clock (CLOCK_MONOTONIC) shows
 * `deadline_ns`; 0: does what can be done without waiting. With manual_progress files are read and
 * written here. Errors: HR_E_INVALID. */
HR_API hr_status hr_poll(hr_context *context, int64_t deadline_ns);

/* Name of the kernel level in use, for example "avx512bf16". Valid while the context is open. */
HR_API const char *hr_context_kernel(const hr_context *context);

#ifdef __cplusplus
}
#endif

#endif

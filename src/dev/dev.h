/* SPDX-License-Identifier: Apache-2.0 */
/* A device behind a table: one arena for K/V, memory besides it, queues of copies and work.
 *
 * What a call enqueues runs after all that was enqueued on its queue before; queues are independent
 * of each other until an event ties them. Nothing here returns an error of the device: its first
 * one is kept, from then on calls do nothing, and `error` tells. One thread at a time. */
#ifndef HR_DEV_DEV_H
#define HR_DEV_DEV_H

#include "src/base/alloc.h"
#include "src/base/pool.h"

struct hr_dev;
struct hr_dev_event;

enum { HR_DEV_TEXT_BYTES = 256 }; /* of sentences about what went wrong */

/* The work queue is the caller's stream while one is set. */
enum hr_dev_queue { HR_DEV_WORK, HR_DEV_COPY_IN, HR_DEV_COPY_OUT, HR_DEV_QUEUES };

enum hr_dev_wait { HR_DEV_DONE, HR_DEV_PENDING, HR_DEV_DEAD };

/* Between device and host memory, in either direction, or within the device's. */
struct hr_dev_copy {
    void *to;
    const void *from;
    size_t bytes;
};

struct hr_dev_ops {
    const char *name;
    /* Runs fn(args, i, scratch) for each i in [0, items), in any order, after all earlier work.
     * NULL: the device runs kernels of its own. */
    void (*launch)(struct hr_dev *dev, hr_item_fn *fn, const void *args, int64_t items);
    /* Zeroes bytes of device memory, after all earlier work. */
    void (*zero)(struct hr_dev *dev, void *memory, size_t bytes);
    /* Gives memory of the arena back to the system, where that can be, after all earlier work; what
     * it holds is lost. It may be used again. */
    void (*release)(struct hr_dev *dev, void *memory, size_t bytes);
    void (*close)(struct hr_dev *dev);

    /* Device memory, and host memory that the device copies from and to by itself; aligned to 64,
     * uninitialised. NULL: there is not so much. These may wait for the device: not in a step. */
    void *(*memory_get)(struct hr_dev *dev, size_t bytes);
    void (*memory_put)(struct hr_dev *dev, void *memory, size_t bytes);
    void *(*pinned_get)(struct hr_dev *dev, size_t bytes);
    void (*pinned_put)(struct hr_dev *dev, void *memory, size_t bytes);

    /* Host to device and back. Pinned memory must stay as it is until the copy has run. */
    void (*upload)(struct hr_dev *dev, enum hr_dev_queue queue, void *to, const void *from,
                   size_t bytes);
    void (*download)(struct hr_dev *dev, enum hr_dev_queue queue, void *to, const void *from,
                     size_t bytes);
    /* Copies that do not overlap, in any order; their list is read before the call returns. */
    void (*copy_batch)(struct hr_dev *dev, enum hr_dev_queue queue,
                       const struct hr_dev_copy *copies, int64_t count);

    /* Makes `stream` the work queue, behind all that is on the one before; NULL: the device's own.
     * It must outlive its time as the work queue. */
    void (*set_stream)(struct hr_dev *dev, void *stream);

    /* An event stands for what is on a queue at the time of its last record; for nothing before.
     * event_make: NULL when it cannot be made. */
    struct hr_dev_event *(*event_make)(struct hr_dev *dev);
    void (*event_free)(struct hr_dev *dev, struct hr_dev_event *event);
    void (*event_record)(struct hr_dev *dev, struct hr_dev_event *event, enum hr_dev_queue queue);
    /* What is enqueued from now on waits for the event. */
    void (*event_await)(struct hr_dev *dev, struct hr_dev_event *event, enum hr_dev_queue queue);
    /* The caller waits, until the clock (hr_clock_ns) shows `deadline_ns`; 0: only looks. */
    enum hr_dev_wait (*event_wait)(struct hr_dev *dev, struct hr_dev_event *event,
                                   int64_t deadline_ns);

    /* The sentence about the device's first error; NULL: none so far. */
    const char *(*error)(const struct hr_dev *dev);
};

struct hr_dev {
    const struct hr_dev_ops *ops;
    unsigned char *arena; /* arena_bytes, zeroed once; an address of the device */
    uint64_t arena_bytes;
    int32_t threads; /* that run items; 0: as many as there are */
};

enum hr_dev_fault { HR_DEV_OK, HR_DEV_NO_MEMORY, HR_DEV_NO_ARENA, HR_DEV_NO_THREADS };

struct hr_dev_host_options {
    struct hr_alloc *alloc;
    uint64_t arena_bytes;
    int32_t threads;
    bool bind;
    size_t scratch_bytes; /* per thread */
};

/* The host device: ordinary memory, reserved now and touched when used; the caller's thread and a
 * worker pool. Every call returns when its work is done, so there are no queues and no errors. On a
 * fault *dev is NULL (and errno tells why the arena could not be mapped or a thread not be
 * started). */
enum hr_dev_fault hr_dev_host_open(const struct hr_dev_host_options *options, struct hr_dev **dev);

#endif

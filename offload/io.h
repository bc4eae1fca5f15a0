/* SPDX-License-Identifier: Apache-2.0 */
/* I/O engines behind a table: requests on open files, many at a time, completed in any order. Used
 * by one thread at a time, not always the same: what runs when a thread ends is not lost. Offsets,
 * sizes and memory are aligned by the caller (store.h). */
#ifndef HR_OFFLOAD_IO_H
#define HR_OFFLOAD_IO_H

#include "src/base/alloc.h"

/* The largest request; transfers are cut into pieces of it. */
enum { HR_IO_PIECE_BYTES = 1 << 20 };

struct hr_io_request {
    int fd;
    bool write;
    uint64_t offset;
    uint32_t bytes; /* 1 .. HR_IO_PIECE_BYTES */
    void *memory;
    uint64_t tag; /* the caller's; comes back */
};

struct hr_io_done {
    uint64_t tag;
    int64_t result; /* bytes moved (fewer than asked: a short read or write), or -errno */
};

struct hr_io;

struct hr_io_ops {
    const char *name; /* "uring", "threads", "simulated" */
    /* Starts requests, in any order; returns how many of them, from the first on, it took (fewer:
     * the queue is full; while nothing runs it takes at least one). */
    int (*submit)(struct hr_io *io, const struct hr_io_request *requests, int count);
    /* Writes up to `most` completions into done[]; waits for the first one until the clock shows
     * `deadline_ns` (0: only looks). Returns how many. */
    int (*reap)(struct hr_io *io, struct hr_io_done *done, int most, int64_t deadline_ns);
    /* Wakes a reap that waits, from any thread: it returns 0. Stays until a reap with a deadline
     * has returned 0. */
    void (*wake)(struct hr_io *io);
    /* Only the first `bytes` of the options' memory stay, or become, registered; nothing runs.
     * NULL: the engine registers none. */
    void (*resize)(struct hr_io *io, size_t bytes);
    /* Waits for what runs and ends the engine. */
    void (*close)(struct hr_io *io);
};

struct hr_io {
    const struct hr_io_ops *ops;
    int depth;      /* most requests at a time */
    char text[192]; /* what was chosen and why, one line for the log, for example
                       "uring: depth 32, cooperative completions, registered buffers: 8" */
};

/* File calls behind a table, so that tests can make any of them fail; each returns >= 0 or -errno.
 */
struct hr_io_calls {
    void *user;
    int64_t (*pread)(void *user, int fd, void *memory, size_t bytes, uint64_t offset);
    int64_t (*pwrite)(void *user, int fd, const void *memory, size_t bytes, uint64_t offset);
    int (*open)(void *user, const char *path, int flags, int mode);
    int (*close)(void *user, int fd);
    int (*allocate)(void *user, int fd, uint64_t bytes); /* posix_fallocate */
    int (*sync)(void *user, int fd);                     /* fdatasync */
    int (*unlink)(void *user, const char *path);
};

/* The system's. */
extern const struct hr_io_calls hr_io_calls_system;

struct hr_io_options {
    struct hr_alloc *alloc;
    const struct hr_io_calls
        *calls; /* NULL: the system's (the ring makes no calls of this table) */
    int depth;  /* 0: 16 */
    /* Memory that requests use most, to register with the kernel where it allows; NULL: none. */
    void *memory;
    size_t bytes;
};

/* pread and pwrite on `depth` threads (at most 16). NULL: why[192] says what went wrong. */
struct hr_io *hr_io_threads_open(const struct hr_io_options *options, char *why);
/* io_uring; NULL where the kernel, a filter or the build forbids it. */
struct hr_io *hr_io_uring_open(const struct hr_io_options *options, char *why);

/* A simulated disk: does the requests on the real files through `calls`, but completes them by a
 * clock of its own, in an order and with faults drawn from the seed. */
struct hr_io_sim_options {
    uint64_t seed;
    double bytes_per_s; /* of all requests together; 0: no limit */
    /* bytes/s instead of bytes_per_s, read at each submit, so that it can change while the disk
     * runs (0: no limit); NULL: bytes_per_s. */
    const _Atomic(uint64_t) *rate;
    int64_t latency_ns; /* of each, plus up to as much again */
    double short_rate;  /* share of requests that move only a part, cut anywhere (at multiples of
                           4096 where offset, bytes and memory are such: direct I/O) */
    double eintr_rate;  /* share that end with -EINTR or -EAGAIN, nothing moved */
    double error_rate;  /* share that end with -EIO, torn: an unknown part was moved */
    bool ordered;       /* complete in the order of submission */
};
struct hr_io *hr_io_sim_open(const struct hr_io_options *options,
                             const struct hr_io_sim_options *sim, char *why);

#endif

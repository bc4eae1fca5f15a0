/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: runs of neighbouring blocks to and from files, cut into requests of an I/O engine.
 * Reads go before writes; a short request is done again as a whole; EINTR and EAGAIN are tried
 * again, with a bound. One thread at a time. */
#ifndef HR_OFFLOAD_TRANSFER_H
#define HR_OFFLOAD_TRANSFER_H

#include "offload/io.h"

/* A request ends with HR_TRANSFER_TRIES failures that may pass (short, EINTR, EAGAIN). */
enum { HR_TRANSFER_TRIES = 16 };

/* Linked by its user; untouched by the caller from start until it is given back by `finish`. */
struct hr_transfer {
    struct hr_transfer *next;
    int fd;
    bool write;
    uint64_t offset, bytes;
    unsigned char *memory;
    int error; /* 0, or the errno of the first request that failed for good */
    /* Of the queue. */
    uint64_t started, ended;
    struct hr_transfer *queue_next;
};

struct hr_transfers;

/* `depth` requests in flight at most (those of writes: half of it while reads wait or run). Takes
 * over the engine, also on failure. NULL: no memory. */
struct hr_transfers *hr_transfers_open(struct hr_alloc *alloc, struct hr_io *io);
/* Moves all that was started to its end, also what still waits; what was not given back by `finish`
 * is dropped. NULL is fine. */
void hr_transfers_close(struct hr_transfers *t);

/* Transfers run in any order: those whose bytes or memory overlap are the caller's to keep apart.
 * Moves nothing yet: `finish` does. */
void hr_transfers_start(struct hr_transfers *t, struct hr_transfer *transfer);
/* Moves things on and returns a transfer that has ended, or NULL; waits for the first one until the
 * clock shows `deadline_ns` (0: only looks) or until it is woken, also when nothing runs. */
struct hr_transfer *hr_transfers_finish(struct hr_transfers *t, int64_t deadline_ns);
/* Transfers started and not yet given back. */
int64_t hr_transfers_running(const struct hr_transfers *t);
/* Wakes a finish that waits, from any thread. */
void hr_transfers_wake(struct hr_transfers *t);
/* As hr_io_ops.resize; nothing runs. */
void hr_transfers_resize(struct hr_transfers *t, size_t bytes);
/* The engine, for its name and text. */
const struct hr_io *hr_transfers_io(const struct hr_transfers *t);

/* So far: bytes and requests moved in full, and how often one was done again. */
struct hr_transfer_counts {
    uint64_t read_bytes, write_bytes, read_requests, write_requests, again;
};
struct hr_transfer_counts hr_transfers_counts(const struct hr_transfers *t);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A host device that queues its work, and a disk, both run by one seeded scheduler: launches, reads
 * and writes happen in any order that the engine's waits allow. Every page of memory and of the
 * files carries vector clocks (who wrote it last, who has read it since), so two uses of it that
 * nothing orders are found even when the bytes happen to be right. One at a time in a process.
 *
 * The actors are the caller, the device's work queue and each request of the disk. Work comes after
 * what the caller knew when it was enqueued, a request after what it knew at its submission; the
 * caller learns of work by an event that it has seen done, of a request by reaping it. */
#ifndef HR_TESTS_SCHEDULER_H
#define HR_TESTS_SCHEDULER_H

#include "src/context.h"

enum { SCHED_DEPTH = 12, SCHED_ACTORS = 2 + SCHED_DEPTH, SCHED_PAGE = 64 << 10 };

struct sched_options {
    uint64_t seed;
    uint64_t arena_bytes, file_bytes; /* at most */
    double again_rate;                /* share of requests that are short or end with EINTR */
    double error_rate;                /* share that end with EIO */
};

void sched_open(const struct sched_options *options);
void sched_close(void);

/* For hr_context_open; the context needs manual_progress, and blocks whose pages are SCHED_PAGE. */
extern const struct hr_hooks sched_hooks;

/* Runs all work that is enqueued. */
void sched_drain(void);

/* The first two uses that nothing orders, or NULL. */
const char *sched_race(void);

struct sched_counts {
    uint64_t launches, items, requests, uses; /* run, moved, of pages */
    uint64_t late;                            /* items that ran after the call that enqueued them */
    uint64_t errors;                          /* requests that ended with EIO */
};
extern struct sched_counts sched_counted; /* since the process began */

/* ---- Between the parts of it ---- */

struct sched_clock {
    uint64_t at[SCHED_ACTORS];
};

enum sched_actor { SCHED_CALLER, SCHED_WORK, SCHED_REQUEST };

/* Something on the work queue. */
struct sched_op {
    struct sched_op *next;
    void (*run)(struct sched_op *op);
    struct sched_clock known; /* to the caller when it was enqueued */
    uint64_t call;            /* of the device, that enqueued it */
};

void sched_enqueue(struct sched_op *op);
uint64_t sched_draw(uint64_t below);
bool sched_chance(double share);
/* The work that runs now reads or writes memory of the arena. */
void sched_use(const void *memory, uint64_t bytes, bool write, const char *what);

/* kernels.c: the table that captures what an item would do, and enqueues it. */
const struct hr_kernels *sched_kernels(const struct hr_kernels *real);
/* io.c: one request moves its bytes or becomes visible as done. */
int sched_io_choices(void);
void sched_io_turn(int choice);
void sched_io_reset(void);
/* A request on channel `i` begins, uses memory and file, and is seen done. */
void sched_begin_request(int i);
void sched_use_request(int i, const void *memory, uint64_t offset, uint64_t bytes, bool write);
void sched_see_request(int i);
/* Things happen: a few, or none. */
void sched_idle(void);
/* One does. False: there is nothing to do. */
bool sched_turn(void);
struct hr_io *sched_io_open(void *user, const struct hr_io_options *options, char *why);
extern const struct hr_io_calls sched_files;
extern struct sched_options sched_set;

#endif

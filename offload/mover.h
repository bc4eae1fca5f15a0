/* SPDX-License-Identifier: Apache-2.0 */
/* Moves runs of blocks between memory and files: on a progress thread of its own, or when it is
 * asked (manual). Checksums are taken before a write and checked behind a read. The caller's thread
 * starts moves and takes them back; only the progress thread touches the I/O engine. */
#ifndef HR_OFFLOAD_MOVER_H
#define HR_OFFLOAD_MOVER_H

#include "offload/page.h"
#include "offload/transfer.h"

enum { HR_MOVE_BLOCKS = 32 };

/* One block of a move. */
struct hr_moved {
    uint32_t block;      /* the caller's */
    uint32_t layer;      /* \                              */
    uint64_t uid;        /*  | what its pages are (page.h) */
    uint64_t generation; /*  |                             */
    uint64_t index;      /* /                              */
    int32_t heads;       /* pages, of equal size */
    uint64_t *sums;      /* [heads]: written by a write, compared by a read */
    uint32_t tag;        /* the caller's */
};

/* Neighbours in memory and in the file. Left alone by the caller from start until it is back. */
struct hr_move {
    struct hr_transfer transfer; /* fd, write, offset, bytes and memory are the caller's */
    struct hr_move *next;
    void *owner; /* the caller's */
    uint64_t layout;
    uint64_t block_bytes;
    int32_t count;
    struct hr_moved blocks[HR_MOVE_BLOCKS];
    /* When it was started, and when its last request had ended. */
    int64_t begin_ns, end_ns;
    /* Of a read whose bytes are other than were written: the first such page. */
    int32_t bad_block, bad_head; /* -1: none */
};

struct hr_mover;

struct hr_mover_options {
    struct hr_alloc *alloc;
    struct hr_transfers *transfers; /* taken over, also on failure */
    bool manual;                    /* no thread: hr_mover_wait does the work */
};

/* NULL: no memory, or (*no_thread is its error number) no thread. */
struct hr_mover *hr_mover_open(const struct hr_mover_options *options, int *no_thread);
/* Ends what was started. NULL is fine. */
void hr_mover_close(struct hr_mover *m);

void hr_mover_start(struct hr_mover *m, struct hr_move *move);
/* A move that has ended, or NULL. Does not wait. */
struct hr_move *hr_mover_done(struct hr_mover *m);
/* Waits until a move has ended, until the clock shows `deadline_ns` (0: only looks) or until
 * hr_mover_interrupt. False: none has. */
bool hr_mover_wait(struct hr_mover *m, int64_t deadline_ns);
/* Moves started and not yet back. */
int64_t hr_mover_running(const struct hr_mover *m);
/* Ends a wait, or the next one. From any thread. */
void hr_mover_interrupt(struct hr_mover *m);

/* As hr_io_ops.resize; nothing is under way. Waits for the thread to have done it. */
void hr_mover_resize(struct hr_mover *m, size_t bytes);

/* Of all moves that are back. */
struct hr_mover_counts {
    uint64_t read_bytes, write_bytes;
};
struct hr_mover_counts hr_mover_counts(const struct hr_mover *m);

#endif

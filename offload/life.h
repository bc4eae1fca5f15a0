/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a block, as one transition function: what a block is (open, full, sealed), where its
 * copies are, and which event is allowed when. The engine applies every change of a block through
 * it; tests/unit/test_life.c walks all states of a small cache with the same function. */
#ifndef HR_OFFLOAD_LIFE_H
#define HR_OFFLOAD_LIFE_H

#include <stdbool.h>
#include <stdint.h>

enum hr_life_phase {
    HR_LIFE_FREE, /* no block */
    HR_LIFE_OPEN, /* rows are being written, or may be: the last block of its sequences */
    HR_LIFE_FULL, /* every row written, by a step that has not committed: may move, not be shared */
    HR_LIFE_SEALED, /* every row committed: immutable, may be shared */
    HR_LIFE_DYING,  /* no owner is left; a transfer of it is under way */
};

/* A copy of a block in one tier. */
enum hr_life_copy {
    HR_LIFE_NONE,
    HR_LIFE_COMING, /* being read or written into that tier */
    HR_LIFE_THERE,
};

/* Zeroed: a free block. */
struct hr_life {
    uint8_t phase;  /* enum hr_life_phase */
    uint8_t device; /* enum hr_life_copy: in a slot of its own of the tier that kernels read */
    uint8_t lower;  /* enum hr_life_copy: in the tier below */
    bool held;      /* by an open step, which may write to it or take it back */
    uint16_t pins;  /* reads of the lower copy under way: into ring slots, or into its own slot */
    uint32_t refs;  /* owners: sequences */
};

enum hr_life_event {
    HR_LIFE_TAKE,    /* a step reserves a new block: free -> open, held, one owner, no copy */
    HR_LIFE_PLACE,   /* it gets its device slot */
    HR_LIFE_HOLD,    /* a step takes the open block of one of its sequences, to append to it */
    HR_LIFE_WRITE,   /* rows are appended; a lower copy is stale from now on */
    HR_LIFE_FILL,    /* the last row was written: open -> full */
    HR_LIFE_COMMIT,  /* the step keeps it: open stays open, full -> sealed; not held any more */
    HR_LIFE_BACK,    /* the step gives up its rows: as it was before HOLD, open */
    HR_LIFE_REOPEN,  /* a truncate ends inside it: sealed -> open, its rows may be written again */
    HR_LIFE_SHARE,   /* another sequence owns it too */
    HR_LIFE_DROP,    /* an owner lets go; the last one: free, or dying while transfers run */
    HR_LIFE_EVICT,   /* its device copy is being written to the tier below */
    HR_LIFE_WRITTEN, /* that is done */
    HR_LIFE_WRITE_FAILED, /* or failed: the device copy is the only one, as before */
    HR_LIFE_LEAVE,        /* the device slot is given up: the lower copy remains */
    HR_LIFE_FORGET,       /* the lower copy is given up: the device copy remains */
    HR_LIFE_FETCH,        /* the lower copy is being read into a device slot of its own */
    HR_LIFE_FETCHED,      /* that is done */
    HR_LIFE_FETCH_FAILED, /* or failed: it is in the tier below only, as before */
    HR_LIFE_STREAM,       /* the lower copy is being read into a ring slot */
    HR_LIFE_STREAMED,     /* that ended, well or not */
    HR_LIFE_EVENTS,
};

/* Applies an event. False: a guard forbids it in this state, and nothing changed. */
bool hr_life_apply(struct hr_life *life, enum hr_life_event event);

/* The same without one guard (its number; -1: all are in force): what the test of the tests uses.
 * The guards are numbered from 0 to hr_life_guards() - 1. */
bool hr_life_apply_without(struct hr_life *life, enum hr_life_event event, int guard);
int hr_life_guards(void);
/* Which event a guard is of, and what it asks for. */
enum hr_life_event hr_life_guard_event(int guard);
const char *hr_life_guard_text(int guard);

/* Names for messages. */
const char *hr_life_event_name(enum hr_life_event event);

#endif

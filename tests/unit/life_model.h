/* SPDX-License-Identifier: Apache-2.0 */
/* A small cache of two sequences whose blocks live by hr_life_apply. The model knows what a block's
 * life does not: which rows lie in which slot, and which rows each sequence must see. */
#ifndef HR_TESTS_LIFE_MODEL_H
#define HR_TESTS_LIFE_MODEL_H

#include "offload/life.h"

enum { LIFE_BLOCKS = 3, LIFE_ROWS = 3, LIFE_SEQS = 2 }; /* at most; two sequences always */

struct life_size {
    int blocks;
    int rows;                      /* of a block */
    int device_slots, lower_slots; /* and one slot of the ring */
};

/* A row is a number; no two rows ever written have the same. 0: none that a sequence sees, or ever
 * can. */
struct life_rows {
    uint8_t id[LIFE_ROWS];
};

struct life_transfer {
    bool runs;
    struct life_rows early; /* what lay in its source when it began */
};

/* Slots are told apart by the block that has them. */
struct life_block {
    struct hr_life life;
    bool device_slot, lower_slot;
    struct life_rows device, lower; /* what lies in them */
    struct life_transfer evict, fetch, stream;
    bool ready; /* its step was told that it can append to it */
};

/* A block of a sequence, and its first rows, which the sequence must see. */
struct life_entry {
    uint8_t block, n;
    struct life_rows rows;
};

enum life_step {
    LIFE_STEP_NONE,
    LIFE_STEP_NEW,      /* holds new blocks */
    LIFE_STEP_HOLDS,    /* and before them the last one, as it was: `old` */
    LIFE_STEP_REPLACES, /* and before them a new one in place of the last one, `old` */
};

struct life_seq {
    uint8_t n, step, first; /* first: of the entries that its step holds */
    struct life_entry entry[LIFE_BLOCKS], old;
};

struct life_world {
    struct life_block block[LIFE_BLOCKS];
    struct life_seq seq[LIFE_SEQS];
};

/* What a transition is called. */
struct life_label {
    const char *what;
    int block, seq, n; /* -1: none */
};

struct life_model {
    const struct life_size *size;
    int guard;         /* out of force; -1: none */
    const char *wrong; /* the first thing that was; NULL: nothing */
    uint64_t applied[HR_LIFE_EVENTS];
    void (*emit)(struct life_model *m, struct life_world *w, struct life_label label);
};

/* Emits every state that one transition can make of a state. */
void life_try_all(struct life_model *m, const struct life_world *w);

/* What must be true in every state. Also remembers which steps are ready. */
void life_check(struct life_model *m, struct life_world *w);

/* From a state all must come to an end, in several orders, and leave nothing. */
void life_check_drain(struct life_model *m, const struct life_world *w);

/* Whether a step holds entry i. */
bool life_holds(const struct life_seq *q, int i);

/* A number below LIFE_RECORDS for every life with at most 3 owners and 3 pins. */
enum { LIFE_RECORDS = 5 * 3 * 3 * 2 * 4 * 4 };

static inline int life_record(const struct hr_life *l)
{
    int copies = (l->phase * 3 + l->device) * 3 + l->lower;
    return ((copies * 2 + l->held) * 4 + l->pins) * 4 + (int)l->refs;
}

/* The walk through all states. */
struct life_findings {
    uint64_t states, transitions, bytes; /* bytes: of memory for the states */
    uint64_t applied[HR_LIFE_EVENTS];
    bool seen[LIFE_RECORDS]; /* of any block in any state */
    char violation[128];     /* empty: none */
    char path[1024];         /* the shortest way to the first one: events, blocks, sequences */
};

/* Breadth first, with a guard out of force (-1: none), until the first violation. */
void life_walk(const struct life_size *size, int guard, struct life_findings *findings);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The fetch list of a step and the ring of slots that it streams through. An entry is a block that
 * the step reads and the arena lacks, in the order in which it is needed; a wave is a run of
 * entries that are needed together. Entries are read ahead as far as the ring reaches, across waves
 * and layers; a wave's ring slots are free again when the work that read them is done. */
#ifndef HR_OFFLOAD_RING_H
#define HR_OFFLOAD_RING_H

#include "offload/lower.h"

enum hr_fetch_state { HR_FETCH_PLANNED, HR_FETCH_COMING, HR_FETCH_HERE, HR_FETCH_FAILED };

struct hr_fetch {
    uint32_t block;
    uint32_t slot;                  /* where it comes to, from COMING on */
    uint32_t first_wave, last_wave; /* that need it */
    uint32_t earlier; /* entry of the same block, out of reach by now; HR_BLOCK_NONE */
    uint8_t state;    /* enum hr_fetch_state */
    bool stays;       /* into a slot of its own: resident from then on */
};

struct hr_wave {
    int64_t begin, end; /* blocks, counted from the newest of each sequence */
    uint32_t first, count;
    int32_t layer;
};

struct hr_ring {
    struct hr_lower *lower;
    uint32_t *slots;   /* [size] of the arena */
    uint32_t *held_by; /* [size] entry */
    uint32_t size, most;
    uint32_t wave_most;    /* entries that a wave should have at most */
    uint64_t taken, freed; /* positions so far; taken - freed <= size are in use */
    /* The list. */
    struct hr_fetch *entries;
    struct hr_wave *waves;
    size_t entries_max, waves_max;
    uint32_t n_entries, n_waves;
    uint32_t next_entry; /* the first one that is not yet under way */
    uint32_t next_wave;  /* the first one that is not yet over */
    uint32_t list;       /* number of the list */
    int64_t coming;      /* moves of this ring under way */
    /* The first failure of the list. */
    uint32_t failed_block;
    int32_t failed_head; /* -1: the read itself failed, with */
    int error;
    bool failed;
};

/* A ring of up to `most` slots. False: no memory. */
bool hr_ring_init(struct hr_ring *r, struct hr_lower *lower, uint32_t most);
/* Takes `size` slots from the pool, which has them, until it is emptied; and so it begins, too:
 * behind hr_ring_reset. */
void hr_ring_fill(struct hr_ring *r, uint32_t size, uint32_t wave_most);
void hr_ring_empty(struct hr_ring *r);
/* Nothing may be under way. */
void hr_ring_close(struct hr_ring *r);

/* Begins a new list; nothing of the old one may be under way. */
void hr_ring_reset(struct hr_ring *r);
/* Room for `entries` and `waves` more. False: no memory. */
bool hr_ring_reserve(struct hr_ring *r, size_t entries, size_t waves);
void hr_ring_add_wave(struct hr_ring *r, int32_t layer, int64_t begin, int64_t end);
/* Adds a block to the last wave, unless an earlier entry still has it in reach. */
void hr_ring_add(struct hr_ring *r, uint32_t block, bool stays);

/* Starts reads, as far as slots and moves are there. */
void hr_ring_pump(struct hr_ring *r);
/* A read of this ring has come back. */
void hr_ring_arrived(struct hr_ring *r, const struct hr_move *move);
/* Whether every entry of the wave is here; a failed one counts as here. */
bool hr_ring_ready(struct hr_ring *r, uint32_t wave);
/* The work that `ticket` stands for was the last to read this wave, the oldest one. */
void hr_ring_retire(struct hr_ring *r, uint64_t ticket);

/* Slot of a block that the list has brought for the oldest wave; one that it has not is a bug, and
 * noted as such. */
uint32_t hr_ring_slot(struct hr_ring *r, uint32_t block);

#endif

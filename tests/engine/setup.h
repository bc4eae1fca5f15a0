/* SPDX-License-Identifier: Apache-2.0 */
/* A context with a disk below, its cache, a step and a sequence; and an audit of what its tables
 * say. */
#ifndef HR_TESTS_SETUP_H
#define HR_TESTS_SETUP_H

#include "src/seq.h"
#include "tests/engine/fixture.h"

struct setup {
    hr_context *c;
    hr_cache *cache;
    hr_step *step;
    hr_seq *seq;
};

struct setup_options {
    uint64_t device_extents;
    uint64_t disk_extents; /* of each folder; 0: no disk */
    int32_t folders;       /* that are striped, all the same one; 0: one */
    const hr_layer_options *layers;
    int32_t n_layers;
    int32_t threads;
    hr_step_limits limits;
    const char *io;
    const struct hr_hooks *hooks; /* with a simulated disk there is no progress thread */
    bool manual;                  /* nor with this */
    int64_t wave_blocks;          /* waves are cut to so many; 0: they are not */
    hr_trace_fn *trace;
    void *trace_user;
    const hr_allocator *allocator;
};

/* Where files go: TMPDIR, or /tmp. */
const char *setup_folder(void);
/* The options for hr_context_open; valid until the next call. */
const hr_options *setup_context(const struct setup_options *o);
hr_cache_options setup_cache(const struct setup_options *o);
/* Makes all; what fails ends the test. */
void setup_open(struct setup *s, const struct setup_options *o);
/* Destroys what is there (a NULL is not), and wants nothing to be left. */
void setup_close(struct setup *s);

/* Waits until nothing is on its way to or from a file. */
void setup_settle(hr_context *c);
/* After setup_settle, with no step open: blocks are those of sequences, slots those of blocks and
 * of rings, and every owned block is somewhere. */
void setup_audit(const hr_cache *cache);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A world for random programs: sequences and open steps of one cache, and a flat model of them.
 * Each sequence is one plain array of K and V, and what it attends to is computed by hr_attention
 * in a second context (one thread, no wave cuts, no sharing). Bits must be equal. What differs ends
 * the process with a sentence. */
#ifndef HR_TESTS_WORLD_H
#define HR_TESTS_WORLD_H

#include <headrace/headrace.h>

#include "src/seq.h"

enum { WORLD_STEPS = 2, WORLD_LAYERS = 3, WORLD_BATCH = 8 };

struct model_seq {
    hr_seq *seq;
    bool in_step, idle;   /* idle: no batch takes it */
    int64_t length, most; /* it grows to */
    float *k[WORLD_LAYERS],
        *v[WORLD_LAYERS]; /* [tokens_max][kv_heads * dim], of the layer's dtype */
};

struct open_step {
    hr_step *step;
    bool open;
    int32_t n;
    int32_t members[WORLD_BATCH];
    int64_t n_new[WORLD_BATCH], n_query[WORLD_BATCH];
    bool appended[WORLD_LAYERS];
    bool cancelled;
    int64_t spent_ns; /* in calls of the library */
};

enum world_kind {
    WORLD_ROOMY,
    WORLD_TIGHT,     /* a budget that batches meet */
    WORLD_CAPPED,    /* most K/V lie on disk */
    WORLD_SCHEDULED, /* as capped, on the device and disk of scheduler.h */
    WORLD_SOAK,      /* as capped, with the layers, budget, engine and allocator of soak.c */
};

struct world_options {
    enum world_kind kind;
    int32_t seqs, batch; /* at most, of a batch WORLD_BATCH */
    int64_t tokens_max, new_max;
    bool prefill;  /* no batch is of single tokens */
    uint64_t seed; /* of the scheduler */
    /* Of a soak: */
    hr_layer_options layers[WORLD_LAYERS];
    uint64_t device_bytes, disk_bytes;
    const char *io;
    const hr_allocator *allocator;
};

struct world {
    struct world_options o;
    hr_context *c, *flat;
    hr_cache *cache;
    hr_layer_options layers[WORLD_LAYERS];
    struct model_seq *seqs; /* [o.seqs] */
    struct open_step steps[WORLD_STEPS];
    float *rows[4]; /* scratch tensors */
    /* Outputs compared, batches and steps that failed, changes of the budget, from disk. */
    uint64_t attends, refused, failed, budgets, read_bytes;
};

void world_seed(uint64_t seed);
int64_t world_pick(int64_t low, int64_t high);

void world_open(struct world *w, const struct world_options *options);
/* Ends open steps, destroys all, and wants nothing to be left. */
void world_close(struct world *w);

int32_t world_width(const hr_layer_options *l);

static inline bool world_capped(const struct world *w)
{
    return w->o.kind >= WORLD_CAPPED;
}

_Noreturn void world_die(const char *what, hr_context *c);
/* Dies if the scheduler has found two uses of a page that nothing orders. */
void world_check_races(void);

/* ---- Operations; each does nothing where it would make no sense ---- */

void world_create(struct world *w, struct model_seq *m);
void world_fork(struct world *w, struct model_seq *parent, struct model_seq *child);
void world_truncate(struct world *w, struct model_seq *m);
void world_destroy(struct world *w, struct model_seq *m);
/* Park, warm, pin, or none of them. */
void world_advise(struct world *w, struct model_seq *m);
/* A block that may be evicted is. */
void world_evict(struct world *w, struct model_seq *m);
/* The device's budget becomes another one. */
void world_budget(struct world *w);
void world_begin(struct world *w, struct open_step *s);
/* A layer is appended, if it was not, and attends. */
void world_forward(struct world *w, struct open_step *s, int l);
/* The same for one that is drawn; sometimes it does not attend, or the step is cancelled. */
void world_layer(struct world *w, struct open_step *s);
void world_commit(struct world *w, struct open_step *s);
void world_abort(struct world *w, struct open_step *s);

/* One of them, drawn. */
void world_step(struct world *w);

#endif

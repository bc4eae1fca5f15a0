/* SPDX-License-Identifier: Apache-2.0 */
/* The shape plan: which tiles, chunks and folds a batch needs. A pure function of the sequences'
 * shapes, the geometry, the kernel table and the number of threads; printable. */
#ifndef HR_PLAN_H
#define HR_PLAN_H

#include "kernels/kernel.h"
#include "src/base/alloc.h"

struct hr_shape {
    int64_t n_kv; /* the step's new tokens included */
    int64_t n_q;
};

struct hr_plan {
    struct hr_tile *tiles;
    struct hr_chunk *chunks;
    struct hr_fold *folds;
    int64_t n_tiles, n_chunks, n_folds;
    size_t tiles_max, chunks_max, folds_max; /* room in the arrays */
    int64_t tile_tokens;                     /* most of one tile */
    int64_t blocks_max;                      /* of the longest sequence that has queries */
    int64_t wave_blocks;                     /* 0: everything in one wave */
    int64_t waves;
    int64_t carry_floats;   /* 0 with one wave */
    int64_t partial_floats; /* behind the carries */
};

/* The order in which sequences are planned: longest first. */
struct hr_plan_order {
    int64_t n_kv;
    int32_t seq;
};

struct hr_plan_input {
    const struct hr_kernels *kernels;
    const struct hr_geom *geom;
    const struct hr_shape *shapes; /* [n_seqs] */
    struct hr_plan_order *order;   /* [n_seqs], scratch */
    int32_t n_seqs;
    int32_t threads;     /* that will run the items; 0: any number */
    int64_t wave_blocks; /* 0: do not cut */
    bool cut;            /* waves are cut elsewhere: tiles need room for what they carry */
};

/* Plans into `plan`, whose arrays are kept and grown. False: no memory. */
bool hr_plan_make(struct hr_plan *plan, const struct hr_plan_input *input, struct hr_alloc *alloc);
void hr_plan_free(struct hr_plan *plan, struct hr_alloc *alloc);

/* As hr_step_plan_text. */
int64_t hr_plan_text(const struct hr_plan *plan, const struct hr_plan_input *input, char *buffer,
                     size_t size);

#endif

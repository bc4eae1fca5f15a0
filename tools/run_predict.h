/* SPDX-License-Identifier: Apache-2.0 */
/* How long a run will take: each planned step costs what the same work cost on this machine, in a
 * few real steps of the model, with K/V on the real disks (docs/run.md). */
#ifndef HEADRACE_TOOLS_RUN_PREDICT_H
#define HEADRACE_TOOLS_RUN_PREDICT_H

#include "tools/disk_rates.h"
#include "tools/run.h"

/* Seconds, but where it is said otherwise. */
struct run_costs {
    struct disk_rates disk; /* of hr_disk_measure */
    double stream;          /* bytes per second that decode really read; or as disk.read */
    double document_row;    /* one token of the document, without attention, with its logits */
    double row, pair;       /* attention: of a query row, and of a row and a key */
    int64_t rows;           /* a prefill step of so many rows ... */
    double step;            /* ... takes this, without attention and logits */
    int32_t seqs;           /* a decode step of so many sequences ... */
    double decode, key;     /* ... takes this without attention; and this for each key it sees */
    int64_t tokens;         /* the length at which steps were timed */
    double seconds;         /* that all this took */
};

struct run_prediction {
    double document, branches, decode; /* seconds of all steps */
    double waited;                     /* of them, for K/V */
    int64_t decode_steps;
};

/* Times steps; `least` is the least memory that would do. False, with run->error. */
bool run_calibrate(struct run *run, const struct model_dims *dims, uint64_t least,
                   struct run_costs *costs);

/* Adds a step. */
void run_predict(const struct run_costs *costs, const struct run_planned *step,
                 struct run_prediction *prediction);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* `headrace bench`: the same steps on synthetic K/V, all of them in memory and with a part of them
 * on disk; no model.
 *
 *   bench_options.c -> bench.c (cases, repetitions) -> bench_run.c (one run) -> bench_report.c */
#ifndef HEADRACE_TOOLS_BENCH_H
#define HEADRACE_TOOLS_BENCH_H

#include "tools/disk_rates.h"

#include <stdio.h>

enum {
    BENCH_CASES = 3,
    BENCH_SEQS = 8,
    BENCH_CHUNK = 512,
    BENCH_STEPS = 16, /* of decode and of the mix */
    BENCH_REPEATS = 16,
    BENCH_BLOCK = 128,
    BENCH_ERROR_BYTES = 640,
};

struct bench_options {
    const char *json, *io;
    int64_t tokens, layers, q_heads, kv_heads, dim;
    int32_t threads; /* 0: one a core */
    int32_t repeats;
    double budget;                 /* share of the K/V that memory holds */
    uint64_t kv_ram;               /* 0: by the share */
    hr_disk disks[DISK_RATES_MAX]; /* paths are owned */
    int32_t n_disks;
};

/* Sequences that grow from `start` to `end`, each by up to `each` tokens a step. */
struct bench_case {
    const char *name;
    int32_t n_seqs;
    uint64_t kv_bytes;  /* at its end */
    uint64_t ram_bytes; /* of them in memory, of a capped run */
    int64_t start[BENCH_SEQS], end[BENCH_SEQS], each[BENCH_SEQS];
};

/* One run of a case's steps. */
struct bench_run {
    double seconds;
    int64_t tokens;
    uint64_t hash; /* of all outputs */
    uint64_t read_bytes, write_bytes, waited_ns;
    char kernel[32];
    int32_t threads;
};

struct bench_result {
    struct bench_run resident, capped; /* that of the median seconds */
    double ratio;                      /* resident / capped seconds, the median of all pairs */
    bool identical;                    /* all runs */
};

struct bench {
    struct bench_options options;
    struct bench_case cases[BENCH_CASES];
    struct bench_result results[BENCH_CASES];
    struct disk_rates rates;
    FILE *json;
    char error[BENCH_ERROR_BYTES];
};

/* False: *status is the exit status, the rest is said. */
bool bench_options_parse(int argc, char **argv, struct bench_options *options, int *status);
void bench_options_free(struct bench_options *options);

/* Room for all K/V of a case: blocks straddle no extent, so up to half of each may be left over. */
uint64_t bench_room(const struct bench_case *c);

/* False, with bench->error. */
bool bench_run(struct bench *bench, const struct bench_case *c, bool capped, struct bench_run *run);

void bench_print(const struct bench *bench, FILE *out);
/* Closes bench->json; false when it could not be written. */
bool bench_write_json(struct bench *bench);

/* Returns the exit status: 1 also where outputs differ. */
int hr_tool_bench(int argc, char **argv);

#endif

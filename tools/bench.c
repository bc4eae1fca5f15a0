/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t extent = 2 << 20;

uint64_t bench_room(const struct bench_case *c)
{
    return 2 * c->kv_bytes + 4 * extent;
}

static struct bench_case prefill(int64_t tokens)
{
    return (struct bench_case){
        .name = "prefill", .n_seqs = 1, .end = {tokens}, .each = {BENCH_CHUNK}};
}

static struct bench_case decode(int64_t tokens)
{
    struct bench_case c = {.name = "decode", .n_seqs = 4};
    for (int i = 0; i < c.n_seqs; i++) {
        c.end[i] = tokens;
        c.start[i] = tokens - BENCH_STEPS;
        c.each[i] = 1;
    }
    return c;
}

/* Log-uniform lengths, the longest up to 32 times the shortest, as many tokens as in decode. */
static struct bench_case ragged(int64_t tokens)
{
    static const double draws[BENCH_SEQS] = {0.93, 0.12, 0.55, 0.31, 0.78, 0.05, 0.66, 0.44};
    struct bench_case c = {.name = "mix", .n_seqs = BENCH_SEQS};
    double sum = 0;
    for (int i = 0; i < c.n_seqs; i++)
        sum += pow(32, draws[i]);
    for (int i = 0; i < c.n_seqs; i++) {
        c.end[i] = (int64_t)(4 * (double)tokens * pow(32, draws[i]) / sum);
        c.each[i] = i % 2 == 0 ? c.end[i] / 256 + 1 : 1;
        c.start[i] = c.end[i] - BENCH_STEPS * c.each[i];
        c.start[i] = c.start[i] > 0 ? c.start[i] : 0;
    }
    return c;
}

/* TMPDIR or /tmp, where no directory is given. */
static bool choose_disk(struct bench *b)
{
    struct bench_options *o = &b->options;
    const char *temp = getenv("TMPDIR");
    uint64_t most = 0;
    if (o->n_disks)
        return true;
    for (int i = 0; i < BENCH_CASES; i++)
        most = bench_room(&b->cases[i]) > most ? bench_room(&b->cases[i]) : most;
    o->disks[0] = (hr_disk){strdup(temp && *temp ? temp : "/tmp"), most};
    o->n_disks = 1;
    return o->disks[0].path || (snprintf(b->error, sizeof(b->error), "out of memory"), false);
}

static void size_case(const struct bench_options *o, struct bench_case *c)
{
    int64_t blocks = 0, block = o->kv_heads * 2 * BENCH_BLOCK * o->dim * (int64_t)sizeof(uint16_t);
    for (int32_t i = 0; i < c->n_seqs; i++)
        blocks += (c->end[i] + BENCH_BLOCK - 1) / BENCH_BLOCK;
    c->kv_bytes = (uint64_t)(blocks * o->layers * block);
    c->ram_bytes = o->kv_ram ? o->kv_ram : (uint64_t)((double)c->kv_bytes * o->budget);
    c->ram_bytes = c->ram_bytes < extent ? extent : c->ram_bytes;
}

static bool prepare(struct bench *b)
{
    struct bench_options *o = &b->options;
    b->cases[0] = prefill(o->tokens);
    b->cases[1] = decode(o->tokens);
    b->cases[2] = ragged(o->tokens);
    for (int i = 0; i < BENCH_CASES; i++)
        size_case(o, &b->cases[i]);
    if (o->json && !(b->json = fopen(o->json, "wb"))) {
        snprintf(b->error, sizeof(b->error), "%.300s: cannot be written: %s", o->json,
                 strerror(errno));
        return false;
    }
    if (!choose_disk(b))
        return false;
    if (disk_rates_measure(o->disks, o->n_disks, o->io, 256 << 20, &b->rates))
        return true;
    snprintf(b->error, sizeof(b->error), "%s", hr_error_text(NULL));
    return false;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int n)
{
    double sorted[BENCH_REPEATS];
    memcpy(sorted, values, (size_t)n * sizeof(*values));
    qsort(sorted, (size_t)n, sizeof(*sorted), by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* The run of median seconds; the slower of two. */
static struct bench_run median_run(const struct bench_run *runs, int n)
{
    int best = 0;
    for (int i = 0; i < n; i++) {
        int below = 0;
        for (int j = 0; j < n; j++)
            below +=
                runs[j].seconds < runs[i].seconds || (runs[j].seconds <= runs[i].seconds && j < i);
        if (below == n / 2)
            best = i;
    }
    return runs[best];
}

/* Pairs of runs; which comes first changes from pair to pair. */
static bool run_case(struct bench *b, int which)
{
    const int n = b->options.repeats;
    struct bench_run runs[2][BENCH_REPEATS] = {0};
    double ratios[BENCH_REPEATS];
    struct bench_result *result = &b->results[which];
    result->identical = true;
    for (int i = 0; i < n; i++) {
        for (int turn = 0; turn < 2; turn++) {
            int capped = (i + turn) % 2;
            if (!bench_run(b, &b->cases[which], capped, &runs[capped][i]))
                return false;
        }
        ratios[i] = runs[0][i].seconds / runs[1][i].seconds;
        for (int capped = 0; capped < 2; capped++)
            result->identical &= runs[capped][i].hash == runs[0][0].hash;
    }
    result->resident = median_run(runs[0], n);
    result->capped = median_run(runs[1], n);
    result->ratio = median(ratios, n);
    return true;
}

int hr_tool_bench(int argc, char **argv)
{
    static struct bench bench;
    int status;
    bool ok = bench_options_parse(argc, argv, &bench.options, &status), identical = true;
    if (!ok) {
        bench_options_free(&bench.options);
        return status;
    }
    ok = prepare(&bench);
    for (int i = 0; ok && i < BENCH_CASES; i++) {
        ok = run_case(&bench, i);
        identical &= bench.results[i].identical;
    }
    if (ok)
        bench_print(&bench, stdout);
    ok = ok && bench_write_json(&bench);
    if (!ok)
        fprintf(stderr, "headrace bench: %s\n", bench.error);
    if (bench.json)
        fclose(bench.json);
    if (ok && !identical)
        fprintf(stderr, "headrace bench: outputs differ: K/V from disk gave other bits\n");
    bench_options_free(&bench.options);
    return !ok || !identical || fflush(stdout) != 0 || ferror(stdout);
}

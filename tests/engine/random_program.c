/* SPDX-License-Identifier: Apache-2.0 */
/* A random program of begin, append, attend, commit, abort, cancel, fork, truncate, destroy, park,
 * warm, pin and evict against a flat model (world.h). Every third seed is capped:
 * most K/V lie on disk. With --sched all are, on a device and disk that run what is queued in any
 * order that the engine's waits allow (scheduler.h).
 *
 *   random-program [--seeds N] [--first SEED] [--steps N] [--sched] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/scheduler.h"
#include "tests/engine/world.h"

struct run {
    uint64_t first, seeds, steps;
    bool sched;
    uint64_t attends, refused, failed, budgets, read_bytes;
};

static void run_seed(struct run *r, uint64_t seed)
{
    struct world w;
    struct world_options o = {.kind = seed % 3 == 0   ? WORLD_CAPPED
                                      : seed % 4 == 0 ? WORLD_TIGHT
                                                      : WORLD_ROOMY,
                              .seqs = 10,
                              .batch = 4,
                              .tokens_max = 700,
                              .new_max = 300,
                              .seed = seed};
    if (r->sched) {
        o.kind = WORLD_SCHEDULED;
        o.seqs = 5;
        o.tokens_max = 420;
        o.new_max = 140;
    }
    world_seed(seed);
    world_open(&w, &o);
    /* A capped world's steps wait for a disk. */
    uint64_t steps = o.kind == WORLD_CAPPED && r->steps > 2000 ? r->steps / 4 : r->steps;
    for (uint64_t i = 0; i < steps; i++)
        world_step(&w);
    r->attends += w.attends;
    r->refused += w.refused;
    r->failed += w.failed;
    r->budgets += w.budgets;
    world_close(&w);
    r->read_bytes += w.read_bytes;
}

static void report(const struct run *r)
{
    printf("%llu seeds, %llu steps each, %llu attends compared, %llu batches refused for budget, "
           "%llu steps failed, %llu budgets\n",
           (unsigned long long)r->seeds, (unsigned long long)r->steps,
           (unsigned long long)r->attends, (unsigned long long)r->refused,
           (unsigned long long)r->failed, (unsigned long long)r->budgets);
    printf("%llu bytes of K/V came from disk\n", (unsigned long long)r->read_bytes);
    struct sched_counts s = sched_counted;
    if (r->sched)
        printf("scheduler: %llu launches, %llu items (%llu late), %llu requests (%llu failed), "
               "%llu uses of pages, all ordered\n",
               (unsigned long long)s.launches, (unsigned long long)s.items,
               (unsigned long long)s.late, (unsigned long long)s.requests,
               (unsigned long long)s.errors, (unsigned long long)s.uses);
}

/* What a test of so many seeds must have met. */
static bool too_tame(const struct run *r)
{
    if (r->seeds < 4)
        return false;
    if (r->refused == 0 || r->budgets == 0 || r->read_bytes == 0 ||
        (r->sched && sched_counted.late == 0)) {
        printf("FAILED: no batch ever met the budget, no budget changed, or no disk was read: the "
               "test is too tame\n");
        return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    struct run r = {.first = 1, .seeds = 20, .steps = 10000};
    for (int i = 1; i < argc; i++) {
        uint64_t number = i + 1 < argc ? strtoull(argv[i + 1], NULL, 10) : 0;
        if (strcmp(argv[i], "--seeds") == 0)
            r.seeds = number;
        else if (strcmp(argv[i], "--first") == 0)
            r.first = number;
        else if (strcmp(argv[i], "--steps") == 0)
            r.steps = number;
        else if (strcmp(argv[i], "--sched") == 0)
            r.sched = true;
    }
    for (uint64_t seed = r.first; seed < r.first + r.seeds; seed++) {
        printf("seed %llu: random-program --first %llu --seeds 1 --steps %llu%s\n",
               (unsigned long long)seed, (unsigned long long)seed, (unsigned long long)r.steps,
               r.sched ? " --sched" : "");
        run_seed(&r, seed);
    }
    report(&r);
    return too_tame(&r);
}

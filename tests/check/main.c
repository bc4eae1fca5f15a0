/* SPDX-License-Identifier: Apache-2.0 */
/* headrace-check: tests and benchmarks every kernel table of this build that the CPU can run. */
#include "tests/check/check.h"
#include "tests/check/gpu.h"

#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const struct hc_test hc_tests[] = {
    {"shapes", "random ragged shapes against float64", hc_test_shapes, 2000, false, HC_ALL},
    {"edges", "empty, one token, one-row blocks, no visible key", hc_test_edges, 180, false,
     HC_ALL},
    {"million", "a few rows at 2^20 keys", hc_test_million, 4, true, HC_ALL},
    {"reference", "float64 on the GPU and on the CPU", hc_test_reference, 250, false, HC_GPU},
    {"append", "pages after random appends and forks", hc_test_append, 60, false, HC_ALL},
    {"row-neighbours", "same bits alone and in a batch", hc_test_neighbours, 200, false, HC_ALL},
    {"row-cuts", "same bits for other tiles and waves", hc_test_cuts, 200, false, HC_ALL},
    {"row-chunked", "same bits when prefilled in pieces", hc_test_chunked, 200, false, HC_ALL},
    {"row-others", "same bits beside other rows", hc_test_others, 200, false, HC_ALL},
    {"row-hidden", "same bits whatever unseen keys hold", hc_test_hidden, 200, false, HC_ALL},
    {"row-zeros", "same sign of a zero with and without unseen keys", hc_test_zeros, 20, false,
     HC_ALL},
    {"row-recycled", "same bits in other blocks, full of NaN before", hc_test_recycled, 200, false,
     HC_ALL},
    {"row-lists", "same bits with a list of all blocks; lists in waves", hc_test_lists, 200, false,
     HC_GPU},
    {"listed", "a list gives what its blocks alone give", hc_test_listed, 200, false, HC_GPU},
    {"offsets", "same bits past 2^32 elements of K/V, 2^31 of q and out", hc_test_offsets, 60,
     false, HC_GPU},
    {"delays", "same bits when barriers come late (sm90)", hc_test_delays, 60, false, HC_SM90},
    {NULL, NULL, NULL, 0, false, HC_ALL},
};

struct options {
    const char *glob, *json;
    const char *gpu_level; /* only this table of a GPU; NULL: all */
    int caps;              /* -1: all */
    bool list, bench;
    uint64_t seed;
    int32_t shapes, threads;
};

struct tally {
    const struct hr_kernels *kernels;
    const struct hc_test *test;
    int32_t seeds;
    int64_t failed, rows;
    double worst, seconds;
};

enum { MAX_TALLIES = 128 };

struct job {
    struct tally *tally;
    uint64_t seed;
    _Atomic int32_t next;
    pthread_mutex_t mutex;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void report_failure(const struct tally *t, uint64_t seed, const char *text)
{
    struct hc_shape s;
    char shape[HC_TEXT];
    hc_shape_random(&s, seed, 2000000);
    hc_shape_text(&s, shape, sizeof shape);
    printf("FAILED %s %s/%s: %s\n", t->test->name, t->kernels->name, t->kernels->variant, text);
    if (strcmp(t->test->name, "shapes") == 0)
        printf("  shape: %s\n", shape);
    printf("  again: headrace-check --test %s --caps %s --seed %lu --shapes 1\n", t->test->name,
           t->kernels->name, (unsigned long)seed);
    fflush(stdout);
}

static void *work(void *arg)
{
    struct job *job = arg;
    struct tally *t = job->tally;
    for (;;) {
        int32_t i = atomic_fetch_add(&job->next, 1);
        if (i >= t->seeds)
            return NULL;
        struct hc_verdict v = {0};
        t->test->run(t->kernels, job->seed + (uint64_t)i, &v);
        pthread_mutex_lock(&job->mutex);
        t->rows += v.rows;
        t->worst = v.worst > t->worst ? v.worst : t->worst;
        if (v.text[0] && t->failed++ < 10)
            report_failure(t, job->seed + (uint64_t)i, v.text);
        pthread_mutex_unlock(&job->mutex);
    }
}

static void run_test(const struct options *o, struct tally *t)
{
    enum { MOST = 256 };
    pthread_t threads[MOST];
    struct job job = {.tally = t, .seed = o->seed, .mutex = PTHREAD_MUTEX_INITIALIZER};
    int32_t n = t->test->single ? 1 : o->threads < MOST ? o->threads : MOST, started = 0;
    t->seeds = t->test->seeds;
    if (o->shapes > 0) /* scales all tests by what `shapes` runs */
        t->seeds = (int32_t)(((int64_t)t->seeds * o->shapes + 1999) / 2000);
    double start = now();
    while (started < n - 1 && pthread_create(threads + started, NULL, work, &job) == 0)
        started++;
    work(&job);
    for (int32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    t->seconds = now() - start;
    printf("%s %-15s %s/%s: %d seeds, %ld rows", t->failed ? "FAILED" : "passed", t->test->name,
           t->kernels->name, t->kernels->variant, t->seeds, (long)t->rows);
    if (t->worst > 0)
        printf(", worst error %.2f of the limit", t->worst);
    if (t->failed)
        printf(", %ld seeds failed", (long)t->failed);
    printf(" (%.1f s)\n", t->seconds);
    fflush(stdout);
}

static int usage(const char *wrong)
{
    if (wrong)
        fprintf(stderr, "headrace-check: %s\n", wrong);
    fprintf(
        wrong ? stderr : stdout,
        "usage: headrace-check [--list] [--test GLOB] [--caps LEVEL] [--seed N] [--shapes N]\n"
        "                      [--bench] [--json FILE] [--threads N]\n"
        "  --test GLOB   only tests (with --bench: cases) whose name matches\n"
        "  --caps LEVEL  only the tables of portable, avx2, avx512bf16 or amx; of a GPU's sm80\n"
        "                or sm90\n"
        "  --seed N      first seed; printed at the start\n"
        "  --shapes N    seeds of the test `shapes` (2000); the others in proportion\n"
        "  --threads N   threads of tests and benchmarks (all CPUs)\n");
    return wrong ? 2 : 0;
}

static bool number(const char *text, long long low, long long *value)
{
    char *end;
    errno = 0;
    *value = text ? strtoll(text, &end, 0) : 0;
    return text && *text && !*end && errno == 0 && *value >= low;
}

/* 0: go on; else the exit status + 1. */
static int parse(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        long long n = 0;
        i++;
        if (strcmp(name, "--test") == 0 && value)
            o->glob = value;
        else if (strcmp(name, "--json") == 0 && value)
            o->json = value;
        else if (strcmp(name, "--caps") == 0 && value && strncmp(value, "sm", 2) == 0)
            o->gpu_level = value;
        else if (strcmp(name, "--caps") == 0 && value && (o->caps = hr_caps_parse(value)) >= 0)
            continue;
        else if (strcmp(name, "--seed") == 0 && number(value, 0, &n))
            o->seed = (uint64_t)n;
        else if (strcmp(name, "--shapes") == 0 && number(value, 1, &n) && n < 100000000)
            o->shapes = (int32_t)n;
        else if (strcmp(name, "--threads") == 0 && number(value, 1, &n) && n <= 256)
            o->threads = (int32_t)n;
        else if (i--, strcmp(name, "--list") == 0)
            o->list = true;
        else if (strcmp(name, "--bench") == 0)
            o->bench = true;
        else if (strcmp(name, "--help") == 0)
            return usage(NULL) + 1;
        else {
            char text[HC_TEXT];
            snprintf(text, sizeof text, "%s %s is not understood", name, value ? value : "");
            return usage(text) + 1;
        }
    }
    return 0;
}

static void list(void)
{
    for (const struct hc_test *t = hc_tests; t->name; t++)
        printf("%-15s %5d seeds  %s%s\n", t->name, t->seeds, t->what,
               t->tables != HC_ALL ? " (GPU)" : "");
    const struct hr_kernels *k;
    for (int32_t i = 0; (k = hr_kernels_at(i)) != NULL; i++)
        printf("table %s/%s id %#06x%s\n", k->name, k->variant, k->id,
               k->caps > hr_caps_detect() ? " (not on this CPU)" : "");
}

static void machine_name(char *buffer, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(buffer, size, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n\"\\")] = 0;
        snprintf(buffer, size, "%s, %ld CPUs", colon + 2, sysconf(_SC_NPROCESSORS_ONLN));
        break;
    }
    if (f)
        fclose(f);
}

static bool write_json(const struct options *o, const struct tally *t, int n,
                       const struct hc_result *r, int n_results)
{
    char machine[320];
    const char *commit = getenv("HEADRACE_COMMIT");
    FILE *f = fopen(o->json, "w");
    if (!f) {
        fprintf(stderr, "headrace-check: cannot write %s: %s\n", o->json, strerror(errno));
        return false;
    }
    machine_name(machine, sizeof machine);
    fprintf(f, "{\"commit\": \"%s\", \"machine\": \"%s\", \"seed\": %lu, \"threads\": %d,\n",
            commit ? commit : "unknown", machine, (unsigned long)o->seed, o->threads);
    fprintf(f, " \"checks\": [");
    for (int i = 0; i < n; i++)
        fprintf(f,
                "%s\n  {\"table\": \"%s/%s\", \"test\": \"%s\", \"seeds\": %d, \"rows\": %ld, "
                "\"failed\": %ld, \"worst\": %.3f, \"seconds\": %.1f}",
                i ? "," : "", t[i].kernels->name, t[i].kernels->variant, t[i].test->name,
                t[i].seeds, (long)t[i].rows, (long)t[i].failed, t[i].worst, t[i].seconds);
    fprintf(f, "],\n \"results\": [");
    for (int i = 0; i < n_results; i++) {
        fprintf(f, "%s\n  {\"goal\": \"P11\", \"case\": \"%s\", \"value\": %.4g, \"unit\": \"%s\"",
                i ? "," : "", r[i].name, r[i].value, r[i].unit);
        if (r[i].peer)
            fprintf(f, ", \"peer\": \"%s\", \"peer_value\": %.4g, \"ratio\": %.3f", r[i].peer,
                    r[i].peer_value, r[i].value / r[i].peer_value);
        fprintf(f, "}");
    }
    fprintf(f, "]}\n");
    if (ferror(f) | fclose(f)) {
        fprintf(stderr, "headrace-check: writing %s failed: %s\n", o->json, strerror(errno));
        return false;
    }
    return true;
}

static bool is_of(const struct hc_test *t, const struct hr_kernels *k)
{
    return t->tables == HC_ALL || (t->tables == HC_GPU && hc_on_gpu(k)) ||
           (t->tables == HC_SM90 && strcmp(k->name, "sm90") == 0);
}

/* All tests that match, of one table; how many seeds failed. */
static int64_t run_table(const struct options *o, const struct hr_kernels *k, struct tally *tallies,
                         int *n)
{
    int64_t failed = 0;
    for (const struct hc_test *t = hc_tests; t->name; t++) {
        if (fnmatch(o->glob, t->name, 0) != 0 || !is_of(t, k))
            continue;
        tallies[*n] = (struct tally){.kernels = k, .test = t};
        run_test(o, tallies + *n);
        failed += tallies[(*n)++].failed;
    }
    return failed;
}

static int64_t run_gpu(const struct options *o, struct tally *tallies, int *n)
{
    char why[256] = "";
    int64_t failed = 0;
    const struct hr_kernels *k;
    if (o->bench || o->caps >= 0)
        return 0;
    bool far = fnmatch(o->glob, "offsets", 0) == 0;
    if (!hc_gpu_open(far, why))
        printf("skipped sm80, sm90: %s\n", why);
    else if (far && !hc_gpu_reaches_far())
        printf("skipped offsets: the GPU has no room for an arena of 12 GiB\n");
    for (int32_t i = 0; (k = hc_gpu_at(i)) != NULL; i++)
        if (!o->gpu_level || strcmp(o->gpu_level, k->name) == 0)
            failed += run_table(o, k, tallies, n);
    hc_gpu_close();
    return failed;
}

int main(int argc, char **argv)
{
    struct options o = {.glob = "*",
                        .caps = -1,
                        .seed = (uint64_t)time(NULL) % 1000000 * 100000,
                        .threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN)};
    static struct tally tallies[MAX_TALLIES];
    static struct hc_result results[HC_RESULTS * 4];
    int n = 0, n_results = 0, status = parse(argc, argv, &o);
    int64_t failed = 0;
    if (status)
        return status - 1;
    if (o.list) {
        list();
        return 0;
    }
    printf("seed %lu\n", (unsigned long)o.seed);
    const struct hr_kernels *k;
    for (int32_t i = 0; (k = hr_kernels_at(i)) != NULL; i++) {
        if (o.gpu_level || (o.caps >= 0 && k->caps != (enum hr_caps)o.caps))
            continue;
        if (k->caps > hr_caps_detect()) {
            printf("skipped %s/%s: this CPU has %s at most\n", k->name, k->variant,
                   hr_caps_name(hr_caps_detect()));
            continue;
        }
        if (o.bench && k != hr_kernels_select(k->caps) && !strstr(o.glob, k->variant))
            continue; /* not what this CPU would use, nor asked for by name */
        if (o.bench) {
            n_results += hc_bench(k, o.threads, o.glob, results + n_results);
            continue;
        }
        failed += run_table(&o, k, tallies, &n);
    }
    failed += run_gpu(&o, tallies, &n);
    if (o.json && !write_json(&o, tallies, n, results, n_results))
        return 2;
    if (n == 0 && n_results == 0) {
        fprintf(stderr,
                "headrace-check: nothing ran: no test matches %s, or this machine lacks the "
                "level\n",
                o.glob);
        return 2;
    }
    return failed > 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A server's day in short: sequences of very different lengths arrive, anew or as forks, grow by
 * prefill and decode in ragged batches, two steps at a time, are parked and come back, and end.
 * Their K/V are four times the device's budget. Every output is compared with the flat model; no
 * step may take longer than its deadline, and neither memory nor descriptors may grow. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "tests/engine/world.h"

enum { SEQS = 64, LIVE = 4 /* times the budget */, THIRDS = 3 };

/* What must not grow. */
struct sizes {
    int64_t rss, files, threads, host; /* bytes, and how many */
};

struct soak {
    struct world w;
    int64_t seconds, deadline_ms;
    int layer[WORLD_STEPS]; /* that comes next */
    int64_t start_ns;
    struct sizes most[THIRDS]; /* of each third of the time */
    int64_t next_sample_ns;
    uint64_t arrived, forked, ended, parked, resumed, steps, missed;
    int64_t longest_ns;
    double live_sum, live_least; /* K/V of all sequences, in budgets */
    uint64_t live_count;
    int64_t held; /* allocations of the library */
};

static void *count_alloc(void *user, size_t bytes, size_t align)
{
    ((struct soak *)user)->held++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void count_free(void *user, void *memory, size_t bytes, size_t align)
{
    ((struct soak *)user)->held--;
    free(memory);
}

/* ---- What is measured ---- */

static int64_t descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int64_t n = 0;
    while (d && readdir(d))
        n++;
    closedir(d);
    return n;
}

/* But for the kernel's own, which io_uring's requests sometimes need. */
static int64_t threads(void)
{
    DIR *d = opendir("/proc/self/task");
    int64_t n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[64], name[32] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%.20s/comm", e->d_name);
        FILE *f = fopen(path, "r");
        n += f && fgets(name, sizeof(name), f) && strncmp(name, "iou-", 4) != 0;
        if (f)
            fclose(f);
    }
    closedir(d);
    return n;
}

static int64_t resident(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long long size = 0, pages = 0;
    if (!f || fscanf(f, "%lld %lld", &size, &pages) != 2)
        world_die("no /proc/self/statm", NULL);
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static hr_stats stats_of(const struct soak *k)
{
    hr_stats stats = {.struct_size = sizeof(stats)};
    if (hr_context_stats(k->w.c, &stats) != HR_OK)
        world_die("stats", k->w.c);
    return stats;
}

static void sample(struct soak *k, int64_t now_ns)
{
    int64_t third = (now_ns - k->start_ns) * THIRDS / (k->seconds * 1000000000);
    struct sizes *most = &k->most[third < THIRDS ? third : THIRDS - 1];
    most->rss = larger(most->rss, resident());
    most->files = larger(most->files, descriptors());
    most->threads = larger(most->threads, threads());
    most->host = larger(most->host, (int64_t)stats_of(k).host_bytes_used);
    k->next_sample_ns = now_ns + 100000000;
}

/* ---- Lives ---- */

static double live(const struct soak *k)
{
    hr_stats stats = stats_of(k);
    return (double)stats.kv_bytes_used / (double)stats.kv_bytes_total;
}

/* Most are short, some long. */
static int64_t draw_length(const struct soak *k)
{
    int64_t a = world_pick(1, k->w.o.tokens_max), b = world_pick(1, k->w.o.tokens_max);
    return a < b ? a : b;
}

static struct model_seq *draw(struct soak *k)
{
    return &k->w.seqs[world_pick(0, SEQS - 1)];
}

static void arrive(struct soak *k, struct model_seq *m)
{
    struct model_seq *parent = draw(k);
    if (world_pick(0, 2) == 0 && parent->seq && !parent->in_step) {
        world_fork(&k->w, parent, m);
        k->forked++;
    } else {
        world_create(&k->w, m);
        k->arrived++;
    }
    m->idle = false;
    m->most = draw_length(k);
    m->most = m->most > m->length ? m->most : m->length;
}

/* While there are too many K/V one ends, whoever it is; who has come, comes in its place. */
static void end_and_arrive(struct soak *k)
{
    struct model_seq *m = draw(k);
    if (m->seq && !m->in_step && live(k) > LIVE) {
        world_destroy(&k->w, m);
        k->ended++;
    }
    for (int i = 0; i < SEQS; i++)
        if (!k->w.seqs[i].seq)
            arrive(k, &k->w.seqs[i]);
}

static void advise(struct soak *k, struct model_seq *m, hr_advice advice)
{
    if (hr_seq_advise(m->seq, advice) != HR_OK)
        world_die("advise", k->w.c);
}

/* A user goes for coffee, or comes back; who has all tokens may ask for more. */
static void park_or_resume(struct soak *k)
{
    struct model_seq *m = draw(k);
    if (!m->seq || m->in_step)
        return;
    if (!m->idle && world_pick(0, 2) == 0) {
        advise(k, m, HR_ADVISE_PARK);
        k->parked++;
        m->idle = true;
    } else if (m->idle) {
        advise(k, m, world_pick(0, 1) ? HR_ADVISE_WARM : HR_ADVISE_NORMAL);
        k->resumed++;
        m->idle = false;
        int64_t more = m->length + world_pick(1, 200);
        m->most = more < k->w.o.tokens_max ? more : k->w.o.tokens_max;
    }
}

/* ---- Steps ---- */

static void end_step(struct soak *k, int i)
{
    struct open_step *s = &k->w.steps[i];
    if (world_pick(0, 19) == 0)
        world_abort(&k->w, s);
    else
        world_commit(&k->w, s);
    k->steps++;
    k->longest_ns = larger(k->longest_ns, s->spent_ns);
    k->missed += s->spent_ns > k->deadline_ms * 1000000;
}

/* One of the two goes on by a layer. */
static void go_on(struct soak *k)
{
    int i = (int)world_pick(0, WORLD_STEPS - 1);
    struct open_step *s = &k->w.steps[i];
    if (!s->open) {
        world_begin(&k->w, s);
        k->layer[i] = 0;
    } else if (k->layer[i] < WORLD_LAYERS) {
        world_forward(&k->w, s, k->layer[i]++);
    } else {
        end_step(k, i);
    }
}

static void turn(struct soak *k)
{
    end_and_arrive(k);
    if (world_pick(0, 9) == 0)
        park_or_resume(k);
    go_on(k);
}

/* The time begins when the K/V are there, and is longer where too little happens in it. */
static void run(struct soak *k)
{
    k->w.o.prefill = true;
    while (live(k) < LIVE)
        turn(k);
    k->w.o.prefill = false;
    int64_t now_ns = k->start_ns = hr_clock_ns(), end_ns = now_ns + k->seconds * 1000000000;
    for (; now_ns < end_ns || k->ended < 10 || k->resumed < 10; now_ns = hr_clock_ns()) {
        turn(k);
        if (now_ns >= k->next_sample_ns)
            sample(k, now_ns);
        double now = live(k);
        k->live_sum += now;
        k->live_least = k->live_count++ == 0 || now < k->live_least ? now : k->live_least;
    }
    for (int i = 0; i < WORLD_STEPS; i++)
        if (k->w.steps[i].open)
            world_abort(&k->w, &k->w.steps[i]);
}

/* ---- The verdict ---- */

static bool failed;

static void want(bool good, const char *sentence)
{
    if (!good)
        printf("FAILED: %s\n", sentence);
    failed = failed || !good;
}

/* Tables grow with the longest sequence so far and the largest batch, which the first third has
 * seen; small ones come and go with sequences. */
static void judge_sizes(const struct soak *k)
{
    const struct sizes *a = &k->most[0], *b = &k->most[1], *c = &k->most[2];
    want(b->files == a->files && c->files == a->files, "the number of descriptors changed");
    want(b->threads == a->threads && c->threads == a->threads, "the number of threads changed");
    want(c->host <= b->host + b->host / 50, "the library's memory grows");
    want(c->rss <= b->rss + (2 << 20), "resident memory grows");
    want(k->held == 0, "allocations are left behind the end");
}

static void judge(const struct soak *k, const hr_stats *stats)
{
    want(k->missed == 0, "a step took longer than its deadline");
    want(k->live_sum / (double)k->live_count > 0.95 * LIVE,
         "the K/V were not four times the budget");
    want(k->forked > 5 && k->parked > 10, "too few sequences came and went");
    want(stats->disk_read_bytes > 4 * stats->kv_bytes_total, "too little came from disk");
    want(k->w.attends > k->steps && k->w.refused < k->steps / 20, "batches were refused");
    judge_sizes(k);
}

static void report(const struct soak *k, const hr_stats *stats)
{
    printf("%llu sequences arrived, %llu forked, %llu ended; parked %llu times, resumed %llu\n",
           (unsigned long long)k->arrived, (unsigned long long)k->forked,
           (unsigned long long)k->ended, (unsigned long long)k->parked,
           (unsigned long long)k->resumed);
    printf("%llu steps, %llu batches refused, %llu tokens, %llu attends equal to the flat model\n",
           (unsigned long long)k->steps, (unsigned long long)k->w.refused,
           (unsigned long long)stats->tokens_appended, (unsigned long long)k->w.attends);
    printf("K/V: %.2f budgets in the mean, at least %.2f; %.0f MB read, %.0f MB written, waited "
           "%.2f s\n",
           k->live_sum / (double)k->live_count, k->live_least,
           (double)stats->disk_read_bytes * 1e-6, (double)stats->disk_write_bytes * 1e-6,
           (double)stats->waited_ns * 1e-9);
    printf("longest step %.1f ms of %lld, %llu missed\n", (double)k->longest_ns * 1e-6,
           (long long)k->deadline_ms, (unsigned long long)k->missed);
    for (int i = 0; i < THIRDS; i++)
        printf("third %d: at most %.1f MB resident, %lld bytes of the library's, %lld descriptors, "
               "%lld threads\n",
               i + 1, (double)k->most[i].rss * 1e-6, (long long)k->most[i].host,
               (long long)k->most[i].files, (long long)k->most[i].threads);
}

static void open_all(struct soak *k, struct world_options *o, const hr_allocator *allocator)
{
    hr_layer_options wide = {.q_heads = 6, .kv_heads = 2, .dim_k = 64, .dtype = HR_FP32};
    o->kind = WORLD_SOAK;
    o->seqs = SEQS;
    o->batch = WORLD_BATCH;
    o->tokens_max = 2000;
    o->new_max = 300;
    o->layers[0] = o->layers[1] = o->layers[2] = wide;
    o->layers[1].dtype = HR_BF16;
    o->layers[1].window = 200;
    o->layers[1].sinks = 4;
    o->device_bytes = 12 << 21;
    o->disk_bytes = 96 << 21;
    o->allocator = allocator;
    world_seed(o->seed);
    world_open(&k->w, o);
    /* The model's memory is there from the start. */
    for (int s = 0; s < SEQS; s++)
        for (int l = 0; l < WORLD_LAYERS; l++) {
            size_t bytes = sizeof(float) * (size_t)(o->tokens_max * world_width(&wide));
            memset(k->w.seqs[s].k[l], 0, bytes);
            memset(k->w.seqs[s].v[l], 0, bytes);
        }
}

int main(int argc, char **argv)
{
    static struct soak k = {.seconds = 8, .deadline_ms = 2000};
    struct world_options o = {.seed = 1};
    const hr_allocator allocator = {count_alloc, count_free, &k};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0)
            k.seconds = strtoll(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--deadline-ms") == 0)
            k.deadline_ms = strtoll(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            o.seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--io") == 0)
            o.io = argv[i + 1];
    }
    open_all(&k, &o, &allocator);
    printf("%s\n", hr_context_disk_text(k.w.c));
    run(&k);
    hr_stats stats = stats_of(&k);
    world_close(&k.w);
    report(&k, &stats);
    judge(&k, &stats);
    return failed;
}

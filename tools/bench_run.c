/* SPDX-License-Identifier: Apache-2.0 */
/* One run: sequences are filled (append alone), then the steps are timed. K, V and q are stretches
 * of one row of random numbers, another one for each step, layer and use, the same in every run. */
#include "tools/bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum { SLACK = 1 << 20, ALIGN = 32 }; /* elements */

struct runner {
    struct bench *bench;
    const struct bench_options *o;
    const struct bench_case *c;
    hr_context *context;
    hr_cache *cache;
    hr_step *step;
    hr_seq *seqs[BENCH_SEQS];
    uint16_t *numbers; /* bf16 */
    float *out;        /* [rows][q_heads][dim] of a step */
    int64_t rows;      /* most tokens of a step */
    int64_t steps;     /* so far */
    XXH3_state_t *hash;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool check(struct runner *r, hr_status status, const char *call)
{
    if (status == HR_OK)
        return true;
    const char *text = hr_error_text(r->context);
    snprintf(r->bench->error, BENCH_ERROR_BYTES, "%s: %s: %s", r->c->name, call,
             *text ? text : hr_status_text(status));
    return false;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* Between -2 and 2: rows of q and k then differ enough for some keys to matter more than others. */
static void make_numbers(uint16_t *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float x = (float)(int32_t)(mix(i + 1) >> 32) / (float)(1 << 30);
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        numbers[i] = (uint16_t)(bits >> 16);
    }
}

static const uint16_t *numbers_of(const struct runner *r, int64_t layer, int use)
{
    uint64_t which = mix((uint64_t)((r->steps * r->o->layers + layer) * 3 + use));
    return r->numbers + which % (SLACK / ALIGN) * ALIGN;
}

static bool open_context(struct runner *r, bool capped)
{
    hr_options options = {.struct_size = sizeof(options), .threads = r->o->threads};
    options.device_bytes = capped ? r->c->ram_bytes : bench_room(r->c);
    options.disks = capped ? r->o->disks : NULL;
    options.n_disks = capped ? r->o->n_disks : 0;
    options.io = capped ? r->o->io : NULL;
    hr_status status = hr_open(&options, &r->context);
    return check(r, status, capped ? "hr_open, with disks" : "hr_open");
}

static bool open_cache(struct runner *r)
{
    const struct bench_options *o = r->o;
    hr_layer_options layer = {.q_heads = (int32_t)o->q_heads,
                              .kv_heads = (int32_t)o->kv_heads,
                              .dim_k = (int32_t)o->dim,
                              .dtype = HR_BF16};
    hr_layer_options *layers = calloc((size_t)o->layers, sizeof(layer));
    for (int64_t i = 0; layers && i < o->layers; i++)
        layers[i] = layer;
    hr_cache_options cache = {sizeof(cache), sizeof(layer), layers, (int32_t)o->layers};
    hr_step_limits limits = {sizeof(limits), BENCH_SEQS, r->rows, r->rows};
    bool ok = layers && check(r, hr_cache_create(r->context, &cache, &r->cache), "hr_cache_create");
    free(layers);
    ok = ok && check(r, hr_step_create(r->cache, &limits, &r->step), "hr_step_create");
    for (int32_t i = 0; ok && i < r->c->n_seqs; i++)
        ok = check(r, hr_seq_create(r->cache, &r->seqs[i]), "hr_seq_create");
    return ok;
}

static bool open_memory(struct runner *r)
{
    const struct bench_options *o = r->o;
    size_t row = (size_t)(o->q_heads * o->dim), count = (size_t)r->rows * row + SLACK;
    r->numbers = aligned_alloc(64, (count * sizeof(*r->numbers) + 63) / 64 * 64);
    r->out = aligned_alloc(64, ((size_t)r->rows * row * sizeof(*r->out) + 63) / 64 * 64);
    r->hash = XXH3_createState();
    if (!r->numbers || !r->out || !r->hash) {
        snprintf(r->bench->error, BENCH_ERROR_BYTES, "out of memory");
        return false;
    }
    make_numbers(r->numbers, count);
    XXH3_64bits_reset(r->hash);
    return true;
}

static void close_runner(struct runner *r)
{
    hr_step_destroy(&r->step);
    for (int32_t i = 0; i < BENCH_SEQS; i++)
        hr_seq_destroy(&r->seqs[i]);
    hr_cache_destroy(&r->cache);
    hr_close(&r->context);
    free(r->numbers);
    free(r->out);
    XXH3_freeState(r->hash);
}

/* Attention of the layer's new rows, into the hash. */
static bool attend(struct runner *r, int64_t layer, int64_t rows)
{
    hr_attend_args args = {.struct_size = sizeof(args),
                           .q_dtype = HR_BF16,
                           .out_dtype = HR_FP32,
                           .q = numbers_of(r, layer, 2),
                           .out = r->out};
    if (!check(r, hr_step_attend(r->step, (int32_t)layer, &args), "hr_step_attend"))
        return false;
    XXH3_64bits_update(r->hash, r->out,
                       (size_t)(rows * r->o->q_heads * r->o->dim) * sizeof(*r->out));
    return true;
}

/* One step of n_new[] tokens each; without `queries` they are stored and no more. */
static bool take_step(struct runner *r, const int64_t *n_new, int64_t rows, bool queries)
{
    static const int64_t none[BENCH_SEQS];
    hr_batch batch = {.struct_size = sizeof(batch),
                      .n_seqs = r->c->n_seqs,
                      .seqs = r->seqs,
                      .n_new = n_new,
                      .n_query = queries ? NULL : none};
    if (!check(r, hr_step_begin(r->step, &batch), "hr_step_begin"))
        return false;
    for (int64_t l = 0; l < r->o->layers; l++) {
        hr_append_args args = {.struct_size = sizeof(args),
                               .dtype = HR_BF16,
                               .k = numbers_of(r, l, 0),
                               .v = numbers_of(r, l, 1)};
        if (!check(r, hr_step_append(r->step, (int32_t)l, &args), "hr_step_append") ||
            (queries && !attend(r, l, rows)))
            return false;
    }
    r->steps++;
    return check(r, hr_step_commit(r->step, NULL), "hr_step_commit");
}

/* One sequence after the other: as long as they are before the steps. */
static bool fill(struct runner *r)
{
    for (int32_t i = 0; i < r->c->n_seqs; i++)
        for (int64_t left = r->c->start[i]; left > 0;) {
            int64_t n_new[BENCH_SEQS] = {0};
            n_new[i] = left < BENCH_CHUNK ? left : BENCH_CHUNK;
            left -= n_new[i];
            if (!take_step(r, n_new, n_new[i], false))
                return false;
        }
    return check(r, hr_poll(r->context, INT64_MAX), "hr_poll");
}

static bool take_steps(struct runner *r, struct bench_run *run)
{
    for (;;) {
        int64_t n_new[BENCH_SEQS] = {0}, rows = 0;
        for (int32_t i = 0; i < r->c->n_seqs; i++) {
            int64_t left = r->c->end[i] - hr_seq_length(r->seqs[i]);
            n_new[i] = left < r->c->each[i] ? left : r->c->each[i];
            rows += n_new[i];
        }
        if (rows == 0)
            return true;
        if (!take_step(r, n_new, rows, true))
            return false;
        run->tokens += rows;
    }
}

static bool time_steps(struct runner *r, struct bench_run *run)
{
    hr_stats before = {.struct_size = sizeof(before)}, after = before;
    hr_context_stats(r->context, &before);
    int64_t start = now_ns();
    if (!take_steps(r, run))
        return false;
    run->seconds = (double)(now_ns() - start) * 1e-9;
    hr_context_stats(r->context, &after);
    run->hash = XXH3_64bits_digest(r->hash);
    run->read_bytes = after.disk_read_bytes - before.disk_read_bytes;
    run->write_bytes = after.disk_write_bytes - before.disk_write_bytes;
    run->waited_ns = after.waited_ns - before.waited_ns;
    run->threads = after.threads;
    snprintf(run->kernel, sizeof(run->kernel), "%.31s", hr_context_kernel(r->context));
    return true;
}

bool bench_run(struct bench *bench, const struct bench_case *c, bool capped, struct bench_run *run)
{
    struct runner r = {.bench = bench, .o = &bench->options, .c = c, .rows = BENCH_CHUNK};
    int64_t rows = 0;
    for (int32_t i = 0; i < c->n_seqs; i++)
        rows += c->each[i];
    r.rows = rows > r.rows ? rows : r.rows;
    *run = (struct bench_run){.seconds = 0};
    bool ok = open_memory(&r) && open_context(&r, capped) && open_cache(&r) && fill(&r) &&
              time_steps(&r, run);
    close_runner(&r);
    return ok;
}

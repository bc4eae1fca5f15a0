/* SPDX-License-Identifier: Apache-2.0 */
/* Throughput of the tile path and the split path, on one table and the library's own threads. */
#include "tests/check/check.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/base/alloc.h"
#include "src/base/pool.h"

struct bench {
    const struct hr_kernels *k;
    struct hr_pool *pool;
    struct hr_attend a;
    struct hr_seq_view seq;
    uint32_t extent, *blocks;
    unsigned char *kv;
    size_t kv_bytes;
    struct hr_tile *tiles;
    struct hr_chunk *chunks;
    struct hr_fold *folds;
    int64_t n_tiles, n_chunks, n_folds;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Random bf16 between 2^-2 and 2 in size, either sign. */
static void fill_item(const void *args, int64_t item, void *scratch)
{
    const struct bench *b = args;
    struct hc_random r = {(uint64_t)item << 32};
    size_t bytes = b->kv_bytes / 256, n = bytes / 8;
    uint64_t *p = (uint64_t *)(void *)(b->kv + (size_t)item * bytes);
    for (size_t i = 0; i < n; i++)
        p[i] = (hc_next(&r) & 0x80ff80ff80ff80ffu) | 0x3e803e803e803e80u;
}

static void bench_make(struct bench *b, int32_t heads, int32_t kv_heads, int32_t dim, int64_t n_q,
                       int64_t n_kv)
{
    struct hr_attend *a = &b->a;
    a->geom = (struct hr_geom){kv_heads, heads / kv_heads, dim, HR_BF16, 0, 0};
    int64_t n = hr_blocks_of(n_kv);
    b->blocks = hc_alloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        b->blocks[i] = (uint32_t)i;
    b->extent = 0;
    b->kv_bytes = (size_t)n * hr_block_bytes(&a->geom);
    b->kv = hc_alloc(b->kv_bytes);
    a->pool = (struct hr_pool_view){b->kv, b->kv_bytes, hr_block_bytes(&a->geom), &b->extent,
                                    (uint32_t)n};
    hr_pool_run(b->pool, fill_item, b, 256);
    b->seq = (struct hr_seq_view){.blocks = b->blocks, .n_kv = n_kv, .n_q = n_q};
    a->seqs = &b->seq;
    size_t row = (size_t)(n_q * heads * dim);
    a->q = a->out = (struct hr_rows){NULL, (int64_t)heads * dim, dim, HR_BF16};
    a->q.data = hc_alloc(row * 2);
    a->out.data = hc_alloc(row * 2);
    struct hc_random r = {1};
    for (size_t i = 0; i < row; i++)
        ((uint16_t *)a->q.data)[i] = (uint16_t)((hc_next(&r) & 0x80ff) | 0x3e80);
    a->scale = 1 / sqrtf((float)dim);
    a->first = a->last = true;
    a->wave_end = n;
}

static void bench_free(struct bench *b)
{
    free(b->blocks);
    free(b->kv);
    free(b->a.q.data);
    free(b->a.out.data);
    free(b->a.state);
    free(b->tiles);
    free(b->chunks);
    free(b->folds);
}

/* Late tiles see most keys: they go first. */
static void plan_prefill(struct bench *b)
{
    const struct hr_geom *g = &b->a.geom;
    int64_t tokens = b->k->tile_rows(g) / g->group, tiles = (b->seq.n_q + tokens - 1) / tokens;
    b->tiles = hc_alloc((size_t)(tiles * g->kv_heads) * sizeof *b->tiles);
    for (int64_t i = tiles - 1; i >= 0; i--) {
        int64_t left = b->seq.n_q - i * tokens;
        for (int32_t h = 0; h < g->kv_heads; h++)
            b->tiles[b->n_tiles++] =
                (struct hr_tile){0, h, i * tokens, 0, (int32_t)(left < tokens ? left : tokens)};
    }
    b->a.tiles = b->tiles;
}

static void plan_decode(struct bench *b)
{
    const struct hr_geom *g = &b->a.geom;
    int64_t n = hr_blocks_of(b->seq.n_kv), step = b->k->chunk_blocks(b->seq.n_kv, 1, g);
    int64_t per_head = (n + step - 1) / step, floats = (int64_t)g->group * (g->dim + 2);
    b->chunks = hc_alloc((size_t)(per_head * g->kv_heads) * sizeof *b->chunks);
    b->folds = hc_alloc((size_t)g->kv_heads * sizeof *b->folds);
    b->a.state = hc_alloc((size_t)(per_head * g->kv_heads * floats) * 4);
    for (int32_t h = 0; h < g->kv_heads; h++) {
        b->folds[b->n_folds++] = (struct hr_fold){0, h, h * per_head, (int32_t)per_head};
        for (int64_t i = 0; i < n; i += step) {
            int64_t blocks = n - i < step ? n - i : step;
            b->chunks[b->n_chunks] =
                (struct hr_chunk){0, h, i, b->n_chunks * floats, (int32_t)blocks};
            b->n_chunks++;
        }
    }
    b->a.chunks = b->chunks;
    b->a.folds = b->folds;
}

static double run_once(struct bench *b)
{
    double start = now();
    if (b->n_tiles > 0)
        hr_pool_run(b->pool, b->k->tile, &b->a, b->n_tiles);
    if (b->n_chunks > 0)
        hr_pool_run(b->pool, b->k->chunk, &b->a, b->n_chunks);
    if (b->n_folds > 0)
        hr_pool_run(b->pool, b->k->fold, &b->a, b->n_folds);
    return now() - start;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sums the K/V bytes: the fastest plain read by the same threads. */
struct sweep {
    const unsigned char *data;
    size_t bytes;
    uint64_t *sums;
};

enum { SWEEP_PIECE = 1 << 20 };

static void sweep_item(const void *args, int64_t item, void *scratch)
{
    typedef uint64_t wide __attribute__((vector_size(64)));
    const struct sweep *s = args;
    const unsigned char *p = s->data + (size_t)item * SWEEP_PIECE;
    size_t left = s->bytes - (size_t)item * SWEEP_PIECE;
    size_t n = left < SWEEP_PIECE ? left : SWEEP_PIECE;
    wide sum[4] = {{0}};
    for (size_t i = 0; i + 256 <= n; i += 256) {
        __builtin_prefetch(p + i + 2048);
        __builtin_prefetch(p + i + 2112);
        __builtin_prefetch(p + i + 2176);
        __builtin_prefetch(p + i + 2240);
        for (size_t j = 0; j < 4; j++) {
            wide x;
            memcpy(&x, p + i + 64 * j, 64);
            sum[j] += x;
        }
    }
    sum[0] += sum[1] + sum[2] + sum[3];
    s->sums[item] = sum[0][0] + sum[0][1] + sum[0][2] + sum[0][3] + sum[0][4] + sum[0][5] +
                    sum[0][6] + sum[0][7];
}

static double run_sweep(const struct bench *b)
{
    int64_t pieces = (int64_t)((b->kv_bytes + SWEEP_PIECE - 1) / SWEEP_PIECE);
    struct sweep s = {b->kv, b->kv_bytes, hc_alloc((size_t)pieces * 8)};
    double start = now();
    hr_pool_run(b->pool, sweep_item, &s, pieces);
    double seconds = now() - start;
    free(s.sums);
    return seconds;
}

static void bench_prefill(struct bench *b, const int32_t *shape, int64_t n, struct hc_result *r)
{
    enum { RUNS = 5 };
    double seconds[RUNS];
    bench_make(b, shape[0], shape[1], shape[2], n, n);
    plan_prefill(b);
    run_once(b);
    int runs = 0;
    double start = now();
    while (runs < RUNS && (runs < 3 || now() - start < 6))
        seconds[runs++] = run_once(b);
    qsort(seconds, (size_t)runs, sizeof *seconds, compare_doubles);
    double flops = 4.0 * shape[2] * shape[0] * (double)n * (double)(n + 1) / 2;
    r->value = flops / seconds[0] * 1e-9;
    r->unit = "GFLOP/s";
    printf("%s: %.1f GFLOP/s best, %.1f median of %d\n", r->name, r->value,
           flops / seconds[runs / 2] * 1e-9, runs);
    bench_free(b);
}

/* K/V bytes wanted: 8 x the L3, within half the free memory. */
static size_t decode_bytes(void)
{
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), free_pages = sysconf(_SC_AVPHYS_PAGES);
    size_t want = 8u * (size_t)(l3 > 0 ? l3 : 32 << 20) + (64u << 20);
    size_t most = (size_t)free_pages / 2 * (size_t)sysconf(_SC_PAGESIZE);
    return want < most ? want : most;
}

static void bench_decode(struct bench *b, const int32_t *shape, struct hc_result *r)
{
    enum { RUNS = 7 };
    double ours[RUNS], sweep[RUNS];
    size_t want = decode_bytes(), token = (size_t)shape[1] * (size_t)shape[2] * 4;
    int64_t n_kv = (int64_t)(want / token) / HR_BLOCK_TOKENS * HR_BLOCK_TOKENS;
    bench_make(b, shape[0], shape[1], shape[2], 1, n_kv);
    plan_decode(b);
    run_once(b);
    for (int i = 0; i < RUNS; i++) { /* in turn: the machine's other work hits both */
        ours[i] = run_once(b);
        sweep[i] = run_sweep(b);
    }
    qsort(ours, RUNS, sizeof *ours, compare_doubles);
    qsort(sweep, RUNS, sizeof *sweep, compare_doubles);
    double gb = (double)b->kv_bytes * 1e-9;
    r->value = gb / ours[RUNS / 2];
    r->unit = "GB/s";
    r->peer = "read sweep";
    r->peer_value = gb / sweep[RUNS / 2];
    printf("%s: %.1f GB/s, read sweep %.1f: %.2f (medians of %d; %ld keys, %.0f MB of K/V, L3 %ld "
           "MB)\n",
           r->name, r->value, r->peer_value, r->value / r->peer_value, (int)RUNS, (long)n_kv,
           gb * 1e3, sysconf(_SC_LEVEL3_CACHE_SIZE) >> 20);
    bench_free(b);
}

int hc_bench(const struct hr_kernels *k, int32_t threads, const char *glob,
             struct hc_result *results)
{
    static const int32_t shapes[][3] = {{9, 3, 64}, {32, 8, 128}};
    static const int64_t lengths[] = {4096, 16384, 0}; /* 0: decode */
    struct hr_alloc alloc;
    int n = 0;
    hr_alloc_init(&alloc, NULL);
    struct hr_pool_options options = {
        .threads = threads, .bind = true, .scratch_bytes = k->scratch_bytes(), .alloc = &alloc};
    int no_thread;
    struct hr_pool *pool = hr_pool_create(&options, &no_thread);
    if (!pool) {
        fprintf(stderr, "headrace-check: %d threads cannot be started\n", threads);
        return 0;
    }
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < 3; i++) {
            struct hc_result *r = results + n;
            const int32_t *d = shapes[s];
            struct bench b = {.k = k, .pool = pool};
            *r = (struct hc_result){0};
            if (lengths[i])
                snprintf(r->name, sizeof r->name, "prefill causal %d/%d d%d n%ld %s-%s", d[0], d[1],
                         d[2], (long)lengths[i], k->name, k->variant);
            else
                snprintf(r->name, sizeof r->name, "decode %d/%d d%d %s-%s", d[0], d[1], d[2],
                         k->name, k->variant);
            if (fnmatch(glob, r->name, 0) != 0)
                continue;
            n++;
            if (lengths[i])
                bench_prefill(&b, d, lengths[i], r);
            else
                bench_decode(&b, d, r);
            fflush(stdout);
        }
    }
    hr_pool_destroy(pool);
    return n;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/check/gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/launch.h"

enum { EXTENT = 2 << 20, LEVELS = 2 };

/* One GPU, which the threads of a test share. */
static struct {
    struct hr_alloc alloc;
    struct hr_dev *dev;
    struct hr_cu_kernels *kernels[LEVELS];
    pthread_mutex_t mutex;
} gpu = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void give_up(const char *text)
{
    fprintf(stderr, "headrace-check: the GPU: %s\n", text);
    exit(2);
}

static void check_device(void)
{
    if (gpu.dev->ops->error(gpu.dev))
        give_up(gpu.dev->ops->error(gpu.dev));
}

bool hc_gpu_open(char *why)
{
    static const char *const levels[LEVELS] = {"sm80", "sm90"};
    struct hr_dev_cuda_options o = {
        .alloc = &gpu.alloc, .arena_bytes = 2ull << 30, .arena_unit = EXTENT, .why = why};
    hr_alloc_init(&gpu.alloc, NULL);
    if (hr_dev_cuda_open(&o, &gpu.dev) != HR_DEV_CUDA_OK)
        return false;
    bool hopper = hr_dev_cuda_info(gpu.dev)->major == 9;
    for (int i = 0; i < (hopper ? LEVELS : 1); i++) {
        gpu.kernels[i] = hr_cu_kernels_load(gpu.dev, &gpu.alloc, levels[i], why);
        if (!gpu.kernels[i])
            give_up(why);
    }
    return true;
}

void hc_gpu_close(void)
{
    for (int i = 0; i < LEVELS; i++)
        hr_cu_kernels_free(gpu.kernels[i]);
    if (gpu.dev)
        gpu.dev->ops->close(gpu.dev);
}

const struct hr_kernels *hc_gpu_at(int32_t i)
{
    return i < LEVELS && gpu.kernels[i] ? hr_cu_planner(hr_cu_kernels_level(gpu.kernels[i])) : NULL;
}

static struct hr_cu_kernels *kernels_of(const struct hr_kernels *k)
{
    for (int32_t i = 0; i < LEVELS; i++)
        if (hc_gpu_at(i) == k)
            return gpu.kernels[i];
    give_up("a table of another GPU");
    return NULL;
}

void hc_gpu_shape(struct hr_geom *g)
{
    static const int32_t dims[] = {64, 128, 96, 256};
    if (g->dim != 64 && g->dim != 128 && g->dim != 96 && g->dim != 256)
        g->dim = dims[g->dim / 8 % 4];
    if (g->dtype == HR_FP32)
        g->dtype = g->window % 2 ? HR_FP16 : HR_BF16;
    if (g->group > 64)
        g->group = 64;
}

/* ---- Memory ---- */

enum { PIECES = 24 };

/* What a run holds on the GPU. */
struct held {
    void *memory[PIECES];
    size_t bytes[PIECES];
    int n;
};

static void *hold(struct held *h, size_t bytes)
{
    void *p = gpu.dev->ops->memory_get(gpu.dev, bytes + 64);
    if (!p || h->n == PIECES)
        give_up("no memory");
    h->memory[h->n] = p;
    h->bytes[h->n++] = bytes + 64;
    return p;
}

static void *bring(struct held *h, const void *from, size_t bytes)
{
    void *p = hold(h, bytes);
    if (bytes > 0)
        gpu.dev->ops->upload(gpu.dev, HR_DEV_WORK, p, from, bytes);
    return p;
}

static void finish(struct held *h)
{
    check_device();
    for (int i = 0; i < h->n; i++)
        gpu.dev->ops->memory_put(gpu.dev, h->memory[i], h->bytes[i]);
    pthread_mutex_unlock(&gpu.mutex);
}

static void fetch(void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        gpu.dev->ops->download(gpu.dev, HR_DEV_WORK, to, from, bytes);
}

/* Of a block. */
static uint32_t units_of(const struct hr_geom *g)
{
    return (uint32_t)(g->kv_heads * hr_page_units(g->dim));
}

/* ---- Attention ---- */

/* Block `id` of the case goes to place `id` of the arena; V behind the last key is zero, as append
 * leaves it. */
static uint32_t *bring_blocks(const struct hc_case *c)
{
    const struct hr_geom *g = &c->shape.geom;
    uint64_t bytes = hr_block_bytes(g), half = hr_page_bytes(g) / 2;
    size_t row = (size_t)g->dim * hr_dtype_bytes(g->dtype);
    unsigned char *block = hc_alloc(bytes);
    uint32_t *pages = hc_alloc(c->pool_bytes / bytes * 4 + 64), n = 0;
    for (int32_t i = 0; i < c->shape.n_seqs; i++)
        for (int64_t b = 0; b < hr_blocks_of(c->seqs[i].n_kv); b++) {
            uint32_t id = c->seqs[i].blocks[b];
            int64_t left = c->seqs[i].n_kv - b * HR_BLOCK_TOKENS;
            memcpy(block, hr_block_addr(&c->attend.pool, id), bytes);
            for (int32_t h = 0; h < g->kv_heads && left < HR_BLOCK_TOKENS; h++)
                memset(block + (uint64_t)h * 2 * half + half + (size_t)left * row, 0,
                       (size_t)(HR_BLOCK_TOKENS - left) * row);
            if ((id + 1) * bytes > gpu.dev->arena_bytes)
                give_up("a case is larger than the arena");
            gpu.dev->ops->upload(gpu.dev, HR_DEV_WORK, gpu.dev->arena + id * bytes, block, bytes);
            pages[n++] = id * units_of(g);
        }
    free(block);
    return pages;
}

static void fill_seqs(const struct hc_case *c, struct hr_cu_seq *seqs)
{
    int64_t block = 0;
    for (int32_t i = 0; i < c->shape.n_seqs; i++) {
        seqs[i] = hr_cu_seq_of(c->seqs + i, block);
        block += hr_blocks_of(c->seqs[i].n_kv);
    }
}

/* q where kernels can read it, on the GPU. */
static struct hr_rows bring_queries(const struct hc_case *c, struct hr_cu_kernels *k,
                                    const struct hr_cu_class *class, struct held *h)
{
    const struct hr_geom *g = &c->shape.geom;
    struct hr_rows q = c->attend.q;
    q.data = bring(h, c->q, c->q_bytes);
    if (hr_cu_reads_queries(class, &q, c->shape.scale))
        return q;
    return hr_cu_stage_queries(k, g, &q, c->rows, c->shape.scale,
                               hold(h, hr_cu_staged_bytes(g, c->rows)));
}

/* Tiles as the kernels take them; the most tokens of one. */
static int32_t bring_tiles(struct hr_cu_attend *a, const struct hr_tile *tiles, struct held *h)
{
    struct hr_cu_tile *t = hc_alloc((size_t)a->n_tiles * sizeof *t);
    int32_t most = 1;
    for (int32_t i = 0; i < a->n_tiles; i++) {
        t[i] = hr_cu_tile_of(tiles + i);
        most = tiles[i].tokens > most ? tiles[i].tokens : most;
    }
    a->tiles = bring(h, t, (size_t)a->n_tiles * sizeof *t);
    free(t);
    return most;
}

/* All that the kernels read but K/V and q. */
static void bring_lists(struct hc_case *c, struct hr_cu_attend *a, int64_t state_floats,
                        struct held *h)
{
    struct hr_cu_seq seqs[HC_SEQS];
    size_t state_bytes = (size_t)state_floats * 4;
    int32_t heads = a->group * c->shape.geom.kv_heads;
    uint32_t *pages = bring_blocks(c);
    int64_t blocks = 0;
    for (int32_t i = 0; i < c->shape.n_seqs; i++)
        blocks += hr_blocks_of(c->seqs[i].n_kv);
    fill_seqs(c, seqs);
    a->seqs = bring(h, seqs, sizeof seqs);
    a->pages = bring(h, pages, (size_t)blocks * 4);
    a->tile_tokens = bring_tiles(a, c->attend.tiles, h);
    a->chunks = bring(h, c->attend.chunks, (size_t)a->n_chunks * sizeof(struct hr_chunk));
    a->folds = bring(h, c->attend.folds, (size_t)a->n_folds * sizeof(struct hr_fold));
    a->state = bring(h, c->attend.state, state_bytes); /* poison */
    a->out = bring(h, c->out, c->out_bytes);
    a->lse = bring(h, c->lse, c->lse_bytes);
    a->sink_logits = c->shape.sink_logits ? bring(h, c->sink_logits, (size_t)heads * 4) : NULL;
    free(pages);
}

void hc_gpu_attend(struct hc_case *c, const struct hr_kernels *table, const int64_t lists[3],
                   int64_t state_floats, int64_t wave, int64_t blocks)
{
    struct hr_cu_kernels *k = kernels_of(table);
    struct hr_cu_class class;
    struct held held = {.n = 0};
    char why[HR_DEV_TEXT_BYTES];
    pthread_mutex_lock(&gpu.mutex);
    if (!hr_cu_class_make(k, &c->shape.geom, EXTENT, &class, why))
        give_up(why);
    struct hr_rows q = bring_queries(c, k, &class, &held);
    struct hr_cu_attend a = hr_cu_attend_of(&c->attend, &q);
    a.n_tiles = (int32_t)lists[0];
    a.n_chunks = (int32_t)lists[1];
    a.n_folds = (int32_t)lists[2];
    bring_lists(c, &a, state_floats, &held);
    void *lse = a.lse;
    a.lse = c->shape.lse ? a.lse : NULL;
    for (int64_t b = 0; b < blocks; b += wave) {
        a.wave_begin = b;
        a.wave_end = b + wave;
        a.first = b == 0;
        a.last = b + wave >= blocks;
        hr_cu_prefill(k, &class, &a, c->rows);
        hr_cu_decode(k, &class, &a);
    }
    hr_cu_fold(k, &class, &a);
    fetch(c->out, a.out, c->out_bytes);
    fetch(c->lse, lse, c->lse_bytes);
    finish(&held);
}

/* ---- Append ---- */

static void *bring_rows(struct held *h, const struct hr_rows *rows, const struct hr_geom *g,
                        int64_t tokens)
{
    int64_t elements = tokens > 0 ? (tokens - 1) * rows->stride_token +
                                        (g->kv_heads - 1) * rows->stride_head + g->dim
                                  : 0;
    return bring(h, rows->data, (size_t)elements * hr_dtype_bytes(rows->dtype));
}

void hc_gpu_append(const struct hr_append *in, uint32_t blocks, int64_t tokens)
{
    enum { MOST = 4096 };
    const struct hr_geom *g = &in->geom;
    struct held h = {.n = 0};
    struct hr_cu_seq seqs[HC_SEQS];
    uint32_t pages[MOST], copies[HC_SEQS], n = 0;
    size_t pool_bytes = blocks * hr_block_bytes(g);
    pthread_mutex_lock(&gpu.mutex);
    for (int32_t i = 0; i < in->n_seqs; i++) {
        const struct hr_seq_view *s = in->seqs + i;
        seqs[i] = hr_cu_seq_of(s, n);
        for (int64_t b = 0; b < hr_blocks_of(s->n_kv) && n < MOST; b++)
            pages[n++] = s->blocks[b] * units_of(g);
        copies[i] = in->copy_from[i] == UINT32_MAX ? UINT32_MAX : in->copy_from[i] * units_of(g);
    }
    if (n == MOST || pool_bytes > gpu.dev->arena_bytes)
        give_up("an append is too large");
    gpu.dev->ops->upload(gpu.dev, HR_DEV_WORK, gpu.dev->arena, in->pool.base, pool_bytes);
    struct hr_cu_append a = hr_cu_append_of(g, &in->k, &in->v);
    a.seqs = bring(&h, seqs, (size_t)in->n_seqs * sizeof *seqs);
    a.pages = bring(&h, pages, n * sizeof *pages);
    a.copy_from = bring(&h, copies, (size_t)in->n_seqs * sizeof *copies);
    a.first_item = bring(&h, in->first_item, (size_t)(in->n_seqs + 1) * sizeof(int64_t));
    a.arena = gpu.dev->arena;
    a.k = bring_rows(&h, &in->k, g, tokens);
    a.v = bring_rows(&h, &in->v, g, tokens);
    a.n_items = in->first_item[in->n_seqs];
    a.n_seqs = in->n_seqs;
    hr_cu_append(gpu.kernels[0], &a);
    fetch(in->pool.base, gpu.dev->arena, pool_bytes);
    finish(&h);
}

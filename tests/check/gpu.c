/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/check/gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/launch.h"
#include "src/dev/driver.h"

enum { EXTENT = 2 << 20, LEVELS = 2, MODULES = 16, LATE = 2 /* prefill and decode */ };

/* Compiled for tests alone: the reference, and kernels that take the place of the library's (their
 * names are the same) to come late at every barrier. */
extern const struct hr_cu_module hc_cu_modules[];
extern const int32_t hc_cu_modules_count;

/* One GPU, which the threads of a test share. */
static struct {
    struct hr_alloc alloc;
    struct hr_dev *dev;
    struct hr_cu_kernels *kernels[LEVELS], *late;
    CUmodule module;
    CUfunction reference;
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

static void load_late(char *why)
{
    struct hr_cu_module modules[MODULES];
    int32_t n = hr_cu_modules_count < MODULES ? hr_cu_modules_count : MODULES, late = 0;
    for (int32_t i = 0; i < n; i++) {
        modules[i] = hr_cu_modules[i];
        for (int32_t j = 0; j < hc_cu_modules_count; j++)
            if (strcmp(hc_cu_modules[j].name, modules[i].name) == 0) {
                modules[i] = hc_cu_modules[j];
                late++;
            }
    }
    if (late != LATE)
        give_up("not every Hopper kernel has one that comes late");
    gpu.late = hr_cu_kernels_load_from(modules, n, gpu.dev, &gpu.alloc, "sm90", why);
    if (!gpu.late)
        give_up(why);
}

static void load_reference(void)
{
    const struct hr_cu_driver *cu = hr_dev_cuda_driver(gpu.dev);
    if (!hr_dev_cuda_enter(gpu.dev))
        return;
    for (int32_t i = 0; i < hc_cu_modules_count; i++)
        if (strcmp(hc_cu_modules[i].name, "reference") == 0 &&
            hr_dev_cuda_went(gpu.dev, cu->cuModuleLoadData(&gpu.module, hc_cu_modules[i].bytes),
                             "cuModuleLoadData"))
            hr_dev_cuda_went(gpu.dev,
                             cu->cuModuleGetFunction(&gpu.reference, gpu.module, "hr_reference"),
                             "cuModuleGetFunction");
    hr_dev_cuda_leave(gpu.dev);
}

bool hc_gpu_open(bool far, char *why)
{
    static const char *const levels[LEVELS] = {"sm80", "sm90"};
    struct hr_dev_cuda_options o = {
        .alloc = &gpu.alloc, .arena_bytes = 12ull << 30, .arena_unit = EXTENT, .why = why};
    hr_alloc_init(&gpu.alloc, NULL);
    if (!far || hr_dev_cuda_open(&o, &gpu.dev) == HR_DEV_CUDA_NO_ARENA)
        o.arena_bytes = 2ull << 30;
    if (!gpu.dev && hr_dev_cuda_open(&o, &gpu.dev) != HR_DEV_CUDA_OK)
        return false;
    bool hopper = hr_dev_cuda_info(gpu.dev)->major == 9;
    for (int i = 0; i < (hopper ? LEVELS : 1); i++) {
        gpu.kernels[i] = hr_cu_kernels_load(gpu.dev, &gpu.alloc, levels[i], why);
        if (!gpu.kernels[i])
            give_up(why);
    }
    if (hopper)
        load_late(why);
    load_reference();
    check_device();
    return true;
}

void hc_gpu_close(void)
{
    if (!gpu.dev)
        return;
    for (int i = 0; i < LEVELS; i++)
        hr_cu_kernels_free(gpu.kernels[i]);
    hr_cu_kernels_free(gpu.late);
    if (hr_dev_cuda_enter_to_free(gpu.dev)) {
        hr_dev_cuda_driver(gpu.dev)->cuModuleUnload(gpu.module);
        hr_dev_cuda_leave(gpu.dev);
    }
    gpu.dev->ops->close(gpu.dev);
}

bool hc_gpu_reaches_far(void)
{
    return gpu.dev && gpu.dev->arena_bytes > 2ull << 32;
}

const struct hr_kernels *hc_gpu_at(int32_t i)
{
    return i < LEVELS && gpu.kernels[i] ? hr_cu_planner(hr_cu_kernels_level(gpu.kernels[i])) : NULL;
}

/* Those of the table; the late ones if the case wants them and the level has them. */
static struct hr_cu_kernels *kernels_of(const struct hr_kernels *k, uint32_t ways)
{
    for (int32_t i = 0; i < LEVELS; i++)
        if (hc_gpu_at(i) == k)
            return i == 1 && (ways & HC_LATE) ? gpu.late : gpu.kernels[i];
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

enum { PIECES = 32 };

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

/* ---- K and V ---- */

/* Where block `id` of the case goes, in blocks of the arena. */
static uint64_t place_of(const struct hc_case *c, uint32_t id)
{
    uint64_t bytes = hr_block_bytes(&c->shape.geom), ids = c->pool_bytes / bytes;
    uint64_t step = c->ways & HC_FAR ? (gpu.dev->arena_bytes / bytes - 1) / ids : 1;
    if ((id * step + 1) * bytes > gpu.dev->arena_bytes)
        give_up("a case is larger than the arena");
    return id * step;
}

/* Block b of sequence i, with V behind the last key zero, as append leaves it; or NaN, for append.
 */
static void copy_block(const struct hc_case *c, int32_t i, int64_t b, unsigned char *block)
{
    const struct hr_geom *g = &c->shape.geom;
    uint64_t half = hr_page_bytes(g) / 2;
    size_t row = (size_t)g->dim * hr_dtype_bytes(g->dtype);
    int64_t left = c->seqs[i].n_kv - b * HR_BLOCK_TOKENS;
    if (c->ways & HC_APPENDED) {
        memset(block, HC_POISON, hr_block_bytes(g));
        return;
    }
    memcpy(block, hr_block_addr(&c->attend.pool, c->seqs[i].blocks[b]), hr_block_bytes(g));
    for (int32_t h = 0; h < g->kv_heads && left < HR_BLOCK_TOKENS; h++)
        memset(block + (uint64_t)h * 2 * half + half + (size_t)left * row, 0,
               (size_t)(HR_BLOCK_TOKENS - left) * row);
}

/* The pages of all sequences. */
static const uint32_t *bring_blocks(const struct hc_case *c, struct held *h)
{
    uint64_t bytes = hr_block_bytes(&c->shape.geom);
    unsigned char *block = hc_alloc(bytes);
    uint32_t *pages = hc_alloc(c->pool_bytes / bytes * 4 + 64), n = 0;
    for (int32_t i = 0; i < c->shape.n_seqs; i++)
        for (int64_t b = 0; b < hr_blocks_of(c->seqs[i].n_kv); b++) {
            uint64_t place = place_of(c, c->seqs[i].blocks[b]);
            copy_block(c, i, b, block);
            gpu.dev->ops->upload(gpu.dev, HR_DEV_WORK, gpu.dev->arena + place * bytes, block,
                                 bytes);
            pages[n++] = (uint32_t)(place * units_of(&c->shape.geom));
        }
    const uint32_t *there = bring(h, pages, (size_t)n * 4);
    free(block);
    free(pages);
    return there;
}

/* With every key as a new one. The number of blocks. */
static int64_t fill_seqs(const struct hc_case *c, struct hr_cu_seq *seqs)
{
    int64_t block = 0, row = 0;
    for (int32_t i = 0; i < c->shape.n_seqs; i++) {
        seqs[i] = hr_cu_seq_of(c->seqs + i, block);
        seqs[i].n_new = seqs[i].n_kv;
        seqs[i].new_row = row;
        row += seqs[i].n_kv;
        block += hr_blocks_of(seqs[i].n_kv);
    }
    return block;
}

/* K (half 0) or V (half 1) of all sequences, [token][head][dim]. */
static void *bring_tokens(const struct hc_case *c, uint64_t half, struct held *h)
{
    const struct hr_geom *g = &c->shape.geom;
    size_t row = (size_t)g->dim * hr_dtype_bytes(g->dtype), bytes = 0;
    for (int32_t i = 0; i < c->shape.n_seqs; i++)
        bytes += (size_t)c->seqs[i].n_kv * (size_t)g->kv_heads * row;
    unsigned char *rows = hc_alloc(bytes), *to = rows;
    for (int32_t i = 0; i < c->shape.n_seqs; i++)
        for (int64_t j = 0; j < c->seqs[i].n_kv; j++)
            for (int32_t head = 0; head < g->kv_heads; head++, to += row)
                memcpy(
                    to,
                    hr_page_addr(g, &c->attend.pool, c->seqs[i].blocks[j / HR_BLOCK_TOKENS], head) +
                        half * hr_page_bytes(g) / 2 + (size_t)(j % HR_BLOCK_TOKENS) * row,
                    row);
    void *there = bring(h, rows, bytes);
    free(rows);
    return there;
}

static void append_all(const struct hc_case *c, const struct hr_cu_attend *a, struct held *h)
{
    const struct hr_geom *g = &c->shape.geom;
    uint32_t copies[HC_SEQS];
    int64_t items[HC_SEQS + 1] = {0};
    struct hr_rows k = {bring_tokens(c, 0, h), (int64_t)g->kv_heads * g->dim, g->dim, g->dtype};
    struct hr_rows v = k;
    v.data = bring_tokens(c, 1, h);
    for (int32_t i = 0; i < c->shape.n_seqs; i++) {
        copies[i] = UINT32_MAX;
        items[i + 1] = items[i] + hr_blocks_of(c->seqs[i].n_kv);
    }
    struct hr_cu_append append = hr_cu_append_of(g, &k, &v);
    append.seqs = a->seqs;
    append.pages = a->pages;
    append.copy_from = bring(h, copies, sizeof copies);
    append.first_item = bring(h, items, sizeof items);
    append.arena = gpu.dev->arena;
    append.n_items = items[c->shape.n_seqs];
    append.n_seqs = c->shape.n_seqs;
    hr_cu_append(gpu.kernels[0], &append);
}

/* ---- Rows far apart ---- */

/* Strides so that the last row begins behind 2^31 elements; a row lies as it does on the host. */
static struct hr_rows far_apart(const struct hr_rows *host, int64_t rows, struct held *h)
{
    struct hr_rows r = *host;
    int64_t gaps = rows > 1 ? rows - 1 : 1;
    r.stride_token += ((1ll << 31) / gaps + 8) / 8 * 8;
    r.data =
        hold(h, (size_t)(gaps * r.stride_token + host->stride_token) * hr_dtype_bytes(host->dtype));
    return r;
}

/* Each row there, or back. */
static void copy_rows(const struct hr_rows *host, const struct hr_rows *there, int64_t rows,
                      bool back)
{
    size_t element = hr_dtype_bytes(host->dtype), bytes = (size_t)host->stride_token * element;
    for (int64_t i = 0; i < rows; i++) {
        unsigned char *near = (unsigned char *)host->data + (size_t)i * bytes;
        unsigned char *far =
            (unsigned char *)there->data + (size_t)(i * there->stride_token) * element;
        if (back)
            fetch(near, far, bytes);
        else
            gpu.dev->ops->upload(gpu.dev, HR_DEV_WORK, far, near, bytes);
    }
}

/* ---- Attention ---- */

/* Rows of the case, which are in memory[bytes] of the host, with what is beside them there; where
 * the case wants rows far apart, the rows alone. */
static struct hr_rows bring_spaced(const struct hc_case *c, const struct hr_rows *here,
                                   const void *memory, size_t bytes, struct held *h)
{
    struct hr_rows there = *here;
    if (c->ways & HC_FAR) {
        there = far_apart(here, c->rows, h);
        copy_rows(here, &there, c->rows, false);
    } else {
        there.data = bring(h, memory, bytes);
    }
    return there;
}

static struct hr_rows bring_raw_queries(const struct hc_case *c, struct held *h)
{
    return bring_spaced(c, &c->attend.q, c->q, c->q_bytes, h);
}

/* q where kernels can read it, on the GPU. */
static struct hr_rows bring_queries(const struct hc_case *c, struct hr_cu_kernels *k,
                                    const struct hr_cu_class *class, struct held *h)
{
    const struct hr_geom *g = &c->shape.geom;
    struct hr_rows q = bring_raw_queries(c, h);
    if (hr_cu_reads_queries(class, &q, c->shape.scale))
        return q;
    return hr_cu_stage_queries(k, g, &q, c->rows, c->shape.scale,
                               hold(h, hr_cu_staged_bytes(g, c->rows)));
}

/* Tiles as the kernels take them, and their lists. */
static void bring_tiles(const struct hc_case *c, struct hr_cu_attend *a, struct held *h)
{
    const struct hr_tile *tiles = c->attend.tiles;
    struct hr_cu_tile *t = hc_alloc((size_t)a->n_tiles * sizeof *t);
    size_t most = 0, n = 0;
    for (int32_t i = 0; i < a->n_tiles; i++)
        most += (size_t)hr_blocks_of(c->seqs[tiles[i].seq].n_kv);
    uint32_t *lists = hc_alloc(most * 4);
    a->tile_tokens = 1;
    for (int32_t i = 0; i < a->n_tiles; i++) {
        t[i] = hr_cu_tile_of(tiles + i);
        if (tiles[i].tokens > a->tile_tokens)
            a->tile_tokens = tiles[i].tokens;
        if (c->ways & HC_LISTED) {
            t[i].list_first = (int64_t)n;
            t[i].list_count = hc_case_list(c, tiles[i].seq, tiles[i].head, lists + n);
            n += (size_t)t[i].list_count;
        }
    }
    a->tiles = bring(h, t, (size_t)a->n_tiles * sizeof *t);
    a->lists = bring(h, lists, n * 4);
    free(t);
    free(lists);
}

/* All that the kernels read but q. */
static void bring_lists(const struct hc_case *c, struct hr_cu_attend *a, int64_t state_floats,
                        struct held *h)
{
    struct hr_cu_seq seqs[HC_SEQS];
    int32_t heads = a->group * c->shape.geom.kv_heads;
    fill_seqs(c, seqs);
    a->seqs = bring(h, seqs, sizeof seqs);
    a->pages = bring_blocks(c, h);
    if (c->ways & HC_APPENDED)
        append_all(c, a, h);
    bring_tiles(c, a, h);
    a->chunks = bring(h, c->attend.chunks, (size_t)a->n_chunks * sizeof(struct hr_chunk));
    a->folds = bring(h, c->attend.folds, (size_t)a->n_folds * sizeof(struct hr_fold));
    a->state = bring(h, c->attend.state, (size_t)state_floats * 4); /* poison */
    a->lse = bring(h, c->lse, c->lse_bytes);
    a->sink_logits = c->shape.sink_logits ? bring(h, c->sink_logits, (size_t)heads * 4) : NULL;
}

/* out and its canaries. */
static struct hr_rows bring_out(const struct hc_case *c, struct hr_cu_attend *a, struct held *h)
{
    struct hr_rows out = bring_spaced(c, &c->attend.out, c->out, c->out_bytes, h);
    a->out = out.data;
    a->out_stride_token = out.stride_token;
    return out;
}

static void run_waves(struct hr_cu_kernels *k, const struct hr_cu_class *class,
                      struct hr_cu_attend *a, int64_t rows, int64_t wave, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b += wave) {
        a->wave_begin = b;
        a->wave_end = b + wave;
        a->first = b == 0;
        a->last = b + wave >= blocks;
        hr_cu_prefill(k, class, a, rows);
        hr_cu_decode(k, class, a, rows);
    }
    hr_cu_fold(k, class, a);
}

void hc_gpu_attend(struct hc_case *c, const struct hr_kernels *table, const int64_t lists[3],
                   int64_t state_floats, int64_t wave, int64_t blocks)
{
    struct hr_cu_kernels *k = kernels_of(table, c->ways);
    struct hr_cu_class class;
    struct held held = {.n = 0};
    char why[HR_DEV_TEXT_BYTES];
    pthread_mutex_lock(&gpu.mutex);
    if (!hr_cu_class_make(k, &c->shape.geom, EXTENT, &class, why))
        give_up(why);
    if ((c->ways & HC_LATE) &&
        (k != gpu.late || class.prefill->level != HR_CU_SM90 || class.decode->level != HR_CU_SM90))
        give_up("a case is to come late, and has no kernel that does");
    struct hr_rows q = bring_queries(c, k, &class, &held);
    struct hr_cu_attend a = hr_cu_attend_of(&c->attend, &q);
    a.n_tiles = (int32_t)lists[0];
    a.n_chunks = (int32_t)lists[1];
    a.n_folds = (int32_t)lists[2];
    bring_lists(c, &a, state_floats, &held);
    struct hr_rows out = bring_out(c, &a, &held);
    void *lse = a.lse;
    a.lse = c->shape.lse ? a.lse : NULL;
    run_waves(k, &class, &a, c->rows, wave, blocks);
    if (c->ways & HC_FAR)
        copy_rows(&c->attend.out, &out, c->rows, true);
    else
        fetch(c->out, out.data, c->out_bytes);
    fetch(c->lse, lse, c->lse_bytes);
    finish(&held);
}

/* ---- The reference ---- */

static void launch_reference(struct hr_cu_attend *a, struct hr_cu_reference *r)
{
    enum { CTAS_MAX = 4096, THREADS = 128 };
    const struct hr_cu_driver *cu = hr_dev_cuda_driver(gpu.dev);
    void *parameters[] = {a, r};
    CUlaunchConfig config = {.gridDimX = r->n_rows < CTAS_MAX ? (unsigned)r->n_rows : CTAS_MAX,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = THREADS,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = hr_dev_cuda_stream(gpu.dev, HR_DEV_WORK)};
    if (r->n_rows == 0 || !hr_dev_cuda_enter(gpu.dev))
        return;
    hr_dev_cuda_went(gpu.dev, cu->cuLaunchKernelEx(&config, gpu.reference, parameters, NULL),
                     "hr_reference");
    hr_dev_cuda_leave(gpu.dev);
}

void hc_gpu_reference(const struct hc_case *c, const struct hr_cu_reference_row *rows, int64_t n,
                      int32_t shifts, struct hr_cu_reference_errors *errors, double *lse)
{
    const struct hr_geom *g = &c->shape.geom;
    struct held held = {.n = 0};
    pthread_mutex_lock(&gpu.mutex);
    struct hr_rows q = bring_raw_queries(c, &held);
    struct hr_cu_attend a = hr_cu_attend_of(&c->attend, &q);
    bring_lists(c, &a, 0, &held);
    bring_out(c, &a, &held);
    struct hr_cu_reference r = {
        .rows = bring(&held, rows, (size_t)n * sizeof *rows),
        .arena = gpu.dev->arena,
        .lse = hold(&held, (size_t)n * 8),
        .errors = hold(&held, (size_t)n * sizeof *errors),
        .n_rows = n,
        .n_seqs = c->shape.n_seqs,
        .q_heads = g->kv_heads * g->group,
        .dim = g->dim,
        .q_type = (int32_t)c->shape.q_dtype,
        .kv_type = (int32_t)g->dtype,
        .shifts = shifts,
        .scale = c->shape.scale,
        .softcap = c->shape.softcap,
    };
    launch_reference(&a, &r);
    fetch(errors, r.errors, (size_t)n * sizeof *errors);
    fetch(lse, r.lse, (size_t)n * 8);
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
    uint32_t first = (uint32_t)(gpu.dev->arena_bytes / hr_block_bytes(g)) - blocks; /* the end */
    pthread_mutex_lock(&gpu.mutex);
    for (int32_t i = 0; i < in->n_seqs; i++) {
        const struct hr_seq_view *s = in->seqs + i;
        seqs[i] = hr_cu_seq_of(s, n);
        for (int64_t b = 0; b < hr_blocks_of(s->n_kv) && n < MOST; b++)
            pages[n++] = (first + s->blocks[b]) * units_of(g);
        copies[i] = UINT32_MAX;
        if (in->copy_from[i] != UINT32_MAX)
            copies[i] = (first + in->copy_from[i]) * units_of(g);
    }
    if (n == MOST)
        give_up("an append is too large");
    unsigned char *pool = gpu.dev->arena + first * hr_block_bytes(g);
    gpu.dev->ops->upload(gpu.dev, HR_DEV_WORK, pool, in->pool.base, pool_bytes);
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
    fetch(in->pool.base, pool, pool_bytes);
    finish(&h);
}

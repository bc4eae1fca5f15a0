/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gemm.h"
#include "tools/gemm_weight.h"
#include "tools/gguf.h"

#include <libxsmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = GEMM_SLAB * GEMM_PANEL }; /* floats */

struct gemm {
    struct gemm_pool *pool;
    const struct model_ops *ops;
    float *rooms; /* [threads][ROOM] */
};

/* The kernels of one part: first slab, the others, and a last one that is shorter. */
struct kernels {
    libxsmm_smmfunction first, next, last;
};

/* One product: items are (group of rows, panel), all panels of a group first. */
struct product {
    const struct gemm *gemm;
    const float *x;
    int64_t x_stride, rows, inputs;
    int64_t group_rows; /* a multiple of tile */
    int64_t panels;     /* of all parts */
    int64_t tile;       /* rows of one kernel call */
    const struct gemm_part *parts;
    struct kernels kernels[GEMM_PARTS_MAX];
};

static libxsmm_smmfunction kernel_for(int64_t tile, int64_t inputs, int64_t x_stride,
                                      int64_t out_stride, float beta)
{
    libxsmm_blasint panel = GEMM_PANEL, ldx = (libxsmm_blasint)x_stride;
    libxsmm_blasint ldo = (libxsmm_blasint)out_stride;
    const float alpha = 1;
    const int flags = LIBXSMM_GEMM_FLAG_NONE;
    libxsmm_smmfunction f =
        libxsmm_smmdispatch(GEMM_PANEL, (libxsmm_blasint)tile, (libxsmm_blasint)inputs, &panel,
                            &ldx, &ldo, &alpha, &beta, &flags, NULL);
    if (f)
        return f;
    fprintf(stderr, "headrace: libxsmm made no kernel for %d x %d x %d: out of executable memory\n",
            GEMM_PANEL, (int)tile, (int)inputs);
    exit(1);
}

static struct kernels kernels_for(int64_t tile, int64_t inputs, int64_t x_stride,
                                  int64_t out_stride)
{
    int64_t slab = inputs < GEMM_SLAB ? inputs : GEMM_SLAB;
    struct kernels k = {.first = kernel_for(tile, slab, x_stride, out_stride, 0)};
    k.next = kernel_for(tile, slab, x_stride, out_stride, 1);
    k.last = inputs % GEMM_SLAB && inputs > GEMM_SLAB
                 ? kernel_for(tile, inputs % GEMM_SLAB, x_stride, out_stride, 1)
                 : k.next;
    return k;
}

static void run_item(const void *args, int64_t item, int thread)
{
    const struct product *p = args;
    int64_t panel = item % p->panels, top = item / p->panels * p->group_rows;
    int64_t end = top + p->group_rows < p->rows ? top + p->group_rows : p->rows;
    int part = 0;
    while (panel >= p->parts[part].weight->panels)
        panel -= p->parts[part++].weight->panels;
    const struct gemm_part *to = &p->parts[part];
    for (int64_t first = 0; first < p->inputs; first += GEMM_SLAB) {
        int64_t n = p->inputs - first < GEMM_SLAB ? p->inputs - first : GEMM_SLAB;
        const struct kernels *k = &p->kernels[part];
        libxsmm_smmfunction kernel = first == 0 ? k->first : n < GEMM_SLAB ? k->last : k->next;
        const float *w =
            gemm_weight_slab(to->weight, p->gemm->ops, panel, first, n, gemm_room(p->gemm, thread));
        for (int64_t row = top; row < end; row += p->tile)
            kernel(w, p->x + row * p->x_stride + first,
                   to->out + row * to->out_stride + panel * GEMM_PANEL);
    }
}

/* Enough items for all threads, but a slab is expanded for no fewer than 8 tiles. */
static int64_t rows_per_group(const struct product *p)
{
    int64_t tiles = (p->rows + p->tile - 1) / p->tile;
    int64_t want = (8 * gemm_pool_threads(p->gemm->pool) + p->panels - 1) / p->panels;
    int64_t groups = want < tiles / 8 ? want : tiles / 8;
    return groups < 2 ? tiles * p->tile : (tiles + groups - 1) / groups * p->tile;
}

void gemm_run(struct gemm *gemm, const float *x, int64_t x_stride, int64_t rows,
              const struct gemm_part *parts, int n_parts)
{
    struct product p = {.gemm = gemm, .x = x, .x_stride = x_stride, .rows = rows, .parts = parts};
    p.inputs = parts[0].weight->inputs;
    p.tile = rows == 1 && parts[0].weight->single_row ? 1 : GEMM_TILE;
    for (int i = 0; i < n_parts; i++) {
        p.panels += parts[i].weight->panels;
        p.kernels[i] = kernels_for(p.tile, p.inputs, x_stride, parts[i].out_stride);
    }
    p.group_rows = rows_per_group(&p);
    gemm_pool_run(gemm->pool, run_item, &p, (rows + p.group_rows - 1) / p.group_rows * p.panels);
}

static float next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

static bool rows_agree(struct gemm *gemm, struct gemm_weight *w, int64_t inputs, float *x)
{
    float tile[GEMM_TILE][GEMM_PANEL], row[GEMM_PANEL];
    uint32_t seed = 1;
    for (int64_t i = 0; i < inputs * GEMM_PANEL; i++)
        ((float *)(void *)w->data)[i] = next_random(&seed);
    for (int64_t i = 0; i < inputs * GEMM_TILE; i++)
        x[i] = next_random(&seed);
    gemm_run(gemm, x, inputs, GEMM_TILE, &(struct gemm_part){w, tile[0], GEMM_PANEL}, 1);
    for (int i = 0; i < GEMM_TILE; i++) {
        gemm_run(gemm, x + i * inputs, inputs, 1, &(struct gemm_part){w, row, GEMM_PANEL}, 1);
        if (memcmp(row, tile[i], sizeof(row)) != 0)
            return false;
    }
    return true;
}

bool gemm_single_row(struct gemm *gemm, int64_t inputs)
{
    size_t bytes = (size_t)inputs * sizeof(float);
    struct gemm_weight w = {.form = GEMM_FLOATS, .single_row = true, .inputs = inputs};
    w.outputs = GEMM_PANEL;
    w.panels = 1;
    w.data = aligned_alloc(64, bytes * GEMM_PANEL);
    float *x = malloc(bytes * GEMM_TILE);
    bool agree = w.data && x && rows_agree(gemm, &w, inputs, x);
    free(x);
    free(w.data);
    return agree;
}

const struct model_ops *gemm_ops(const struct gemm *gemm)
{
    return gemm->ops;
}

struct gemm_pool *gemm_threads(const struct gemm *gemm)
{
    return gemm->pool;
}

float *gemm_room(const struct gemm *gemm, int thread)
{
    return gemm->rooms + (size_t)thread * ROOM;
}

struct gemm *gemm_create(struct gemm_pool *pool, char *error)
{
    struct gemm *gemm = calloc(1, sizeof(*gemm));
    float *rooms = aligned_alloc(64, (size_t)gemm_pool_threads(pool) * ROOM * sizeof(float));
    libxsmm_init();
    bool jit = strcmp(libxsmm_get_target_arch(), "generic") != 0 &&
               strcmp(libxsmm_get_target_arch(), "unknown") != 0;
    if (gemm && rooms && jit) {
        *gemm = (struct gemm){.pool = pool, .ops = model_ops_best(), .rooms = rooms};
        return gemm;
    }
    snprintf(error, GGUF_ERROR_BYTES, "%s",
             jit ? "out of memory"
                 : "libxsmm has no code for this CPU: it needs an x86-64 with AVX");
    free(rooms);
    free(gemm);
    return NULL;
}

void gemm_destroy(struct gemm *gemm)
{
    if (!gemm)
        return;
    free(gemm->rooms);
    free(gemm);
}

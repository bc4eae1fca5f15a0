/* SPDX-License-Identifier: Apache-2.0 */
/* How worlds begin and end; world_ops.c has what happens in them. */
#include "tests/engine/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/scheduler.h"

static uint64_t rng_state;

void world_seed(uint64_t seed)
{
    rng_state = seed * 0x2545f4914f6cdd1dull;
}

static uint64_t rng(void)
{
    uint64_t z = rng_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

int64_t world_pick(int64_t low, int64_t high)
{
    return low + (int64_t)(rng() % (uint64_t)(high - low + 1));
}

_Noreturn void world_die(const char *what, hr_context *c)
{
    printf("FAILED: %s: %s\n", what, hr_error_text(c));
    exit(1);
}

int32_t world_width(const hr_layer_options *l)
{
    return l->kv_heads * l->dim_k;
}

/* ---- Opening ---- */

static const char *folder(void)
{
    const char *name = getenv("TMPDIR");
    return name ? name : "/tmp";
}

/* Blocks of 256 KiB, and sometimes half of it: eight to an extent, so that few fit. */
static void choose_large_layers(struct world *w)
{
    int32_t kv = world_pick(0, 2) ? 4 : 2;
    for (int l = 0; l < WORLD_LAYERS; l++)
        w->layers[l] = (hr_layer_options){
            .kv_heads = l == 2 ? kv : 4,
            .q_heads = (l == 2 ? kv : 4) * (int32_t)world_pick(1, 2),
            .dim_k = 64,
            .dtype = HR_FP32,
            .window = world_pick(0, 2) == 0 ? world_pick(1, 300) : 0,
            .sinks = world_pick(0, 1) ? world_pick(0, 200) : 0,
        };
}

static void choose_layers(struct world *w, bool tight)
{
    static const int32_t dims[] = {8, 16, 24, 64};
    for (int l = 0; l < WORLD_LAYERS; l++) {
        int32_t kv = (int32_t)world_pick(1, 2);
        w->layers[l] = (hr_layer_options){
            .kv_heads = tight ? 2 : kv,
            .q_heads = (tight ? 2 : kv) * (int32_t)world_pick(1, 4),
            .dim_k = tight ? 64 : dims[world_pick(0, 3)],
            .dtype = tight ? HR_FP32 : (hr_dtype)world_pick(HR_BF16, HR_FP32),
            .window = world_pick(0, 2) == 0 ? world_pick(1, 300) : 0,
            .sinks = world_pick(0, 1) ? world_pick(0, 200) : 0,
        };
    }
    if (world_pick(0, 1))
        w->layers[2] = w->layers[0];
}

/* Two threads, one disk. */
static void make_soak(struct world *w, hr_options *options)
{
    static hr_disk disk;
    disk = (hr_disk){.path = folder(), .bytes = w->o.disk_bytes};
    memcpy(w->layers, w->o.layers, sizeof(w->layers));
    options->threads = 2;
    options->debug_wave_blocks = 0;
    options->device_bytes = w->o.device_bytes;
    options->disks = &disk;
    options->n_disks = 1;
    options->io = w->o.io;
    options->allocator = w->o.allocator;
}

static void cap(struct world *w, hr_options *options)
{
    static hr_disk disks[2];
    static const char *const engines[] = {NULL, "threads"};
    bool scheduled = w->o.kind == WORLD_SCHEDULED;
    int64_t least = w->layers[2].kv_heads == 2 ? 5 : 2; /* a second pool has a fifth of them */
    int64_t extents = scheduled ? least + world_pick(0, 2) : world_pick(7, 14);
    uint64_t bytes = scheduled ? 24 << 20 : 96 << 20;
    disks[0] = disks[1] = (hr_disk){.path = folder(), .bytes = bytes};
    options->device_bytes = (uint64_t)extents << 21;
    options->disks = disks;
    options->n_disks = scheduled ? 1 : (int32_t)world_pick(1, 2);
    options->io = engines[world_pick(0, 1)];
    options->manual_progress = scheduled || world_pick(0, 1);
    options->caps = scheduled ? "portable" : NULL;
    if (scheduled) {
        struct sched_options sched = {.seed = w->o.seed,
                                      .arena_bytes = options->device_bytes,
                                      .file_bytes = bytes,
                                      .again_rate = world_pick(0, 1) ? 0.05 : 0,
                                      .error_rate = world_pick(0, 3) ? 0 : 0.01};
        sched_open(&sched);
    }
}

static void make_sequences(struct world *w)
{
    w->seqs = calloc((size_t)w->o.seqs, sizeof(*w->seqs));
    for (int s = 0; s < w->o.seqs; s++)
        w->seqs[s].most = w->o.tokens_max;
    for (int s = 0; s < w->o.seqs; s++)
        for (int l = 0; l < WORLD_LAYERS; l++) {
            size_t n = (size_t)w->o.tokens_max * (size_t)world_width(&w->layers[l]);
            w->seqs[s].k[l] = malloc(sizeof(float) * n);
            w->seqs[s].v[l] = malloc(sizeof(float) * n);
        }
    for (int i = 0; i < 4; i++)
        w->rows[i] = malloc(sizeof(float) * WORLD_BATCH * (size_t)(w->o.new_max + 8) * 8 * 64);
}

static void make_cache(struct world *w)
{
    hr_cache_options cache = {.struct_size = sizeof(cache),
                              .layer_size = sizeof(w->layers[0]),
                              .layers = w->layers,
                              .n_layers = WORLD_LAYERS};
    hr_step_limits limits = {.struct_size = sizeof(limits),
                             .seqs = WORLD_BATCH,
                             .new_tokens = WORLD_BATCH * w->o.new_max,
                             .query_tokens = WORLD_BATCH * (w->o.new_max + 8)};
    if (hr_cache_create(w->c, &cache, &w->cache) != HR_OK)
        world_die("cache", w->c);
    for (int i = 0; i < WORLD_STEPS; i++)
        if (hr_step_create(w->cache, &limits, &w->steps[i].step) != HR_OK)
            world_die("step", w->c);
}

void world_open(struct world *w, const struct world_options *o)
{
    static const int64_t waves[] = {0, 1, 2, 7};
    struct hr_error error = {0};
    hr_options options = {.struct_size = sizeof(options),
                          .threads = (int32_t)world_pick(1, 3),
                          .unbound = true,
                          .device_bytes = (o->kind == WORLD_TIGHT ? 4ull : 64ull) << 21,
                          .debug_wave_blocks = waves[world_pick(0, 3)]};
    hr_options flat = {.struct_size = sizeof(flat), .threads = 1, .device_bytes = 64ull << 21};
    *w = (struct world){.o = *o};
    if (o->kind == WORLD_SOAK) {
        make_soak(w, &options);
    } else if (world_capped(w)) {
        choose_large_layers(w);
        cap(w, &options);
    } else {
        choose_layers(w, o->kind == WORLD_TIGHT);
    }
    flat.caps = options.caps;
    const struct hr_hooks *hooks = o->kind == WORLD_SCHEDULED ? &sched_hooks : NULL;
    if (hr_context_open(&options, hooks, &error, &w->c) != HR_OK ||
        hr_open(&flat, &w->flat) != HR_OK) {
        printf("%s\n", error.text);
        world_die("open", NULL);
    }
    /* What recycled memory may hold: every K and V starts as NaN. */
    memset(w->c->dev->arena, 0xff, w->c->dev->arena_bytes);
    make_cache(w);
    make_sequences(w);
}

/* ---- The end ---- */

void world_check_races(void)
{
    if (!sched_race())
        return;
    printf("FAILED: %s\n", sched_race());
    exit(1);
}

static void free_models(struct world *w)
{
    for (int s = 0; s < w->o.seqs; s++)
        for (int l = 0; l < WORLD_LAYERS; l++) {
            free(w->seqs[s].k[l]);
            free(w->seqs[s].v[l]);
        }
    free(w->seqs);
    for (int i = 0; i < 4; i++)
        free(w->rows[i]);
}

void world_close(struct world *w)
{
    hr_stats stats = {.struct_size = sizeof(stats)};
    for (int i = 0; i < WORLD_STEPS; i++)
        hr_step_destroy(&w->steps[i].step);
    for (int s = 0; s < w->o.seqs; s++)
        if (hr_seq_destroy(&w->seqs[s].seq) != HR_OK)
            world_die("destroy", w->c);
    if (hr_context_stats(w->c, &stats) != HR_OK || stats.kv_bytes_used != 0)
        world_die("blocks leaked", w->c);
    w->read_bytes = stats.disk_read_bytes;
    free_models(w);
    if (hr_cache_destroy(&w->cache) != HR_OK || w->c->extents.used_count != 0)
        world_die("extents leaked", w->c);
    if (hr_close(&w->c) != HR_OK || hr_close(&w->flat) != HR_OK)
        world_die("close", NULL);
    if (w->o.kind == WORLD_SCHEDULED) {
        world_check_races();
        sched_close();
    }
}

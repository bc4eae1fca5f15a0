/* SPDX-License-Identifier: Apache-2.0 */
/* A random program of begin, append, attend, commit, abort, fork, truncate and destroy against a
 * flat model: each sequence is one plain array of K and V, and what it attends to is computed by
 * hr_attention in a second context (one thread, no wave cuts, no sharing). Bits must be equal.
 * Every third seed is capped: most K/V lie on disk, and sequences are parked and pinned too.
 *
 *   random-program [--seeds N] [--first SEED] [--steps N] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/headrace.h>

#include "src/seq.h"

enum { SEQS = 10, STEPS_OPEN = 2, LAYERS = 3, TOKENS_MAX = 700, BATCH_MAX = 4, NEW_MAX = 300 };

static uint64_t rng_state;

static uint64_t rng(void)
{
    uint64_t z = rng_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static int64_t pick(int64_t low, int64_t high)
{
    return low + (int64_t)(rng() % (uint64_t)(high - low + 1));
}

static void die(const char *what, hr_context *c)
{
    printf("FAILED: %s: %s\n", what, hr_error_text(c));
    exit(1);
}

struct model_seq {
    hr_seq *seq;
    bool in_step;
    int64_t length;
    float *k[LAYERS], *v[LAYERS]; /* [TOKENS_MAX][kv_heads * dim], values of the layer's dtype */
};

struct open_step {
    hr_step *step;
    bool open;
    int32_t n;
    int32_t members[BATCH_MAX];
    int64_t n_new[BATCH_MAX], n_query[BATCH_MAX];
    bool appended[LAYERS];
};

struct world {
    hr_context *c, *flat;
    hr_cache *cache;
    hr_layer_options layers[LAYERS];
    struct model_seq seqs[SEQS];
    struct open_step steps[STEPS_OPEN];
    float *rows[4]; /* scratch tensors */
    bool capped;
    uint64_t attends, refused, read_bytes;
};

static int32_t kv_width(const hr_layer_options *l)
{
    return l->kv_heads * l->dim_k;
}

/* Values that all three types hold exactly, so that the model can keep floats. */
static float value(void)
{
    return (float)pick(-64, 64) / 32.0f;
}

static void fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value();
}

/* Blocks of 256 KiB, and sometimes half of it: eight to an extent, so that few fit. */
static void choose_large_layers(struct world *w)
{
    int32_t kv = pick(0, 2) ? 4 : 2;
    for (int l = 0; l < LAYERS; l++)
        w->layers[l] = (hr_layer_options){
            .kv_heads = l == 2 ? kv : 4,
            .q_heads = (l == 2 ? kv : 4) * (int32_t)pick(1, 2),
            .dim_k = 64,
            .dtype = HR_FP32,
            .window = pick(0, 2) == 0 ? pick(1, 300) : 0,
            .sinks = pick(0, 1) ? pick(0, 200) : 0,
        };
}

static void choose_layers(struct world *w, bool tight)
{
    static const int32_t dims[] = {8, 16, 24, 64};
    for (int l = 0; l < LAYERS; l++) {
        int32_t kv = (int32_t)pick(1, 2);
        w->layers[l] = (hr_layer_options){
            .kv_heads = tight ? 2 : kv,
            .q_heads = (tight ? 2 : kv) * (int32_t)pick(1, 4),
            .dim_k = tight ? 64 : dims[pick(0, 3)],
            .dtype = tight ? HR_FP32 : (hr_dtype)pick(HR_BF16, HR_FP32),
            .window = pick(0, 2) == 0 ? pick(1, 300) : 0,
            .sinks = pick(0, 1) ? pick(0, 200) : 0,
        };
    }
    if (pick(0, 1))
        w->layers[2] = w->layers[0];
}

static void cap(hr_options *options)
{
    static hr_disk disks[2];
    static const char *const engines[] = {NULL, "threads"};
    const char *folder = getenv("TMPDIR");
    disks[0] = disks[1] = (hr_disk){.path = folder ? folder : "/tmp", .bytes = 96 << 20};
    options->device_bytes = (uint64_t)pick(7, 14) << 21;
    options->disks = disks;
    options->n_disks = (int32_t)pick(1, 2);
    options->io = engines[pick(0, 1)];
    options->manual_progress = pick(0, 1);
}

static void open_world(struct world *w, bool tight, bool capped)
{
    static const int64_t waves[] = {0, 1, 2, 7};
    hr_options options = {.struct_size = sizeof(options),
                          .threads = (int32_t)pick(1, 3),
                          .unbound = true,
                          .device_bytes = (tight ? 4ull : 64ull) << 21,
                          .debug_wave_blocks = waves[pick(0, 3)]};
    hr_options flat = {.struct_size = sizeof(flat), .threads = 1, .device_bytes = 64ull << 21};
    memset(w, 0, sizeof(*w));
    w->capped = capped;
    if (capped)
        cap(&options);
    if (hr_open(&options, &w->c) != HR_OK || hr_open(&flat, &w->flat) != HR_OK)
        die("open", NULL);
    /* What recycled memory may hold: every K and V starts as NaN. */
    memset(w->c->dev->arena, 0xff, w->c->dev->arena_bytes);
    if (capped)
        choose_large_layers(w);
    else
        choose_layers(w, tight);
    hr_cache_options cache = {.struct_size = sizeof(cache),
                              .layer_size = sizeof(w->layers[0]),
                              .layers = w->layers,
                              .n_layers = LAYERS};
    hr_step_limits limits = {.struct_size = sizeof(limits),
                             .seqs = BATCH_MAX,
                             .new_tokens = BATCH_MAX * NEW_MAX,
                             .query_tokens = BATCH_MAX * (NEW_MAX + 8)};
    if (hr_cache_create(w->c, &cache, &w->cache) != HR_OK)
        die("cache", w->c);
    for (int i = 0; i < STEPS_OPEN; i++)
        if (hr_step_create(w->cache, &limits, &w->steps[i].step) != HR_OK)
            die("step", w->c);
    for (int i = 0; i < 4; i++)
        w->rows[i] = malloc(sizeof(float) * BATCH_MAX * (NEW_MAX + 8) * 8 * 64);
    for (int s = 0; s < SEQS; s++)
        for (int l = 0; l < LAYERS; l++) {
            w->seqs[s].k[l] = malloc(sizeof(float) * TOKENS_MAX * (size_t)kv_width(&w->layers[l]));
            w->seqs[s].v[l] = malloc(sizeof(float) * TOKENS_MAX * (size_t)kv_width(&w->layers[l]));
        }
}

static void close_world(struct world *w)
{
    hr_stats stats = {.struct_size = sizeof(stats)};
    for (int i = 0; i < STEPS_OPEN; i++)
        hr_step_destroy(&w->steps[i].step);
    for (int s = 0; s < SEQS; s++) {
        if (hr_seq_destroy(&w->seqs[s].seq) != HR_OK)
            die("destroy", w->c);
        for (int l = 0; l < LAYERS; l++) {
            free(w->seqs[s].k[l]);
            free(w->seqs[s].v[l]);
        }
    }
    if (hr_context_stats(w->c, &stats) != HR_OK || stats.kv_bytes_used != 0)
        die("blocks leaked", w->c);
    w->read_bytes = stats.disk_read_bytes;
    for (int i = 0; i < 4; i++)
        free(w->rows[i]);
    if (hr_cache_destroy(&w->cache) != HR_OK || w->c->extents.used_count != 0)
        die("extents leaked", w->c);
    if (hr_close(&w->c) != HR_OK || hr_close(&w->flat) != HR_OK)
        die("close", NULL);
}

/* V rows that no token owns are zero, unless they belong to another sequence. */
static void expect_zero_tail(struct world *w, const struct model_seq *m)
{
    int64_t fill = m->length % HR_BLOCK_TOKENS, last = m->length / HR_BLOCK_TOKENS;
    for (int l = 0; l < LAYERS && fill > 0 && !m->seq->foreign_tail; l++) {
        const struct hr_geom *g = hr_cache_geom(w->cache, l);
        const struct hr_blocks *pool = hr_cache_pool(w->cache, l);
        const struct hr_block *block = &pool->all[hr_seq_blocks(m->seq, l)[last]];
        size_t row_bytes = (size_t)g->dim * hr_dtype_bytes(g->dtype);
        bool there = block->life.device == HR_LIFE_THERE;
        for (int32_t h = 0; h < g->kv_heads && block->life.refs == 1 && there; h++) {
            unsigned char *page = hr_page_addr(g, &pool->slots.view, block->slot, h);
            unsigned char *v = page + hr_page_bytes(g) / 2;
            for (size_t i = (size_t)fill * row_bytes; i < HR_BLOCK_TOKENS * row_bytes; i++)
                if (v[i] != 0)
                    die("V rows past the fill are not zero", w->c);
        }
    }
}

static void expect_length(struct world *w, const struct model_seq *m)
{
    if (hr_seq_length(m->seq) != m->length)
        die("length differs", w->c);
    if (!m->in_step)
        expect_zero_tail(w, m);
}

static void op_create(struct world *w, struct model_seq *m)
{
    if (m->seq)
        return;
    if (hr_seq_create(w->cache, &m->seq) != HR_OK)
        die("create", w->c);
    m->length = 0;
}

static void op_fork(struct world *w, struct model_seq *parent, struct model_seq *child)
{
    if (!parent->seq || child->seq || parent == child)
        return;
    int64_t length = pick(0, parent->length);
    hr_status status = hr_seq_fork(parent->seq, length, &child->seq);
    if (parent->in_step) {
        if (status != HR_E_BUSY || child->seq)
            die("fork of a busy sequence", w->c);
        return;
    }
    if (status != HR_OK)
        die("fork", w->c);
    child->length = length;
    for (int l = 0; l < LAYERS; l++) {
        size_t bytes = sizeof(float) * (size_t)length * (size_t)kv_width(&w->layers[l]);
        memcpy(child->k[l], parent->k[l], bytes);
        memcpy(child->v[l], parent->v[l], bytes);
    }
    expect_length(w, child);
}

static void op_truncate(struct world *w, struct model_seq *m)
{
    if (!m->seq)
        return;
    int64_t length = pick(0, 2) ? pick(m->length - m->length / 8, m->length) : pick(0, m->length);
    hr_status status = hr_seq_truncate(m->seq, length);
    if (m->in_step ? status != HR_E_BUSY : status != HR_OK)
        die("truncate", w->c);
    if (!m->in_step)
        m->length = length;
    expect_length(w, m);
}

static void op_destroy(struct world *w, struct model_seq *m)
{
    if (!m->seq)
        return;
    hr_status status = hr_seq_destroy(&m->seq);
    if (m->in_step ? status != HR_E_BUSY || !m->seq : status != HR_OK || m->seq)
        die("destroy", w->c);
}

static void op_advise(struct world *w, struct model_seq *m)
{
    if (!m->seq || !w->capped)
        return;
    hr_advice advice =
        pick(0, 9) ? (hr_advice)pick(HR_ADVISE_NORMAL, HR_ADVISE_PARK) : HR_ADVISE_PIN;
    hr_status status = hr_seq_advise(m->seq, advice);
    if (m->in_step ? status != HR_E_BUSY : status != HR_OK)
        die("advise", w->c);
}

static void op_begin(struct world *w, struct open_step *s)
{
    hr_seq *seqs[BATCH_MAX];
    bool taken[SEQS] = {false};
    s->n = 0;
    for (int64_t i = 0, n = pick(0, BATCH_MAX); i < n; i++) {
        int32_t at = (int32_t)pick(0, SEQS - 1);
        struct model_seq *m = &w->seqs[at];
        if (!m->seq || m->in_step || taken[at])
            continue;
        int64_t room = TOKENS_MAX - m->length < NEW_MAX ? TOKENS_MAX - m->length : NEW_MAX;
        int64_t n_new = pick(0, 3) ? pick(0, room < 6 ? room : 6) : pick(0, room);
        taken[at] = true;
        seqs[s->n] = m->seq;
        s->members[s->n] = at;
        s->n_new[s->n] = n_new;
        s->n_query[s->n++] = pick(0, 2) ? n_new : pick(0, n_new + 8);
    }
    hr_batch batch = {.struct_size = sizeof(batch),
                      .n_seqs = s->n,
                      .seqs = seqs,
                      .n_new = s->n_new,
                      .n_query = s->n_query};
    hr_status status = hr_step_begin(s->step, &batch);
    if (status == HR_E_BUDGET) {
        w->refused++;
        return;
    }
    if (status != HR_OK)
        die("begin", w->c);
    memset(s->appended, 0, sizeof(s->appended));
    s->open = true;
    for (int32_t i = 0; i < s->n; i++)
        w->seqs[s->members[i]].in_step = true;
}

static int64_t total(const int64_t *counts, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static void append_layer(struct world *w, struct open_step *s, int l)
{
    int32_t width = kv_width(&w->layers[l]);
    int64_t rows = total(s->n_new, s->n), row = 0;
    hr_append_args args = {
        .struct_size = sizeof(args), .dtype = HR_FP32, .k = w->rows[0], .v = w->rows[1]};
    fill(w->rows[0], rows * width);
    fill(w->rows[1], rows * width);
    for (int32_t i = 0; i < s->n; i++) {
        struct model_seq *m = &w->seqs[s->members[i]];
        size_t bytes = sizeof(float) * (size_t)(s->n_new[i] * width);
        memcpy(m->k[l] + m->length * width, w->rows[0] + row * width, bytes);
        memcpy(m->v[l] + m->length * width, w->rows[1] + row * width, bytes);
        row += s->n_new[i];
    }
    if (hr_step_append(s->step, l, &args) != HR_OK)
        die("append", w->c);
    s->appended[l] = true;
}

/* What one sequence must give, from its flat arrays. */
static void attend_flat(struct world *w, int l, const struct model_seq *m, int64_t n_kv,
                        const hr_attend_args *args, int64_t n_q, int64_t row, float *out)
{
    const hr_layer_options *layer = &w->layers[l];
    int64_t cu_q[2] = {0, n_q}, cu_k[2] = {0, n_kv}, width = layer->q_heads * layer->dim_k;
    hr_attention_args flat = {
        .struct_size = sizeof(flat),
        .layer = *layer,
        .n_seqs = 1,
        .cu_seqlens_q = cu_q,
        .cu_seqlens_k = cu_k,
        .append = {.struct_size = sizeof(flat.append),
                   .dtype = HR_FP32,
                   .k = m->k[l],
                   .v = m->v[l]},
        .attend = *args,
    };
    flat.attend.q = (const float *)args->q + row * width;
    flat.attend.out = out;
    flat.attend.lse = NULL;
    if (hr_attention(w->flat, &flat) != HR_OK)
        die("flat", w->flat);
}

static void attend_layer(struct world *w, struct open_step *s, int l)
{
    const hr_layer_options *layer = &w->layers[l];
    int64_t width = layer->q_heads * layer->dim_k, rows = total(s->n_query, s->n), row = 0;
    static float sink_logits[8];
    hr_attend_args args = {
        .struct_size = sizeof(args),
        .mask = pick(0, 3) ? HR_MASK_CAUSAL : HR_MASK_FULL,
        .q_dtype = HR_FP32,
        .out_dtype = HR_FP32,
        .q = w->rows[0],
        .out = w->rows[1],
        .lse = w->rows[2],
        .softcap = pick(0, 3) ? 0 : 3.0f,
        .sink_logits = pick(0, 3) ? NULL : sink_logits,
    };
    fill(sink_logits, 8);
    fill(w->rows[0], rows * width);
    memset(w->rows[1], 0xff, sizeof(float) * (size_t)(rows * width));
    if (hr_step_attend(s->step, l, &args) != HR_OK || hr_step_wait(s->step, l, INT64_MAX) != HR_OK)
        die("attend", w->c);
    for (int32_t i = 0; i < s->n; i++) {
        const struct model_seq *m = &w->seqs[s->members[i]];
        int64_t n_kv = m->length + s->n_new[i];
        attend_flat(w, l, m, n_kv, &args, s->n_query[i], row, w->rows[3]);
        if (memcmp(w->rows[3], w->rows[1] + row * width,
                   sizeof(float) * (size_t)(s->n_query[i] * width)) != 0) {
            printf("layer %d, %lld queries, %lld keys, kv_heads %d, q_heads %d, dim %d, dtype %d, "
                   "window %lld\n",
                   l, (long long)s->n_query[i], (long long)n_kv, layer->kv_heads, layer->q_heads,
                   layer->dim_k, layer->dtype, (long long)layer->window);
            die("bits differ from the flat model", w->c);
        }
        row += s->n_query[i];
    }
    w->attends++;
}

/* One layer of an open step, in any order; a step may attend a layer twice or not at all. */
static void op_layer(struct world *w, struct open_step *s)
{
    int l = (int)pick(0, LAYERS - 1);
    if (!s->appended[l])
        append_layer(w, s, l);
    if (pick(0, 1))
        attend_layer(w, s, l);
}

static void op_commit(struct world *w, struct open_step *s)
{
    int64_t kept[BATCH_MAX];
    bool all = pick(0, 1);
    for (int l = 0; l < LAYERS; l++)
        if (!s->appended[l])
            append_layer(w, s, l);
    for (int32_t i = 0; i < s->n; i++)
        kept[i] = all ? s->n_new[i] : pick(0, s->n_new[i]);
    hr_commit_args args = {.struct_size = sizeof(args), .kept = all && pick(0, 1) ? NULL : kept};
    if (hr_step_commit(s->step, &args) != HR_OK)
        die("commit", w->c);
    s->open = false;
    for (int32_t i = 0; i < s->n; i++) {
        struct model_seq *m = &w->seqs[s->members[i]];
        m->in_step = false;
        m->length += kept[i];
        expect_length(w, m);
    }
}

static void op_abort(struct world *w, struct open_step *s)
{
    if (hr_step_abort(s->step) != HR_OK)
        die("abort", w->c);
    s->open = false;
    for (int32_t i = 0; i < s->n; i++) {
        w->seqs[s->members[i]].in_step = false;
        expect_length(w, &w->seqs[s->members[i]]);
    }
}

static void one_step(struct world *w)
{
    struct model_seq *m = &w->seqs[pick(0, SEQS - 1)];
    struct open_step *s = &w->steps[pick(0, STEPS_OPEN - 1)];
    int64_t choice = pick(0, 99);
    if (choice < 8)
        op_create(w, m);
    else if (choice < 20)
        op_fork(w, m, &w->seqs[pick(0, SEQS - 1)]);
    else if (choice < 26)
        op_truncate(w, m);
    else if (choice < 30)
        op_destroy(w, m);
    else if (choice < 34)
        op_advise(w, m);
    else if (!s->open)
        op_begin(w, s);
    else if (choice < 75)
        op_layer(w, s);
    else if (choice < 94)
        op_commit(w, s);
    else
        op_abort(w, s);
}

int main(int argc, char **argv)
{
    uint64_t first = 1, seeds = 20, steps = 10000, attends = 0, refused = 0, read_bytes = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t number = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seeds") == 0)
            seeds = number;
        else if (strcmp(argv[i], "--first") == 0)
            first = number;
        else if (strcmp(argv[i], "--steps") == 0)
            steps = number;
    }
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        static struct world w;
        rng_state = seed * 0x2545f4914f6cdd1dull;
        printf("seed %llu: random-program --first %llu --seeds 1 --steps %llu\n",
               (unsigned long long)seed, (unsigned long long)seed, (unsigned long long)steps);
        open_world(&w, seed % 4 == 0, seed % 3 == 0);
        /* A capped world's steps wait for a disk. */
        for (uint64_t i = 0; i < (w.capped && steps > 2000 ? steps / 4 : steps); i++)
            one_step(&w);
        attends += w.attends;
        refused += w.refused;
        close_world(&w);
        read_bytes += w.read_bytes;
    }
    printf("%llu seeds, %llu steps each, %llu attends compared, %llu batches refused for budget\n",
           (unsigned long long)seeds, (unsigned long long)steps, (unsigned long long)attends,
           (unsigned long long)refused);
    printf("%llu bytes of K/V came from disk\n", (unsigned long long)read_bytes);
    if (seeds >= 4 && (refused == 0 || read_bytes == 0)) {
        printf("FAILED: no batch ever met the budget, or none the disk: the test is too tame\n");
        return 1;
    }
    return 0;
}

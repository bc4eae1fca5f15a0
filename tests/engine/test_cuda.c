/* SPDX-License-Identifier: Apache-2.0 */
/* The engine on a CUDA device: one program of appends, forks, truncates, aborts and attention gives
 * what it gives on the host device, within the rounding of the weights, and the same bits in waves
 * and when blocks move. Exit status 77: there is no GPU here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/headrace.h>

#include "src/context.h"

#define CHECK(x)                                                                                   \
    ((x) ? (void)0 : (printf("%s:%d: %s\n", __FILE__, __LINE__, #x), fflush(stdout), exit(1)))

enum { LAYERS = 4, SEQS = 4, TOKENS_MAX = 800, WIDTH_MAX = 8 * 256, BUDGET = 128 << 20, LOW = 3 };

static const hr_layer_options layers[LAYERS] = {
    {.kv_heads = 2, .q_heads = 6, .dim_k = 64, .dtype = HR_BF16},
    {.kv_heads = 2, .q_heads = 8, .dim_k = 128, .dtype = HR_FP16, .window = 150, .sinks = 4},
    {.kv_heads = 1, .q_heads = 8, .dim_k = 256, .dtype = HR_BF16},
    {.kv_heads = 2, .q_heads = 4, .dim_k = 96, .dtype = HR_BF16},
};

/* Where the program runs, and all that its attention gave. */
struct world {
    hr_context *context;
    hr_cache *cache;
    hr_step *step;
    hr_seq *seqs[SEQS];
    float *q, *k, *v, *out, *lse; /* memory of the device */
    float *results;
    size_t count;
    bool moves; /* on the way, to other extents */
};

static struct hr_dev *dev_of(const struct world *w)
{
    return w->context->dev;
}

static float *device_floats(struct world *w, size_t count)
{
    float *p = dev_of(w)->ops->memory_get(dev_of(w), count * sizeof(float));
    CHECK(p);
    return p;
}

static void open_world(struct world *w, const char *device, int64_t wave_blocks)
{
    hr_options o = {.struct_size = sizeof(o),
                    .device = device,
                    .threads = 2,
                    .unbound = true,
                    .device_bytes = BUDGET,
                    .debug_wave_blocks = wave_blocks};
    hr_cache_options c = {.struct_size = sizeof(c),
                          .layer_size = sizeof(layers[0]),
                          .layers = layers,
                          .n_layers = LAYERS};
    hr_step_limits limits = {.struct_size = sizeof(limits),
                             .seqs = SEQS,
                             .new_tokens = TOKENS_MAX,
                             .query_tokens = TOKENS_MAX};
    memset(w, 0, sizeof(*w));
    hr_status status = hr_open(&o, &w->context);
    if (status == HR_E_DEVICE && wave_blocks == 0) {
        printf("skipped: %s\n", hr_error_text(NULL));
        exit(77);
    }
    CHECK(status == HR_OK);
    status = hr_cache_create(w->context, &c, &w->cache);
    if (status != HR_OK)
        printf("%s\n", hr_error_text(w->context));
    CHECK(status == HR_OK);
    CHECK(hr_step_create(w->cache, &limits, &w->step) == HR_OK);
    for (int i = 0; i < SEQS - 1; i++)
        CHECK(hr_seq_create(w->cache, &w->seqs[i]) == HR_OK);
    w->q = device_floats(w, (size_t)TOKENS_MAX * WIDTH_MAX);
    w->k = device_floats(w, (size_t)TOKENS_MAX * WIDTH_MAX);
    w->v = device_floats(w, (size_t)TOKENS_MAX * WIDTH_MAX);
    w->out = device_floats(w, (size_t)TOKENS_MAX * WIDTH_MAX);
    w->lse = device_floats(w, (size_t)TOKENS_MAX * WIDTH_MAX);
    w->results = malloc((size_t)64 << 20);
    CHECK(w->results);
}

static void close_world(struct world *w)
{
    float *all[] = {w->q, w->k, w->v, w->out, w->lse};
    for (int i = 0; i < SEQS; i++)
        CHECK(hr_seq_destroy(&w->seqs[i]) == HR_OK);
    CHECK(hr_step_destroy(&w->step) == HR_OK);
    CHECK(hr_cache_destroy(&w->cache) == HR_OK);
    for (int i = 0; i < 5; i++)
        dev_of(w)->ops->memory_put(dev_of(w), all[i],
                                   (size_t)TOKENS_MAX * WIDTH_MAX * sizeof(float));
    CHECK(hr_close(&w->context) == HR_OK);
    free(w->results);
}

/* Random numbers of a seed, around 0. */
static void fill(struct world *w, float *to, uint32_t seed, size_t count)
{
    static float host[(size_t)TOKENS_MAX * WIDTH_MAX];
    for (size_t i = 0; i < count; i++) {
        uint32_t x = (uint32_t)i * 2654435761u + seed * 0x9e3779b9u;
        x = (x ^ x >> 15) * 0x2c1b3c6du;
        x = (x ^ x >> 12) * 0x297a2d39u;
        host[i] = (float)(int32_t)(x ^ x >> 15) * 0x1p-30f;
    }
    dev_of(w)->ops->upload(dev_of(w), HR_DEV_WORK, to, host, count * sizeof(float));
}

static void take(struct world *w, const float *from, size_t count)
{
    dev_of(w)->ops->download(dev_of(w), HR_DEV_WORK, w->results + w->count, from,
                             count * sizeof(float));
    w->count += count;
}

/* One step of all layers. */
static void step(struct world *w, uint32_t seed, int n_seqs, const int64_t *n_new, bool abort,
                 hr_mask mask)
{
    hr_batch batch = {
        .struct_size = sizeof(batch), .n_seqs = n_seqs, .seqs = w->seqs, .n_new = n_new};
    size_t tokens = 0;
    for (int i = 0; i < n_seqs; i++)
        tokens += (size_t)n_new[i];
    CHECK(hr_step_begin(w->step, &batch) == HR_OK);
    for (int32_t l = 0; l < LAYERS; l++) {
        const hr_layer_options *x = &layers[l];
        size_t kv = tokens * (size_t)(x->kv_heads * x->dim_k);
        size_t q = tokens * (size_t)(x->q_heads * x->dim_k);
        fill(w, w->k, seed * 16 + (uint32_t)l * 3, kv);
        fill(w, w->v, seed * 16 + (uint32_t)l * 3 + 1, kv);
        fill(w, w->q, seed * 16 + (uint32_t)l * 3 + 2, q);
        hr_append_args append = {
            .struct_size = sizeof(append), .dtype = HR_FP32, .k = w->k, .v = w->v};
        hr_attend_args attend = {.struct_size = sizeof(attend),
                                 .mask = mask,
                                 .q_dtype = HR_FP32,
                                 .out_dtype = HR_FP32,
                                 .q = w->q,
                                 .out = w->out,
                                 .lse = w->lse};
        CHECK(hr_step_append(w->step, l, &append) == HR_OK);
        CHECK(hr_step_attend(w->step, l, &attend) == HR_OK);
        hr_status soon = hr_step_wait(w->step, l, 0);
        CHECK(soon == HR_OK || soon == HR_E_TIMEOUT);
        CHECK(hr_step_wait(w->step, l, INT64_MAX) == HR_OK);
        take(w, w->out, q);
        take(w, w->lse, tokens * (size_t)x->q_heads);
    }
    CHECK((abort ? hr_step_abort(w->step) : hr_step_commit(w->step, NULL)) == HR_OK);
}

/* The low extents, so far somebody else's, are all that is left: blocks move there. */
static void shrink(struct world *w)
{
    struct hr_extents *e = &w->context->extents;
    if (!w->moves)
        return;
    hr_extents_give(e, 0, LOW);
    uint64_t bytes = (uint64_t)e->used_count * HR_EXTENT_BYTES;
    CHECK(hr_context_set_device_bytes(w->context, bytes - 1) == HR_E_BUDGET);
    CHECK(hr_context_set_device_bytes(w->context, bytes) == HR_OK);
}

static void run_program(struct world *w)
{
    if (w->moves)
        CHECK(hr_extents_take(&w->context->extents, LOW) == 0);
    step(w, 1, 3, (int64_t[]){300, 1, 40}, false, HR_MASK_CAUSAL);
    step(w, 2, 3, (int64_t[]){5, 130, 1}, false, HR_MASK_CAUSAL);
    CHECK(hr_seq_fork(w->seqs[0], 290, &w->seqs[3]) == HR_OK);
    step(w, 3, 4, (int64_t[]){1, 1, 1, 17}, false, HR_MASK_CAUSAL);
    shrink(w);
    step(w, 4, 4, (int64_t[]){3, 100, 0, 2}, true, HR_MASK_CAUSAL);
    CHECK(hr_seq_truncate(w->seqs[1], 60) == HR_OK);
    step(w, 5, 4, (int64_t[]){1, 64, 2, 1}, false, HR_MASK_FULL);
    step(w, 6, 4, (int64_t[]){1, 1, 0, 1}, false, HR_MASK_CAUSAL);
}

/* Outputs lie within 2; their weights are rounded to 8 or 11 bits, in another order. */
static void compare(const struct world *a, const struct world *b)
{
    double worst = 0;
    CHECK(a->count == b->count);
    for (size_t i = 0; i < a->count; i++) {
        double d = fabs((double)a->results[i] - (double)b->results[i]);
        worst = d > worst || isnan(d) ? d : worst;
    }
    printf("%zu numbers, farthest from the host's %g\n", a->count, worst);
    CHECK(worst < 2e-2);
}

static void refuse_names(void)
{
    static const char *const names[] = {"gpu", "cuda:", "cuda:x", "cudas", "cuda:99999"};
    for (int i = 0; i < 5; i++) {
        hr_options o = {.struct_size = sizeof(o), .device = names[i]};
        hr_context *c;
        CHECK(hr_open(&o, &c) == HR_E_INVALID);
        CHECK(strstr(hr_error_text(NULL), names[i]));
    }
    hr_options o = {.struct_size = sizeof(o), .device = "cuda:9999", .device_bytes = BUDGET};
    hr_context *c;
    CHECK(hr_open(&o, &c) == HR_E_DEVICE);
    CHECK(strlen(hr_error_text(NULL)) > 10);
    bool built_without = strstr(hr_error_text(NULL), "no CUDA part");
    o.caps = "avx2"; /* a level of the CPU */
    CHECK(hr_open(&o, &c) == (built_without ? HR_E_DEVICE : HR_E_INVALID));
    CHECK(built_without || strstr(hr_error_text(NULL), "avx2"));
}

int main(void)
{
    static struct world host, cuda, waves;
    refuse_names();
    open_world(&host, "host", 0);
    run_program(&host);
    open_world(&cuda, "cuda", 0);
    CHECK(hr_step_wait(cuda.step, 0, 0) == HR_E_STATE);
    run_program(&cuda);
    compare(&cuda, &host);
    open_world(&waves, "cuda", 1);
    waves.moves = true;
    run_program(&waves);
    CHECK(waves.count == cuda.count);
    CHECK(memcmp(waves.results, cuda.results, cuda.count * sizeof(float)) == 0);
    close_world(&host);
    close_world(&cuda);
    close_world(&waves);
    printf("the same bits in waves of one block, and behind a smaller budget\n");
    return 0;
}

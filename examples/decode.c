/* SPDX-License-Identifier: Apache-2.0 */
/* Prefills a prompt, then decodes token by token with a K/V cache, as a model does; every output
 * row is checked against a plain softmax. Random numbers stand for the model's q, k and v. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <headrace/headrace.h>

enum { LAYERS = 2, QH = 6, KVH = 2, D = 64, PROMPT = 300, TOKENS = PROMPT + 8 };

static float q[LAYERS][TOKENS][QH][D], k[LAYERS][TOKENS][KVH][D], v[LAYERS][TOKENS][KVH][D];
static float out[LAYERS][TOKENS][QH][D];

static void check(const hr_context *context, hr_status status)
{
    if (status != HR_OK) {
        fprintf(stderr, "%s; to do: %s\n", hr_error_text(context), hr_status_todo(status));
        exit(1);
    }
}

/* Numbers in [-2, 2]. */
static void fill_random(void *x, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ((float *)x)[i] = (float)rand() / (float)RAND_MAX * 4 - 2;
}

/* One forward step: tokens [t, t + n) of the sequence. */
static void forward(const hr_context *context, hr_step *step, hr_seq *seq, int64_t t, int64_t n)
{
    hr_batch batch = {.struct_size = sizeof(batch), .n_seqs = 1, .seqs = &seq, .n_new = &n};
    check(context, hr_step_begin(step, &batch));
    for (int i = 0; i < LAYERS; i++) {
        hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
        hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
        new.k = k[i][t], new.v = v[i][t];
        ask.q = q[i][t], ask.out = out[i][t];
        check(context, hr_step_append(step, i, &new));
        check(context, hr_step_attend(step, i, &ask));
    }
    check(context, hr_step_commit(step, NULL));
}

/* Sum of squared differences of one output row from softmax(q.k / sqrt(D)) v over tokens 0 .. t. */
static double row_error(int layer, int t, int head)
{
    double p[TOKENS], sum = 0, total = 0;
    int kv = head / (QH / KVH);
    for (int j = 0; j <= t; j++) {
        double dot = 0;
        for (int d = 0; d < D; d++)
            dot += (double)q[layer][t][head][d] * k[layer][j][kv][d];
        sum += p[j] = exp(dot / sqrt(D));
    }
    for (int d = 0; d < D; d++) {
        double error = out[layer][t][head][d];
        for (int j = 0; j <= t; j++)
            error -= p[j] / sum * v[layer][j][kv][d];
        total += error * error;
    }
    return total;
}

int main(void)
{
    hr_context *context;
    hr_cache *cache;
    hr_seq *seq;
    hr_step *step;
    hr_layer_options layer = {.q_heads = QH, .kv_heads = KVH, .dim_k = D, .dtype = HR_FP32};
    hr_layer_options layers[LAYERS] = {layer, layer};
    hr_cache_options geometry = {.struct_size = sizeof(geometry), .layer_size = sizeof(layer)};
    hr_step_limits limits = {.struct_size = sizeof(limits), .seqs = 1};
    geometry.layers = layers, geometry.n_layers = LAYERS;
    limits.new_tokens = limits.query_tokens = PROMPT;
    fill_random(q, sizeof(q));
    fill_random(k, sizeof(k));
    fill_random(v, sizeof(v));
    check(NULL, hr_open(NULL, &context));
    check(context, hr_cache_create(context, &geometry, &cache));
    check(context, hr_seq_create(cache, &seq));
    check(context, hr_step_create(cache, &limits, &step));
    forward(context, step, seq, 0, PROMPT);
    for (int t = PROMPT; t < TOKENS; t++)
        forward(context, step, seq, t, 1);

    double total = 0;
    for (int row = 0; row < LAYERS * TOKENS * QH; row++)
        total += row_error(row / QH / TOKENS, row / QH % TOKENS, row % QH);
    double rms = sqrt(total / (sizeof(out) / sizeof(float)));
    printf("%d tokens, kernel %s, RMS error %.1e\n", TOKENS, hr_context_kernel(context), rms);
    hr_step_destroy(&step);
    hr_seq_destroy(&seq);
    hr_cache_destroy(&cache);
    check(context, hr_close(&context));
    return rms < 1e-6 ? 0 : 1;
}

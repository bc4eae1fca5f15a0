/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt on a GPU: q, k, v and out are device memory, the calls enqueue work on the caller's
 * stream, and the output is read after hr_step_wait. Checked against a plain softmax; exit status
 * 77 where there is no GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include <headrace/headrace.h>

enum { QH = 4, KVH = 2, D = 64, TOKENS = 300 };

static float q[TOKENS][QH][D], k[TOKENS][KVH][D], v[TOKENS][KVH][D], out[TOKENS][QH][D];

static void check(const hr_context *context, hr_status status)
{
    if (status != HR_OK) {
        fprintf(stderr, "%s; to do: %s\n", hr_error_text(context), hr_status_todo(status));
        exit(1);
    }
}

static void check_cuda(cudaError_t error)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(error));
        exit(1);
    }
}

/* Device memory with random numbers in [-2, 2]; the same in x. */
static void *random_on_device(float *x, size_t bytes)
{
    void *device;
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        x[i] = (float)rand() / (float)RAND_MAX * 4 - 2;
    check_cuda(cudaMalloc(&device, bytes));
    check_cuda(cudaMemcpy(device, x, bytes, cudaMemcpyHostToDevice));
    return device;
}

/* Largest difference of one output row from softmax(q.k / sqrt(D)) v over tokens 0 .. t. */
static double row_error(int t, int head)
{
    double p[TOKENS], sum = 0, largest = 0;
    int kv = head / (QH / KVH);
    for (int j = 0; j <= t; j++) {
        double dot = 0;
        for (int d = 0; d < D; d++)
            dot += (double)q[t][head][d] * k[j][kv][d];
        sum += p[j] = exp(dot / sqrt(D));
    }
    for (int d = 0; d < D; d++) {
        double error = out[t][head][d];
        for (int j = 0; j <= t; j++)
            error -= p[j] / sum * v[j][kv][d];
        largest = fmax(largest, fabs(error));
    }
    return largest;
}

/* One forward step of one layer: TOKENS new tokens of the sequence, all of them queries. */
static void forward(hr_context *context, hr_step *step, hr_seq *seq, cudaStream_t stream)
{
    const int64_t n = TOKENS;
    hr_batch batch = {.struct_size = sizeof(batch), .n_seqs = 1, .seqs = &seq, .n_new = &n};
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
    hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
    batch.stream = stream;
    new.k = random_on_device(k[0][0], sizeof(k)), new.v = random_on_device(v[0][0], sizeof(v));
    ask.q = random_on_device(q[0][0], sizeof(q));
    check_cuda(cudaMalloc(&ask.out, sizeof(out)));
    check(context, hr_step_begin(step, &batch));
    check(context, hr_step_append(step, 0, &new));
    check(context, hr_step_attend(step, 0, &ask));
    check(context, hr_step_wait(step, 0, INT64_MAX));
    check(context, hr_step_commit(step, NULL));
    check_cuda(cudaMemcpy(out, ask.out, sizeof(out), cudaMemcpyDeviceToHost));
}

int main(void)
{
    int gpus = 0;
    hr_context *context;
    hr_cache *cache;
    hr_seq *seq;
    hr_step *step;
    cudaStream_t stream;
    hr_options options = {
        .struct_size = sizeof(options), .device = "cuda", .device_bytes = 64 << 20};
    hr_layer_options layer = {.q_heads = QH, .kv_heads = KVH, .dim_k = D, .dtype = HR_BF16};
    hr_cache_options geometry = {sizeof(geometry), sizeof(layer), &layer, 1};
    hr_step_limits limits = {sizeof(limits), 1, TOKENS, TOKENS};
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    check_cuda(cudaStreamCreate(&stream));
    check(NULL, hr_open(&options, &context));
    check(context, hr_cache_create(context, &geometry, &cache));
    check(context, hr_seq_create(cache, &seq));
    check(context, hr_step_create(cache, &limits, &step));
    forward(context, step, seq, stream);
    double largest = 0;
    for (int row = 0; row < TOKENS * QH; row++)
        largest = fmax(largest, row_error(row / QH, row % QH));
    printf("%d tokens, kernel %s, largest difference %.1e\n", TOKENS, hr_context_kernel(context),
           largest);
    hr_step_destroy(&step);
    hr_seq_destroy(&seq);
    hr_cache_destroy(&cache);
    check(context, hr_close(&context));
    return largest < 4e-2 ? 0 : 1; /* bf16 K and V of up to 2 */
}

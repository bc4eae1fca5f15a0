/* SPDX-License-Identifier: Apache-2.0 */
/* K/V of 12 MB with 4 MiB of memory for them, then 2: the rest goes to a directory (the first
 * argument, /tmp without one) and streams back. A document is read, a chat forks from it while it
 * is parked, and both go on. Every bit must be as with all K/V in memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/headrace.h>

enum { LAYERS = 4, QH = 4, KVH = 2, D = 64, DOCUMENT = 3000, CHUNK = 512, MORE = 8 };
enum { TOKENS = DOCUMENT + MORE };

static float q[LAYERS][TOKENS][QH][D], k[LAYERS][TOKENS][KVH][D], v[LAYERS][TOKENS][KVH][D];

struct run {
    hr_context *context;
    hr_cache *cache;
    hr_step *step;
    hr_seq *document, *chat;
    float out[LAYERS][TOKENS + MORE][QH][D]; /* the document's rows, then the chat's */
};

static struct run resident, capped;

static void check(const struct run *run, hr_status status)
{
    if (status == HR_OK)
        return;
    fprintf(stderr, "%s; to do: %s\n", hr_error_text(run->context), hr_status_todo(status));
    exit(1);
}

static void fill_random(void *x, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ((float *)x)[i] = (float)rand() / (float)RAND_MAX * 4 - 2;
}

static void start(struct run *run, const hr_options *options)
{
    hr_layer_options layer = {.q_heads = QH, .kv_heads = KVH, .dim_k = D, .dtype = HR_FP32};
    hr_layer_options layers[LAYERS] = {layer, layer, layer, layer};
    hr_cache_options cache = {sizeof(cache), sizeof(layer), layers, LAYERS};
    hr_step_limits limits = {sizeof(limits), 1, CHUNK, CHUNK};
    check(run, hr_open(options, &run->context));
    check(run, hr_cache_create(run->context, &cache, &run->cache));
    check(run, hr_step_create(run->cache, &limits, &run->step));
    check(run, hr_seq_create(run->cache, &run->document));
}

/* Tokens [t, t + n) of q, k and v behind a sequence; outputs from row `to` on. */
static void forward(struct run *run, hr_seq *seq, int64_t t, int64_t n, int64_t to)
{
    hr_batch batch = {.struct_size = sizeof(batch), .n_seqs = 1, .seqs = &seq, .n_new = &n};
    check(run, hr_step_begin(run->step, &batch));
    for (int i = 0; i < LAYERS; i++) {
        hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
        hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
        new.k = k[i][t], new.v = v[i][t];
        ask.q = q[i][t], ask.out = run->out[i][to];
        check(run, hr_step_append(run->step, i, &new));
        check(run, hr_step_attend(run->step, i, &ask));
    }
    check(run, hr_step_commit(run->step, NULL));
}

static void work(struct run *run, uint64_t later_bytes)
{
    for (int64_t t = 0; t < DOCUMENT; t += CHUNK)
        forward(run, run->document, t, DOCUMENT - t < CHUNK ? DOCUMENT - t : CHUNK, t);
    check(run, hr_seq_fork(run->document, DOCUMENT, &run->chat));
    check(run, hr_seq_advise(run->document, HR_ADVISE_PARK));
    if (later_bytes > 0) /* somebody else needs the memory */
        check(run, hr_context_set_device_bytes(run->context, later_bytes));
    for (int64_t i = 0; i < MORE; i++)
        forward(run, run->chat, DOCUMENT + i, 1, TOKENS + i);
    check(run, hr_seq_advise(run->document, HR_ADVISE_WARM));
    for (int64_t i = 0; i < MORE; i++)
        forward(run, run->document, DOCUMENT + i, 1, DOCUMENT + i);
}

static void end(struct run *run)
{
    hr_seq_destroy(&run->chat);
    hr_seq_destroy(&run->document);
    hr_step_destroy(&run->step);
    hr_cache_destroy(&run->cache);
    check(run, hr_close(&run->context));
}

int main(int argc, char **argv)
{
    hr_disk disk = {.path = argc > 1 ? argv[1] : "/tmp", .bytes = 64 << 20};
    hr_options all = {.struct_size = sizeof(all), .device_bytes = 64 << 20};
    hr_options few = {.struct_size = sizeof(few), .device_bytes = 4 << 20};
    hr_stats stats = {.struct_size = sizeof(stats)};
    few.disks = &disk, few.n_disks = 1;
    fill_random(q, sizeof(q));
    fill_random(k, sizeof(k));
    fill_random(v, sizeof(v));
    start(&resident, &all);
    start(&capped, &few);
    work(&resident, 0);
    work(&capped, 2 << 20);
    check(&capped, hr_context_stats(capped.context, &stats));
    printf("%s\n", hr_context_disk_text(capped.context));
    printf("%.1f MB of K/V, %.1f of memory for them; %.1f MB written, %.1f read\n",
           (double)stats.kv_bytes_used * 1e-6, (double)stats.kv_bytes_total * 1e-6,
           (double)stats.disk_write_bytes * 1e-6, (double)stats.disk_read_bytes * 1e-6);
    int same = memcmp(resident.out, capped.out, sizeof(capped.out)) == 0;
    printf(same ? "the same bits\n" : "DIFFERENT bits\n");
    end(&resident);
    end(&capped);
    return same && stats.disk_read_bytes > 0 ? 0 : 1;
}

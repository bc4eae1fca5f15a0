/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/json.h"
#include "tools/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {
    [RUN_CONTINUE] = "continue", [RUN_PROMPT] = "prompt", [RUN_ASK] = "ask"};

static double seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

static double rate(int64_t tokens, int64_t ns)
{
    return tokens > 0 && ns > 0 ? (double)tokens / seconds(ns) : NAN;
}

static double perplexity(const struct run *run)
{
    return run->document.n > 1 ? exp(run->nll / (double)(run->document.n - 1)) : NAN;
}

static hr_stats stats_of(const struct run *run)
{
    hr_stats stats = {.struct_size = sizeof(stats)};
    hr_poll(model_run_context(run->forward), INT64_MAX); /* what is being written counts too */
    hr_context_stats(model_run_context(run->forward), &stats);
    return stats;
}

char *run_branch_text(const struct run *run, const struct run_branch *branch, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < branch->output.n; i++)
        *n += tokenizer_piece(run->tokenizer, branch->output.ids[i]).n_bytes;
    char *text = malloc(*n + 1), *end = text;
    for (size_t i = 0; text && i < branch->output.n; i++) {
        struct gguf_str piece = tokenizer_piece(run->tokenizer, branch->output.ids[i]);
        memcpy(end, piece.bytes, piece.n_bytes);
        end += piece.n_bytes;
    }
    return text;
}

static bool json_answer(struct json *json, const struct run *run, const struct run_branch *branch)
{
    size_t n;
    char *text = run_branch_text(run, branch, &n);
    if (!text)
        return false;
    json_open(json, NULL, '{');
    json_text(json, "kind", kind_names[branch->kind]);
    json_text(json, "question", branch->text);
    json_int(json, "input_tokens", (int64_t)branch->input.n);
    json_bytes(json, "text", text, n);
    json_text(json, "stop", branch->ended ? "end" : "length");
    json_ints(json, "tokens", branch->output.ids, branch->output.n);
    json_close(json, '}');
    free(text);
    return true;
}

static void json_what(struct json *json, const struct run *run)
{
    const struct run_options *o = &run->options;
    char hash[32];
    snprintf(hash, sizeof(hash), "%016" PRIx64, run->logits_hash);
    json_text(json, "version", hr_version());
    json_text(json, "model", o->model);
    json_text(json, "text", o->text);
    json_int(json, "tokens", (int64_t)run->document.n);
    json_int(json, "text_tokens", run->text_tokens);
    json_number(json, "perplexity", perplexity(run));
    json_text(json, "logits_hash", run->document.n ? hash : NULL);
    json_text(json, "kernel", hr_context_kernel(model_run_context(run->forward)));
    json_text(json, "kv_dtype", run_kv_names[o->kv_dtype]);
    json_int(json, "threads", o->threads);
    json_int(json, "chunk", o->chunk);
}

static void json_cost(struct json *json, const struct run *run)
{
    struct model_run_times times = model_run_times(run->forward);
    const hr_stats stats = stats_of(run);
    json_int(json, "kv_bytes", (int64_t)stats.kv_bytes_peak);
    json_int(json, "kv_ram_bytes", (int64_t)stats.kv_bytes_total);
    json_int(json, "disk_read_bytes", (int64_t)stats.disk_read_bytes);
    json_int(json, "disk_write_bytes", (int64_t)stats.disk_write_bytes);
    if (run->options.n_disks) {
        json_int(json, "forecast_read_bytes", (int64_t)run->forecast.read_bytes);
        json_int(json, "forecast_write_bytes", (int64_t)run->forecast.write_bytes);
    }
    json_number(json, "exposed_wait_s", seconds((int64_t)stats.waited_ns));
    json_int(json, "weight_bytes", (int64_t)run->model->weight_bytes);
    json_int(json, "peak_rss_bytes", run->peak_rss_bytes);
    json_number(json, "wall_s", seconds(run->wall_ns));
    json_number(json, "load_s", seconds(run->load_ns));
    json_number(json, "tokenize_s", seconds(run->tokenize_ns));
    json_number(json, "prefill_s", seconds(run->prefill_ns));
    json_number(json, "decode_s", seconds(run->decode_ns));
    json_number(json, "attend_s", seconds(times.attend_ns));
    json_number(json, "append_s", seconds(times.append_ns));
    json_number(json, "gemm_s", seconds(times.gemm_ns));
    json_number(json, "prefill_tokens_per_s", rate((int64_t)run->document.n, run->prefill_ns));
    json_number(json, "branch_prefill_tokens_per_s",
                rate(run->branch_tokens, run->branch_prefill_ns));
    json_number(json, "decode_tokens_per_s", rate(run->decode_tokens, run->decode_ns));
}

bool run_report_json(struct run *run)
{
    FILE *out = run->json;
    struct json json = {.out = out};
    if (!out)
        return true;
    json_open(&json, NULL, '{');
    json_what(&json, run);
    json_cost(&json, run);
    if (run->options.compare) {
        json_bool(&json, "identical", run->identical);
        json_number(&json, "resident_prefill_s", seconds(run->resident_prefill_ns));
    }
    json_open(&json, "answers", '[');
    bool ok = true;
    for (int i = 0; ok && i < run->options.n_branches; i++)
        ok = json_answer(&json, run, &run->options.branches[i]);
    json_close(&json, ']');
    json_close(&json, '}');
    if (!run_close_output(run, &run->json, run->options.json,
                          "; free space or choose another --json file"))
        return false;
    return ok || run_fail(run, "out of memory");
}

static void print_document(const struct run *run, FILE *out)
{
    if (run->document.n == 0)
        return;
    fprintf(out, "document    %zu of %" PRId64 " tokens of %s\n", run->document.n, run->text_tokens,
            run->options.text);
    if (run->document.n > 1)
        fprintf(out, "perplexity  %.4f over %zu tokens\n", perplexity(run), run->document.n - 1);
    fprintf(out, "logits      hash %016" PRIx64 "\n", run->logits_hash);
    fprintf(out, "prefill     %.2f s, %.1f tokens/s, all logits\n", seconds(run->prefill_ns),
            rate((int64_t)run->document.n, run->prefill_ns));
}

static void print_branch(const struct run *run, const struct run_branch *branch, FILE *out)
{
    size_t n;
    char *text = run_branch_text(run, branch, &n);
    if (branch->text)
        fprintf(out, "\n> %s\n", branch->text);
    else
        fputs("\n> (the document goes on)\n", out);
    if (text)
        fwrite(text, 1, n, out);
    fputs("\n", out);
    free(text);
}

static void print_disk(const struct run *run, const hr_stats *stats, FILE *out)
{
    if (run->options.n_disks)
        fprintf(
            out,
            "disk        %.1f MB of K/V in memory; %.1f MB read, %.1f MB written; %.2f s waited "
            "for\n            %s\n",
            (double)stats->kv_bytes_total * 1e-6, (double)stats->disk_read_bytes * 1e-6,
            (double)stats->disk_write_bytes * 1e-6, seconds((int64_t)stats->waited_ns),
            hr_context_disk_text(model_run_context(run->forward)));
    if (run->options.compare)
        fprintf(out, "compare     %s to a run with all K/V in memory, whose prefill took %.2f s\n",
                run->identical ? "identical" : "DIFFERENT", seconds(run->resident_prefill_ns));
}

void run_report_text(const struct run *run, FILE *out)
{
    const struct model_dims *d = &run->model->dims;
    const struct model_run_times times = model_run_times(run->forward);
    const hr_stats stats = stats_of(run);
    fprintf(out, "model       %s: %s, %d layers, %d/%d heads of %d, %.1f MB of weights\n",
            run->options.model, d->arch, d->layers, d->q_heads, d->kv_heads, d->head,
            (double)run->model->weight_bytes * 1e-6);
    print_document(run, out);
    if (run->decode_tokens)
        fprintf(out, "decode      %.2f s, %.1f tokens/s\n", seconds(run->decode_ns),
                rate(run->decode_tokens, run->decode_ns));
    fprintf(out, "time        attention %.2f s, products %.2f s of %.2f s; %d threads, kernel %s\n",
            seconds(times.attend_ns), seconds(times.gemm_ns), seconds(run->wall_ns),
            run->options.threads, hr_context_kernel(model_run_context(run->forward)));
    fprintf(out, "memory      K/V %.1f MB %s at most; process %.1f MB at most\n",
            (double)stats.kv_bytes_peak * 1e-6, run_kv_names[run->options.kv_dtype],
            (double)run->peak_rss_bytes * 1e-6);
    print_disk(run, &stats, out);
    for (int i = 0; i < run->options.n_branches; i++)
        print_branch(run, &run->options.branches[i], out);
}

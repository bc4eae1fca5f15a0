/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run.h"
#include "tools/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int64_t run_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool run_fail(struct run *run, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(run->error, sizeof(run->error), format, args);
    va_end(args);
    run->failed = true;
    return false;
}

void run_progress(struct run *run, const char *what, int64_t start_ns, int64_t done, int64_t total)
{
    static int64_t last_ns;
    int64_t now = run_now_ns();
    bool shown = last_ns > start_ns;
    if (!run->options.progress || (done < total ? now - last_ns < 1000000000 : !shown))
        return;
    double seconds = (double)(now - start_ns) * 1e-9;
    double rate = seconds > 0 ? (double)done / seconds : 0;
    double left = rate > 0 ? (double)(total - done) / rate : 0;
    last_ns = done < total ? now : 0;
    fprintf(stderr, "\r%s %" PRId64 " of %" PRId64 " tokens, %.1f tokens/s, %.0f s left   %s", what,
            done, total, rate, left, done < total ? "" : "\n");
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    if (!a || !b)
        return false;
    if (stat(a, &x) != 0 || stat(b, &y) != 0)
        return strcmp(a, b) == 0;
    return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Writing must destroy no input, and no other output. */
static bool check_outputs(struct run *run)
{
    const struct run_options *o = &run->options;
    const char *const files[] = {o->model, o->text,        o->json,
                                 o->trace, o->dump_tokens, o->dump_logits};
    static const char *const names[] = {"--model", "--text",        "--json",
                                        "--trace", "--dump-tokens", "--dump-logits"};
    for (int out = 2; out < 6; out++)
        for (int other = 0; other < out; other++)
            if (same_file(files[other], files[out]))
                return run_fail(run, "%.300s: is the file of both %s and %s; give %s another",
                                files[out], names[other], names[out], names[out]);
    return true;
}

static FILE *open_output(struct run *run, const char *path)
{
    FILE *out = fopen(path, "wb");
    if (!out)
        run_fail(run, "%.300s: cannot be written: %s", path, strerror(errno));
    return out;
}

static bool open_trace(struct run *run)
{
    FILE *out = open_output(run, run->options.trace);
    if (out && !(run->trace = run_trace_open(out, run->start_ns)))
        return run_fail(run, "out of memory");
    return out != NULL;
}

/* Also of a run that failed: it shows how far it came. */
static bool close_trace(struct run *run, bool ok)
{
    int error = run_trace_end(run->trace);
    if (!ok || error == 0)
        return ok;
    return run_fail(run, "%.300s: write failed: %s; free space or choose another --trace file",
                    run->options.trace, strerror(error));
}

bool run_close_output(struct run *run, FILE **file, const char *path, const char *advice)
{
    FILE *out = *file;
    *file = NULL;
    bool failed = ferror(out);
    failed = fclose(out) != 0 || failed;
    return !failed || run_fail(run, "%.300s: write failed: %s%s", path, strerror(errno), advice);
}

/* The threads that the library takes by default: it knows about cgroups. */
static int default_threads(void)
{
    hr_options options = {.struct_size = sizeof(options)};
    hr_stats stats = {.struct_size = sizeof(stats)};
    hr_context *context = NULL;
    int threads = 1;
    if (hr_open(&options, &context) == HR_OK && hr_context_stats(context, &stats) == HR_OK)
        threads = stats.threads;
    hr_close(&context);
    return threads;
}

static bool load_model(struct run *run)
{
    struct run_options *o = &run->options;
    int64_t start = run_now_ns();
    if (o->threads == 0)
        o->threads = default_threads();
    if (!(run->pool = gemm_pool_create(o->threads)))
        return run_fail(run, "cannot start %d threads: %s; lower --threads", o->threads,
                        strerror(errno));
    if (!(run->file = gguf_open(o->model, run->error)) ||
        !(run->tokenizer = tokenizer_open(run->file, run->error)) ||
        !(run->gemm = gemm_create(run->pool, run->error)) ||
        !(run->model = model_open(run->file, run->gemm, run->error)))
        return false;
    if (tokenizer_n_tokens(run->tokenizer) > (uint32_t)run->model->dims.vocab)
        return run_fail(run,
                        "%.300s: %u tokens in the vocabulary, but token_embd.weight has %d rows",
                        o->model, tokenizer_n_tokens(run->tokenizer), run->model->dims.vocab);
    run->load_ns = run_now_ns() - start;
    return true;
}

bool run_read_document(struct run *run)
{
    const struct run_options *o = &run->options;
    char *bytes;
    size_t n;
    if (!o->text)
        return true;
    if (!text_read(o->text, &bytes, &n, run->error))
        return false;
    int64_t start = run_now_ns();
    bool ok = tokenizer_encode(run->tokenizer, o->text, bytes, n, TOKENIZER_ADD_SPECIAL,
                               &run->document, run->error);
    run->tokenize_ns = run_now_ns() - start;
    free(bytes);
    run->text_tokens = (int64_t)run->document.n;
    if (o->tokens && o->tokens < run->text_tokens)
        run->document.n = (size_t)o->tokens;
    return ok;
}

static bool dump_tokens(struct run *run)
{
    const char *path = run->options.dump_tokens;
    FILE *out = path ? open_output(run, path) : NULL;
    if (!path)
        return true;
    if (!out)
        return false;
    for (size_t i = 0; i < run->document.n; i++)
        fprintf(out, "%" PRId32 "\n", run->document.ids[i]);
    return run_close_output(run, &out, path, "");
}

static int64_t longest_branch(const struct run *run)
{
    int64_t longest = 0;
    for (int i = 0; i < run->options.n_branches; i++) {
        int64_t n = (int64_t)run->options.branches[i].input.n + run->options.generate;
        longest = n > longest ? n : longest;
    }
    return longest;
}

static bool check_context(struct run *run)
{
    const int64_t context = run->model->dims.context, document = (int64_t)run->document.n;
    const int64_t branch = longest_branch(run);
    if (document + branch <= context || run->options.beyond_context)
        return true;
    if (document > context)
        return run_fail(run,
                        "%.300s: %" PRId64 " tokens are to be read, the model's context is %" PRId64
                        ": use --tokens %" PRId64 ", or --beyond-context to go on regardless",
                        run->options.text, document, context, context);
    return run_fail(run,
                    "the document's %" PRId64 " tokens and up to %" PRId64
                    " of a prompt, question or answer exceed the model's context of %" PRId64
                    ": lower --tokens or --generate, or use --beyond-context",
                    document, branch, context);
}

static bool open_forward(struct run *run)
{
    const struct run_options *o = &run->options;
    int64_t longest = (int64_t)run->document.n > longest_branch(run) ? (int64_t)run->document.n
                                                                     : longest_branch(run);
    struct model_run_options options = {.threads = o->threads, .kv_dtype = o->kv_dtype};
    options.seqs = o->n_branches < RUN_BATCH ? o->n_branches + 1 : RUN_BATCH;
    /* A short last chunk joins the one before: twice the chunk is room enough. */
    options.rows = longest < 2 * o->chunk ? longest : 2 * o->chunk;
    options.rows = options.rows < 1024 ? 1024 : options.rows;
    options.wave_blocks = o->wave_blocks;
    options.kv_ram = o->kv_ram;
    options.disks = o->n_disks ? o->disks : NULL;
    options.n_disks = o->n_disks;
    options.io = o->io;
    options.trace = run->trace;
    run->forward = model_run_create(run->model, run->gemm, &options, run->error);
    size_t bytes = (size_t)gemm_padded_rows(RUN_LOGIT_ROWS) *
                   (size_t)gemm_stride(run->model->dims.vocab) * sizeof(float);
    if (run->forward && !(run->logits = aligned_alloc(64, bytes)))
        return run_fail(run, "out of memory for %zu bytes of logits", bytes);
    return run->forward && (run->seq = model_run_seq(run->forward, run->error)) != NULL;
}

/* Before anything else takes time: whether it fits. */
static bool forecast(struct run *run)
{
    return run->options.n_disks == 0 ||
           run_forecast(run, &run->model->dims, &run->forecast, run->error);
}

bool run_prepare(struct run *run)
{
    const struct run_options *o = &run->options;
    /* Outputs first: an hour of work must not end in "permission denied". */
    if (!check_outputs(run) || (o->json && !(run->json = open_output(run, o->json))) ||
        (o->trace && !open_trace(run)) ||
        (o->dump_logits && !(run->logits_dump = open_output(run, o->dump_logits))))
        return false;
    return load_model(run) && run_read_document(run) && dump_tokens(run) &&
           run_branches_encode(run) && check_context(run) && forecast(run) && open_forward(run);
}

static bool close_dump(struct run *run)
{
    return !run->logits_dump ||
           run_close_output(run, &run->logits_dump, run->options.dump_logits, "");
}

static bool report(struct run *run)
{
    if (!run_report_json(run))
        return false;
    run_report_text(run, stdout);
    return fflush(stdout) == 0 ||
           run_fail(run, "standard output: write failed: %s", strerror(errno));
}

void run_close(struct run *run)
{
    for (int i = 0; i < run->options.n_branches; i++)
        if (run->options.branches[i].seq)
            hr_seq_destroy(&run->options.branches[i].seq);
    if (run->seq)
        hr_seq_destroy(&run->seq);
    if (run->json)
        fclose(run->json);
    if (run->logits_dump)
        fclose(run->logits_dump);
    model_run_destroy(run->forward);
    run_trace_free(run->trace); /* destroying may still bring events */
    model_close(run->model);
    gemm_destroy(run->gemm);
    gemm_pool_destroy(run->pool);
    tokenizer_close(run->tokenizer);
    gguf_close(run->file);
    tokens_free(&run->document);
    free(run->logits);
    run_options_free(&run->options);
}

static int64_t peak_rss_bytes(void)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

int hr_tool_run(int argc, char **argv)
{
    struct run run = {.start_ns = run_now_ns()};
    int status;
    if (!run_options_parse(argc, argv, &run.options, &status)) {
        run_options_free(&run.options);
        return status;
    }
    bool ok = run_prepare(&run) && run_document(&run) && close_dump(&run) && run_branches(&run);
    run.wall_ns = run_now_ns() - run.start_ns;
    run.peak_rss_bytes = peak_rss_bytes();
    ok = ok && (!run.options.compare || run_compare(&run)) && report(&run);
    ok = close_trace(&run, ok);
    if (!ok)
        fprintf(stderr, "headrace run: %s\n", run.error);
    ok = ok && (!run.options.compare || run.identical);
    run_close(&run);
    return ok ? 0 : 1;
}

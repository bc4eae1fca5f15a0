/* SPDX-License-Identifier: Apache-2.0 */
/* `headrace explain`: what `headrace run` with the same options would need and move. */
#include "tools/json.h"
#include "tools/run.h"

#include <stdlib.h>

static bool load(struct run *run, struct model_dims *dims)
{
    return (run->file = gguf_open(run->options.model, run->error)) &&
           (run->tokenizer = tokenizer_open(run->file, run->error)) &&
           model_read_dims(run->file, dims, run->error) && run_read_document(run) &&
           run_branches_encode(run);
}

static void print_text(const struct run *run, const struct run_forecast *f, uint64_t least,
                       FILE *out)
{
    const struct run_options *o = &run->options;
    fprintf(out, "tokens      %zu of the document, in steps of %lld; %d branches of up to %lld\n",
            run->document.n, (long long)o->chunk, o->n_branches, (long long)o->generate);
    fprintf(out, "K/V         %.1f MB at most, %s\n", (double)f->kv_bytes * 1e-6,
            run_kv_names[o->kv_dtype]);
    if (o->n_disks == 0) {
        fprintf(out, "memory      %.1f MB of it are there: all K/V stay in memory\n",
                (double)f->ram_bytes * 1e-6);
        return;
    }
    fprintf(out, "memory      %.1f MB; with this disk %.1f MB would do\n",
            (double)f->ram_bytes * 1e-6, (double)least * 1e-6);
    fprintf(out, "disk        %.1f MB at most; %.1f MB read, %.1f MB written\n",
            (double)f->disk_bytes * 1e-6, (double)f->read_bytes * 1e-6,
            (double)f->write_bytes * 1e-6);
}

static bool write_json(struct run *run, const struct run_forecast *f, uint64_t least)
{
    FILE *out = fopen(run->options.json, "wb");
    struct json json = {.out = out};
    if (!out)
        return run_fail(run, "%.300s: cannot be written", run->options.json);
    json_open(&json, NULL, '{');
    json_text(&json, "version", hr_version());
    json_text(&json, "model", run->options.model);
    json_int(&json, "tokens", (int64_t)run->document.n);
    json_int(&json, "kv_bytes", (int64_t)f->kv_bytes);
    json_int(&json, "kv_ram_bytes", (int64_t)f->ram_bytes);
    json_int(&json, "least_ram_bytes", (int64_t)least);
    json_int(&json, "disk_bytes", (int64_t)f->disk_bytes);
    json_int(&json, "forecast_read_bytes", (int64_t)f->read_bytes);
    json_int(&json, "forecast_write_bytes", (int64_t)f->write_bytes);
    json_close(&json, '}');
    return run_close_output(run, &out, run->options.json, "");
}

int hr_tool_explain(int argc, char **argv)
{
    struct run run = {.start_ns = run_now_ns()};
    struct model_dims dims;
    struct run_forecast f;
    uint64_t least = 0;
    int status;
    if (!run_options_parse(argc, argv, &run.options, &status)) {
        run_options_free(&run.options);
        return status;
    }
    bool ok = load(&run, &dims) && run_forecast(&run, &dims, &f, run.error);
    if (ok && run.options.n_disks)
        least = run_least_ram(&run, &dims, f.ram_bytes);
    ok = ok && (!run.options.json || write_json(&run, &f, least));
    if (ok)
        print_text(&run, &f, least, stdout);
    else
        fprintf(stderr, "headrace explain: %s\n", run.error);
    run_close(&run);
    return ok ? fflush(stdout) != 0 : 1;
}

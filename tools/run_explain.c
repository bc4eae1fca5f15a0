/* SPDX-License-Identifier: Apache-2.0 */
/* `headrace explain`: what `headrace run` with the same options would need and move. */
#include "tools/json.h"
#include "tools/run_predict.h"

#include <math.h>

static bool load(struct run *run, struct model_dims *dims)
{
    return (run->file = gguf_open(run->options.model, run->error)) &&
           (run->tokenizer = tokenizer_open(run->file, run->error)) &&
           model_read_dims(run->file, dims, run->error) && run_read_document(run) &&
           run_branches_encode(run);
}

/* What is printed. */
struct report {
    struct run_forecast forecast;
    uint64_t least;
    bool timed;
    struct run_costs costs;
    struct run_prediction predicted;
};

static double each_step(const struct report *r)
{
    return r->predicted.decode_steps > 0 ? r->predicted.decode / (double)r->predicted.decode_steps
                                         : NAN;
}

static void print_times(const struct run *run, const struct report *r, FILE *out)
{
    const struct run_prediction *p = &r->predicted;
    for (int32_t i = 0; i < run->options.n_disks; i++)
        fprintf(out, "rates       %.2f GB/s read, %.2f GB/s written: %s\n",
                r->costs.disk.each[i].read_bytes_per_s * 1e-9,
                r->costs.disk.each[i].write_bytes_per_s * 1e-9, r->costs.disk.each[i].text);
    fprintf(out, "time        prefill %.2f s", p->document);
    if (p->branches > 0)
        fprintf(out, ", prompts %.2f s", p->branches);
    if (p->decode_steps)
        fprintf(out, ", decode %.2f s: %lld steps of %.4f s", p->decode, (long long)p->decode_steps,
                each_step(r));
    fprintf(out,
            "\n            %.2f s of it are waited for K/V; from steps of %.1f s at %lld tokens\n",
            p->waited, r->costs.seconds, (long long)r->costs.tokens);
}

static void print_text(const struct run *run, const struct report *r, FILE *out)
{
    const struct run_options *o = &run->options;
    const struct run_forecast *f = &r->forecast;
    fprintf(out, "tokens      %zu of the document, in steps of %lld; %d branches of up to %lld\n",
            run->document.n, (long long)o->chunk, o->n_branches, (long long)o->generate);
    fprintf(out, "K/V         %.1f MB at most, %s\n", (double)f->kv_bytes * 1e-6,
            run_kv_names[o->kv_dtype]);
    if (o->n_disks == 0) {
        fprintf(out, "memory      %.1f MB of it are there: all K/V stay in memory\n",
                (double)f->ram_bytes * 1e-6);
    } else {
        fprintf(out, "memory      %.1f MB; with this disk %.1f MB would do\n",
                (double)f->ram_bytes * 1e-6, (double)r->least * 1e-6);
        fprintf(out, "disk        %.1f MB at most; %.1f MB read, %.1f MB written\n",
                (double)f->disk_bytes * 1e-6, (double)f->read_bytes * 1e-6,
                (double)f->write_bytes * 1e-6);
    }
    if (r->timed)
        print_times(run, r, out);
}

static void json_times(struct json *json, const struct run *run, const struct report *r)
{
    json_number(json, "predicted_prefill_s", r->predicted.document);
    json_number(json, "predicted_branch_prefill_s", r->predicted.branches);
    json_number(json, "predicted_decode_s", r->predicted.decode);
    json_int(json, "decode_steps", r->predicted.decode_steps);
    json_number(json, "predicted_decode_step_s", each_step(r));
    json_number(json, "predicted_exposed_wait_s", r->predicted.waited);
    if (run->options.n_disks) {
        json_number(json, "disk_read_bytes_per_s", r->costs.disk.read);
        json_number(json, "disk_write_bytes_per_s", r->costs.disk.write);
        json_number(json, "stream_bytes_per_s", r->costs.stream);
    }
    json_int(json, "measured_tokens", r->costs.tokens);
    json_number(json, "measured_s", r->costs.seconds);
}

static bool write_json(struct run *run, const struct report *r)
{
    const struct run_forecast *f = &r->forecast;
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
    json_int(&json, "least_ram_bytes", (int64_t)r->least);
    json_int(&json, "disk_bytes", (int64_t)f->disk_bytes);
    json_int(&json, "forecast_read_bytes", (int64_t)f->read_bytes);
    json_int(&json, "forecast_write_bytes", (int64_t)f->write_bytes);
    if (r->timed)
        json_times(&json, run, r);
    json_close(&json, '}');
    return run_close_output(run, &out, run->options.json, "");
}

static void add_step(void *user, const struct run_planned *step)
{
    struct report *r = user;
    run_predict(&r->costs, step, &r->predicted);
}

static bool explain(struct run *run, struct report *r)
{
    struct model_dims dims;
    if (!load(run, &dims) || !run_forecast(run, &dims, &r->forecast, run->error))
        return false;
    if (run->options.n_disks)
        r->least = run_least_ram(run, &dims, r->forecast.ram_bytes);
    r->timed = !run->options.no_measure;
    return !r->timed || (run_calibrate(run, &dims, r->least, &r->costs) &&
                         run_forecast_steps(run, &dims, add_step, r, run->error));
}

int hr_tool_explain(int argc, char **argv)
{
    struct run run = {.start_ns = run_now_ns()};
    struct report report = {.least = 0};
    int status;
    if (!run_options_parse(argc, argv, &run.options, &status)) {
        run_options_free(&run.options);
        return status;
    }
    bool ok = explain(&run, &report) && (!run.options.json || write_json(&run, &report));
    if (ok)
        print_text(&run, &report, stdout);
    else
        fprintf(stderr, "headrace explain: %s\n", run.error);
    run_close(&run);
    return ok ? fflush(stdout) != 0 : 1;
}

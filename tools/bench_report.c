/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench.h"
#include "tools/doctor.h"
#include "tools/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const double mib = 1 << 20;

static double bytes_per_s(const struct bench_run *run)
{
    return (double)(run->read_bytes + run->write_bytes) / run->seconds;
}

/* Of the run's time, what its bytes take at the measured rates. */
static double disk_share(const struct bench *b, const struct bench_run *run)
{
    return disk_rates_seconds(&b->rates, run->read_bytes, run->write_bytes) / run->seconds;
}

static void machine(char *text, size_t size)
{
    struct doctor_facts facts = {0};
    doctor_facts_read("", &facts);
    snprintf(text, size, "%s", facts.cpu_model[0] ? facts.cpu_model : "unknown CPU");
}

static void print_head(const struct bench *b, FILE *out)
{
    const struct bench_options *o = &b->options;
    const struct bench_run *run = &b->results[0].capped;
    char cpu[96];
    machine(cpu, sizeof(cpu));
    fprintf(out, "machine  %s, %d threads, kernel %s\n", cpu, run->threads, run->kernel);
    fprintf(out, "layers   %lld, %lld/%lld heads of %lld, bf16; sequences of %lld tokens\n",
            (long long)o->layers, (long long)o->q_heads, (long long)o->kv_heads, (long long)o->dim,
            (long long)o->tokens);
    for (int32_t i = 0; i < o->n_disks; i++)
        fprintf(out, "disk     %.2f GB/s read, %.2f GB/s written: %s\n",
                b->rates.each[i].read_bytes_per_s * 1e-9, b->rates.each[i].write_bytes_per_s * 1e-9,
                b->rates.each[i].text);
}

void bench_print(const struct bench *b, FILE *out)
{
    print_head(b, out);
    fprintf(out, "\n%-7s %14s %9s %9s %6s %8s %8s %7s %17s  %s\n", "case", "K/V (memory)",
            "resident", "capped", "ratio", "read", "written", "waited", "disk", "bits");
    for (int i = 0; i < BENCH_CASES; i++) {
        const struct bench_result *r = &b->results[i];
        const struct bench_case *c = &b->cases[i];
        const struct bench_run *run = &r->capped;
        fprintf(out,
                "%-7s %4.0f (%3.0f) MiB %7.3f s %7.3f s %6.3f %5.0f MB %5.0f MB %5.2f s %5.2f GB/s "
                "(%3.0f %%)  %s\n",
                c->name, (double)c->kv_bytes / mib, (double)c->ram_bytes / mib, r->resident.seconds,
                run->seconds, r->ratio, (double)run->read_bytes * 1e-6,
                (double)run->write_bytes * 1e-6, (double)run->waited_ns * 1e-9,
                bytes_per_s(run) * 1e-9, 100 * disk_share(b, run),
                r->identical ? "the same" : "DIFFERENT");
    }
    fprintf(
        out,
        "\nratio: resident / capped time; waited: for K/V; disk: bytes per capped time, and what "
        "share\nof it they take at the measured rates.\n");
}

static void json_head(struct json *json, const struct bench *b)
{
    const struct bench_options *o = &b->options;
    const struct bench_run *run = &b->results[0].capped;
    char cpu[96];
    machine(cpu, sizeof(cpu));
    json_text(json, "version", hr_version());
    json_text(json, "commit", getenv("HEADRACE_COMMIT"));
    json_text(json, "machine", cpu);
    json_text(json, "kernel", run->kernel);
    json_int(json, "threads", run->threads);
    json_int(json, "tokens", o->tokens);
    json_int(json, "layers", o->layers);
    json_int(json, "q_heads", o->q_heads);
    json_int(json, "kv_heads", o->kv_heads);
    json_int(json, "dim", o->dim);
    json_text(json, "kv_dtype", "bf16");
    json_int(json, "repeats", o->repeats);
}

static void json_disk(struct json *json, const hr_disk *disk, const hr_disk_rates *rates)
{
    json_open(json, NULL, '{');
    json_text(json, "path", disk->path);
    json_int(json, "bytes", (int64_t)disk->bytes);
    json_text(json, "io", rates->text);
    json_bool(json, "direct", rates->direct);
    json_number(json, "read_bytes_per_s", rates->read_bytes_per_s);
    json_number(json, "write_bytes_per_s", rates->write_bytes_per_s);
    json_close(json, '}');
}

static void json_result(struct json *json, const struct bench *b, int which)
{
    const struct bench_result *r = &b->results[which];
    const struct bench_run *c = &r->capped;
    json_open(json, NULL, '{');
    json_text(json, "case", b->cases[which].name);
    json_number(json, "value", (double)c->tokens / c->seconds);
    json_text(json, "unit", "tokens/s");
    json_text(json, "peer", "resident");
    json_number(json, "peer_value", (double)r->resident.tokens / r->resident.seconds);
    json_number(json, "ratio", r->ratio);
    json_number(json, "resident_s", r->resident.seconds);
    json_number(json, "capped_s", c->seconds);
    json_int(json, "tokens", c->tokens);
    json_int(json, "kv_bytes", (int64_t)b->cases[which].kv_bytes);
    json_int(json, "kv_ram_bytes", (int64_t)b->cases[which].ram_bytes);
    json_int(json, "disk_read_bytes", (int64_t)c->read_bytes);
    json_int(json, "disk_write_bytes", (int64_t)c->write_bytes);
    json_number(json, "exposed_wait_s", (double)c->waited_ns * 1e-9);
    json_number(json, "disk_bytes_per_s", bytes_per_s(c));
    json_number(json, "disk_share", disk_share(b, c));
    json_bool(json, "identical", r->identical);
    json_close(json, '}');
}

bool bench_write_json(struct bench *b)
{
    FILE *out = b->json;
    struct json json = {.out = out};
    if (!out)
        return true;
    json_open(&json, NULL, '{');
    json_head(&json, b);
    json_open(&json, "disks", '[');
    for (int32_t i = 0; i < b->options.n_disks; i++)
        json_disk(&json, &b->options.disks[i], &b->rates.each[i]);
    json_close(&json, ']');
    json_open(&json, "results", '[');
    for (int i = 0; i < BENCH_CASES; i++)
        json_result(&json, b, i);
    json_close(&json, ']');
    json_close(&json, '}');
    bool failed = ferror(out);
    b->json = NULL;
    failed = fclose(out) != 0 || failed;
    if (failed)
        snprintf(b->error, sizeof(b->error), "%.300s: write failed: %s", b->options.json,
                 strerror(errno));
    return !failed;
}

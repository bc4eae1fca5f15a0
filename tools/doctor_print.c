/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/doctor.h"
#include "tools/json.h"

#include <math.h>

static const char *const verdict_names[] = {"ok", "warn", "fail"};

static enum doctor_verdict worst_of(const struct doctor_finding *findings, int n)
{
    enum doctor_verdict worst = DOCTOR_OK;
    for (int i = 0; i < n; i++)
        if (findings[i].verdict > worst)
            worst = findings[i].verdict;
    return worst;
}

static int written(FILE *out, int worst)
{
    return fflush(out) != 0 || ferror(out) ? -1 : worst;
}

int doctor_print_text(const struct doctor_finding *findings, int n, FILE *out)
{
    int count[3] = {0, 0, 0};
    for (int i = 0; i < n; i++) {
        const struct doctor_finding *f = &findings[i];
        fprintf(out, "%-5s %-10s %s", verdict_names[f->verdict], f->check, f->text);
        fprintf(out, f->fix[0] ? "; fix: %s\n" : "%s\n", f->fix);
        count[f->verdict]++;
    }
    enum doctor_verdict worst = worst_of(findings, n);
    fprintf(out, "%-5s %-10s %d ok, %d warn, %d fail\n", verdict_names[worst], "machine", count[0],
            count[1], count[2]);
    return written(out, (int)worst);
}

static void print_value(struct json *json, const struct doctor_value *value)
{
    if (!value->known)
        json_text(json, value->name, NULL);
    else if (value->text)
        json_text(json, value->name, value->text);
    else if (value->number == floor(value->number))
        json_int(json, value->name, (int64_t)value->number);
    else
        json_number(json, value->name, value->number);
}

static void print_finding(struct json *json, const struct doctor_finding *f)
{
    json_open(json, NULL, '{');
    json_text(json, "check", f->check);
    json_text(json, "verdict", verdict_names[f->verdict]);
    json_text(json, "text", f->text);
    json_text(json, "fix", f->fix[0] ? f->fix : NULL);
    json_open(json, "values", '{');
    for (int i = 0; i < f->n_values; i++)
        print_value(json, &f->values[i]);
    json_close(json, '}');
    json_close(json, '}');
}

int doctor_print_json(const struct doctor_finding *findings, int n, FILE *out)
{
    struct json json = {.out = out};
    enum doctor_verdict worst = worst_of(findings, n);
    json_open(&json, NULL, '{');
    json_text(&json, "verdict", verdict_names[worst]);
    json_open(&json, "checks", '[');
    for (int i = 0; i < n; i++)
        print_finding(&json, &findings[i]);
    json_close(&json, ']');
    json_close(&json, '}');
    return written(out, (int)worst);
}

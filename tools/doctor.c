/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/doctor.h"

#include <string.h>

static const char usage[] =
    "usage: headrace doctor [--json] [--dir DIR]...\n"
    "\n"
    "Says what this machine gives headrace and what holds it back: one line per check, with a\n"
    "verdict (ok, warn: it works but slower or within limits, fail) and the fix.\n"
    "\n"
    "  --dir DIR  measure a directory for --kv-disk: writes 256 MiB there (or half of what is\n"
    "             free) and reads them back; may be repeated. Without it nothing is written.\n"
    "  --json     the same as JSON: {\"verdict\", \"checks\": [{\"check\", \"verdict\", \"text\",\n"
    "             \"fix\", \"values\"}]}\n"
    "\n"
    "Exit status: 0, or 1 when a check fails.\n";

struct doctor_options {
    const char *root; /* for tests: stands before /proc and /sys */
    const char *dirs[DOCTOR_DISKS];
    int n_dirs;
    bool json, help;
};

static bool bad(const char *word, const char *what)
{
    fprintf(stderr, "headrace doctor: \"%s\" %s\n", word, what);
    return false;
}

/* argv[0] is the command's name. */
static bool parse_options(int argc, char **argv, struct doctor_options *o)
{
    *o = (struct doctor_options){.root = ""};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            o->json = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            o->help = true;
        } else if (strcmp(argv[i], "--root") == 0 && i + 1 < argc) {
            o->root = argv[++i];
        } else if (strcmp(argv[i], "--dir") != 0) {
            return bad(argv[i], "is not an option; see headrace doctor --help");
        } else if (i + 1 == argc) {
            return bad(argv[i], "needs a directory");
        } else if (o->n_dirs == DOCTOR_DISKS) {
            return bad(argv[i], "is given too often");
        } else {
            o->dirs[o->n_dirs++] = argv[++i];
        }
    }
    return true;
}

int hr_tool_doctor(int argc, char **argv)
{
    struct doctor_options options;
    struct doctor_facts facts = {0};
    struct doctor_disk disks[DOCTOR_DISKS]; /* findings point into it */
    struct doctor_finding findings[DOCTOR_CHECKS + DOCTOR_DISKS];
    if (!parse_options(argc, argv, &options))
        return 2;
    if (options.help) {
        fputs(usage, stdout);
        return 0;
    }
    doctor_facts_read(options.root, &facts);
    doctor_facts_probe(&facts);
    doctor_judge(&facts, findings);
    int n = DOCTOR_CHECKS;
    for (int i = 0; i < options.n_dirs; i++) {
        doctor_disk_probe(options.root, options.dirs[i], &disks[i]);
        doctor_judge_disk(&disks[i], &findings[n++]);
    }
    int worst = options.json ? doctor_print_json(findings, n, stdout)
                             : doctor_print_text(findings, n, stdout);
    if (worst < 0)
        fprintf(stderr, "headrace doctor: the report could not be written to standard output\n");
    return worst < 0 || worst == DOCTOR_FAIL ? 1 : 0;
}

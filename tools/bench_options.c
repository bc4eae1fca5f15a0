/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/args.h"
#include "tools/bench.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const char usage_text[] =
    "usage: headrace bench [options]\n"
    "\n"
    "Runs the same steps twice, on random K/V: all in memory, and with a part of them on disk.\n"
    "Gives both times, what was read and written, and whether all outputs have the same bits (if\n"
    "not, the exit status is 1).\n"
    "\n"
    "  prefill  one sequence of N tokens, in chunks of 512\n"
    "  decode   four of N tokens, one more each in 16 steps\n"
    "  mix      eight of very different lengths, 4 N tokens in all: half of them in prefill, by\n"
    "           1/256 of their length a step, half in decode, 16 steps\n"
    "\n"
    "  --kv-disk DIR:BYTES  a directory for K and V, and how much of it; repeatable (striped);\n"
    "                       without it: TMPDIR or /tmp, as much as is needed\n"
    "  --io uring|threads   how files are read and written (default: io_uring if it works)\n"
    "  --budget SHARE       of the K/V that memory holds, as 1/4 (default) or 0.25\n"
    "  --kv-ram BYTES       the same in bytes (500M, 2G)\n"
    "  --tokens N           (default 8192)\n"
    "  --layers N           (default 4)\n"
    "  --heads Q/KV         query and K/V heads (default 8/4)\n"
    "  --dim N              of a head (default 128)\n"
    "  --threads N          threads (default: one a core)\n"
    "  --repeat N           pairs of runs, in turns; the medians count (default 3)\n"
    "  --json FILE          write the results to FILE\n"
    "\n"
    "HEADRACE_CAPS=portable|avx2|avx512bf16|amx forces the attention kernels' level.\n";

enum option_id {
    OPT_KV_DISK = 256,
    OPT_IO,
    OPT_BUDGET,
    OPT_KV_RAM,
    OPT_TOKENS,
    OPT_LAYERS,
    OPT_HEADS,
    OPT_DIM,
    OPT_THREADS,
    OPT_REPEAT,
    OPT_JSON,
    OPT_HELP,
};

static const struct option long_options[] = {
    {"kv-disk", required_argument, NULL, OPT_KV_DISK},
    {"io", required_argument, NULL, OPT_IO},
    {"budget", required_argument, NULL, OPT_BUDGET},
    {"kv-ram", required_argument, NULL, OPT_KV_RAM},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"layers", required_argument, NULL, OPT_LAYERS},
    {"heads", required_argument, NULL, OPT_HEADS},
    {"dim", required_argument, NULL, OPT_DIM},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"repeat", required_argument, NULL, OPT_REPEAT},
    {"json", required_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static bool bad(const char *subject, const char *what)
{
    fprintf(stderr, "headrace bench: %.80s %s\n", subject, what);
    return false;
}

/* "1/4" or "0.25". */
static bool share(const char *text, double *value)
{
    char *end;
    double part = strtod(text, &end), whole = 1;
    bool is = end > text;
    if (is && *end == '/') {
        const char *second = end + 1;
        whole = strtod(second, &end);
        is = end > second;
    }
    *value = part / whole;
    if (is && *end == '\0' && *value > 0 && *value <= 1)
        return true;
    fprintf(stderr, "headrace bench: --budget is \"%.80s\"; a share is wanted, as 1/4 or 0.25\n",
            text);
    return false;
}

static bool heads(const char *text, struct bench_options *o)
{
    int used = 0;
    long long q = 0, kv = 0;
    int n = sscanf(text, "%5lld/%5lld%n", &q, &kv, &used);
    o->q_heads = q;
    o->kv_heads = kv;
    if (n == 2 && text[used] == '\0' && kv >= 1 && kv <= 1024 && q >= kv && q <= 4096 &&
        q % kv == 0)
        return true;
    fprintf(
        stderr,
        "headrace bench: --heads is \"%.80s\"; Q/KV is wanted, Q (to 4096) a multiple of KV (to "
        "1024)\n",
        text);
    return false;
}

static bool small(const char *name, const char *text, int64_t high, int32_t *value)
{
    int64_t wide;
    bool ok = args_number("bench", name, text, 1, high, &wide);
    *value = ok ? (int32_t)wide : 0;
    return ok;
}

static bool take(int id, const char *text, struct bench_options *o)
{
    switch (id) {
    case OPT_KV_DISK:
        return args_disk("bench", text, o->disks, DISK_RATES_MAX, &o->n_disks);
    case OPT_IO:
        o->io = text;
        return strcmp(text, "uring") == 0 || strcmp(text, "threads") == 0 ||
               bad("--io", "wants uring or threads");
    case OPT_BUDGET:
        return share(text, &o->budget);
    case OPT_KV_RAM:
        return args_bytes("bench", "kv-ram", text, &o->kv_ram);
    case OPT_TOKENS:
        return args_number("bench", "tokens", text, 1024, (int64_t)1 << 30, &o->tokens);
    case OPT_LAYERS:
        return args_number("bench", "layers", text, 1, 4096, &o->layers);
    case OPT_HEADS:
        return heads(text, o);
    case OPT_DIM:
        return args_number("bench", "dim", text, 8, 256, &o->dim);
    case OPT_THREADS:
        return small("threads", text, 256, &o->threads);
    case OPT_REPEAT:
        return small("repeat", text, BENCH_REPEATS, &o->repeats);
    default:
        o->json = text;
        return *text || bad("--json", "has an empty value");
    }
}

/* In a cluster of short options getopt names the letter; there are none. */
static bool not_an_option(const char *word)
{
    char letter[3] = {'-', (char)optopt, 0};
    bool cluster = optopt > ' ' && optopt < 127;
    return bad(cluster ? letter : word, "is not an option; see headrace bench --help");
}

bool bench_options_parse(int argc, char **argv, struct bench_options *o, int *status)
{
    *o = (struct bench_options){.tokens = 8192,
                                .layers = 4,
                                .q_heads = 8,
                                .kv_heads = 4,
                                .dim = 128,
                                .repeats = 3,
                                .budget = 0.25};
    opterr = 0;
    optind = 1;
    *status = 2;
    int id;
    while ((id = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (id == OPT_HELP) {
            *status = fputs(usage_text, stdout) < 0 || fflush(stdout) != 0;
            return false;
        }
        if (id == ':')
            return bad(argv[optind - 1], "needs a value");
        if (id == '?')
            return not_an_option(argv[optind - 1]);
        if (!take(id, optarg, o))
            return false;
    }
    return optind == argc || bad(argv[optind], "is not expected; see headrace bench --help");
}

void bench_options_free(struct bench_options *o)
{
    for (int32_t i = 0; i < o->n_disks; i++)
        free((void *)(uintptr_t)o->disks[i].path);
    o->n_disks = 0;
}

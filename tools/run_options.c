/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/args.h"
#include "tools/run.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage_text[] =
    "usage: headrace run --model M.gguf --text FILE [options]\n"
    "       headrace run --model M.gguf --prompt TEXT [options]\n"
    "\n"
    "Reads the document once, as one sequence, and gives its perplexity. Questions and prompts\n"
    "then go on from forks of it.\n"
    "\n"
    "  --model FILE           GGUF model of the Llama family\n"
    "  --text FILE            document, UTF-8\n"
    "  --tokens N             read the first N tokens only\n"
    "  --ask QUESTION         answer a question about the document; may be repeated\n"
    "  --prompt TEXT          go on from TEXT, after the document if there is one; repeatable\n"
    "  --generate N           tokens to generate (for answers and prompts: 64 unless given);\n"
    "                         without --ask and --prompt the document is gone on with\n"
    "  --beyond-context       allow more tokens than the model was trained for\n"
    "  --chunk N              tokens of one prefill step (default 768); changes no bit\n"
    "  --threads N            threads (default: one a core); changes no bit\n"
    "  --kv-dtype TYPE        of stored K and V: bf16 (default), fp16, fp32\n"
    "  --kv-ram BYTES         memory for K and V (500M, 2G); what exceeds it goes to --kv-disk;\n"
    "                         changes no bit\n"
    "  --kv-disk DIR:BYTES    a directory for K and V, and how much of it; repeatable (striped)\n"
    "  --io uring|threads     how files are read and written (default: io_uring if it works)\n"
    "  --compare              do all again with K and V in memory, and say if it was identical\n"
    "  --json FILE            write the results to FILE\n"
    "  --trace FILE           write what ran when (compute, disk, waits), for ui.perfetto.dev\n"
    "  --dump-tokens FILE     write the document's token ids, one a line\n"
    "  --dump-logits FILE     write the fp32 logits of every document token, row by row;\n"
    "                         logits_hash is the XXH3-64 of this file\n"
    "  --progress             show progress even when stderr is no terminal\n"
    "  --debug-wave-blocks N  cut attention into waves of N blocks; changes no bit\n"
    "  --no-measure           explain only: time nothing, predict no times\n"
    "\n"
    "HEADRACE_CAPS=portable|avx2|avx512bf16|amx forces the attention kernels' level.\n";

const char *const run_kv_names[] = {[HR_BF16] = "bf16", [HR_FP16] = "fp16", [HR_FP32] = "fp32"};

enum option_id {
    OPT_MODEL = 256,
    OPT_TEXT,
    OPT_TOKENS,
    OPT_ASK,
    OPT_PROMPT,
    OPT_GENERATE,
    OPT_BEYOND,
    OPT_CHUNK,
    OPT_THREADS,
    OPT_KV_DTYPE,
    OPT_KV_RAM,
    OPT_KV_DISK,
    OPT_IO,
    OPT_COMPARE,
    OPT_JSON,
    OPT_TRACE,
    OPT_DUMP_TOKENS,
    OPT_DUMP_LOGITS,
    OPT_PROGRESS,
    OPT_WAVE_BLOCKS,
    OPT_NO_MEASURE,
    OPT_HELP,
};

static const struct option long_options[] = {
    {"model", required_argument, NULL, OPT_MODEL},
    {"text", required_argument, NULL, OPT_TEXT},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"ask", required_argument, NULL, OPT_ASK},
    {"prompt", required_argument, NULL, OPT_PROMPT},
    {"generate", required_argument, NULL, OPT_GENERATE},
    {"beyond-context", no_argument, NULL, OPT_BEYOND},
    {"chunk", required_argument, NULL, OPT_CHUNK},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"kv-dtype", required_argument, NULL, OPT_KV_DTYPE},
    {"kv-ram", required_argument, NULL, OPT_KV_RAM},
    {"kv-disk", required_argument, NULL, OPT_KV_DISK},
    {"io", required_argument, NULL, OPT_IO},
    {"compare", no_argument, NULL, OPT_COMPARE},
    {"json", required_argument, NULL, OPT_JSON},
    {"trace", required_argument, NULL, OPT_TRACE},
    {"dump-tokens", required_argument, NULL, OPT_DUMP_TOKENS},
    {"dump-logits", required_argument, NULL, OPT_DUMP_LOGITS},
    {"progress", no_argument, NULL, OPT_PROGRESS},
    {"debug-wave-blocks", required_argument, NULL, OPT_WAVE_BLOCKS},
    {"no-measure", no_argument, NULL, OPT_NO_MEASURE},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

void run_usage(FILE *out)
{
    fputs(usage_text, out);
}

static bool bad(const char *subject, const char *what)
{
    fprintf(stderr, "headrace run: %.80s %s\n", subject, what);
    return false;
}

static bool kv_dtype(const char *text, hr_dtype *dtype)
{
    for (int i = HR_BF16; i <= HR_FP32; i++)
        if (strcmp(text, run_kv_names[i]) == 0) {
            *dtype = (hr_dtype)i;
            return true;
        }
    fprintf(stderr, "headrace run: --kv-dtype is \"%.80s\"; bf16, fp16 or fp32 is wanted\n", text);
    return false;
}

static bool add_branch(struct run_options *o, enum run_kind kind, const char *text)
{
    struct run_branch *more =
        realloc(o->branches, ((size_t)o->n_branches + 1) * sizeof(*o->branches));
    if (!more) {
        fputs("headrace run: out of memory\n", stderr);
        return false;
    }
    o->branches = more;
    o->branches[o->n_branches++] = (struct run_branch){.kind = kind, .text = text};
    return true;
}

static bool numeric(int id, const char *text, struct run_options *o)
{
    int64_t threads = 0;
    switch (id) {
    case OPT_TOKENS:
        return args_number("run", "tokens", text, 1, (int64_t)1 << 40, &o->tokens);
    case OPT_GENERATE:
        return args_number("run", "generate", text, 0, (int64_t)1 << 30, &o->generate);
    case OPT_CHUNK:
        return args_number("run", "chunk", text, 1, 1 << 16, &o->chunk);
    case OPT_WAVE_BLOCKS:
        return args_number("run", "debug-wave-blocks", text, 0, (int64_t)1 << 40, &o->wave_blocks);
    default:
        if (!args_number("run", "threads", text, 1, 256, &threads))
            return false;
        o->threads = (int32_t)threads;
        return true;
    }
}

static bool take(int id, const char *text, struct run_options *o)
{
    switch (id) {
    case OPT_MODEL:
        o->model = text;
        return true;
    case OPT_TEXT:
        o->text = text;
        return true;
    case OPT_ASK:
        return add_branch(o, RUN_ASK, text);
    case OPT_PROMPT:
        return add_branch(o, RUN_PROMPT, text);
    case OPT_BEYOND:
        o->beyond_context = true;
        return true;
    case OPT_KV_DTYPE:
        return kv_dtype(text, &o->kv_dtype);
    case OPT_KV_RAM:
        return args_bytes("run", "kv-ram", text, &o->kv_ram);
    case OPT_KV_DISK:
        return args_disk("run", text, o->disks, RUN_DISKS, &o->n_disks);
    case OPT_IO:
        o->io = text;
        return strcmp(text, "uring") == 0 || strcmp(text, "threads") == 0 ||
               bad("--io", "wants uring or threads");
    case OPT_NO_MEASURE:
        o->no_measure = true;
        return true;
    case OPT_COMPARE:
        o->compare = true;
        return true;
    case OPT_JSON:
        o->json = text;
        return true;
    case OPT_TRACE:
        o->trace = text;
        return true;
    case OPT_DUMP_TOKENS:
        o->dump_tokens = text;
        return true;
    case OPT_DUMP_LOGITS:
        o->dump_logits = text;
        return true;
    case OPT_PROGRESS:
        o->progress = true;
        return true;
    default:
        return numeric(id, text, o);
    }
}

static bool complete(struct run_options *o)
{
    if (!o->model)
        return bad("--model", "is missing; see headrace run --help");
    if (!o->text && o->n_branches == 0)
        return bad("--text", "(or --ask or --prompt) is missing; see headrace run --help");
    if (o->n_disks && !o->kv_ram)
        return bad("--kv-disk", "needs --kv-ram: how much memory K and V may take");
    if (o->io && !o->n_disks)
        return bad("--io", "needs --kv-disk");
    if (!o->text && (o->dump_tokens || o->dump_logits || o->tokens))
        return bad(o->dump_tokens   ? "--dump-tokens"
                   : o->dump_logits ? "--dump-logits"
                                    : "--tokens",
                   "needs a document: --text is missing");
    if (o->n_branches == 0 && o->generate > 0)
        return add_branch(o, RUN_CONTINUE, NULL);
    if (o->generate < 0)
        o->generate = o->n_branches ? 64 : 0;
    return true;
}

static bool is_path(int id)
{
    return id == OPT_MODEL || id == OPT_TEXT || id == OPT_JSON || id == OPT_TRACE ||
           id == OPT_DUMP_TOKENS || id == OPT_DUMP_LOGITS;
}

/* In a cluster of short options getopt names the letter; there are none. */
static bool not_an_option(const char *word)
{
    char letter[3] = {'-', (char)optopt, 0};
    bool cluster = optopt > ' ' && optopt < 127;
    return bad(cluster ? letter : word, "is not an option; see headrace run --help");
}

bool run_options_parse(int argc, char **argv, struct run_options *options, int *status)
{
    *options = (struct run_options){.chunk = 768, .generate = -1, .kv_dtype = HR_BF16};
    options->progress = isatty(STDERR_FILENO);
    opterr = 0;
    optind = 1;
    *status = 2;
    int id, index = 0;
    while ((id = getopt_long(argc, argv, ":", long_options, &index)) != -1) {
        if (id == OPT_HELP) {
            run_usage(stdout);
            *status = fflush(stdout) != 0 || ferror(stdout);
            return false;
        }
        if (id == ':')
            return bad(argv[optind - 1], "needs a value");
        if (id == '?')
            return not_an_option(argv[optind - 1]);
        if (optarg && !*optarg && is_path(id)) {
            char name[32];
            snprintf(name, sizeof(name), "--%s", long_options[index].name);
            return bad(name, "has an empty value");
        }
        if (optarg && strcmp(optarg, "-") == 0 && is_path(id))
            return bad("-", "is no file name here; /dev/stdin and /dev/stdout are");
        if (!take(id, optarg, options))
            return false;
    }
    if (optind < argc)
        return bad(argv[optind], "is not expected; see headrace run --help");
    if (options->trace && strcmp(argv[0], "explain") == 0)
        return bad("--trace", "is for headrace run: explain runs nothing");
    if (options->no_measure && strcmp(argv[0], "explain") != 0)
        return bad("--no-measure", "is for headrace explain");
    return complete(options);
}

void run_options_free(struct run_options *options)
{
    for (int i = 0; i < options->n_branches; i++) {
        tokens_free(&options->branches[i].input);
        tokens_free(&options->branches[i].output);
    }
    for (int i = 0; i < options->n_disks; i++)
        free((void *)(uintptr_t)options->disks[i].path);
    free(options->branches);
    *options = (struct run_options){0};
}

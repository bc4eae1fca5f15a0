/* SPDX-License-Identifier: Apache-2.0 */
/* `headrace run`: a model reads a document through headrace, then goes on with it or answers
 * questions about it, each from a fork of the document's K/V.
 *
 *   run_options.c -> run.c (load) -> run_document.c (prefill, score) -> run_branch.c (forks,
 * decode)
 *   -> run_report.c
 */
#ifndef HEADRACE_TOOLS_RUN_H
#define HEADRACE_TOOLS_RUN_H

#include "tools/model_run.h"
#include "tools/run_trace.h"
#include "tools/tokenizer.h"

#include <stdio.h>

enum run_kind {
    RUN_CONTINUE, /* goes on with the document */
    RUN_PROMPT,   /* goes on with the prompt, after the document if there is one */
    RUN_ASK,      /* answers a question, in the chat format of the model */
};

struct run_branch {
    enum run_kind kind;
    const char *text;    /* of the prompt or question; NULL: none */
    struct tokens input; /* behind the document */
    struct tokens output;
    hr_seq *seq;
    int32_t next; /* chosen, not yet in seq */
    bool ended;   /* by a token that ends an answer */
};

enum { RUN_DISKS = 16 };

struct run_options {
    const char *model, *text, *json, *trace, *dump_tokens, *dump_logits;
    int64_t tokens; /* 0: all */
    int64_t chunk;
    int64_t generate; /* -1: not given */
    int64_t wave_blocks;
    int32_t threads; /* 0: one a core */
    hr_dtype kv_dtype;
    bool beyond_context, progress, compare;
    bool no_measure;          /* of explain */
    uint64_t kv_ram;          /* 0: as the library takes */
    hr_disk disks[RUN_DISKS]; /* paths are owned */
    int32_t n_disks;
    const char *io;
    struct run_branch *branches;
    int n_branches;
};

/* What a run would need and move. */
struct run_forecast {
    uint64_t kv_bytes;   /* of all blocks, at most */
    uint64_t ram_bytes;  /* of the device budget */
    uint64_t disk_bytes; /* of blocks on disk, at most */
    uint64_t read_bytes, write_bytes;
};

struct run {
    struct run_options options;
    int64_t start_ns;
    struct gguf *file;
    struct tokenizer *tokenizer;
    struct gemm_pool *pool;
    struct gemm *gemm;
    struct model *model;
    struct model_run *forward;
    FILE *json, *logits_dump;
    struct run_trace *trace; /* or NULL */
    struct tokens document;  /* cut to options.tokens */
    int64_t text_tokens;     /* before the cut */
    hr_seq *seq;             /* of the document */
    float *logits;           /* [RUN_LOGIT_ROWS padded][gemm_stride(vocab)] */
    int32_t document_next;   /* the likeliest token behind the document */
    struct scoring *scoring; /* while the document runs */
    double nll;              /* sum over scored tokens, nats */
    uint64_t logits_hash;
    int64_t prefill_start_ns;
    int64_t load_ns, tokenize_ns, prefill_ns, branch_prefill_ns, decode_ns;
    int64_t branch_tokens, decode_tokens;
    struct run_forecast forecast;    /* with disks */
    int64_t wall_ns, peak_rss_bytes; /* of the run, without the comparison */
    bool identical;                  /* compared, and the same */
    int64_t resident_prefill_ns;     /* of the comparison */
    bool failed;                     /* run_fail was called */
    char error[GGUF_ERROR_BYTES];
};

/* Rows of logits held at once; the most branches that decode together. */
enum { RUN_LOGIT_ROWS = 120, RUN_BATCH = 48 };

/* Parses the arguments behind "run". False: *status is the exit status, the rest is said. */
bool run_options_parse(int argc, char **argv, struct run_options *options, int *status);
void run_options_free(struct run_options *options);

/* Names of the K/V types, by hr_dtype. */
extern const char *const run_kv_names[HR_FP32 + 1];

void run_usage(FILE *out);

/* Appends `n` tokens to a sequence chunk by chunk; after each, `each` (may be NULL) sees the states
 * of the chunk's rows, the first of which is token `first` of the n. */
typedef bool run_chunk_fn(struct run *run, int64_t first, int64_t rows);
bool run_prefill(struct run *run, hr_seq *seq, const int32_t *tokens, int64_t n, run_chunk_fn *each,
                 int64_t *last_rows);

/* Prefills the document and scores every token of it. */
bool run_document(struct run *run);
/* Tokens of prompts and questions (before the document runs, so that their errors come early). */
bool run_branches_encode(struct run *run);
/* Forks, prefills and decodes all branches. */
bool run_branches(struct run *run);

/* Tokens of the next prefill step, with `left` to go: a shorter rest than `least` would take
 * another path of the kernels, with other bits. */
int64_t run_step_rows(const struct run_options *options, int64_t least, int64_t left);

/* A step that was planned. */
struct run_planned {
    enum { RUN_PLANNED_DOCUMENT, RUN_PLANNED_BRANCH, RUN_PLANNED_DECODE } kind;
    int64_t rows;
    double pairs; /* of a row and a key that it sees, in one layer's query head */
    uint64_t read_bytes, write_bytes;
};
typedef void run_planned_fn(void *user, const struct run_planned *step);

/* Plans all steps of the run. False: it would fail, with error[GGUF_ERROR_BYTES]. */
bool run_forecast(const struct run *run, const struct model_dims *dims, struct run_forecast *f,
                  char *error);
/* The same; `each` sees every step. */
bool run_forecast_steps(const struct run *run, const struct model_dims *dims, run_planned_fn *each,
                        void *user, char *error);
/* The least --kv-ram that would do, where `most` does. */
uint64_t run_least_ram(const struct run *run, const struct model_dims *dims, uint64_t most);

/* Does all again with K and V in memory, and compares. */
bool run_compare(struct run *run);
/* Tokens of the document. */
bool run_read_document(struct run *run);
/* Everything before the document runs; and the end. */
bool run_prepare(struct run *run);
void run_close(struct run *run);

bool run_report_json(struct run *run); /* closes run->json */
void run_report_text(const struct run *run, FILE *out);
/* The text that a branch generated; the caller frees. NULL: out of memory. */
char *run_branch_text(const struct run *run, const struct run_branch *branch, size_t *n);

/* The progress line, once a second. done == total ends it. */
void run_progress(struct run *run, const char *what, int64_t start_ns, int64_t done, int64_t total);

bool run_fail(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t run_now_ns(void);

/* Closes an output and sets *file to NULL. False, with a sentence that ends in `advice`, unless all
 * of it was written. */
bool run_close_output(struct run *run, FILE **file, const char *path, const char *advice);
int32_t run_argmax(const struct run *run, const float *logits);

int hr_tool_run(int argc, char **argv);
int hr_tool_explain(int argc, char **argv);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What goes on behind the document: each branch has a fork of its K/V, so the document is prefilled
 * once. Branches decode together, a token each per step. */
#include "tools/run.h"

#include <stdlib.h>
#include <string.h>

/* Texts around a question; the parts with control tokens are parsed apart from it, so that a
 * question cannot bring in its own. */
static const char chat_before[] = "<|im_start|>user\n";
static const char chat_after[] = "<|im_end|>\n<|im_start|>assistant\n";
static const char plain_before[] = "\n\nQuestion: ";
static const char plain_after[] = "\nAnswer:";

static bool uses_chatml(const struct run *run)
{
    struct gguf_str t = {NULL, 0};
    char unused[GGUF_ERROR_BYTES];
    return gguf_get_str(run->file, "tokenizer.chat_template", &t, unused) == GGUF_OK &&
           memmem(t.bytes, t.n_bytes, "<|im_start|>", 12) &&
           tokenizer_find(run->tokenizer, "<|im_start|>") >= 0 &&
           tokenizer_find(run->tokenizer, "<|im_end|>") >= 0;
}

static bool encode(struct run *run, const char *name, const char *text, unsigned flags,
                   struct tokens *out)
{
    return tokenizer_encode(run->tokenizer, name, text, strlen(text), flags, out, run->error);
}

static bool encode_branch(struct run *run, struct run_branch *branch, bool chat)
{
    struct tokens *in = &branch->input;
    const unsigned special = chat ? TOKENIZER_PARSE_SPECIAL : 0;
    if (run->document.n == 0 && tokenizer_adds_bos(run->tokenizer) &&
        !tokens_push(in, tokenizer_bos(run->tokenizer)))
        return run_fail(run, "out of memory");
    if (branch->kind == RUN_PROMPT)
        return (*branch->text || run->document.n || in->n)
                   ? encode(run, "the prompt", branch->text, 0, in)
                   : run_fail(run, "the prompt is empty: there is nothing to go on from");
    if (branch->kind == RUN_CONTINUE)
        return true;
    return encode(run, "the chat format", chat ? chat_before : plain_before, special, in) &&
           encode(run, "the question", branch->text, 0, in) &&
           encode(run, "the chat format", chat ? chat_after : plain_after, special, in);
}

bool run_branches_encode(struct run *run)
{
    const bool chat = uses_chatml(run);
    for (int i = 0; i < run->options.n_branches; i++)
        if (!encode_branch(run, &run->options.branches[i], chat))
            return false;
    return true;
}

static bool start_branch(struct run *run, struct run_branch *branch)
{
    int64_t rows = 0;
    branch->seq = model_run_fork(run->forward, run->seq, run->error);
    branch->next = run->document_next;
    if (!branch->seq || branch->input.n == 0)
        return branch->seq != NULL;
    if (!run_prefill(run, branch->seq, branch->input.ids, (int64_t)branch->input.n, NULL, &rows))
        return false;
    model_run_logits(run->forward, rows - 1, 1, run->logits);
    branch->next = run_argmax(run, run->logits);
    run->branch_tokens += (int64_t)branch->input.n;
    return true;
}

/* Notes the chosen token; true if the branch wants another one. */
static bool take_next(struct run *run, struct run_branch *branch)
{
    if (run->options.generate == 0)
        return false;
    branch->ended = tokenizer_is_end(run->tokenizer, branch->next);
    if (branch->ended)
        return false;
    if (!tokens_push(&branch->output, branch->next))
        return run_fail(run, "out of memory");
    return (int64_t)branch->output.n < run->options.generate;
}

/* One step of all branches that want a token; *n falls as they end. */
static bool decode_step(struct run *run, struct run_branch **active, int32_t *n)
{
    hr_seq *seqs[RUN_BATCH];
    int64_t news[RUN_BATCH];
    int32_t tokens[RUN_BATCH], left = 0;
    for (int32_t i = 0; i < *n; i++) {
        seqs[i] = active[i]->seq;
        news[i] = 1;
        tokens[i] = active[i]->next;
    }
    if (!model_run_step(run->forward, seqs, news, *n, tokens, run->error))
        return false;
    model_run_logits(run->forward, 0, *n, run->logits);
    run->decode_tokens += *n;
    for (int32_t i = 0; i < *n; i++) {
        const float *row = run->logits + i * gemm_stride(run->model->dims.vocab);
        active[i]->next = run_argmax(run, row);
        if (take_next(run, active[i]))
            active[left++] = active[i];
    }
    *n = left;
    return !run->failed;
}

static bool run_group(struct run *run, struct run_branch *branches, int32_t n)
{
    struct run_branch *active[RUN_BATCH];
    int32_t left = 0;
    int64_t start = run_now_ns(), most = n * run->options.generate, steps = 0;
    for (int32_t i = 0; i < n; i++)
        if (!start_branch(run, &branches[i]))
            return false;
    for (int32_t i = 0; i < n; i++)
        if (take_next(run, &branches[i]))
            active[left++] = &branches[i];
    int64_t middle = run_now_ns();
    run->branch_prefill_ns += middle - start;
    while (left > 0 && !run->failed) {
        if (!decode_step(run, active, &left))
            return false;
        steps += n;
        run_progress(run, "decode", middle, steps, most);
    }
    run_progress(run, "decode", middle, most, most);
    run->decode_ns += run_now_ns() - middle;
    return !run->failed;
}

bool run_branches(struct run *run)
{
    struct run_options *o = &run->options;
    for (int i = 0; i < o->n_branches; i += RUN_BATCH) {
        int n = o->n_branches - i < RUN_BATCH ? o->n_branches - i : RUN_BATCH;
        if (!run_group(run, o->branches + i, n))
            return false;
        for (int j = 0; j < n; j++)
            hr_seq_destroy(&o->branches[i + j].seq);
    }
    return true;
}

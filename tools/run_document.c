/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill in chunks, and the score of every token of the document: logits are made for some rows at
 * a time, hashed, compared with the token that follows and forgotten. */
#include "tools/run.h"
#include "tools/gemm_weight.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct scoring {
    XXH3_state_t *hash;
    int write_error; /* errno of a write to the dump that failed */
    double nll[RUN_LOGIT_ROWS];
    /* of the rows in run->logits: */
    const struct run *run;
    int64_t first; /* token of the document */
    int64_t rows;
};

int64_t run_step_rows(const struct run_options *options, int64_t least, int64_t left)
{
    int64_t chunk = options->chunk > least ? options->chunk : least;
    return left < chunk + least ? left : chunk;
}

bool run_prefill(struct run *run, hr_seq *seq, const int32_t *tokens, int64_t n, run_chunk_fn *each,
                 int64_t *last_rows)
{
    const int64_t least = model_run_rows_min(run->forward);
    for (int64_t first = 0; first < n;) {
        int64_t rows = run_step_rows(&run->options, least, n - first);
        if (!model_run_step(run->forward, &seq, &rows, 1, tokens + first, run->error))
            return false;
        if (each && !each(run, first, rows))
            return false;
        first += rows;
        *last_rows = rows;
    }
    return true;
}

int32_t run_argmax(const struct run *run, const float *logits)
{
    int32_t best = 0;
    for (int32_t i = 1; i < run->model->dims.vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static const float *logits_row(const struct run *run, int64_t row)
{
    return run->logits + row * gemm_stride(run->model->dims.vocab);
}

static void hash_rows(struct scoring *s)
{
    const size_t vocab = (size_t)s->run->model->dims.vocab;
    for (int64_t i = 0; i < s->rows; i++) {
        const float *row = logits_row(s->run, i);
        XXH3_64bits_update(s->hash, row, vocab * sizeof(float));
        FILE *dump = s->run->logits_dump;
        if (dump && s->write_error == 0 && fwrite(row, sizeof(float), vocab, dump) != vocab)
            s->write_error = errno; /* of this thread */
    }
}

/* Item 0 hashes all rows, in order; item i + 1 scores row i. */
static void score_item(const void *args, int64_t item, int thread)
{
    (void)thread;
    struct scoring *s = ((const struct run *)args)->scoring;
    if (item == 0) {
        hash_rows(s);
        return;
    }
    const float *row = logits_row(s->run, item - 1);
    int64_t next = s->first + item;
    double lse = gemm_ops(s->run->gemm)->log_sum_exp(row, s->run->model->dims.vocab);
    s->nll[item - 1] = next < (int64_t)s->run->document.n
                           ? lse - (double)row[s->run->document.ids[next]]
                           : lse - lse; /* the last row predicts nothing, but must be finite */
}

static bool score_rows(struct run *run, int64_t first, int64_t row, int64_t rows)
{
    struct scoring *s = run->scoring;
    s->first = first;
    s->rows = rows;
    model_run_logits(run->forward, row, rows, run->logits);
    gemm_pool_run(run->pool, score_item, run, rows + 1);
    if (s->write_error)
        return run_fail(run, "%.300s: write failed: %s", run->options.dump_logits,
                        strerror(s->write_error));
    for (int64_t i = 0; i < rows; i++) {
        if (!isfinite(s->nll[i]))
            return run_fail(run,
                            "the logits of token %" PRId64 " of the document are not finite: the "
                            "weights of %.300s are damaged, or not of its architecture",
                            first + i, run->options.model);
        run->nll += s->nll[i];
    }
    return true;
}

static bool score_chunk(struct run *run, int64_t first, int64_t rows)
{
    const int64_t n = (int64_t)run->document.n;
    int64_t some = 0;
    for (int64_t done = 0; done < rows; done += some) {
        some = rows - done < RUN_LOGIT_ROWS ? rows - done : RUN_LOGIT_ROWS;
        if (!score_rows(run, first + done, done, some))
            return false;
        run_progress(run, "prefill", run->prefill_start_ns, first + done + some, n);
    }
    if (first + rows == n)
        run->document_next = run_argmax(run, logits_row(run, some - 1));
    return true;
}

bool run_document(struct run *run)
{
    int64_t last;
    struct scoring scoring = {.run = run, .hash = XXH3_createState()};
    if (!scoring.hash)
        return run_fail(run, "out of memory");
    XXH3_64bits_reset(scoring.hash);
    run->scoring = &scoring;
    run->prefill_start_ns = run_now_ns();
    bool ok =
        run_prefill(run, run->seq, run->document.ids, (int64_t)run->document.n, score_chunk, &last);
    run->scoring = NULL;
    run->prefill_ns = run_now_ns() - run->prefill_start_ns;
    run->logits_hash = XXH3_64bits_digest(scoring.hash);
    XXH3_freeState(scoring.hash);
    return ok;
}

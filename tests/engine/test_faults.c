/* SPDX-License-Identifier: Apache-2.0 */
/* Small programs over K/V on disk, each run again for every file call it makes and every way in
 * which that may fail: once, and one of them until an error is seen. What can be tried again is,
 * with the same bits; else there is an error with its reason, the cache is as it was before begin,
 * and the step that is begun again gives the same bits. */
#include <errno.h>
#include <stdio.h>

#include "src/base/clock.h"
#include "src/step.h"
#include "tests/engine/files.h"
#include "tests/engine/setup.h"
#include "tests/failing_alloc.h"

#if defined(__SANITIZE_THREAD__)
enum { EVERY = 29 };
#elif defined(__SANITIZE_ADDRESS__)
enum { EVERY = 13 };
#else
enum { EVERY = 1 };
#endif

enum {
    LAYERS = 3,
    KV = 2,
    DIM = 32, /* blocks of 64 KiB: 32 are resident, 8 of them the ring's */
    WIDTH = KV * DIM,
    SEQS = 3,
    STEPS = 2,
    BATCH = 2,
    ROWS = 48,
    STEP_TOKENS = 2000, /* of a step */
    RESULT = LAYERS * ROWS * WIDTH,
    RESULTS = 24,
    STAGES = 1 + 2 * LAYERS,
    BLOCKS = 16,
};

/* A step from begin to its end. */
struct job {
    int step, n;
    int which[BATCH];
    int64_t n_new[BATCH], n_query[BATCH];
    bool append_first; /* of all layers, before the first one attends */
    int64_t at;        /* of its numbers */
    float out[RESULT];
    /* Of its sequences, when it was begun. */
    uint64_t kv_bytes;
    int64_t lengths[BATCH];
    uint32_t blocks[BATCH][LAYERS][BLOCKS];
};

static struct world {
    struct files files;
    struct failing held;
    struct setup s;
    hr_step *steps[STEPS];
    hr_seq *seqs[SEQS];
    struct job jobs[STEPS];
    int64_t at;
    float *results;
    int n_results, errors, expected; /* the errno that is planted */
} world;

static float *numbers, *right, *results;

/* ---- Steps ---- */

static bool is_open(const hr_step *step)
{
    return step && step->open;
}

static void note_facts(struct world *w, struct job *j)
{
    j->kv_bytes = w->s.c->kv_bytes_used;
    for (int i = 0; i < j->n; i++) {
        const hr_seq *seq = w->seqs[j->which[i]];
        j->lengths[i] = hr_seq_length(seq);
        for (int l = 0; l < LAYERS; l++)
            for (int64_t b = 0; b < hr_blocks_of(j->lengths[i]); b++)
                j->blocks[i][l][b] = hr_seq_blocks(seq, l)[b];
    }
}

/* The step is over as if it had never begun. */
static void expect_facts(const struct world *w, const struct job *j)
{
    for (int i = 0; i < j->n; i++) {
        const hr_seq *seq = w->seqs[j->which[i]];
        assert_int_equal(hr_seq_length(seq), j->lengths[i]);
        for (int l = 0; l < LAYERS; l++)
            for (int64_t b = 0; b < hr_blocks_of(j->lengths[i]); b++)
                assert_int_equal(hr_seq_blocks(seq, l)[b], j->blocks[i][l][b]);
    }
    if (is_open(w->steps[0]) || is_open(w->steps[1]))
        return;
    assert_int_equal(w->s.c->kv_bytes_used, j->kv_bytes);
    setup_settle(w->s.c);
    setup_audit(w->s.cache);
}

static void expect_reason(struct world *w, const char *text)
{
    const char *reason = strerror(w->expected ? w->expected : EIO);
    if (files_fell(&w->files) == 0 || !strstr(text, reason))
        fail_msg("\"%s\" does not say \"%s\"", text, reason);
}

static void recover(struct world *w, struct job *j, hr_status status)
{
    if (status != HR_E_IO)
        fail_msg("%s: %s", hr_status_text(status), hr_error_text(w->s.c));
    expect_reason(w, hr_error_text(w->s.c));
    assert_int_equal(w->errors++, 0);
    files_heal(&w->files);
    assert_int_equal(hr_step_abort(w->steps[j->step]), HR_OK);
    expect_facts(w, j);
}

static hr_status begin(struct world *w, struct job *j)
{
    hr_seq *seqs[BATCH];
    hr_batch batch = {sizeof(batch), j->n, seqs, j->n_new, j->n_query, NULL};
    note_facts(w, j);
    for (int i = 0; i < j->n; i++)
        seqs[i] = w->seqs[j->which[i]];
    return hr_step_begin(w->steps[j->step], &batch);
}

static hr_status append_layer(struct world *w, struct job *j, int layer)
{
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
    new.k = numbers + j->at + layer;
    new.v = numbers + j->at + 3 * layer + 1;
    return hr_step_append(w->steps[j->step], layer, &new);
}

static hr_status attend_layer(struct world *w, struct job *j, int layer)
{
    hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
    ask.q = numbers + j->at + 7 * layer;
    ask.out = j->out + layer * ROWS * WIDTH;
    return hr_step_attend(w->steps[j->step], layer, &ask);
}

static hr_status do_stage(struct world *w, struct job *j, int stage)
{
    int half = (stage - 1) / 2, odd = (stage - 1) % 2;
    if (stage == 0)
        return begin(w, j);
    if (j->append_first)
        half = (stage - 1) % LAYERS, odd = (stage - 1) / LAYERS;
    return odd ? attend_layer(w, j, half) : append_layer(w, j, half);
}

/* Does the job's next stage; when it fails, the job anew as far as that. */
static void reach(struct world *w, struct job *j, int stage)
{
    for (int k = stage; k <= stage; k++) {
        hr_status status = do_stage(w, j, k);
        if (status == HR_OK)
            continue;
        recover(w, j, status);
        k = -1;
    }
}

static struct job *new_job(struct world *w, int step, int which, int64_t n_new, int64_t n_query)
{
    struct job *j = &w->jobs[step];
    *j = (struct job){.step = step, .n = 1, .which = {which}, .at = w->at};
    j->n_new[0] = n_new;
    j->n_query[0] = n_query;
    w->at += 4321;
    return j;
}

static void add(struct job *j, int which, int64_t n_new, int64_t n_query)
{
    j->which[j->n] = which;
    j->n_new[j->n] = n_new;
    j->n_query[j->n++] = n_query;
}

/* kept NULL: all. */
static void finish(struct world *w, struct job *j, const int64_t *kept)
{
    hr_commit_args args = {sizeof(args), kept};
    assert_int_equal(hr_step_commit(w->steps[j->step], &args), HR_OK);
    assert_true(w->n_results < RESULTS);
    memcpy(w->results + (size_t)w->n_results++ * RESULT, j->out, sizeof(j->out));
}

static void run(struct world *w, struct job *j)
{
    for (int stage = 0; stage < STAGES; stage++)
        reach(w, j, stage);
}

static void run_and_keep(struct world *w, struct job *j)
{
    run(w, j);
    finish(w, j, NULL);
}

static void prefill(struct world *w, int which, int64_t tokens, int64_t chunk)
{
    for (int64_t n; tokens > 0; tokens -= n) {
        n = tokens < chunk ? tokens : chunk;
        run_and_keep(w, new_job(w, 0, which, n, 2));
    }
}

static void new_seq(struct world *w, int which)
{
    assert_int_equal(hr_seq_create(w->s.cache, &w->seqs[which]), HR_OK);
}

static void fork_of(struct world *w, int parent, int64_t length, int child)
{
    assert_int_equal(hr_seq_fork(w->seqs[parent], length, &w->seqs[child]), HR_OK);
}

static void advise(struct world *w, int which, hr_advice advice)
{
    assert_int_equal(hr_seq_advise(w->seqs[which], advice), HR_OK);
}

/* ---- Programs ---- */

static void prefill_beyond(struct world *w)
{
    for (int i = 0; i < 7; i++)
        run_and_keep(w, new_job(w, 0, 0, 220, i % 2 ? 33 : 1));
}

static void decode(struct world *w)
{
    new_seq(w, 1);
    prefill(w, 0, 1100, 400);
    prefill(w, 1, 500, 250);
    for (int i = 0; i < 3; i++) {
        struct job *j = new_job(w, 0, 0, 1, 1);
        add(j, 1, 1, 1);
        run_and_keep(w, j);
    }
}

static void fork_both(struct world *w)
{
    prefill(w, 0, 1200, 400);
    fork_of(w, 0, 1180, 1);
    struct job *j = new_job(w, 0, 0, 9, 4);
    add(j, 1, 40, 5);
    run_and_keep(w, j);
    fork_of(w, 1, 1210, 2);
    run_and_keep(w, new_job(w, 0, 2, 100, 3));
    run_and_keep(w, new_job(w, 0, 1, 1, 1));
}

static void truncate_append(struct world *w)
{
    prefill(w, 0, 1500, 300);
    assert_int_equal(hr_seq_truncate(w->seqs[0], 700), HR_OK);
    run_and_keep(w, new_job(w, 0, 0, 400, 5));
    assert_int_equal(hr_seq_truncate(w->seqs[0], 640), HR_OK);
    run_and_keep(w, new_job(w, 0, 0, 1, 1));
    assert_int_equal(hr_seq_truncate(w->seqs[0], 130), HR_OK);
    run_and_keep(w, new_job(w, 0, 0, 260, 34));
}

static void park_resume(struct world *w)
{
    new_seq(w, 1);
    prefill(w, 0, 700, 350);
    advise(w, 0, HR_ADVISE_PARK);
    prefill(w, 1, 900, 300);
    advise(w, 1, HR_ADVISE_PARK);
    assert_int_equal(hr_poll(w->s.c, hr_clock_ns() + 10000000000), HR_OK);
    run_and_keep(w, new_job(w, 0, 0, 30, 2));
    struct job *j = new_job(w, 0, 1, 1, 1);
    add(j, 0, 2, 2);
    run_and_keep(w, j);
}

static void two_steps(struct world *w)
{
    new_seq(w, 1);
    prefill(w, 0, 600, 300);
    prefill(w, 1, 650, 325);
    struct job *a = new_job(w, 0, 0, 40, 3), *b = new_job(w, 1, 1, 3, 3);
    reach(w, a, 0);
    reach(w, b, 0);
    for (int stage = 1; stage < STAGES; stage++) {
        reach(w, stage % 4 < 2 ? b : a, stage);
        reach(w, stage % 4 < 2 ? a : b, stage);
    }
    finish(w, b, NULL);
    run_and_keep(w, new_job(w, 1, 1, 20, 1));
    finish(w, a, NULL);
}

static void abort_midway(struct world *w)
{
    prefill(w, 0, 1290, 430);
    for (int stages = 1; stages < STAGES; stages += 2) {
        struct job *j = new_job(w, 0, 0, 150, 2);
        for (int stage = 0; stage < stages; stage++)
            reach(w, j, stage);
        assert_int_equal(hr_step_abort(w->steps[0]), HR_OK);
        expect_facts(w, j);
    }
    run_and_keep(w, new_job(w, 0, 0, 33, 33));
}

static void keep_fewer(struct world *w)
{
    new_seq(w, 1);
    prefill(w, 0, 1270, 450);
    prefill(w, 1, 200, 200);
    static const int64_t kept[][BATCH] = {{3, 0}, {0, 7}, {8, 100}};
    for (int i = 0; i < 3; i++) {
        struct job *j = new_job(w, 0, 0, 20, 3);
        add(j, 1, 140, 2);
        run(w, j);
        finish(w, j, kept[i]);
    }
}

static void append_first(struct world *w)
{
    for (int i = 0; i < 3; i++) {
        struct job *j = new_job(w, 0, 0, 450, 3);
        j->append_first = true;
        run_and_keep(w, j);
    }
}

static void warm_and_destroy(struct world *w)
{
    new_seq(w, 1);
    prefill(w, 0, 900, 300);
    prefill(w, 1, 500, 250);
    fork_of(w, 0, 512, 2);
    advise(w, 0, HR_ADVISE_PARK);
    advise(w, 1, HR_ADVISE_PARK);
    assert_int_equal(hr_seq_destroy(&w->seqs[1]), HR_OK); /* while it is written */
    advise(w, 0, HR_ADVISE_WARM);
    assert_int_equal(hr_seq_truncate(w->seqs[0], 850), HR_OK); /* while it is read */
    advise(w, 2, HR_ADVISE_PIN);
    run_and_keep(w, new_job(w, 0, 0, 50, 2));
    run_and_keep(w, new_job(w, 0, 2, 5, 2));
}

static const struct program {
    const char *name;
    void (*run)(struct world *w);
} programs[] = {
    {"prefill beyond the budget", prefill_beyond},
    {"decode over disk", decode},
    {"fork, append to both", fork_both},
    {"truncate, append", truncate_append},
    {"park and resume", park_resume},
    {"two open steps", two_steps},
    {"abort midway", abort_midway},
    {"keep fewer", keep_fewer},
    {"append all layers first", append_first},
    {"warm and destroy", warm_and_destroy},
};

enum { PROGRAMS = sizeof(programs) / sizeof(programs[0]) };

/* ---- Runs ---- */

/* All sequences to their ends. */
static void look_at_all(struct world *w)
{
    static const int64_t none[BATCH];
    for (int i = 0; i < SEQS; i++) {
        if (!w->seqs[i])
            continue;
        struct job *j = new_job(w, 0, i, 1, 2);
        run(w, j);
        finish(w, j, none);
    }
}

static void open_world(struct world *w, const struct setup_options *o)
{
    struct hr_error error = {0};
    hr_cache_options cache = setup_cache(o);
    hr_status status = hr_context_open(setup_context(o), o->hooks, &error, &w->s.c);
    if (status != HR_OK) {
        assert_int_equal(status, HR_E_SYSTEM);
        assert_null(w->s.c);
        expect_reason(w, error.text);
        assert_int_equal(w->held.held, 0);
        assert_int_equal(w->files.open, 0);
        files_heal(&w->files);
        w->errors++;
        assert_int_equal(hr_context_open(setup_context(o), o->hooks, &error, &w->s.c), HR_OK);
    }
    assert_int_equal(hr_cache_create(w->s.c, &cache, &w->s.cache), HR_OK);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(hr_step_create(w->s.cache, &o->limits, &w->steps[i]), HR_OK);
    new_seq(w, 0);
}

static void close_world(struct world *w)
{
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(hr_step_destroy(&w->steps[i]), HR_OK);
    for (int i = 0; i < SEQS; i++)
        assert_int_equal(hr_seq_destroy(&w->seqs[i]), HR_OK);
    setup_close(&w->s);
    assert_int_equal(w->held.held, 0);
    assert_int_equal(w->files.open, 0);
}

/* Which call fails, for how long, with what. */
struct fault {
    int64_t at, more;
    int error;
};

static void run_program(const struct program *program, const struct fault *fault, bool threads,
                        float *to)
{
    static hr_layer_options layers[LAYERS];
    static struct hr_io_sim_options sim = {.seed = 17};
    struct world *w = &world;
    *w = (struct world){.files = FILES_WELL, .held = {.fail_at = -1}, .results = to};
    struct hr_io_calls calls = files_calls(&w->files);
    struct hr_hooks hooks = {.calls = &calls, .sim = threads ? NULL : &sim};
    hr_allocator allocator = {failing_alloc, failing_free, &w->held};
    struct setup_options o = {.device_extents = 1,
                              .disk_extents = 4,
                              .layers = layers,
                              .n_layers = LAYERS,
                              .threads = 1,
                              .limits = {sizeof(o.limits), BATCH, STEP_TOKENS, ROWS},
                              .io = threads ? "threads" : NULL,
                              .hooks = &hooks,
                              .allocator = &allocator};
    for (int l = 0; l < LAYERS; l++)
        layers[l] =
            (hr_layer_options){.q_heads = KV, .kv_heads = KV, .dim_k = DIM, .dtype = HR_FP32};
    w->files.buffered = w->files.sparse = true; /* nothing reaches the disk before it is gone */
    if (fault) {
        w->files.fail_at = fault->at;
        w->files.more = fault->more;
        w->files.error = w->expected = fault->error;
    }
    memset(to, 0, (size_t)RESULTS * RESULT * sizeof(*to));
    open_world(w, &o);
    program->run(w);
    look_at_all(w);
    close_world(w);
}

static void try_faults(const struct program *program)
{
    static const int errors[] = {EIO, ENOSPC, EINTR, 0};
    int64_t runs = 0, seen = 0, again = 0;
    int64_t start_ns = hr_clock_ns();
    run_program(program, NULL, false, right);
    int64_t calls = world.files.calls;
    for (int64_t i = 0; i < calls * 5; i += EVERY) {
        int64_t call = i / 5, way = i % 5;
        struct fault f = {call, 0, errors[way % 4]};
        if (way == 4)
            f = (struct fault){call, INT64_MAX / 2, errors[call % 4]};
        run_program(program, &f, runs % 16 == 15, results);
        assert_int_equal(memcmp(right, results, (size_t)RESULTS * RESULT * sizeof(*right)), 0);
        runs++;
        seen += world.errors;
        again += world.errors == 0 && world.files.fell > 0;
    }
    assert_true(seen > 0 && again > 0);
    print_message("%-26s %4lld calls, %5lld runs, %4lld with an error, %4lld without; %.1f s\n",
                  program->name, (long long)calls, (long long)runs, (long long)seen,
                  (long long)again, (double)(hr_clock_ns() - start_ns) * 1e-9);
}

static void test_faults(void **state)
{
    for (int p = 0; p < PROGRAMS; p++)
        try_faults(&programs[p]);
}

int main(void)
{
    enum { NUMBERS = STEP_TOKENS * WIDTH + 64 * 4321 };
    numbers = malloc(NUMBERS * sizeof(float));
    for (int64_t i = 0; i < NUMBERS; i++)
        numbers[i] = (float)(i * 2654435761u >> 7 & 0xfff) / 2048.0f - 1.0f;
    right = malloc(sizeof(float) * RESULTS * RESULT);
    results = malloc(sizeof(float) * RESULTS * RESULT);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

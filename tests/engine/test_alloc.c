/* SPDX-License-Identifier: Apache-2.0 */
/* With disks below, every allocation of every call fails in turn: each time there is a typed error
 * with a sentence, nothing is lost or has changed, and the call that gets its memory goes on as if
 * nothing had been. */
#include "tests/engine/files.h"
#include "tests/engine/setup.h"
#include "tests/failing_alloc.h"

enum { LAYERS = 4, KV = 2, SEQS = 3, BLOCKS = 24, WIDTH = KV * 64, QUERIES = 40, STEPS = 32 };

/* Two pools: blocks of 128 and of 64 KiB. */
static const hr_layer_options layers[LAYERS] = {
    {.q_heads = KV, .kv_heads = KV, .dim_k = 64, .dtype = HR_FP32},
    {.q_heads = KV, .kv_heads = KV, .dim_k = 32, .dtype = HR_FP32},
    {.q_heads = KV, .kv_heads = KV, .dim_k = 64, .dtype = HR_FP32},
    {.q_heads = KV, .kv_heads = KV, .dim_k = 32, .dtype = HR_FP32, .window = 400},
};

static struct bed {
    struct failing failing;
    struct files files;
    struct hr_io_calls calls;
    struct hr_io_sim_options sim;
    struct hr_hooks hooks;
    hr_allocator allocator;
    struct setup_options options;
    struct setup s;
    hr_seq *seqs[SEQS];
    bool fail; /* or only run */
    int64_t at, queries, failed;
    float *to;
} bed;

static float *numbers, *results[2];

static void make_bed(struct bed *b, bool fail)
{
    *b = (struct bed){.files = FILES_WELL, .sim = {.seed = 3}, .fail = fail};
    b->failing.fail_at = -1;
    b->allocator = (hr_allocator){failing_alloc, failing_free, &b->failing};
    b->calls = files_calls(&b->files);
    b->hooks = (struct hr_hooks){.calls = &b->calls, .sim = &b->sim};
    b->options = (struct setup_options){
        .device_extents = 3,
        .disk_extents = 16,
        .layers = layers,
        .n_layers = LAYERS,
        .limits = {sizeof(b->options.limits), SEQS, BLOCKS * 128, 2 * QUERIES},
        .hooks = &b->hooks,
        .allocator = &b->allocator,
    };
}

/* ---- What must be as it was ---- */

struct facts {
    uint64_t kv_bytes, host_bytes;
    int64_t lengths[SEQS];
    uint32_t blocks[SEQS][LAYERS][BLOCKS];
};

static struct facts facts_of(const struct bed *b)
{
    struct facts f = {.kv_bytes = b->s.c->kv_bytes_used, .host_bytes = b->s.c->alloc.bytes_used};
    for (int i = 0; i < SEQS; i++) {
        f.lengths[i] = hr_seq_length(b->seqs[i]);
        for (int l = 0; l < LAYERS; l++)
            for (int64_t k = 0; k < hr_blocks_of(f.lengths[i]); k++)
                f.blocks[i][l][k] = hr_seq_blocks(b->seqs[i], l)[k];
    }
    return f;
}

/* `grows`: a list that has grown may stay, a workspace that could not be replaced may be gone. */
static void expect_same(struct bed *b, const struct facts *before, bool grows)
{
    struct facts now = facts_of(b);
    assert_true(grows || now.host_bytes == before->host_bytes);
    now.host_bytes = before->host_bytes;
    assert_memory_equal(&now, before, sizeof(now));
    if (b->s.cache) {
        setup_settle(b->s.c);
        setup_audit(b->s.cache);
    }
}

/* ---- Calls ---- */

typedef hr_status call_fn(struct bed *b, int64_t which, int64_t n);

static hr_status call_cache(struct bed *b, int64_t which, int64_t n)
{
    hr_cache_options o = setup_cache(&b->options);
    return hr_cache_create(b->s.c, &o, &b->s.cache);
}

static hr_status call_step(struct bed *b, int64_t which, int64_t n)
{
    return hr_step_create(b->s.cache, &b->options.limits, &b->s.step);
}

static hr_status call_seq(struct bed *b, int64_t which, int64_t n)
{
    return hr_seq_create(b->s.cache, &b->seqs[which]);
}

static hr_status call_fork(struct bed *b, int64_t which, int64_t length)
{
    return hr_seq_fork(b->seqs[0], length, &b->seqs[which]);
}

static hr_status call_truncate(struct bed *b, int64_t which, int64_t length)
{
    return hr_seq_truncate(b->seqs[which], length);
}

static hr_status call_advise(struct bed *b, int64_t which, int64_t advice)
{
    return hr_seq_advise(b->seqs[which], (hr_advice)advice);
}

/* Of all sequences that there are. */
static hr_status call_begin(struct bed *b, int64_t which, int64_t n)
{
    hr_seq *seqs[SEQS];
    int64_t n_new[SEQS], n_query[SEQS];
    hr_batch batch = {sizeof(batch), 0, seqs, n_new, n_query, NULL};
    for (int i = 0; i < SEQS; i++) {
        if (!b->seqs[i])
            continue;
        n_new[batch.n_seqs] = n;
        n_query[batch.n_seqs] = batch.n_seqs == 0 ? b->queries : 1;
        seqs[batch.n_seqs++] = b->seqs[i];
    }
    return hr_step_begin(b->s.step, &batch);
}

static hr_status call_append(struct bed *b, int64_t layer, int64_t n)
{
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
    new.k = numbers + b->at + layer;
    new.v = numbers + b->at + 3 * layer + 1;
    return hr_step_append(b->s.step, (int32_t)layer, &new);
}

static hr_status call_attend(struct bed *b, int64_t layer, int64_t n)
{
    hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
    ask.q = numbers + b->at + 7 * layer;
    ask.out = b->to + layer * 2 * QUERIES * WIDTH;
    return hr_step_attend(b->s.step, (int32_t)layer, &ask);
}

static hr_status call_commit(struct bed *b, int64_t which, int64_t n)
{
    return hr_step_commit(b->s.step, NULL);
}

static hr_status call_abort(struct bed *b, int64_t which, int64_t n)
{
    return hr_step_abort(b->s.step);
}

/* Fails at the call's first, second, ... allocation, until it has got them all. Returns how many
 * those are. */
static int64_t each(struct bed *b, call_fn *call, int64_t which, int64_t n, bool grows)
{
    for (int64_t at = 0;; at++) {
        struct facts before = facts_of(b);
        b->failing.calls = 0;
        b->failing.fail_at = b->fail ? at : -1;
        hr_status status = call(b, which, n);
        b->failing.fail_at = -1;
        if (status == HR_OK) {
            assert_true(b->failing.calls <= at || !b->fail);
            return b->failing.calls;
        }
        if (status != HR_E_NO_MEMORY || !strstr(hr_error_text(b->s.c), "no memory"))
            fail_msg("%s: %s", hr_status_text(status), hr_error_text(b->s.c));
        b->failed++;
        expect_same(b, &before, grows);
    }
}

static int64_t begin(struct bed *b, int64_t n, int64_t queries)
{
    b->queries = queries;
    return each(b, call_begin, 0, n, true);
}

/* From begin on nothing is allocated. */
static void quietly(struct bed *b, call_fn *call, int64_t which)
{
    assert_int_equal(each(b, call, which, 0, false), 0);
}

static void end(struct bed *b, call_fn *call)
{
    quietly(b, call, 0);
    b->to += LAYERS * 2 * QUERIES * WIDTH;
    b->at += 1000;
}

static void forward(struct bed *b, int64_t n, int64_t queries)
{
    begin(b, n, queries);
    for (int l = 0; l < LAYERS; l++) {
        quietly(b, call_append, l);
        quietly(b, call_attend, l);
    }
    end(b, call_commit);
}

/* Layers in another order than that of the list, and twice. */
static void out_of_order(struct bed *b)
{
    begin(b, 5, 2);
    for (int l = LAYERS; l-- > 0;)
        quietly(b, call_append, l);
    for (int l = 0; l < 2 * LAYERS; l++)
        quietly(b, call_attend, (l + 2) % LAYERS);
    end(b, call_abort);
}

/* ---- Lives ---- */

/* A whole life, all results to `to`. Returns how many allocations failed. */
static int64_t live(bool fail, float *to)
{
    struct bed *b = &bed;
    struct hr_error error = {0};
    make_bed(b, fail);
    b->to = to;
    if (hr_context_open(setup_context(&b->options), &b->hooks, &error, &b->s.c) != HR_OK)
        fail_msg("%s", error.text);
    each(b, call_cache, 0, 0, false);
    each(b, call_step, 0, 0, false);
    each(b, call_seq, 0, 0, false);
    forward(b, 300, 2); /* the first one makes room for plans and lists */
    for (int64_t n = 0; n < 5; n++)
        forward(b, 350, n == 3 ? QUERIES : 1);
    assert_true(b->s.cache->tiered[0].lower.slots.slots_used > 5);
    each(b, call_fork, 1, 1111, false);
    forward(b, 40, 2); /* lists of twice the length */
    out_of_order(b);
    assert_int_equal(each(b, call_truncate, 0, 1500, false), 0);
    forward(b, 30, 2);
    assert_int_equal(each(b, call_advise, 1, HR_ADVISE_PARK, false), 0);
    setup_settle(b->s.c);
    each(b, call_fork, 2, 1501, false);
    each(b, call_advise, 1, HR_ADVISE_WARM, true);
    begin(b, 60, QUERIES); /* of three, longer still */
    end(b, call_abort);
    forward(b, 60, QUERIES);
    forward(b, 0, 3);
    for (int i = 0; i < SEQS; i++)
        assert_int_equal(hr_seq_destroy(&b->seqs[i]), HR_OK);
    setup_close(&b->s);
    assert_int_equal(b->failing.held, 0);
    assert_int_equal(b->files.open, 0);
    return b->failed;
}

static void test_lives(void **state)
{
    assert_int_equal(live(false, results[0]), 0);
    int64_t failed = live(true, results[1]);
    print_message("%lld allocations failed in turn\n", (long long)failed);
    assert_true(failed > 60);
    assert_memory_equal(results[0], results[1],
                        sizeof(float) * STEPS * LAYERS * 2 * QUERIES * WIDTH);
}

/* Opening, with each engine. The ring can do without registered memory, and where it gets none at
 * all there are threads. */
static void test_open(void **state)
{
    static const char *const engines[] = {"simulated", "threads", "uring", NULL};
    for (int e = 0; e < 4; e++) {
        int64_t at = 0, failed = 0;
        for (bool fell = true; fell; at++) {
            struct hr_error error = {0};
            hr_context *c = NULL;
            make_bed(&bed, true);
            bed.options.folders = 2;
            bed.options.io = e == 0 ? NULL : engines[e];
            bed.hooks.sim = e == 0 ? &bed.sim : NULL;
            bed.failing.fail_at = at;
            hr_status status = hr_context_open(setup_context(&bed.options), &bed.hooks, &error, &c);
            fell = bed.failing.calls > at;
            failed += fell && status != HR_OK;
            if (e == 2 && !fell && status == HR_E_UNSUPPORTED)
                print_message("%s\n", error.text); /* there is no ring here */
            else if (status == HR_OK)
                assert_true(!fell || e >= 2);
            else if (status != HR_E_NO_MEMORY || !strstr(error.text, "no memory"))
                fail_msg("%s: %s", hr_status_text(status), error.text);
            assert_true((status == HR_OK) == (c != NULL));
            assert_int_equal(hr_close(&c), HR_OK);
            assert_int_equal(bed.failing.held, 0);
            assert_int_equal(bed.files.open, 0);
        }
        print_message("%s: %lld of %lld failures are one of the call\n",
                      engines[e] ? engines[e] : "the best", (long long)failed, (long long)at - 1);
        assert_true(failed > 15 || e == 2);
    }
}

int main(void)
{
    enum { NUMBERS = (BLOCKS * 128 + 100) * WIDTH };
    numbers = malloc(NUMBERS * sizeof(float));
    for (int64_t i = 0; i < NUMBERS; i++)
        numbers[i] = (float)(i * 2654435761u >> 7 & 0xfff) / 2048.0f - 1.0f;
    for (int i = 0; i < 2; i++)
        results[i] = calloc((size_t)STEPS * LAYERS * 2 * QUERIES * WIDTH, sizeof(float));
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lives), cmocka_unit_test(test_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Budgets, allocations and far offsets: what is refused changes nothing, what is reused allocates
 * nothing, what lies far away gives the same bits. */
#include "tests/engine/fixture.h"
#include "tests/failing_alloc.h"

/* begin either gets everything or changes nothing. */
static void test_budget(void **state)
{
    hr_context *c = open_small(2);
    hr_cache *cache = make_cache(c, 4);
    hr_step_limits limits = {
        .struct_size = sizeof(limits), .seqs = 1, .new_tokens = 1 << 20, .query_tokens = 1 << 20};
    hr_step *step;
    hr_seq *seq;
    hr_stats before = {.struct_size = sizeof(before)}, after = before;
    assert_int_equal(hr_step_create(cache, &limits, &step), HR_OK);
    assert_int_equal(hr_seq_create(cache, &seq), HR_OK);
    /* 4 layers x 32 KiB blocks in 4 MiB: 32 blocks a layer */
    expect_error(c, begin_one(step, seq, 33 * 128), HR_E_BUDGET, "4194304 bytes");
    assert_int_equal(hr_context_stats(c, &after), HR_OK);
    assert_int_equal(after.kv_bytes_used, 0);
    assert_int_equal(c->extents.used_count, 0);
    assert_int_equal(begin_one(step, seq, 32 * 128), HR_OK);
    assert_int_equal(hr_context_stats(c, &after), HR_OK);
    assert_int_equal(after.kv_bytes_used, 4 << 20);
    assert_int_equal(hr_step_abort(step), HR_OK);
    assert_int_equal(hr_seq_destroy(&seq), HR_OK);
    assert_int_equal(hr_step_destroy(&step), HR_OK);
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_int_equal(hr_close(&c), HR_OK);
}

/* Batches far beyond the budget, or whose sum of queries no plan can count, are refused at once. */
static void test_enormous(void **state)
{
    hr_context *c = open_small(2);
    hr_cache *cache = make_cache(c, 1);
    hr_step_limits limits = {.struct_size = sizeof(limits),
                             .seqs = 2,
                             .new_tokens = INT64_MAX,
                             .query_tokens = INT64_MAX};
    const int64_t none[2] = {0, 0}, most[2] = {1ll << 40, 1ll << 40};
    hr_seq *seqs[2];
    hr_batch batch = {.struct_size = sizeof(batch), .n_seqs = 2, .seqs = seqs, .n_new = none};
    hr_step *step;
    hr_stats stats = {.struct_size = sizeof(stats)};
    assert_int_equal(hr_step_create(cache, &limits, &step), HR_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(hr_seq_create(cache, &seqs[i]), HR_OK);
    batch.n_query = most;
    expect_error(c, hr_step_begin(step, &batch), HR_E_INVALID, "1099511627776 queries before");
    expect_error(c, begin_one(step, seqs[0], 100000000), HR_E_BUDGET, "100000000 tokens");
    assert_int_equal(hr_context_stats(c, &stats), HR_OK);
    assert_true(stats.host_bytes_used < 16 << 20); /* no plan was made */
    for (int i = 0; i < 2; i++)
        assert_int_equal(hr_seq_destroy(&seqs[i]), HR_OK);
    assert_int_equal(hr_step_destroy(&step), HR_OK);
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_int_equal(hr_close(&c), HR_OK);
}

/* A reused step allocates nothing from begin to commit, once it has seen a batch as large. */
static void test_no_allocation(void **state)
{
    hr_context *c = open_small(8);
    hr_cache *cache = make_cache(c, 2);
    hr_step *step = make_step(cache);
    hr_seq *seq;
    hr_stats first = {.struct_size = sizeof(first)}, last = first;
    assert_int_equal(hr_seq_create(cache, &seq), HR_OK);
    for (int i = 0; i < 100; i++) {
        if (i == 50) {
            assert_int_equal(hr_seq_truncate(seq, 0), HR_OK);
            assert_int_equal(hr_context_stats(c, &first), HR_OK);
        }
        assert_int_equal(begin_one(step, seq, i % 2 ? 1 : 30), HR_OK);
        for (int l = 0; l < 2; l++) {
            assert_int_equal(append(step, l), HR_OK);
            assert_int_equal(attend(step, l), HR_OK);
        }
        assert_int_equal(i % 5 ? hr_step_commit(step, NULL) : hr_step_abort(step), HR_OK);
    }
    assert_int_equal(hr_context_stats(c, &last), HR_OK);
    assert_int_equal(last.host_allocs, first.host_allocs);
    assert_int_equal(last.steps_committed, 80);
    assert_int_equal(last.steps_aborted, 20);
    assert_int_equal(last.tokens_appended, 2 * hr_seq_length(seq));
    assert_int_equal(hr_seq_destroy(&seq), HR_OK);
    assert_int_equal(hr_step_destroy(&step), HR_OK);
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_int_equal(hr_close(&c), HR_OK);
}

/* One whole life; returns the first status that is not HR_OK. */
static hr_status live(hr_context *c)
{
    hr_layer_options l = layer_options();
    hr_cache_options o = {
        .struct_size = sizeof(o), .layer_size = sizeof(l), .layers = &l, .n_layers = 1};
    hr_step_limits limits = {
        .struct_size = sizeof(limits), .seqs = 1, .new_tokens = TOKENS, .query_tokens = TOKENS};
    hr_cache *cache = NULL;
    hr_seq *seq = NULL, *child = NULL;
    hr_step *step = NULL;
    int64_t cu[2] = {0, 5};
    hr_attention_args a = {
        .struct_size = sizeof(a),
        .layer = l,
        .n_seqs = 1,
        .cu_seqlens_q = cu,
        .cu_seqlens_k = cu,
        .append = {.struct_size = sizeof(a.append), .dtype = HR_FP32, .k = data[0], .v = data[1]},
        .attend = attend_args()};
    hr_status status = hr_cache_create(c, &o, &cache);
    status = status ? status : hr_seq_create(cache, &seq);
    status = status ? status : hr_step_create(cache, &limits, &step);
    status = status ? status : begin_one(step, seq, TOKENS);
    status = status ? status : append(step, 0);
    status = status ? status : attend(step, 0);
    status = status ? status : hr_step_commit(step, NULL);
    status = status ? status : hr_seq_fork(seq, 100, &child);
    status = status ? status : begin_one(step, child, 7);
    status = status ? status : append(step, 0);
    status = status ? status : hr_step_commit(step, NULL);
    status = status ? status : hr_attention(c, &a);
    hr_step_destroy(&step);
    hr_seq_destroy(&child);
    hr_seq_destroy(&seq);
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_int_equal(c->extents.used_count, 0);
    return status;
}

/* Every allocation of a whole life fails once: a typed error, and nothing leaks. */
static void test_allocation_failures(void **state)
{
    int64_t failed = 0;
    for (int64_t at = 0;; at++) {
        struct failing f = {.fail_at = at};
        hr_allocator allocator = {failing_alloc, failing_free, &f};
        hr_options o = {.struct_size = sizeof(o),
                        .threads = 2,
                        .unbound = true,
                        .device_bytes = 8 << 20,
                        .allocator = &allocator};
        hr_context *c = NULL;
        hr_status status = hr_open(&o, &c);
        if (status == HR_OK)
            status = live(c);
        else
            assert_null(c);
        assert_int_equal(hr_close(&c), HR_OK);
        assert_int_equal(f.held, 0);
        if (f.calls <= at) {
            assert_int_equal(status, HR_OK);
            break;
        }
        assert_int_equal(status, HR_E_NO_MEMORY);
        failed++;
    }
    print_message("%lld allocations failed in turn\n", (long long)failed);
    assert_true(failed > 30);
}

/* Blocks past 4 GiB of the arena give the same bits as blocks at its start. */
static void test_far_offsets(void **state)
{
    hr_layer_options l = {.q_heads = 256, .kv_heads = 256, .dim_k = 256, .dtype = HR_FP32};
    hr_cache_options o = {
        .struct_size = sizeof(o), .layer_size = sizeof(l), .layers = &l, .n_layers = 1};
    hr_step_limits limits = {
        .struct_size = sizeof(limits), .seqs = 1, .new_tokens = 1 << 20, .query_tokens = 4};
    enum { ROWS = 3, WIDTH = 256 * 256 };
    hr_options options = {.struct_size = sizeof(options), .device_bytes = 1ull << 36};
    float *rows = malloc(sizeof(float) * ROWS * WIDTH), *outs[2];
    hr_context *c;
    hr_cache *cache;
    hr_step *hog, *step;
    hr_seq *seqs[3];
    int64_t many = 200 * 128, none = 0, few = ROWS;
    assert_int_equal(hr_open(&options, &c), HR_OK);
    assert_int_equal(hr_cache_create(c, &o, &cache), HR_OK);
    assert_int_equal(hr_step_create(cache, &limits, &hog), HR_OK);
    assert_int_equal(hr_step_create(cache, &limits, &step), HR_OK);
    for (int i = 0; i < ROWS * WIDTH; i++)
        rows[i] = (float)(i * 2654435761u >> 20) / 2048.0f - 1.0f;
    for (int i = 0; i < 2; i++) {
        outs[i] = malloc(sizeof(float) * ROWS * WIDTH);
        assert_int_equal(hr_seq_create(cache, &seqs[i]), HR_OK);
        hr_batch b = {.struct_size = sizeof(b), .n_seqs = 1, .seqs = &seqs[i], .n_new = &few};
        hr_append_args a = {.struct_size = sizeof(a), .dtype = HR_FP32, .k = rows, .v = rows};
        hr_attend_args t = attend_args();
        t.q = rows;
        t.out = outs[i];
        assert_int_equal(hr_step_begin(step, &b), HR_OK);
        assert_int_equal(hr_step_append(step, 0, &a), HR_OK);
        assert_int_equal(hr_step_attend(step, 0, &t), HR_OK);
        assert_int_equal(hr_step_commit(step, NULL), HR_OK);
        if (i == 1)
            break;
        /* 200 blocks of 64 MiB, reserved and never touched */
        assert_int_equal(hr_seq_create(cache, &seqs[2]), HR_OK);
        hr_batch h = {.struct_size = sizeof(h),
                      .n_seqs = 1,
                      .seqs = &seqs[2],
                      .n_new = &many,
                      .n_query = &none};
        assert_int_equal(hr_step_begin(hog, &h), HR_OK);
    }
    assert_true(c->kv_bytes_used > 3ull << 32);
    assert_memory_equal(outs[0], outs[1], sizeof(float) * ROWS * WIDTH);
    assert_int_equal(hr_step_destroy(&hog), HR_OK);
    assert_int_equal(hr_step_destroy(&step), HR_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(hr_seq_destroy(&seqs[i]), HR_OK);
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_int_equal(hr_close(&c), HR_OK);
    free(rows);
    free(outs[0]);
    free(outs[1]);
}

int main(void)
{
    fill_data();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget),        cmocka_unit_test(test_enormous),
        cmocka_unit_test(test_no_allocation), cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_far_offsets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The public API: every function, every status code, and that errors change nothing. */
#include <math.h>

#include "tests/engine/fixture.h"

static void test_status_texts(void **state)
{
#define CHECK(name, value, text, todo)                                                             \
    assert_string_equal(hr_status_text(name), text);                                               \
    assert_string_equal(hr_status_todo(name), todo);                                               \
    assert_int_equal(name, value);
    HR_STATUS_LIST(CHECK)
#undef CHECK
    assert_string_equal(hr_status_text((hr_status)77), "unknown status");
    assert_non_null(strstr(hr_status_todo((hr_status)77), "hr_version"));
    assert_string_equal(hr_version(), "0.1.0");
}

static void count_log(void *user, hr_log_level level, const char *text)
{
    int *counts = user;
    assert_true(strlen(text) > 0 && !strchr(text, '\n'));
    counts[level]++;
}

static void test_open(void **state)
{
    int counts[4] = {0};
    hr_options options = {.struct_size = sizeof(options),
                          .threads = 1,
                          .device_bytes = 5 << 20,
                          .caps = "portable",
                          .log = count_log,
                          .log_user = counts};
    hr_stats stats = {.struct_size = sizeof(stats)};
    hr_context *c = NULL;
    assert_int_equal(hr_open(NULL, &c), HR_OK);
    assert_int_equal(hr_close(&c), HR_OK);
    assert_null(c);
    assert_int_equal(hr_close(&c), HR_OK);
    assert_int_equal(hr_open(&options, &c), HR_OK);
    assert_string_equal(hr_context_kernel(c), "portable");
    assert_int_equal(hr_context_stats(c, &stats), HR_OK);
    assert_int_equal(stats.threads, 1);
    assert_int_equal(stats.kv_bytes_total, 4 << 20);
    assert_true(counts[HR_LOG_INFO] > 0 && counts[HR_LOG_ERROR] == 0);
    stats.struct_size = 3;
    expect_error(c, hr_context_stats(c, &stats), HR_E_INVALID, "struct_size is 3");
    assert_int_equal(counts[HR_LOG_ERROR], 1);
    assert_int_equal(hr_close(&c), HR_OK);
}

static void test_open_errors(void **state)
{
    hr_options o = {.struct_size = sizeof(o), .threads = -4};
    hr_context *c = (void *)&o;
    expect_error(NULL, hr_open(&o, &c), HR_E_INVALID, "threads is -4");
    assert_null(c);
    o = (hr_options){.struct_size = 1};
    expect_error(NULL, hr_open(&o, &c), HR_E_INVALID, "struct_size is 1");
    o = (hr_options){.struct_size = sizeof(o), .device_bytes = 100};
    expect_error(NULL, hr_open(&o, &c), HR_E_INVALID, "device_bytes is 100");
    o = (hr_options){.struct_size = sizeof(o), .device_bytes = UINT64_MAX};
    expect_error(NULL, hr_open(&o, &c), HR_E_INVALID, "device_bytes is");
    o = (hr_options){.struct_size = sizeof(o), .device_bytes = 1ull << 60};
    expect_error(NULL, hr_open(&o, &c), HR_E_SYSTEM, "mmap of 1152921504606846976 bytes");
    o = (hr_options){.struct_size = sizeof(o), .caps = "sse9"};
    expect_error(NULL, hr_open(&o, &c), HR_E_INVALID, "sse9");
    o = (hr_options){.struct_size = sizeof(o), .debug_wave_blocks = -1};
    expect_error(NULL, hr_open(&o, &c), HR_E_INVALID, "debug_wave_blocks is -1");
    hr_allocator half = {0};
    o = (hr_options){.struct_size = sizeof(o), .allocator = &half};
    expect_error(NULL, hr_open(&o, &c), HR_E_INVALID, "allocator");
    expect_error(NULL, hr_open(NULL, NULL), HR_E_INVALID, "context is NULL");
    if (hr_caps_detect() == HR_CAPS_COUNT - 1)
        print_message("this CPU has every level: asking for one it lacks is not tested\n");
    else {
        o = (hr_options){.struct_size = sizeof(o), .caps = hr_caps_name(HR_CAPS_COUNT - 1)};
        expect_error(NULL, hr_open(&o, &c), HR_E_UNSUPPORTED, o.caps);
    }
}

static hr_status try_layer(hr_context *c, hr_layer_options layer)
{
    hr_cache_options options = {.struct_size = sizeof(options),
                                .layer_size = sizeof(layer),
                                .layers = &layer,
                                .n_layers = 1};
    hr_cache *cache = (void *)&layer;
    hr_status status = hr_cache_create(c, &options, &cache);
    assert_true((status == HR_OK) == (cache != NULL));
    hr_cache_destroy(&cache);
    return status;
}

static void test_cache_errors(void **state)
{
    hr_context *c = open_small(2);
    hr_layer_options l = layer_options();
    assert_int_equal(try_layer(c, l), HR_OK);
#define TRY(field, number, status, part)                                                           \
    l = layer_options();                                                                           \
    l.field = number;                                                                              \
    expect_error(c, try_layer(c, l), status, part)
    TRY(kv_heads, 0, HR_E_INVALID, "layer 0: kv_heads is 0");
    TRY(q_heads, 7, HR_E_INVALID, "q_heads is 7");
    TRY(dim_k, 12, HR_E_INVALID, "dim_k is 12");
    TRY(dim_k, 264, HR_E_INVALID, "dim_k is 264");
    TRY(dtype, (hr_dtype)0, HR_E_INVALID, "dtype is 0");
    TRY(dtype, (hr_dtype)9, HR_E_INVALID, "dtype is 9");
    TRY(window, -1, HR_E_INVALID, "window is -1");
    TRY(dim_v, 8, HR_E_UNSUPPORTED, "dim_v is 8");
    TRY(kv_layers_back, 1, HR_E_UNSUPPORTED, "kv_layers_back is 1");
    TRY(aux_bytes, 4, HR_E_UNSUPPORTED, "aux_bytes is 4");
    TRY(v_is_prefix_of_k, true, HR_E_UNSUPPORTED, "v_is_prefix_of_k");
    l = (hr_layer_options){.q_heads = 1024, .kv_heads = 1024, .dim_k = 256, .dtype = HR_FP32};
    expect_error(c, try_layer(c, l), HR_E_BUDGET, "268435456 bytes");
    hr_cache_options o = {.struct_size = sizeof(o), .layer_size = 4, .layers = &l, .n_layers = 1};
    hr_cache *cache;
    expect_error(c, hr_cache_create(c, &o, &cache), HR_E_INVALID, "layer_size is 4");
    o.n_layers = 0;
    expect_error(c, hr_cache_create(c, &o, &cache), HR_E_INVALID, "n_layers is 0");
    expect_error(c, hr_cache_create(c, NULL, &cache), HR_E_INVALID, "options is NULL");
    assert_int_equal(hr_close(&c), HR_OK);
}

static void test_lifetimes(void **state)
{
    hr_context *c = open_small(4);
    hr_cache *cache = make_cache(c, 1);
    hr_seq *seq;
    assert_int_equal(hr_seq_create(cache, &seq), HR_OK);
    expect_error(c, hr_close(&c), HR_E_BUSY, "1 caches");
    expect_error(c, hr_cache_destroy(&cache), HR_E_BUSY, "1 sequences");
    assert_non_null(cache);
    assert_int_equal(hr_seq_destroy(&seq), HR_OK);
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_null(cache);
    assert_int_equal(hr_close(&c), HR_OK);
}

static void test_step_states(void **state)
{
    hr_context *c = open_small(4);
    hr_cache *cache = make_cache(c, 2);
    hr_step *step = make_step(cache), *other = make_step(cache);
    hr_seq *seq, *child;
    hr_layer_info info = {.struct_size = sizeof(info)};
    assert_int_equal(hr_seq_create(cache, &seq), HR_OK);
    expect_error(c, append(step, 0), HR_E_STATE, "not open");
    expect_error(c, hr_step_commit(step, NULL), HR_E_STATE, "not open");
    expect_error(c, hr_step_abort(step), HR_E_STATE, "not open");
    assert_int_equal(begin_one(step, seq, TOKENS), HR_OK);
    expect_error(c, begin_one(step, seq, 1), HR_E_STATE, "is open");
    expect_error(c, begin_one(other, seq, 1), HR_E_BUSY, "another open step");
    expect_error(c, hr_seq_fork(seq, 0, &child), HR_E_BUSY, "open step");
    expect_error(c, hr_seq_truncate(seq, 0), HR_E_BUSY, "open step");
    expect_error(c, hr_seq_destroy(&seq), HR_E_BUSY, "open step");
    expect_error(c, attend(step, 0), HR_E_STATE, "layer 0 must be appended");
    expect_error(c, append(step, 2), HR_E_INVALID, "layer is 2");
    assert_int_equal(append(step, 0), HR_OK);
    expect_error(c, append(step, 0), HR_E_STATE, "appended already");
    expect_error(c, hr_step_wait(step, 0, 0), HR_E_STATE, "layer 0 has not attended");
    assert_int_equal(attend(step, 0), HR_OK);
    assert_int_equal(hr_step_wait(step, 0, 0), HR_OK);
    expect_error(c, hr_step_commit(step, NULL), HR_E_STATE, "layer 1 was not appended");
    assert_int_equal(append(step, 1), HR_OK);
    int64_t kept = TOKENS + 1;
    hr_commit_args args = {.struct_size = sizeof(args), .kept = &kept};
    expect_error(c, hr_step_commit(step, &args), HR_E_INVALID, "kept[0] is 201");
    kept = 150;
    assert_int_equal(hr_step_commit(step, &args), HR_OK);
    assert_int_equal(hr_seq_length(seq), 150);
    expect_error(c, hr_seq_fork(seq, 151, &child), HR_E_INVALID, "length is 151");
    expect_error(c, hr_seq_truncate(seq, -1), HR_E_INVALID, "length is -1");
    assert_int_equal(hr_cache_layer_info(cache, 1, &info), HR_OK);
    assert_int_equal(info.block_bytes, HKV * 2 * 128 * D * 4);
    assert_true(info.tile_tokens_min > 0);
    expect_error(c, hr_cache_layer_info(cache, 2, &info), HR_E_INVALID, "layer is 2");
    assert_int_equal(hr_seq_destroy(&seq), HR_OK);
    assert_int_equal(hr_step_destroy(&step), HR_OK);
    assert_int_equal(hr_step_destroy(&other), HR_OK);
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_int_equal(hr_close(&c), HR_OK);
}

static void test_batch_errors(void **state)
{
    hr_context *c = open_small(4);
    hr_cache *cache = make_cache(c, 1), *cache2 = make_cache(c, 1);
    hr_step *step = make_step(cache);
    hr_seq *seqs[3] = {0}, *foreign;
    int64_t n_new[3] = {1, 1, 1}, n_query[3] = {1, 1, 1};
    hr_batch b = {
        .struct_size = sizeof(b), .n_seqs = 2, .seqs = seqs, .n_new = n_new, .n_query = n_query};
    assert_int_equal(hr_seq_create(cache, &seqs[0]), HR_OK);
    assert_int_equal(hr_seq_create(cache2, &foreign), HR_OK);
    expect_error(c, hr_step_begin(step, &b), HR_E_INVALID, "seqs[1] is NULL");
    seqs[1] = foreign;
    expect_error(c, hr_step_begin(step, &b), HR_E_INVALID, "another cache");
    seqs[1] = seqs[0];
    expect_error(c, hr_step_begin(step, &b), HR_E_INVALID, "twice");
    b.n_seqs = 3;
    expect_error(c, hr_step_begin(step, &b), HR_E_LIMIT, "n_seqs is 3");
    b.n_seqs = -1;
    expect_error(c, hr_step_begin(step, &b), HR_E_INVALID, "n_seqs is -1");
    b.n_seqs = 1;
    n_new[0] = -1;
    expect_error(c, hr_step_begin(step, &b), HR_E_INVALID, "n_new -1");
    n_new[0] = 2001;
    expect_error(c, hr_step_begin(step, &b), HR_E_LIMIT, "2001 new tokens");
    n_new[0] = 0;
    n_query[0] = 2001;
    expect_error(c, hr_step_begin(step, &b), HR_E_LIMIT, "2001 query tokens");
    n_query[0] = 0;
    b.seqs = NULL;
    expect_error(c, hr_step_begin(step, &b), HR_E_INVALID, "seqs NULL");
    /* None of these left the sequence held. */
    assert_int_equal(hr_seq_truncate(seqs[0], 0), HR_OK);
    assert_int_equal(hr_seq_destroy(&seqs[0]), HR_OK);
    assert_int_equal(hr_seq_destroy(&foreign), HR_OK);
    assert_int_equal(hr_step_destroy(&step), HR_OK);
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_int_equal(hr_cache_destroy(&cache2), HR_OK);
    assert_int_equal(hr_close(&c), HR_OK);
}

static void test_layer_argument_errors(void **state)
{
    hr_context *c = open_small(4);
    hr_cache *cache = make_cache(c, 1);
    hr_step *step = make_step(cache);
    hr_seq *seq;
    assert_int_equal(hr_seq_create(cache, &seq), HR_OK);
    assert_int_equal(begin_one(step, seq, 3), HR_OK);
    hr_append_args a = {.struct_size = sizeof(a), .dtype = HR_FP32, .k = data[0]};
    expect_error(c, hr_step_append(step, 0, &a), HR_E_INVALID, "v is NULL");
    a.v = data[1];
    a.v_stride_head = -2;
    expect_error(c, hr_step_append(step, 0, &a), HR_E_INVALID, "strides of v");
    a.dtype = (hr_dtype)5;
    expect_error(c, hr_step_append(step, 0, &a), HR_E_INVALID, "dtype of k is 5");
    a.dtype = (hr_dtype)0;
    expect_error(c, hr_step_append(step, 0, &a), HR_E_INVALID, "dtype of k is 0");
    assert_int_equal(append(step, 0), HR_OK);
    hr_attend_args t = attend_args();
    t.mask = (hr_mask)3;
    expect_error(c, hr_step_attend(step, 0, &t), HR_E_INVALID, "mask is 3");
    t = attend_args();
    t.scale = -1;
    expect_error(c, hr_step_attend(step, 0, &t), HR_E_INVALID, "scale is -1");
    t = attend_args();
    t.softcap = -2;
    expect_error(c, hr_step_attend(step, 0, &t), HR_E_INVALID, "softcap is -2");
    t = attend_args();
    t.softcap = 1e-42f;
    expect_error(c, hr_step_attend(step, 0, &t), HR_E_INVALID, "2^-60 to 2^60");
    t = attend_args();
    t.scale = 3e38f;
    expect_error(c, hr_step_attend(step, 0, &t), HR_E_INVALID, "scale is 3e+38");
    float sinks[HQ] = {0, INFINITY};
    t = attend_args();
    t.sink_logits = sinks;
    expect_error(c, hr_step_attend(step, 0, &t), HR_E_INVALID, "sink_logits[1] is inf");
    t = attend_args();
    t.q = NULL;
    expect_error(c, hr_step_attend(step, 0, &t), HR_E_INVALID, "q is NULL");
    t = attend_args();
    t.out = NULL;
    expect_error(c, hr_step_attend(step, 0, &t), HR_E_INVALID, "out is NULL");
    char text[16];
    int64_t length = hr_step_plan_text(step, 0, text, sizeof(text));
    assert_true(length > 16 && strlen(text) == 15);
    assert_int_equal(hr_step_plan_text(step, 0, NULL, 0), length);
    assert_int_equal(hr_step_abort(step), HR_OK);
    assert_int_equal(hr_step_plan_text(step, 0, text, sizeof(text)), HR_E_STATE);
    assert_int_equal(hr_seq_length(seq), 0);
    assert_int_equal(hr_seq_destroy(&seq), HR_OK);
    assert_int_equal(hr_step_destroy(&step), HR_OK);
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_int_equal(hr_close(&c), HR_OK);
}

static void test_attention_errors(void **state)
{
    hr_context *c = open_small(4);
    int64_t cu[3] = {0, 4, 9}, falls[3] = {0, 4, 3}, late[3] = {1, 2, 3};
    hr_attention_args a = {
        .struct_size = sizeof(a),
        .layer = layer_options(),
        .n_seqs = 2,
        .cu_seqlens_q = cu,
        .cu_seqlens_k = falls,
        .append = {.struct_size = sizeof(a.append), .dtype = HR_FP32, .k = data[0], .v = data[1]},
        .attend = attend_args()};
    expect_error(c, hr_attention(c, &a), HR_E_INVALID, "falls from 4 to 3");
    a.cu_seqlens_k = late;
    expect_error(c, hr_attention(c, &a), HR_E_INVALID, "start with 0");
    a.cu_seqlens_k = NULL;
    expect_error(c, hr_attention(c, &a), HR_E_INVALID, "cu_seqlens_k is NULL");
    a.cu_seqlens_k = cu;
    a.n_seqs = -1;
    expect_error(c, hr_attention(c, &a), HR_E_INVALID, "n_seqs is -1");
    a.n_seqs = 2;
    a.append.struct_size = 0;
    expect_error(c, hr_attention(c, &a), HR_E_INVALID, "args.append.struct_size");
    a.append.struct_size = sizeof(a.append);
    a.append.k = NULL;
    expect_error(c, hr_attention(c, &a), HR_E_INVALID, "k is NULL");
    a.append.k = data[0];
    assert_int_equal(hr_attention(c, &a), HR_OK);
    int64_t huge[2] = {0, INT64_MAX};
    a.n_seqs = 1;
    a.cu_seqlens_q = huge;
    expect_error(c, hr_attention(c, &a), HR_E_INVALID, "9223372036854775807 of it");
    a.cu_seqlens_q = cu;
    a.layer.window = a.layer.sinks = INT64_MAX;
    assert_int_equal(hr_attention(c, &a), HR_OK);
    a.n_seqs = 0;
    assert_int_equal(hr_attention(c, &a), HR_OK);
    assert_int_equal(c->extents.used_count, 0);
    assert_int_equal(hr_close(&c), HR_OK);
}

int main(void)
{
    fill_data();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_texts),     cmocka_unit_test(test_open),
        cmocka_unit_test(test_open_errors),      cmocka_unit_test(test_cache_errors),
        cmocka_unit_test(test_lifetimes),        cmocka_unit_test(test_step_states),
        cmocka_unit_test(test_batch_errors),     cmocka_unit_test(test_layer_argument_errors),
        cmocka_unit_test(test_attention_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

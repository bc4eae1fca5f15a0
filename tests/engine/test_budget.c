/* SPDX-License-Identifier: Apache-2.0 */
/* hr_context_set_device_bytes: a budget that shrinks and grows between steps changes no bit, gives
 * memory back, and is as before when it is refused. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "tests/engine/files.h"
#include "tests/engine/setup.h"
#include "tests/failing_alloc.h"

enum {
    KV = 4,
    DIM = 64,
    LAYERS = 3,
    WIDTH = KV * DIM,
    CHUNK = 200,
    CHUNKS = 12, /* 19 blocks of 256 KiB a layer: 57 in all, eight to an extent */
    LENGTH = CHUNK * CHUNKS,
    MOST = 8, /* extents, without a disk all that it takes */
};

static float *numbers, *results[2];

static struct files files = FILES_WELL;

static hr_layer_options layer_of(int32_t kv)
{
    return (hr_layer_options){.q_heads = kv, .kv_heads = kv, .dim_k = DIM, .dtype = HR_FP32};
}

static struct setup open_setup(const hr_layer_options *layers, const struct setup_options *with)
{
    struct setup s;
    hr_layer_options same[LAYERS] = {layer_of(KV), layer_of(KV), layer_of(KV)};
    struct setup_options o = *with;
    o.layers = layers ? layers : same;
    o.n_layers = LAYERS;
    o.limits = (hr_step_limits){sizeof(o.limits), 2, 2 * CHUNK, 2 * CHUNK};
    setup_open(&s, &o);
    return s;
}

/* Tokens [t, t + n) of the sequence; the outputs of the last layer to results[which]. */
static hr_status forward(struct setup *s, hr_seq *seq, int64_t t, int64_t n, int which)
{
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
    hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
    hr_status status = begin_one(s->step, seq, n);
    for (int l = 0; status == HR_OK && l < LAYERS; l++) {
        new.k = numbers + (t + l) * WIDTH, new.v = numbers + (t + 2 * l + 1) * WIDTH;
        ask.q = numbers + (t + 3 * l) * WIDTH, ask.out = results[which] + t * WIDTH;
        status = hr_step_append(s->step, l, &new);
        if (status == HR_OK)
            status = hr_step_attend(s->step, l, &ask);
    }
    return status;
}

static void grow(struct setup *s, hr_seq *seq, int64_t tokens, int which)
{
    if (forward(s, seq, hr_seq_length(seq), tokens, which) != HR_OK)
        fail_msg("%s", hr_error_text(s->c));
    assert_int_equal(hr_step_commit(s->step, NULL), HR_OK);
}

static void prefill(struct setup *s, int which)
{
    for (int64_t t = hr_seq_length(s->seq); t < LENGTH; t += CHUNK)
        grow(s, s->seq, CHUNK, which);
}

static void expect_same(void)
{
    assert_memory_equal(results[0], results[1], (size_t)LENGTH * WIDTH * sizeof(float));
}

static uint64_t budget(const struct setup *s)
{
    hr_stats stats = {.struct_size = sizeof(stats)};
    assert_int_equal(hr_context_stats(s->c, &stats), HR_OK);
    return stats.kv_bytes_total;
}

static void set(struct setup *s, uint64_t extents)
{
    if (hr_context_set_device_bytes(s->c, (extents << 21) + 5) != HR_OK)
        fail_msg("%s", hr_error_text(s->c));
    assert_int_equal(budget(s), extents << 21);
}

static void refuse(struct setup *s, uint64_t extents, hr_status want, const char *part)
{
    uint64_t before = budget(s);
    expect_error(s->c, hr_context_set_device_bytes(s->c, extents << 21), want, part);
    assert_int_equal(budget(s), before);
}

/* How much of the arena from an extent on is in memory. */
static size_t resident_from(const struct setup *s, uint64_t extent)
{
    size_t bytes = s->c->dev->arena_bytes - (extent << 21), pages = bytes / 4096, n = 0;
    unsigned char *resident = malloc(pages + 1);
    assert_int_equal(mincore(s->c->dev->arena + (extent << 21), bytes, resident), 0);
    for (size_t i = 0; i < pages; i++)
        n += resident[i] & 1;
    free(resident);
    return n * 4096;
}

/* The outputs when nothing ever changes. */
static void reference(void)
{
    struct setup s = open_setup(NULL, &(struct setup_options){.device_extents = 64});
    prefill(&s, 0);
    setup_close(&s);
}

/* ---- With a disk ---- */

static void vary(struct setup *s)
{
    static const uint64_t extents[CHUNKS] = {8, 8, 8, 2, 8, 3, 7, 2, 5, 4, 8, 2};
    for (int i = 0; i < CHUNKS; i++) {
        set(s, extents[i]);
        assert_int_equal(resident_from(s, extents[i]), 0);
        setup_settle(s->c);
        setup_audit(s->cache);
        grow(s, s->seq, CHUNK, 1);
    }
    expect_same();
}

static void test_changes(void **state)
{
    static const char *const engines[] = {NULL, "threads", "threads"};
    for (int i = 0; i < 3; i++) {
        struct setup s = open_setup(NULL, &(struct setup_options){.device_extents = MOST,
                                                                  .disk_extents = 16,
                                                                  .io = engines[i],
                                                                  .manual = i == 2});
        /* io_uring has the whole arena registered, which a smaller budget undoes. */
        vary(&s);
        setup_close(&s);
    }
}

/* The sentence about the least budget is right to the extent. */
static void expect_least(struct setup *s, uint64_t most)
{
    static const char words[] = "must be at least ";
    refuse(s, 1, HR_E_BUDGET, words);
    uint64_t least = strtoull(strstr(hr_error_text(s->c), words) + strlen(words), NULL, 10) >> 21;
    refuse(s, least - 1, HR_E_BUDGET, words);
    set(s, least);
    set(s, most);
}

/* Blocks of two sizes, one larger than an extent: parts of the pools take one size. */
static void test_two_sizes(void **state)
{
    hr_layer_options layers[LAYERS] = {layer_of(KV), layer_of(36), layer_of(KV)};
    struct setup s =
        open_setup(layers, &(struct setup_options){.device_extents = 40, .disk_extents = 128});
    static float rows[CHUNK * 36 * DIM];
    expect_least(&s, 40);
    hr_append_args new = {sizeof(new), .k = rows, .v = rows, .dtype = HR_FP32};
    for (int i = 0; i < 9; i++) {
        set(&s, i % 2 ? 40 : 28 + (uint64_t)i);
        assert_int_equal(begin_one(s.step, s.seq, 100), HR_OK);
        for (int l = 0; l < LAYERS; l++)
            if (hr_step_append(s.step, l, &new) != HR_OK)
                fail_msg("%s", hr_error_text(s.c));
        assert_int_equal(hr_step_commit(s.step, NULL), HR_OK);
        setup_settle(s.c);
        setup_audit(s.cache);
    }
    setup_close(&s);
}

static void test_refused(void **state)
{
    struct setup s =
        open_setup(NULL, &(struct setup_options){.device_extents = MOST, .disk_extents = 16});
    grow(&s, s.seq, CHUNK, 1);
    expect_error(s.c, hr_context_set_device_bytes(s.c, 1 << 20), HR_E_INVALID, "is 1048576;");
    refuse(&s, MOST + 1, HR_E_INVALID, "is 18874368; one extent");
    assert_int_equal(hr_context_set_device_bytes(NULL, 2 << 20), HR_E_INVALID);
    assert_int_equal(begin_one(s.step, s.seq, 0), HR_OK);
    refuse(&s, 3, HR_E_BUSY, "a step is open");
    assert_int_equal(hr_step_abort(s.step), HR_OK);
    for (int i = 0; i < 5; i++)
        grow(&s, s.seq, CHUNK, 1);
    assert_int_equal(hr_seq_advise(s.seq, HR_ADVISE_PIN), HR_OK);
    refuse(&s, 2, HR_E_BUDGET, "4194304 are there"); /* 30 pinned blocks */
    assert_int_equal(hr_seq_advise(s.seq, HR_ADVISE_NORMAL), HR_OK);
    set(&s, 2);
    assert_int_equal(hr_seq_advise(s.seq, HR_ADVISE_PIN), HR_OK);
    set(&s, 3); /* more is never too little */
    set(&s, MOST);
    assert_int_equal(hr_seq_advise(s.seq, HR_ADVISE_NORMAL), HR_OK);
    prefill(&s, 1);
    expect_same();
    set(&s, 2);
    setup_close(&s);

    hr_layer_options layers[LAYERS] = {layer_of(16), layer_of(16), layer_of(16)};
    s = open_setup(layers, &(struct setup_options){.device_extents = MOST, .disk_extents = 16});
    expect_least(&s, MOST);
    setup_close(&s);
}

/* What would have to go to disk cannot: all stays where it is. */
static void test_disk_fails(void **state)
{
    struct hr_io_calls calls = files_calls(&files);
    struct hr_hooks hooks = {.calls = &calls};
    struct setup s = open_setup(
        NULL, &(struct setup_options){
                  .device_extents = MOST, .disk_extents = 16, .io = "threads", .hooks = &hooks});
    files.counted = 1 << FILE_WRITE;
    for (int i = 0; i < 6; i++)
        grow(&s, s.seq, CHUNK, 1);
    files.error = EIO, files.fail_at = files.calls, files.more = 1000;
    refuse(&s, 2, HR_E_IO, "writes failed, the last with Input/output error");
    files_heal(&files);
    setup_audit(s.cache);
    prefill(&s, 1);
    expect_same();
    set(&s, 2);
    setup_close(&s);
}

/* A disk that takes a second for each write. */
static void test_slow_disk(void **state)
{
    struct hr_io_sim_options slow = {.latency_ns = 1000000000};
    struct hr_hooks hooks = {.sim = &slow};
    struct setup s = open_setup(
        NULL, &(struct setup_options){.device_extents = MOST, .disk_extents = 16, .hooks = &hooks});
    for (int i = 0; i < 5; i++)
        grow(&s, s.seq, CHUNK, 1);
    s.c->patience_ns = 50000000;
    refuse(&s, 2, HR_E_TIMEOUT, "within 50 ms");
    s.c->patience_ns = 5000000000;
    set(&s, 2);
    setup_settle(s.c);
    setup_audit(s.cache);
    setup_close(&s);
}

/* The sequence has half of each extent: another one, taken away, had the other half. */
static void scatter(struct setup *s)
{
    hr_seq *other;
    assert_int_equal(hr_seq_create(s->cache, &other), HR_OK);
    for (int i = 0; i < 5; i++) {
        grow(s, other, CHUNK, 1);
        grow(s, s->seq, CHUNK, 1);
    }
    assert_int_equal(hr_seq_destroy(&other), HR_OK);
}

/* Whether the allocation with this number of a change was needed and failed. */
static bool fails_without_memory(int number)
{
    struct failing f = {.fail_at = INT64_MAX};
    hr_allocator allocator = {failing_alloc, failing_free, &f};
    struct setup s = open_setup(NULL, &(struct setup_options){.device_extents = MOST,
                                                              .disk_extents = 16,
                                                              .io = "threads",
                                                              .allocator = &allocator});
    scatter(&s);
    f.fail_at = f.calls + number;
    bool failed = hr_context_set_device_bytes(s.c, 3 << 21) != HR_OK;
    if (failed)
        assert_non_null(strstr(hr_error_text(s.c), "no memory"));
    assert_int_equal(budget(&s), (failed ? MOST : 3) << 21);
    f.fail_at = INT64_MAX;
    setup_settle(s.c);
    setup_audit(s.cache);
    prefill(&s, 1);
    expect_same();
    setup_close(&s);
    assert_int_equal(f.held, 0);
    return failed;
}

static void test_no_memory(void **state)
{
    int n = 0;
    while (fails_without_memory(n))
        n++;
    assert_int_equal(n, 2);
}

/* ---- Without one ---- */

/* A second sequence is taken away: its slots are all over the extents. */
static void test_plain(void **state)
{
    struct setup s = open_setup(NULL, &(struct setup_options){.device_extents = 16});
    hr_seq *other;
    assert_int_equal(hr_seq_create(s.cache, &other), HR_OK);
    for (int i = 0; i < CHUNKS - 1; i++) {
        grow(&s, s.seq, CHUNK, 1);
        grow(&s, other, CHUNK, 1);
        memcpy(results[1] + i * CHUNK * WIDTH, results[0] + i * CHUNK * WIDTH,
               CHUNK * WIDTH * sizeof(float));
    }
    refuse(&s, 13, HR_E_BUDGET, "K/V in 14 extents");
    set(&s, 14);
    assert_int_equal(hr_seq_destroy(&other), HR_OK);
    refuse(&s, 6, HR_E_BUDGET, "K/V in 7 extents of 2097152 bytes; device_bytes has room for 6");
    set(&s, 7);
    assert_int_equal(s.c->extents.used_count, 7);
    assert_int_equal(resident_from(&s, 7), 0);
    expect_error(s.c, begin_one(s.step, s.seq, CHUNK), HR_E_BUDGET, "of 7 extents");
    set(&s, 8);
    prefill(&s, 1);
    expect_same();
    setup_close(&s);
}

/* Blocks of two extents in one cache and of one in another: what is free lies apart. */
static void test_apart(void **state)
{
    hr_context *c = open_small(12);
    hr_seq *seqs[2][3];
    hr_cache *caches[2];
    hr_step *steps[2];
    for (int i = 0; i < 2; i++) {
        hr_layer_options layer = layer_of(i ? 64 : 32);
        hr_cache_options options = {sizeof(options), sizeof(layer), &layer, 1};
        hr_step_limits limits = {sizeof(limits), 1, 1, 1};
        assert_int_equal(hr_cache_create(c, &options, &caches[i]), HR_OK);
        assert_int_equal(hr_step_create(caches[i], &limits, &steps[i]), HR_OK);
    }
    for (int n = 0; n < 6; n++) {
        hr_append_args new = {sizeof(new), .k = numbers, .v = numbers, .dtype = HR_FP32};
        hr_seq **seq = &seqs[n % 2][n / 2];
        assert_int_equal(hr_seq_create(caches[n % 2], seq), HR_OK);
        assert_int_equal(begin_one(steps[n % 2], *seq, 1), HR_OK);
        assert_int_equal(hr_step_append(steps[n % 2], 0, &new), HR_OK);
        assert_int_equal(hr_step_commit(steps[n % 2], NULL), HR_OK);
    }
    assert_int_equal(hr_seq_destroy(&seqs[0][0]), HR_OK);
    assert_int_equal(hr_seq_destroy(&seqs[0][1]), HR_OK);
    expect_error(c, hr_context_set_device_bytes(c, 8 << 21), HR_E_BUDGET, "side by side");
    assert_int_equal(hr_context_set_device_bytes(c, 9 << 21), HR_OK);
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < 3; n++)
            assert_int_equal(hr_seq_destroy(&seqs[i][n]), HR_OK);
        assert_int_equal(hr_step_destroy(&steps[i]), HR_OK);
        assert_int_equal(hr_cache_destroy(&caches[i]), HR_OK);
    }
    assert_int_equal(hr_close(&c), HR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes),   cmocka_unit_test(test_two_sizes),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_disk_fails),
        cmocka_unit_test(test_slow_disk), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_plain),     cmocka_unit_test(test_apart),
    };
    size_t n = (LENGTH + 16) * WIDTH;
    numbers = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        numbers[i] = (float)((uint32_t)i * 2654435761u >> 20) / 2048.0f - 1.0f;
    results[0] = malloc(n * sizeof(float));
    results[1] = calloc(n, sizeof(float));
    reference();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(numbers);
    free(results[0]);
    free(results[1]);
    return failed;
}

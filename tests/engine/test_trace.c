/* SPDX-License-Identifier: Apache-2.0 */
/* hr_options.trace: its events add up to the statistics, and change no bit. */
#include "src/base/clock.h"
#include "tests/engine/setup.h"
#include "tests/engine/trace_log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { BLOCKS = 18 };
#else
enum { BLOCKS = 40 };
#endif

enum {
    KV = 4,
    DIM = 64,
    LAYERS = 3,
    WIDTH = KV * DIM,
    CHUNK = 300,
    STEPS = BLOCKS * 128 / CHUNK,
    LENGTH = STEPS * CHUNK,
};

static float *numbers;

/* A log may be NULL; without a budget all is in memory. */
static struct setup open_traced(uint64_t extents, bool manual, struct trace_log *log)
{
    hr_layer_options layers[LAYERS];
    struct setup s;
    for (int i = 0; i < LAYERS; i++)
        layers[i] =
            (hr_layer_options){.q_heads = KV, .kv_heads = KV, .dim_k = DIM, .dtype = HR_FP32};
    setup_open(&s, &(struct setup_options){.device_extents = extents ? extents : 100,
                                           .disk_extents = extents ? 32 : 0,
                                           .layers = layers,
                                           .n_layers = LAYERS,
                                           .limits = {sizeof(hr_step_limits), 1, CHUNK, CHUNK},
                                           .manual = manual,
                                           .trace = log ? trace_note : NULL,
                                           .trace_user = log});
    return s;
}

static void prefill(struct setup *s, float *result)
{
    for (int64_t t = 0; t < LENGTH; t += CHUNK) {
        assert_int_equal(begin_one(s->step, s->seq, CHUNK), HR_OK);
        for (int l = 0; l < LAYERS; l++) {
            hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
            hr_attend_args ask = attend_args();
            new.k = numbers + (t + l) * WIDTH;
            new.v = numbers + (t + 2 * l + 1) * WIDTH;
            ask.q = numbers + (t + 3 * l) * WIDTH;
            ask.out = result + t * WIDTH;
            assert_int_equal(hr_step_append(s->step, l, &new), HR_OK);
            assert_int_equal(hr_step_attend(s->step, l, &ask), HR_OK);
        }
        assert_int_equal(hr_step_commit(s->step, NULL), HR_OK);
    }
    assert_int_equal(hr_poll(s->c, INT64_MAX), HR_OK); /* writes that are under way count too */
}

struct sums {
    int count[HR_TRACE_WAIT + 1];
    uint64_t bytes[HR_TRACE_WAIT + 1];
    int64_t ns[HR_TRACE_WAIT + 1];
};

/* What happens in calls happens one after the other. */
static struct sums sum_up(const struct trace_log *log, int64_t start_ns, int64_t end_ns)
{
    struct sums s = {0};
    int64_t last_ns = start_ns;
    for (int i = 0; i < log->n; i++) {
        const hr_trace_event *e = &log->events[i];
        bool moves = e->kind == HR_TRACE_READ || e->kind == HR_TRACE_WRITE;
        assert_true(e->kind >= HR_TRACE_APPEND && e->kind <= HR_TRACE_WAIT);
        assert_true(start_ns <= e->begin_ns && e->begin_ns <= e->end_ns && e->end_ns <= end_ns);
        assert_true(moves ? e->bytes > 0 : e->bytes == 0 && e->begin_ns >= last_ns);
        assert_true(e->kind == HR_TRACE_WAIT ? e->layer == -1 : e->layer >= 0 && e->layer < LAYERS);
        last_ns = moves ? last_ns : e->end_ns;
        s.count[e->kind]++;
        s.bytes[e->kind] += e->bytes;
        s.ns[e->kind] += e->end_ns - e->begin_ns;
    }
    return s;
}

/* Runs it with a trace; returns the outputs, which the caller frees. */
static float *run_traced(uint64_t extents, bool manual, struct trace_log *log, hr_stats *stats)
{
    float *result = calloc(LENGTH * WIDTH, sizeof(*result));
    struct setup s = open_traced(extents, manual, log);
    prefill(&s, result);
    *stats = (hr_stats){.struct_size = sizeof(*stats)};
    assert_int_equal(hr_context_stats(s.c, stats), HR_OK);
    setup_close(&s);
    return result;
}

static void check_capped(bool manual)
{
    const uint64_t extents = 5;
    hr_stats traced, plain;
    struct trace_log *log = calloc(1, sizeof(*log));
    int64_t start_ns = hr_clock_ns();
    float *result = run_traced(extents, manual, log, &traced);
    struct sums s = sum_up(log, start_ns, hr_clock_ns());
    assert_true(traced.disk_read_bytes > 0 && traced.disk_write_bytes > 0);
    assert_int_equal(s.bytes[HR_TRACE_READ], traced.disk_read_bytes);
    assert_int_equal(s.bytes[HR_TRACE_WRITE], traced.disk_write_bytes);
    assert_int_equal(s.ns[HR_TRACE_WAIT], traced.waited_ns);
    assert_int_equal(s.count[HR_TRACE_APPEND], LAYERS * STEPS);
    assert_true(s.count[HR_TRACE_ATTEND] > LAYERS * STEPS); /* there are waves */
    assert_in_range(s.ns[HR_TRACE_ATTEND], 1, traced.attend_ns);
    float *same = run_traced(extents, manual, NULL, &plain);
    assert_memory_equal(result, same, LENGTH * WIDTH * sizeof(float));
    assert_int_equal(plain.disk_read_bytes, traced.disk_read_bytes);
    assert_int_equal(plain.disk_write_bytes, traced.disk_write_bytes);
    free(result);
    free(same);
    free(log);
}

static void test_capped(void **state)
{
    check_capped(true);
    check_capped(false);
}

static void test_resident(void **state)
{
    hr_stats stats;
    struct trace_log *log = calloc(1, sizeof(*log));
    int64_t start_ns = hr_clock_ns();
    float *result = run_traced(0, false, log, &stats);
    struct sums s = sum_up(log, start_ns, hr_clock_ns());
    assert_int_equal(s.count[HR_TRACE_APPEND], LAYERS * STEPS);
    assert_int_equal(s.count[HR_TRACE_ATTEND], LAYERS * STEPS);
    assert_int_equal(log->n, 2 * LAYERS * STEPS);
    assert_in_range(s.ns[HR_TRACE_ATTEND], 1, stats.attend_ns);
    free(result);
    free(log);
}

int main(void)
{
    size_t n = (size_t)(LENGTH + 16) * WIDTH;
    numbers = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        numbers[i] = (float)(i * 2654435761u >> 7 & 0xfff) / 2048.0f - 1.0f;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capped),
        cmocka_unit_test(test_resident),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(numbers);
    return failed;
}

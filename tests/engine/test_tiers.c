/* SPDX-License-Identifier: Apache-2.0 */
/* K/V beyond the device's budget: what comes back from disk is what was written or an error that
 * names the block; what fails leaves the cache as it was. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/fetch.h"
#include "tests/engine/files.h"
#include "tests/engine/setup.h"

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
    LENGTH = BLOCKS * 128 + 40, /* 123 blocks of 256 KiB in all layers, where 40 fit */
    CHUNK = 300,
    BLOCK = KV * 2 * 128 * DIM * 4,
};

static float *numbers, *results[2];

static struct files files = FILES_WELL;

static struct setup open_cut(uint64_t extents, const struct hr_hooks *hooks, const char *io,
                             int64_t wave_blocks)
{
    struct setup s;
    hr_layer_options layers[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        layers[i] =
            (hr_layer_options){.q_heads = KV, .kv_heads = KV, .dim_k = DIM, .dtype = HR_FP32};
    struct setup_options o = {
        .device_extents = extents,
        .disk_extents = extents > 20 ? 0 : 64,
        .layers = layers,
        .n_layers = LAYERS,
        .limits = {sizeof(o.limits), 2, 4 * CHUNK, 4 * CHUNK},
        .io = io,
        .hooks = hooks,
        .wave_blocks = wave_blocks,
    };
    setup_open(&s, &o);
    return s;
}

static struct setup open_setup(uint64_t extents, const struct hr_hooks *hooks, const char *io)
{
    return open_cut(extents, hooks, io, 0);
}

/* One step of n tokens from position t on; the outputs of the last layer go to `to`. */
static hr_status forward(struct setup *s, hr_seq *seq, int64_t t, int64_t n, float *to)
{
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
    hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
    hr_status status = begin_one(s->step, seq, n);
    for (int l = 0; status == HR_OK && l < LAYERS; l++) {
        new.k = numbers + (t + l) * WIDTH, new.v = numbers + (t + 2 * l + 1) * WIDTH;
        ask.q = numbers + (t + 3 * l) * WIDTH, ask.out = to;
        status = hr_step_append(s->step, l, &new);
        if (status == HR_OK)
            status = hr_step_attend(s->step, l, &ask);
    }
    return status;
}

/* Reads the whole sequence in; outputs of all rows to `to`. */
static void prefill(struct setup *s, float *to)
{
    for (int64_t t = hr_seq_length(s->seq); t < LENGTH; t += CHUNK) {
        int64_t n = LENGTH - t < CHUNK ? LENGTH - t : CHUNK;
        if (forward(s, s->seq, t, n, to + t * WIDTH) != HR_OK)
            fail_msg("%s", hr_error_text(s->c));
        assert_int_equal(hr_step_commit(s->step, NULL), HR_OK);
    }
}

static void expect_same(int64_t rows)
{
    assert_memory_equal(results[0], results[1], (size_t)rows * WIDTH * sizeof(float));
}

/* The same bits with all resident, and with a third of it, on both engines. */
static void test_bits(void **state)
{
    static const char *const engines[] = {NULL, "threads"};
    struct setup all = open_setup(200, NULL, NULL);
    prefill(&all, results[0]);
    setup_close(&all);
    for (int i = 0; i < 2; i++) {
        hr_stats stats = {.struct_size = sizeof(stats)};
        struct setup s = open_setup(5, NULL, engines[i]);
        memset(results[1], 0, LENGTH * WIDTH * sizeof(float));
        prefill(&s, results[1]);
        expect_same(LENGTH);
        assert_int_equal(hr_context_stats(s.c, &stats), HR_OK);
        assert_true(stats.disk_read_bytes > BLOCKS / 3 << 20);
        assert_true(stats.disk_write_bytes > BLOCKS / 3 << 20);
        assert_true(stats.disk_bytes_used + (5ull << 21) > stats.kv_bytes_used);
        assert_true(strlen(hr_context_disk_text(s.c)) > 10);
        setup_close(&s);
    }
}

/* All layers are appended before the first one attends, in steps as large as the device allows. */
static void test_append_first(void **state)
{
    struct setup s = open_setup(5, NULL, "threads");
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
    hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
    memset(results[1], 0, LENGTH * WIDTH * sizeof(float));
    for (int64_t t = 0, n; t < LENGTH; t += n) {
        n = LENGTH - t < 4 * CHUNK ? LENGTH - t : 4 * CHUNK;
        assert_int_equal(begin_one(s.step, s.seq, n), HR_OK);
        for (int l = 0; l < LAYERS; l++) {
            new.k = numbers + (t + l) * WIDTH, new.v = numbers + (t + 2 * l + 1) * WIDTH;
            if (hr_step_append(s.step, l, &new) != HR_OK)
                fail_msg("%s", hr_error_text(s.c));
        }
        for (int l = 0; l < LAYERS; l++) {
            ask.q = numbers + (t + 3 * l) * WIDTH, ask.out = results[1] + t * WIDTH;
            if (hr_step_attend(s.step, l, &ask) != HR_OK)
                fail_msg("%s", hr_error_text(s.c));
        }
        assert_int_equal(hr_step_commit(s.step, NULL), HR_OK);
    }
    expect_same(LENGTH);
    setup_close(&s);
}

/* Nothing is on disk when the step begins; what it adds goes there, and its layers attend again. */
static void test_first_step(void **state)
{
    enum { N = 4 * 128 };
    struct setup s = open_setup(2, NULL, "threads");
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
    hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
    assert_int_equal(begin_one(s.step, s.seq, N), HR_OK);
    for (int l = 0; l < LAYERS; l++) {
        new.k = numbers + (2 * l) * WIDTH, new.v = numbers + (3 * l + 1) * WIDTH;
        assert_int_equal(hr_step_append(s.step, l, &new), HR_OK);
        ask.q = numbers + l * WIDTH, ask.out = results[0] + l * N * WIDTH;
        assert_int_equal(hr_step_attend(s.step, l, &ask), HR_OK);
    }
    for (int l = 0; l < LAYERS; l++) {
        ask.q = numbers + l * WIDTH, ask.out = results[1] + l * N * WIDTH;
        if (hr_step_attend(s.step, l, &ask) != HR_OK)
            fail_msg("%s", hr_error_text(s.c));
    }
    assert_true(s.cache->tiered[0].ring.n_waves > 2 * LAYERS); /* each was cut */
    expect_same(LAYERS * N);
    assert_int_equal(hr_step_abort(s.step), HR_OK);
    setup_close(&s);
}

/* A fork with a block more than its parent has, then two more, and so on: what they share is needed
 * again that many waves later, while it is still in the ring and when it is not any more. */
static void forks_apart(struct setup *s, float *to)
{
    enum { N = 128, APART = 14 };
    int64_t n_new[2] = {0, N}, n_query[2] = {1, N};
    hr_seq *seqs[2] = {s->seq, NULL};
    prefill(s, to);
    assert_int_equal(hr_seq_truncate(s->seq, LENGTH - LENGTH % N), HR_OK);
    assert_int_equal(hr_seq_fork(s->seq, LENGTH - LENGTH % N, &seqs[1]), HR_OK);
    for (int i = 0; i < APART; i++, to += (N + 1) * WIDTH) {
        hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
        hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
        hr_batch batch = {sizeof(batch), 2, seqs, n_new, n_query, NULL};
        assert_int_equal(hr_step_begin(s->step, &batch), HR_OK);
        for (int l = 0; l < LAYERS; l++) {
            new.k = numbers + (i + l) * WIDTH, new.v = numbers + (i + 2 * l + 1) * WIDTH;
            ask.q = numbers + (i + 3 * l) * WIDTH, ask.out = to;
            assert_int_equal(hr_step_append(s->step, l, &new), HR_OK);
            if (hr_step_attend(s->step, l, &ask) != HR_OK)
                fail_msg("%d blocks apart: %s", i + 1, hr_error_text(s->c));
        }
        assert_int_equal(hr_step_commit(s->step, NULL), HR_OK);
    }
    assert_int_equal(hr_seq_destroy(&seqs[1]), HR_OK);
}

static void test_forks_apart(void **state)
{
    static const char *const engines[] = {NULL, "threads"};
    struct setup all = open_setup(200, NULL, NULL);
    forks_apart(&all, results[0]);
    setup_close(&all);
    for (int i = 0; i < 2; i++) {
        struct setup s = open_cut(5, NULL, engines[i], 1);
        memset(results[1], 0, LENGTH * WIDTH * sizeof(float));
        forks_apart(&s, results[1]);
        expect_same(14 * 129);
        setup_close(&s);
    }
}

/* Flips a bit of the file. */
static void flip(const struct setup *s, uint64_t at, int bit)
{
    static _Alignas(4096) unsigned char page[4096];
    int fd = s->c->tier->store.files[0].fd;
    assert_int_equal(pread(fd, page, 4096, (off_t)(at / 4096 * 4096)), 4096);
    page[at % 4096] ^= (unsigned char)(1 << bit);
    assert_int_equal(pwrite(fd, page, 4096, (off_t)(at / 4096 * 4096)), 4096);
}

/* Decodes a token, and says what came of it. */
static hr_status decode(struct setup *s)
{
    hr_status status = forward(s, s->seq, LENGTH, 1, results[1]);
    assert_int_equal(hr_step_abort(s->step), HR_OK);
    return status;
}

/* One flipped bit anywhere in a block that lies below is found, with the block's name. */
static void test_flipped_bits(void **state)
{
    struct setup s = open_setup(5, NULL, "threads");
    const struct hr_tiered *t = hr_cache_tiered(s.cache, 0);
    prefill(&s, results[1]);
    setup_settle(s.c);
    assert_int_equal(decode(&s), HR_OK);
    srand(7);
    for (int i = 0; i < 20; i++) {
        int layer = rand() % LAYERS, index = rand() % 8;
        uint32_t block = hr_seq_blocks(s.seq, layer)[index];
        assert_true(hr_lower_away(&t->lower, block));
        uint64_t inside = (uint64_t)rand() % BLOCK;
        uint64_t at = hr_lower_place(&t->lower, t->lower.blocks->all[block].lower).offset + inside;
        int bit = rand() % 8;
        char name[96];
        snprintf(name, sizeof(name), "layer %d, block %d, head %d", layer, index,
                 (int)(inside / (BLOCK / KV)));
        flip(&s, at, bit);
        expect_error(s.c, decode(&s), HR_E_CORRUPT, name);
        flip(&s, at, bit);
        assert_int_equal(decode(&s), HR_OK);
    }
    setup_close(&s);
}

/* Nothing of what a slot held before goes to disk with a block that is not full. */
static void test_tails(void **state)
{
    enum { FILL = 40, HALF = 128 * DIM };
    struct setup s = open_setup(5, NULL, "threads");
    const struct hr_lower *l = &hr_cache_tiered(s.cache, 0)->lower;
    float *page = aligned_alloc(4096, BLOCK);
    memset(s.c->dev->arena, 0xff, s.c->dev->arena_bytes);
    assert_int_equal(forward(&s, s.seq, 0, FILL, results[1]), HR_OK);
    assert_int_equal(hr_step_commit(s.step, NULL), HR_OK);
    assert_int_equal(hr_seq_advise(s.seq, HR_ADVISE_PARK), HR_OK);
    setup_settle(s.c);
    for (int layer = 0; layer < LAYERS; layer++) {
        uint32_t block = hr_seq_blocks(s.seq, layer)[0];
        off_t at = (off_t)hr_lower_place(l, l->blocks->all[block].lower).offset;
        assert_int_equal(pread(s.c->tier->store.files[0].fd, page, BLOCK, at), BLOCK);
        for (int i = 0; i < 2 * KV * HALF; i++)
            if (i % HALF >= FILL * DIM && page[i] != 0)
                fail_msg("layer %d: number %d of the block is not zero", layer, i);
    }
    assert_int_equal(forward(&s, s.seq, FILL, CHUNK, results[1]), HR_OK);
    assert_int_equal(hr_step_commit(s.step, NULL), HR_OK);
    setup_close(&s);
    free(page);
}

/* Blocks that change places, and one that is older than its checksum. */
static void test_wrong_blocks(void **state)
{
    struct setup s = open_setup(5, NULL, "threads");
    const struct hr_lower *l = &hr_cache_tiered(s.cache, 0)->lower;
    void *a = aligned_alloc(4096, BLOCK), *b = aligned_alloc(4096, BLOCK);
    prefill(&s, results[1]);
    setup_settle(s.c);
    int fd = s.c->tier->store.files[0].fd;
    off_t at[2];
    for (int i = 0; i < 2; i++)
        at[i] = (off_t)hr_lower_place(l, l->blocks->all[hr_seq_blocks(s.seq, i)[3]].lower).offset;
    assert_int_equal(pread(fd, a, BLOCK, at[0]), BLOCK);
    assert_int_equal(pread(fd, b, BLOCK, at[1]), BLOCK);
    assert_int_equal(pwrite(fd, b, BLOCK, at[0]), BLOCK);
    assert_int_equal(pwrite(fd, a, BLOCK, at[1]), BLOCK);
    expect_error(s.c, decode(&s), HR_E_CORRUPT, "layer 0, block 3");
    assert_int_equal(pwrite(fd, a, BLOCK, at[0]), BLOCK);
    expect_error(s.c, decode(&s), HR_E_CORRUPT, "layer 1, block 3");
    assert_int_equal(pwrite(fd, b, BLOCK, at[1]), BLOCK);
    assert_int_equal(decode(&s), HR_OK);
    for (int i = 1; i < LAYERS * 8; i++) { /* each write has a number of its own */
        const struct hr_birth *one = &l->births[hr_seq_blocks(s.seq, i / 8)[i % 8]];
        for (int j = 0; j < i; j++)
            assert_true(one->generation !=
                        l->births[hr_seq_blocks(s.seq, j / 8)[j % 8]].generation);
    }
    l->births[hr_seq_blocks(s.seq, 2)[4]].generation--;
    expect_error(s.c, decode(&s), HR_E_CORRUPT, "layer 2, block 4, head 0");
    l->births[hr_seq_blocks(s.seq, 2)[4]].generation++;
    assert_int_equal(decode(&s), HR_OK);
    setup_close(&s);
    free(a);
    free(b);
}

/* None has failed, and none of `counted` will until it is said which. */
static const struct hr_io_calls *faulty_calls(enum file_call counted)
{
    static struct hr_io_calls calls;
    files = (struct files)FILES_WELL;
    files.counted = 1u << counted;
    calls = files_calls(&files);
    return &calls;
}

/* Reads that fail: those that may pass do, others end the step with their name. */
static void test_failing_reads(void **state)
{
    static const int errors[] = {EIO, EINTR, 0, ENXIO};
    struct hr_hooks hooks = {.calls = faulty_calls(FILE_READ)};
    struct setup s = open_setup(5, &hooks, "threads");
    prefill(&s, results[1]);
    setup_settle(s.c);
    for (int e = 0; e < 4; e++)
        for (int64_t k = 0; k < 20; k += 4) {
            files.calls = files.fell = 0;
            files.error = errors[e];
            files.fail_at = k;
            hr_status status = decode(&s);
            bool passes = errors[e] == EINTR || errors[e] == 0;
            assert_true(files.fell == 1);
            if (passes)
                assert_int_equal(status, HR_OK);
            else
                expect_error(s.c, status, HR_E_IO, strerror(errors[e]));
            files.fail_at = INT64_MAX;
            assert_int_equal(decode(&s), HR_OK);
        }
    setup_close(&s);
}

/* Writes that fail leave their blocks where they are; when nothing can leave, the step says why. */
static void test_failing_writes(void **state)
{
    static const int errors[] = {EIO, ENOSPC};
    for (int e = 0; e < 2; e++)
        for (int forever = 0; forever < 2; forever++) {
            struct hr_hooks hooks = {.calls = faulty_calls(FILE_WRITE)};
            struct setup s = open_setup(5, &hooks, "threads"); /* none fails here */
            files.calls = 0;
            files.error = errors[e];
            files.fail_at = 3;
            files.more = forever ? INT64_MAX / 2 : 0;
            if (!forever) {
                memset(results[1], 0, LENGTH * WIDTH * sizeof(float));
                prefill(&s, results[1]);
                expect_same(LENGTH);
                setup_close(&s);
                continue;
            }
            hr_status status = HR_OK;
            int64_t t = 0;
            for (; status == HR_OK; t += CHUNK) {
                status = forward(&s, s.seq, t, CHUNK, results[1]);
                if (status == HR_OK)
                    assert_int_equal(hr_step_commit(s.step, NULL), HR_OK);
            }
            expect_error(s.c, status, HR_E_IO, strerror(errors[e]));
            assert_int_equal(hr_step_abort(s.step), HR_OK);
            assert_int_equal(hr_seq_length(s.seq), t - CHUNK);
            files.fail_at = INT64_MAX; /* the disk is well again */
            memcpy(results[1], results[0], (size_t)hr_seq_length(s.seq) * WIDTH * sizeof(float));
            prefill(&s, results[1]);
            expect_same(LENGTH);
            setup_close(&s);
        }
}

static void *cancel_soon(void *step)
{
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    hr_step_cancel(step);
    return NULL;
}

/* A slow disk: cancelled from another thread, and out of patience. */
static void test_cancel(void **state)
{
    struct hr_io_sim_options slow = {.seed = 5};
    struct hr_hooks hooks = {.sim = &slow};
    struct setup s = open_setup(5, &hooks, NULL);
    pthread_t thread;
    prefill(&s, results[1]);
    expect_same(LENGTH);
    assert_int_equal(begin_one(s.step, s.seq, 1), HR_OK);
    assert_int_equal(hr_step_cancel(s.step), HR_OK);
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32, .k = numbers, .v = numbers};
    hr_attend_args ask = {.struct_size = sizeof(ask),
                          .q_dtype = HR_FP32,
                          .out_dtype = HR_FP32,
                          .q = numbers,
                          .out = results[1]};
    hr_status status = hr_step_append(s.step, 0, &new);
    if (status == HR_OK)
        status = hr_step_attend(s.step, 0, &ask);
    assert_int_equal(status, HR_E_CANCELLED);
    expect_error(s.c, hr_step_attend(s.step, 0, &ask), HR_E_STATE, "cancelled");
    expect_error(s.c, hr_step_commit(s.step, NULL), HR_E_STATE, "abort it");
    assert_int_equal(hr_step_abort(s.step), HR_OK);
    assert_int_equal(decode(&s), HR_OK);
    setup_close(&s);

    slow.latency_ns = 200000000;
    s = open_setup(5, &hooks, NULL);
    s.c->patience_ns = 100000000;
    for (status = HR_OK; status == HR_OK;) {
        status = forward(&s, s.seq, hr_seq_length(s.seq), CHUNK, results[1]);
        if (status == HR_OK)
            assert_int_equal(hr_step_commit(s.step, NULL), HR_OK);
    }
    expect_error(s.c, status, HR_E_TIMEOUT, "within 100 ms");
    assert_int_equal(hr_step_abort(s.step), HR_OK);
    s.c->patience_ns = 60000000000;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, s.step), 0);
    status = forward(&s, s.seq, hr_seq_length(s.seq), CHUNK, results[1]);
    pthread_join(thread, NULL);
    assert_int_equal(status, HR_E_CANCELLED);
    assert_int_equal(hr_step_abort(s.step), HR_OK);
    setup_close(&s);
}

/* What cannot fit is refused with the bytes it would need. */
static void test_minimum(void **state)
{
    hr_disk where = {.path = setup_folder(), .bytes = 128 << 20},
            nowhere = {.path = "/no/such/folder", .bytes = 64 << 20};
    hr_options options = {.struct_size = sizeof(options),
                          .threads = 1,
                          .device_bytes = 2 << 20,
                          .disks = &where,
                          .n_disks = 1};
    hr_layer_options layers[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        layers[i] = (hr_layer_options){
            .q_heads = 4 * KV, .kv_heads = 4 * KV, .dim_k = DIM, .dtype = HR_FP32};
    hr_cache_options geometry = {sizeof(geometry), sizeof(layers[0]), layers, LAYERS};
    hr_context *c;
    hr_cache *cache, *second;
    assert_int_equal(hr_open(&options, &c), HR_OK);
    expect_error(c, hr_cache_create(c, &geometry, &cache), HR_E_BUDGET, "must be at least");
    assert_int_equal(hr_close(&c), HR_OK);
    options.device_bytes = 16 << 20;
    assert_int_equal(hr_open(&options, &c), HR_OK);
    assert_int_equal(hr_cache_create(c, &geometry, &cache), HR_OK);
    expect_error(c, hr_cache_create(c, &geometry, &second), HR_E_BUDGET, "one cache at a time");
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_int_equal(hr_cache_create(c, &geometry, &cache), HR_OK);
    assert_int_equal(hr_cache_destroy(&cache), HR_OK);
    assert_int_equal(hr_close(&c), HR_OK);
    options.disks = &nowhere;
    expect_error(NULL, hr_open(&options, &c), HR_E_SYSTEM, "/no/such/folder");
    options.disks = &where;
    options.io = "tape";
    expect_error(NULL, hr_open(&options, &c), HR_E_INVALID, "tape");
    options.disks = NULL, options.n_disks = 0;
    expect_error(NULL, hr_open(&options, &c), HR_E_INVALID, "tape");
    options.disks = &where;
    options.io = NULL;
    options.n_disks = -1;
    expect_error(NULL, hr_open(&options, &c), HR_E_INVALID, "n_disks is -1");
}

/* Disks that cannot be are refused, by a dry run too, and waits that a clock cannot count. */
static void test_limits_of_disks(void **state)
{
    hr_disk disk = {.path = setup_folder()};
    hr_options options = {.struct_size = sizeof(options),
                          .threads = 1,
                          .device_bytes = 8 << 20,
                          .disks = &disk,
                          .n_disks = 1};
    hr_context *c;
    for (int i = 0; i < 2; i++) {
        options.dry_run = i;
        disk = (hr_disk){.path = setup_folder(), .bytes = (2 << 20) - 1};
        expect_error(NULL, hr_open(&options, &c), HR_E_INVALID, "2097151 bytes; 2097152 are");
        disk.bytes = (128ull << 40) + 1;
        expect_error(NULL, hr_open(&options, &c), HR_E_INVALID, "may have 140737488355328");
        disk = (hr_disk){.bytes = 2 << 20};
        expect_error(NULL, hr_open(&options, &c), HR_E_INVALID, "the path is NULL");
    }
    disk = (hr_disk){.path = "/no/such/folder", .bytes = 16 << 20};
    assert_int_equal(hr_open(&options, &c), HR_OK); /* dry */
    assert_string_equal(hr_context_disk_text(c), "a dry run of 16 MiB on disk");
    assert_int_equal(hr_close(&c), HR_OK);
    options.patience_ms = -1;
    expect_error(NULL, hr_open(&options, &c), HR_E_INVALID, "patience_ms is -1");
    options.patience_ms = INT64_MAX / 1000000;
    expect_error(NULL, hr_open(&options, &c), HR_E_INVALID, "patience_ms is 9223372036854");
}

/* A longest patience is one, and an arena beyond all memory is not registered: that would touch it.
 */
static void test_large(void **state)
{
    hr_disk disk = {.path = setup_folder(), .bytes = 16 << 20};
    hr_options options = {.struct_size = sizeof(options),
                          .threads = 1,
                          .device_bytes = 1ull << 42,
                          .disks = &disk,
                          .n_disks = 1,
                          .patience_ms = 3155760000000};
    hr_context *c;
#ifdef __SANITIZE_THREAD__
    options.device_bytes = 16 << 20; /* it has no room for so many addresses */
#endif
    assert_int_equal(hr_open(&options, &c), HR_OK);
    const char *text = hr_context_disk_text(c);
    assert_true(options.device_bytes < 1 << 30 || strncmp(text, "uring", 5) != 0 ||
                strstr(text, "more than the memory there is"));
    assert_int_equal(hr_close(&c), HR_OK);
    struct setup s = open_setup(5, NULL, NULL);
    s.c->patience_ns = 3155760000000 * 1000000;
    memset(results[1], 0, LENGTH * WIDTH * sizeof(float));
    prefill(&s, results[1]);
    setup_close(&s);
}

/* What a block's life forbids is a bug, and said at the next begin. */
static void test_bug(void **state)
{
    struct setup s = open_setup(5, NULL, "threads");
    assert_int_equal(forward(&s, s.seq, 0, CHUNK, results[1]), HR_OK);
    assert_int_equal(hr_step_commit(s.step, NULL), HR_OK);
    hr_blocks_event(&s.cache->pools[0], hr_seq_blocks(s.seq, 0)[0], HR_LIFE_FETCHED);
    expect_error(s.c, begin_one(s.step, s.seq, 1), HR_E_BUG, "FETCHED");
    setup_close(&s);
}

int main(void)
{
    size_t n = (size_t)(LENGTH + 16) * WIDTH;
    numbers = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        numbers[i] = (float)(i * 2654435761u >> 7 & 0xfff) / 2048.0f - 1.0f;
    for (int i = 0; i < 2; i++)
        results[i] = malloc(LENGTH * WIDTH * sizeof(float));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),           cmocka_unit_test(test_append_first),
        cmocka_unit_test(test_flipped_bits),   cmocka_unit_test(test_wrong_blocks),
        cmocka_unit_test(test_tails),          cmocka_unit_test(test_failing_reads),
        cmocka_unit_test(test_failing_writes), cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_minimum),        cmocka_unit_test(test_bug),
        cmocka_unit_test(test_large),          cmocka_unit_test(test_limits_of_disks),
        cmocka_unit_test(test_first_step),     cmocka_unit_test(test_forks_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

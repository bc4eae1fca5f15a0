/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of the CUDA part: driver, device, tensor maps and launchers, on a fake driver.
 * (test_cuda_gpu.c does the rest, on a GPU.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/dev/cuda.h"

static char why[HR_DEV_TEXT_BYTES];
static struct hr_alloc alloc;

static void expect_text(const char *text, const char *part)
{
    if (!text || !strstr(text, part))
        fail_msg("\"%s\" does not contain \"%s\"", text ? text : "(none)", part);
}

static struct hr_dev_cuda_options device_options(const struct hr_cu_driver *cu)
{
    return (struct hr_dev_cuda_options){
        .alloc = &alloc, .arena_bytes = 16 << 20, .arena_unit = 2 << 20, .driver = cu, .why = why};
}

#ifndef HR_HAVE_CUDA

static void test_absent(void **state)
{
    struct hr_dev_cuda_options o = device_options(NULL);
    struct hr_dev *dev = (struct hr_dev *)why;
    assert_int_equal(hr_dev_cuda_open(&o, &dev), HR_DEV_CUDA_ABSENT);
    assert_null(dev);
    expect_text(why, "no CUDA part");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_absent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

#include "kernels/cuda/launch.h"
#include "src/base/clock.h"
#include "tests/unit/fake_cuda.h"

/* ---- Driver ---- */

static void test_driver_missing(void **state)
{
    struct hr_cu_driver cu;
    assert_false(hr_cu_driver_load(&cu, "libno-such-driver.so.1", why));
    expect_text(why, "no CUDA driver: libno-such-driver.so.1");
    assert_false(hr_cu_driver_load(&cu, "libpthread.so.0", why));
    expect_text(why, "has no cuDriverGetVersion");
    expect_text(why, "which this build needs");
}

static void expect_absent(const struct hr_cu_driver *cu, int32_t ordinal, const char *part)
{
    struct hr_dev_cuda_options o = device_options(cu);
    struct hr_dev *dev = (struct hr_dev *)why;
    o.ordinal = ordinal;
    assert_int_equal(hr_dev_cuda_open(&o, &dev), HR_DEV_CUDA_ABSENT);
    assert_null(dev);
    expect_text(why, part);
    assert_int_equal(fake.held + fake.retained + fake.pushed, 0);
}

static void test_device_absent(void **state)
{
    struct hr_cu_driver cu = fake_driver(-1, true);
    char needed[32];
    snprintf(needed, sizeof needed, "needs %d.0 or later", HR_CU_DRIVER_NEEDED / 1000);
    fake.version = 11040;
    expect_absent(&cu, 0, "one of CUDA 11.4");
    expect_text(why, needed);
    fake_driver(-1, true);
    fake.devices = 0;
    expect_absent(&cu, 0, "sees no GPU");
    fake_driver(-1, true);
    expect_absent(&cu, 1, "no GPU 1: the driver sees 1");
    expect_absent(&cu, -1, "no GPU -1");
    fake.major = 7;
    fake.minor = 5;
    expect_absent(&cu, 0, "compute capability 7.5");
}

/* ---- Tensor maps and descriptors, against constants computed by hand ---- */

static void test_descriptor(void **state)
{
    /* K at 1 KiB: 0x400 >> 4; stride 1024 >> 4 in bits 32-45; swizzle 1 in bits 62-63. */
    assert_int_equal(hr_wgmma_descriptor(0x400, 0, 1024), 0x4000004000000040);
    /* V of D 128: leading 16384 >> 4 = 0x400 in bits 16-29. */
    assert_int_equal(hr_wgmma_descriptor(0x8000, 16384, 1024), 0x4000004004000800);
    assert_int_equal(hr_wgmma_descriptor(0x38c00, 16384, 1024) -
                         hr_wgmma_descriptor(0x38c00 - 2048, 16384, 1024),
                     2048 >> 4);
}

static void expect_shape(const struct hr_cu_map_shape *s, const uint64_t dims[5],
                         const uint64_t strides[4], const uint32_t box[5])
{
    for (int i = 0; i < 5; i++) {
        assert_int_equal(s->dims[i], dims[i]);
        assert_int_equal(s->box[i], box[i]);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(s->strides[i], strides[i]);
    assert_null(hr_cu_map_refuses(s));
}

static void test_maps(void **state)
{
    struct hr_geom g = {.kv_heads = 8, .group = 4, .dim = 128, .dtype = HR_BF16};
    /* 80 GiB of pages of 64 KiB: 1,310,720 of them. */
    struct hr_cu_map_shape s = hr_cu_map_pages(&g, (void *)0x7f0000000000, 80ull << 30);
    expect_shape(&s, (uint64_t[]){64, 128, 2, 2, 1310720}, (uint64_t[]){256, 128, 32768, 65536},
                 (uint32_t[]){64, 128, 2, 1, 1});
    s = hr_cu_map_queries(&g, (void *)0x7f0000000000, 1000, 32 * 128, 128, 32);
    expect_shape(&s, (uint64_t[]){64, 4, 1000, 2, 8}, (uint64_t[]){256, 8192, 128, 1024},
                 (uint32_t[]){64, 4, 32, 1, 1});
    g = (struct hr_geom){.kv_heads = 3, .group = 3, .dim = 64, .dtype = HR_FP16};
    s = hr_cu_map_pages(&g, NULL, 2 << 20);
    expect_shape(&s, (uint64_t[]){64, 128, 1, 2, 64}, (uint64_t[]){128, 128, 16384, 32768},
                 (uint32_t[]){64, 128, 1, 1, 1});
    s = hr_cu_map_queries(&g, NULL, 7, 9 * 64 + 8, 64, 64);
    expect_shape(&s, (uint64_t[]){64, 3, 7, 1, 3}, (uint64_t[]){128, 1168, 128, 384},
                 (uint32_t[]){64, 3, 64, 1, 1});
}

static void test_map_limits(void **state)
{
    struct hr_geom g = {.kv_heads = 2, .group = 4, .dim = 64, .dtype = HR_BF16};
    const struct hr_cu_map_shape good = hr_cu_map_queries(&g, (void *)64, 9, 512, 64, 32);
    struct hr_cu_map_shape s = good;
    assert_null(hr_cu_map_refuses(&s));
    s.base = (void *)8;
    expect_text(hr_cu_map_refuses(&s), "address");
    s = good;
    s.dims[2] = 1ull << 32;
    expect_text(hr_cu_map_refuses(&s), "dimension is 0 or 2^32");
    s.dims[2] = 0;
    expect_text(hr_cu_map_refuses(&s), "dimension is 0 or 2^32");
    s = good;
    s.strides[1] = 1ull << 40;
    expect_text(hr_cu_map_refuses(&s), "2^40");
    s.strides[1] = 1032;
    expect_text(hr_cu_map_refuses(&s), "no multiple of 16");
    s = good;
    s.box[2] = 257;
    expect_text(hr_cu_map_refuses(&s), "over 256");
    s = good;
    s.box[0] = 72;
    expect_text(hr_cu_map_refuses(&s), "over 128 bytes");
    s = good;
    s.dtype = HR_FP32;
    expect_text(hr_cu_map_refuses(&s), "16 bits");
}

/* ---- Kernels ---- */

static const char *found(enum hr_cu_kind kind, int level, int32_t dim, hr_dtype dtype)
{
    int32_t i = hr_cu_kernel_find(kind, level, dim, dtype);
    return i < 0 ? "" : hr_cu_kernels_all[i].name;
}

static void test_choice(void **state)
{
    assert_int_equal(hr_cu_level_choose(9, 0, NULL, why), HR_CU_SM90);
    assert_int_equal(hr_cu_level_choose(9, 0, "sm80", why), HR_CU_SM80);
    assert_int_equal(hr_cu_level_choose(9, 0, "sm90", why), HR_CU_SM90);
    assert_int_equal(hr_cu_level_choose(8, 6, "", why), HR_CU_SM80);
    assert_int_equal(hr_cu_level_choose(10, 0, NULL, why), HR_CU_SM80);
    assert_int_equal(hr_cu_level_choose(12, 0, "sm90", why), 0);
    expect_text(why, "GPU's is 12.0");
    assert_int_equal(hr_cu_level_choose(9, 0, "avx2", why), 0);
    expect_text(why, "sm80 or sm90");
    assert_int_equal(hr_cu_level_choose(7, 5, NULL, why), 0);
    expect_text(why, "7.5");
    assert_string_equal(found(HR_CU_PREFILL, 90, 128, HR_BF16), "hr_prefill_sm90_d128_bf16");
    assert_string_equal(found(HR_CU_PREFILL, 90, 64, HR_FP16), "hr_prefill_sm90_d64_fp16");
    assert_string_equal(found(HR_CU_PREFILL, 90, 256, HR_BF16), "hr_prefill_sm80_d256_bf16");
    assert_string_equal(found(HR_CU_DECODE, 80, 128, HR_FP16), "hr_decode_sm80_d128_fp16");
    assert_string_equal(found(HR_CU_DECODE, 90, 128, HR_FP16), "hr_decode_sm90_d128_fp16");
    assert_string_equal(found(HR_CU_DECODE, 90, 72, HR_FP16), "");
    assert_string_equal(found(HR_CU_DECODE, 90, 128, HR_FP32), "");
    assert_string_equal(found(HR_CU_FOLD, 80, 96, HR_FP16), "hr_fold");
}

/* Every kernel of the table is in a module of the library, under its name. */
static void test_modules(void **state)
{
    assert_true(hr_cu_modules_count > 0);
    for (int32_t i = 0; i < hr_cu_kernels_count; i++) {
        const struct hr_cu_kernel *k = &hr_cu_kernels_all[i];
        int32_t m = 0;
        while (m < hr_cu_modules_count && strcmp(hr_cu_modules[m].name, k->module) != 0)
            m++;
        if (m == hr_cu_modules_count) {
            print_message("%s: module %s is not in this build\n", k->name, k->module);
            continue;
        }
        assert_int_equal((uintptr_t)hr_cu_modules[m].bytes % 8, 0);
        if (memcmp(hr_cu_modules[m].bytes, "\177ELF", 4) != 0) /* a fatbin may be compressed */
            assert_memory_equal(hr_cu_modules[m].bytes, "\x50\xed\x55\xba", 4);
        else if (!memmem(hr_cu_modules[m].bytes, hr_cu_modules[m].size, k->name, strlen(k->name)))
            fail_msg("%s is not in module %s", k->name, k->module);
    }
}

/* ---- The device, on the fake driver ---- */

static struct hr_dev *open_fake(const struct hr_cu_driver *cu)
{
    struct hr_dev_cuda_options o = device_options(cu);
    struct hr_dev *dev;
    assert_int_equal(hr_dev_cuda_open(&o, &dev), HR_DEV_CUDA_OK);
    fake.logged = 0;
    return dev;
}

static void close_fake(struct hr_dev *dev)
{
    dev->ops->close(dev);
    assert_int_equal(fake.left + fake.held + fake.retained + fake.pushed, 0);
    assert_int_equal(alloc.bytes_used, 0);
}

static void test_arena(void **state)
{
    struct hr_cu_driver cu = fake_driver(-1, true);
    struct hr_dev_cuda_options o = device_options(&cu);
    struct hr_dev *dev = open_fake(&cu);
    assert_int_equal(dev->arena_bytes, 16 << 20);
    assert_int_equal(dev->arena[0] | dev->arena[(16 << 20) - 1], 0);
    assert_int_equal(hr_dev_cuda_info(dev)->multiprocessors, 132);
    close_fake(dev);
    o.arena_bytes = 0; /* 90 % of 64 MiB in whole units of 2 MiB */
    assert_int_equal(hr_dev_cuda_open(&o, &dev), HR_DEV_CUDA_OK);
    assert_int_equal(dev->arena_bytes, 56 << 20);
    assert_null(dev->ops->memory_get(dev, 1 << 27));
    assert_null(dev->ops->error(dev)); /* just no memory */
    close_fake(dev);
    o.arena_bytes = 1 << 27;
    assert_int_equal(hr_dev_cuda_open(&o, &dev), HR_DEV_CUDA_NO_ARENA);
    expect_text(why, "no 134217728 bytes for the K/V arena; 67108864 of 134217728 are free");
    assert_int_equal(fake.left + fake.held + fake.retained + fake.pushed, 0);
    assert_int_equal(alloc.bytes_used, 0);
}

static void expect_log(int at, const char *what, void *stream)
{
    assert_true(at < fake.logged);
    assert_string_equal(fake.log[at].what, what);
    assert_ptr_equal(fake.log[at].stream, stream);
}

/* A change of the stream makes the new one wait for the old one, once. */
static void test_streams(void **state)
{
    struct hr_cu_driver cu = fake_driver(-1, true);
    struct hr_dev *dev = open_fake(&cu);
    void *own = hr_dev_cuda_stream(dev, HR_DEV_WORK), *theirs = (void *)0x50;
    const char text[] = "upload";
    char back[sizeof text] = "";
    dev->ops->upload(dev, HR_DEV_WORK, dev->arena, text, sizeof text);
    dev->ops->set_stream(dev, theirs);
    dev->ops->set_stream(dev, theirs);
    dev->ops->zero(dev, dev->arena + 64, 64);
    dev->ops->download(dev, HR_DEV_WORK, back, dev->arena, sizeof text);
    dev->ops->upload(dev, HR_DEV_COPY_IN, dev->arena + 64, text, sizeof text);
    dev->ops->set_stream(dev, NULL);
    expect_log(0, "copy", own);
    expect_log(1, "record", own);
    expect_log(2, "wait", theirs);
    assert_ptr_equal(fake.log[1].event, fake.log[2].event);
    expect_log(3, "zero", theirs);
    expect_log(4, "copy", theirs);
    expect_log(5, "copy", hr_dev_cuda_stream(dev, HR_DEV_COPY_IN));
    expect_log(6, "record", theirs);
    expect_log(7, "wait", own);
    assert_int_equal(fake.logged, 8);
    assert_string_equal(back, text);
    close_fake(dev);
}

static void test_events(void **state)
{
    struct hr_cu_driver cu = fake_driver(-1, true);
    struct hr_dev *dev = open_fake(&cu);
    struct hr_dev_event *event = dev->ops->event_make(dev);
    dev->ops->event_record(dev, event, HR_DEV_COPY_IN);
    dev->ops->event_await(dev, event, HR_DEV_WORK);
    expect_log(0, "record", hr_dev_cuda_stream(dev, HR_DEV_COPY_IN));
    expect_log(1, "wait", hr_dev_cuda_stream(dev, HR_DEV_WORK));
    assert_int_equal(dev->ops->event_wait(dev, event, 0), HR_DEV_DONE);
    fake.pending = true;
    assert_int_equal(dev->ops->event_wait(dev, event, 0), HR_DEV_PENDING);
    int64_t begin_ns = hr_clock_ns();
    assert_int_equal(dev->ops->event_wait(dev, event, begin_ns + 1000000), HR_DEV_PENDING);
    assert_true(hr_clock_ns() - begin_ns >= 1000000);
    assert_null(dev->ops->error(dev));
    dev->ops->event_free(dev, event);
    close_fake(dev);
}

/* As one batch, several, or one by one; empty pieces are nothing. */
static void test_batches(void **state)
{
    enum { COUNT = 1100, BYTES = 48 };
    static unsigned char from[COUNT * BYTES];
    static struct hr_dev_copy copies[COUNT];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 7 + i / 256);
    for (int batches = 0; batches < 2; batches++) {
        struct hr_cu_driver cu = fake_driver(-1, batches);
        struct hr_dev *dev = open_fake(&cu);
        bool takes = hr_dev_cuda_info(dev)->batches;
        for (int i = 0; i < COUNT; i++)
            copies[i] = (struct hr_dev_copy){dev->arena + (COUNT - 1 - i) * BYTES, from + i * BYTES,
                                             i % 50 ? BYTES : 0};
        dev->ops->copy_batch(dev, HR_DEV_COPY_IN, copies, COUNT);
        assert_int_equal(fake.logged, takes ? 3 : FAKE_LOG - 1);
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(dev->arena[(COUNT - 1 - i) * BYTES + 1],
                             i % 50 ? from[i * BYTES + 1] : 0);
        dev->ops->set_stream(dev, CU_STREAM_LEGACY);
        fake.logged = 0;
        dev->ops->copy_batch(dev, HR_DEV_WORK, copies + 1, 1);
        expect_log(0, "copy", CU_STREAM_LEGACY);
        close_fake(dev);
    }
}

/* ---- Launches, on the fake driver ---- */

static const struct hr_geom geom = {.kv_heads = 2, .group = 4, .dim = 128, .dtype = HR_BF16};

static struct hr_cu_attend attend_of(struct hr_dev *dev)
{
    return (struct hr_cu_attend){.q = dev->arena,
                                 .n_tiles = 5,
                                 .n_chunks = 40,
                                 .n_folds = 2,
                                 .q_stride_token = 1024,
                                 .q_stride_head = 128,
                                 .tile_tokens = 32,
                                 .group = 4};
}

static void expect_launch(int at, const char *name, const unsigned grid[3], unsigned block_x,
                          unsigned block_y)
{
    const struct fake_entry *e = &fake.log[at];
    assert_true(at < fake.logged);
    assert_string_equal(e->what, name);
    assert_memory_equal(e->grid, grid, sizeof(e->grid));
    assert_int_equal(e->block[0], block_x);
    assert_int_equal(e->block[1], block_y);
}

/* Attends on a level, then the rest. */
static void launch_all(struct hr_dev *dev, struct hr_cu_kernels *k, struct hr_cu_class *class)
{
    struct hr_cu_attend a = attend_of(dev);
    struct hr_cu_append append = {.n_items = 70000, .kv_heads = 2, .dim = 128};
    struct hr_cu_stage stage = {.rows = 3};
    struct hr_cu_zero_rows zero = {.n_list = 4, .kv_heads = 2};
    struct hr_cu_gather gather = {.n_pieces = 9};
    hr_cu_prefill(k, class, &a, 160);
    hr_cu_decode(k, class, &a, 160);
    hr_cu_fold(k, class, &a);
    hr_cu_append(k, &append);
    hr_cu_stage(k, &stage);
    hr_cu_zero_rows(k, &zero);
    hr_cu_gather(k, &gather, HR_DEV_COPY_IN);
}

/* Of more items than a GPU runs CTAs at once: on Hopper these draw them. */
static void expect_many(struct hr_dev *dev, struct hr_cu_kernels *k, struct hr_cu_class *class,
                        bool hopper)
{
    struct hr_cu_attend a = attend_of(dev);
    a.n_tiles = 500;
    a.n_chunks = 600;
    fake.logged = 0;
    hr_cu_prefill(k, class, &a, 160);
    hr_cu_decode(k, class, &a, 160);
    assert_int_equal(fake.log[0].grid[0], hopper ? 132 : 500);
    assert_int_equal(fake.log[1].grid[0], hopper ? 2 * 132 : 600);
}

static void test_launches(void **state)
{
    struct hr_cu_driver cu = fake_driver(-1, true);
    struct hr_dev *dev = open_fake(&cu);
    struct hr_cu_class class;
    for (int sm = 80; sm <= 90; sm += 10) {
        struct hr_cu_kernels *k = hr_cu_kernels_load(dev, &alloc, sm == 80 ? "sm80" : NULL, why);
        assert_non_null(k);
        assert_int_equal(hr_cu_kernels_level(k), sm);
        assert_true(hr_cu_class_make(k, &geom, 2 << 20, &class, why));
        assert_int_equal(hr_cu_tile_tokens(&class), 32);
        fake.logged = 0;
        launch_all(dev, k, &class);
        int at = 0;
        if (sm == 90) {
            expect_launch(at, "hr_prefill_sm90_d128_bf16", (unsigned[]){5, 1, 1}, 384, 1);
            assert_true(fake.log[at].shared > 190 << 10);
            expect_launch(at + 1, "hr_decode_sm90_d128_bf16", (unsigned[]){40, 1, 1}, 256, 1);
        } else {
            expect_launch(at, "hr_prefill_sm80_d128_bf16", (unsigned[]){5, 1, 1}, 128, 1);
            expect_launch(at + 1, "hr_decode_sm80_d128_bf16", (unsigned[]){40, 1, 1}, 128, 1);
        }
        expect_launch(at + 2, "hr_fold", (unsigned[]){2, 16, 1}, 64, 4);
        for (int i = 0; i < 2; i++)
            assert_int_equal(fake.log[at + i].attributes, sm == 90);
        assert_int_equal(fake.log[at + 2].attributes, 1);
        expect_launch(at + 3, "hr_append", (unsigned[]){2, 2, 65535}, 128, 1);
        expect_launch(at + 4, "hr_stage", (unsigned[]){3, 1, 1}, 256, 1);
        expect_launch(at + 5, "hr_zero_rows", (unsigned[]){8, 1, 1}, 256, 1);
        expect_launch(at + 6, "hr_gather", (unsigned[]){8, 1, 1}, 512, 1);
        assert_ptr_equal(fake.log[at + 6].stream, hr_dev_cuda_stream(dev, HR_DEV_COPY_IN));
        expect_many(dev, k, &class, sm == 90);
        hr_cu_kernels_free(k);
    }
    close_fake(dev);
}

static void test_classes(void **state)
{
    struct hr_cu_driver cu = fake_driver(-1, true);
    struct hr_dev *dev = open_fake(&cu);
    struct hr_cu_kernels *k = hr_cu_kernels_load(dev, &alloc, NULL, why);
    struct hr_cu_class class;
    struct hr_geom g = geom;
    assert_non_null(k);
    g.dim = 72;
    assert_false(hr_cu_class_make(k, &g, 2 << 20, &class, why));
    expect_text(why, "dim 72");
    g = geom;
    g.group = 129;
    assert_false(hr_cu_class_make(k, &g, 2 << 20, &class, why));
    expect_text(why, "129 query heads");
    g = geom;
    assert_true(hr_cu_class_make(k, &g, 2 << 20, &class, why));
    struct hr_rows q = {dev->arena, 1024, 128, HR_BF16};
    assert_true(hr_cu_reads_queries(&class, &q, 0.1f));
    assert_false(hr_cu_reads_queries(&class, &q, -0.1f));
    q.stride_token = 1028;
    assert_false(hr_cu_reads_queries(&class, &q, 0.1f));
    q = (struct hr_rows){dev->arena + 8, 1024, 128, HR_BF16};
    assert_false(hr_cu_reads_queries(&class, &q, 0.1f));
    q = (struct hr_rows){dev->arena, 1024, 128, HR_FP16};
    assert_false(hr_cu_reads_queries(&class, &q, 0.1f));
    hr_cu_kernels_free(k);
    close_fake(dev);
}

/* ---- Every call of the driver fails once ---- */

/* The text of the first error, "" if there was none before the device was closed. */
static void live(const struct hr_cu_driver *cu, char *text)
{
    struct hr_dev_cuda_options o = device_options(cu);
    struct hr_cu_class class;
    struct hr_dev *dev;
    text[0] = '\0';
    if (hr_dev_cuda_open(&o, &dev) != HR_DEV_CUDA_OK) {
        memcpy(text, why, sizeof why);
        assert_null(dev);
        return;
    }
    void *memory = dev->ops->memory_get(dev, 4096), *pinned = dev->ops->pinned_get(dev, 4096);
    struct hr_dev_event *event = dev->ops->event_make(dev);
    struct hr_cu_kernels *k = hr_cu_kernels_load(dev, &alloc, NULL, why);
    dev->ops->set_stream(dev, (void *)0x50);
    if (memory && pinned && event && k && hr_cu_class_make(k, &geom, 2 << 20, &class, why)) {
        struct hr_dev_copy copy = {memory, pinned, 64};
        dev->ops->upload(dev, HR_DEV_WORK, memory, pinned, 4096);
        dev->ops->copy_batch(dev, HR_DEV_WORK, &copy, 1);
        launch_all(dev, k, &class);
        dev->ops->download(dev, HR_DEV_WORK, pinned, memory, 4096);
        dev->ops->event_record(dev, event, HR_DEV_WORK);
        dev->ops->event_await(dev, event, HR_DEV_COPY_OUT);
        enum hr_dev_wait wait = dev->ops->event_wait(dev, event, INT64_MAX);
        assert_int_equal(wait, dev->ops->error(dev) ? HR_DEV_DEAD : HR_DEV_DONE);
    }
    dev->ops->set_stream(dev, NULL);
    if (dev->ops->error(dev))
        snprintf(text, HR_DEV_TEXT_BYTES, "%s", dev->ops->error(dev));
    hr_cu_kernels_free(k);
    dev->ops->event_free(dev, event);
    dev->ops->pinned_put(dev, pinned, 4096);
    dev->ops->memory_put(dev, memory, 4096);
    dev->ops->close(dev);
}

static void test_failures(void **state)
{
    char text[HR_DEV_TEXT_BYTES];
    int64_t failed = 0, told = 0;
    for (int64_t at = 0;; at++) {
        struct hr_cu_driver cu = fake_driver(at, at % 2);
        live(&cu, text);
        if (!fake.failed)
            break;
        failed++;
        if (text[0]) {
            told++;
            expect_text(text, strcmp(fake.failed, "LaunchKernelEx") ? fake.failed : "hr_");
            expect_text(text, "CUDA_ERROR_FAKE (999): made up");
        }
        assert_int_equal(fake.held + fake.retained + fake.pushed, 0);
        assert_int_equal(alloc.bytes_used, 0);
        if (strcmp(fake.failed, "CtxPushCurrent") != 0)
            assert_int_equal(fake.left, 0);
    }
    assert_string_equal(text, "");
    print_message("%lld calls failed in turn, %lld told before the end\n", (long long)failed,
                  (long long)told);
    assert_true(told > 100);
}

/* After the first error nothing more reaches the driver, and the sentence stays. */
static void test_dead(void **state)
{
    struct hr_cu_driver cu = fake_driver(-1, true);
    struct hr_dev *dev = open_fake(&cu);
    struct hr_dev_event *event = dev->ops->event_make(dev);
    fake.fail_at = fake.calls + 1;
    dev->ops->zero(dev, dev->arena, 64);
    expect_text(dev->ops->error(dev), "cuMemsetD8Async: ");
    int64_t calls = fake.calls;
    dev->ops->upload(dev, HR_DEV_WORK, dev->arena, why, 1);
    dev->ops->event_record(dev, event, HR_DEV_WORK);
    dev->ops->set_stream(dev, (void *)0x50);
    assert_null(dev->ops->memory_get(dev, 1));
    assert_int_equal(dev->ops->event_wait(dev, event, INT64_MAX), HR_DEV_DEAD);
    assert_int_equal(fake.calls, calls);
    expect_text(dev->ops->error(dev), "cuMemsetD8Async: ");
    dev->ops->event_free(dev, event);
    close_fake(dev);
}

int main(void)
{
    hr_alloc_init(&alloc, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_driver_missing), cmocka_unit_test(test_device_absent),
        cmocka_unit_test(test_descriptor),     cmocka_unit_test(test_maps),
        cmocka_unit_test(test_map_limits),     cmocka_unit_test(test_choice),
        cmocka_unit_test(test_modules),        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_streams),        cmocka_unit_test(test_events),
        cmocka_unit_test(test_batches),        cmocka_unit_test(test_launches),
        cmocka_unit_test(test_classes),        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif

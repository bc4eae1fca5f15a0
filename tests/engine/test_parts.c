/* SPDX-License-Identifier: Apache-2.0 */
/* The parts below the engine: worker pool, extents, slabs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

#include "offload/slab.h"
#include "src/base/pool.h"
#include "src/base/topo.h"
#include "src/plan.h"

enum { ITEMS = 1000 };

struct job {
    _Atomic int32_t *runs; /* [ITEMS] */
    int64_t plain;         /* written before the run, read by items */
};

static void count_item(const void *args, int64_t item, void *scratch)
{
    const struct job *job = args;
    memset(scratch, (int)item, 64);
    atomic_fetch_add(&job->runs[item], (int32_t)job->plain);
}

/* Every item runs once, in every job, whatever the number of threads and items. */
static void test_pool(void **state)
{
    static _Atomic int32_t runs[ITEMS];
    static const int64_t sizes[] = {0, 1, 2, 3, 17, ITEMS};
    struct hr_alloc alloc;
    hr_alloc_init(&alloc, NULL);
    for (int32_t threads = 1; threads <= 5; threads++) {
        struct hr_pool_options o = {
            .threads = threads, .bind = threads % 2, .scratch_bytes = 64, .alloc = &alloc};
        int no_thread;
        struct hr_pool *pool = hr_pool_create(&o, &no_thread);
        assert_non_null(pool);
        assert_int_equal(hr_pool_threads(pool), threads);
        for (int round = 0; round < 600; round++) {
            struct job job = {runs, round % 7 + 1};
            int64_t items = sizes[round % 6];
            hr_pool_run(pool, count_item, &job, items);
            for (int64_t i = 0; i < items; i++) {
                assert_int_equal(atomic_load(&runs[i]), job.plain);
                atomic_store(&runs[i], 0);
            }
        }
        hr_pool_destroy(pool);
    }
    assert_int_equal(alloc.bytes_used, 0);
}

static void test_topology(void **state)
{
    int32_t cpus[1024];
    int32_t n = hr_topo_bind_order(cpus, 1024), cores = hr_topo_cores();
    assert_true(cores >= 1);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < i; j++)
            assert_int_not_equal(cpus[i], cpus[j]);
    assert_false(hr_topo_bind_self(-1));
    assert_true(hr_topo_memory_available() > 0);
}

static void test_extents(void **state)
{
    struct hr_alloc alloc;
    struct hr_extents e;
    hr_alloc_init(&alloc, NULL);
    assert_true(hr_extents_init(&e, &alloc, 130));
    for (int64_t i = 0; i < 130; i++)
        assert_int_equal(hr_extents_take(&e, 1), i);
    assert_int_equal(hr_extents_take(&e, 1), HR_EXTENT_NONE);
    hr_extents_give(&e, 60, 3);
    hr_extents_give(&e, 64, 2);
    assert_int_equal(hr_extents_take(&e, 4), HR_EXTENT_NONE);
    assert_int_equal(hr_extents_take(&e, 3), 60);
    assert_int_equal(hr_extents_take(&e, 2), 64);
    assert_int_equal(e.used_count, 130);
    hr_extents_close(&e, &alloc);
    assert_int_equal(alloc.bytes_used, 0);
}

/* Blocks never overlap, never straddle an extent slot, and all come back. */
static void slab_round(uint64_t block_bytes, int64_t extents)
{
    static unsigned char base[1];
    static uint32_t blocks[4096];
    struct hr_alloc alloc;
    struct hr_extents e;
    struct hr_slab s;
    uint32_t n = 0;
    hr_alloc_init(&alloc, NULL);
    assert_true(hr_extents_init(&e, &alloc, extents));
    assert_true(hr_slab_init(&s, &alloc, &e, base, block_bytes, hr_slab_run(block_bytes)));
    uint64_t calls = alloc.calls;
    for (int64_t ask = 1, got = 1; n < 4000 && got == ask; ask = ask % 9 + 1) {
        got = hr_slab_take(&s, blocks + n, ask);
        n += (uint32_t)got;
    }
    assert_true(n > 0);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)(hr_block_addr(&s.view, blocks[i]) - base);
        uint64_t slot = (uint64_t)s.run * HR_EXTENT_BYTES;
        assert_true(at / slot == (at + block_bytes - 1) / slot);
        assert_true(at + block_bytes <= (uint64_t)extents * HR_EXTENT_BYTES);
    }
    for (uint32_t i = 0; i < n; i++)
        hr_slab_give(&s, blocks[(i * 7919u) % n]);
    assert_int_equal(s.slots_used, 0);
    assert_int_equal(s.parts_held, 0);
    assert_int_equal(e.used_count, 0);
    assert_int_equal(alloc.calls, calls);
    hr_slab_close(&s);
    hr_extents_close(&e, &alloc);
    assert_int_equal(alloc.bytes_used, 0);
}

static void test_slab(void **state)
{
    slab_round(96 << 10, 10);
    slab_round(2 << 20, 9);
    slab_round(5 << 20, 11);
    slab_round(12 << 10, 3);
}

/* Large tiles, smaller ones where threads would idle, never below a sixth; all tokens once. */
static void test_plan_tiles(void **state)
{
    const struct hr_kernels *k = hr_kernels_select(HR_CAPS_PORTABLE);
    struct hr_geom g = {.kv_heads = 2, .group = 4, .dim = 64, .dtype = HR_BF16};
    struct hr_shape shape = {.n_kv = 1000, .n_q = 1000};
    struct hr_plan_order order;
    int64_t most = k->tile_rows(&g) / g.group, last = most;
    struct hr_alloc alloc;
    hr_alloc_init(&alloc, NULL);
    for (int32_t threads = 1; threads <= 4096; threads *= 2) {
        struct hr_plan plan = {0};
        struct hr_plan_input in = {.kernels = k,
                                   .geom = &g,
                                   .shapes = &shape,
                                   .order = &order,
                                   .n_seqs = 1,
                                   .threads = threads};
        assert_true(hr_plan_make(&plan, &in, &alloc));
        assert_true(plan.tile_tokens <= last && plan.tile_tokens * 6 > most);
        assert_true(plan.n_tiles >= 2 * threads || plan.tile_tokens * 3 <= most);
        int64_t tokens = 0;
        for (int64_t i = 0; i < plan.n_tiles; i++)
            tokens += plan.tiles[i].tokens;
        assert_int_equal(tokens, shape.n_q * g.kv_heads);
        last = plan.tile_tokens;
        hr_plan_free(&plan, &alloc);
    }
    assert_true(last < most);
}

static int32_t rows128(const struct hr_geom *g)
{
    (void)g;
    return 128;
}

static int32_t one_block(int64_t n_kv, int64_t n_q, const struct hr_geom *g)
{
    (void)n_kv, (void)n_q, (void)g;
    return 1;
}

/* Heads in equal shares whose K/V fit into a section; in each the newest tokens first. */
static void test_plan_sections(void **state)
{
    static const int64_t keys[] = {4096, 4097, 8192, 32768};
    static const int32_t together[] = {16, 8, 8, 2};
    struct hr_kernels k = {
        .tile_rows = rows128, .chunk_blocks = one_block, .section_bytes = 32 << 20};
    struct hr_geom g = {.kv_heads = 16, .group = 1, .dim = 128, .dtype = HR_BF16};
    struct hr_plan_order order;
    struct hr_alloc alloc;
    hr_alloc_init(&alloc, NULL);
    for (int c = 0; c < 4; c++) {
        struct hr_shape shape = {.n_kv = keys[c], .n_q = 1024};
        struct hr_plan plan = {0};
        struct hr_plan_input in = {.kernels = &k,
                                   .geom = &g,
                                   .shapes = &shape,
                                   .order = &order,
                                   .n_seqs = 1,
                                   .threads = 1};
        assert_true(hr_plan_make(&plan, &in, &alloc));
        assert_int_equal(plan.n_tiles, 16 * 8);
        for (int32_t i = 0; i < 16 * 8; i++) {
            int32_t share = i / (8 * together[c]), within = i % (8 * together[c]);
            assert_int_equal(plan.tiles[i].head, share * together[c] + within % together[c]);
            assert_int_equal(plan.tiles[i].token, 1024 - 128 * (within / together[c] + 1));
        }
        hr_plan_free(&plan, &alloc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool),       cmocka_unit_test(test_topology),
        cmocka_unit_test(test_extents),    cmocka_unit_test(test_slab),
        cmocka_unit_test(test_plan_tiles), cmocka_unit_test(test_plan_sections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

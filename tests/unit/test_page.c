/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of pages: golden values, and whatever is changed is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "offload/page.h"

#define SEED 0x9e3779b97f4a7c15ull

enum { PAGE_MAX = 65536 };

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static const struct hr_page_id golden_id = {
    .layout = 0x0123456789abcdef, .uid = 42, .generation = 7, .block = 3, .layer = 5, .head = 1};

/* The page of docs/format.md. */
static void fill_golden(unsigned char *page, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        page[i] = (unsigned char)(i * 131 + (i >> 8) * 7);
}

/* The values of docs/format.md, made with another build of XXH3: files on disk rest on them. */
static void test_golden(void **state)
{
    static const struct {
        size_t bytes;
        uint64_t sum;
    } golden[] = {
        {4096, 0x0d1a78649d03fa5c}, {32768, 0x621afb38222e53bd}, {65536, 0xb7eea7c43d5851ce}};
    static unsigned char page[PAGE_MAX];
    uint64_t seed = hr_page_seed(&golden_id);
    assert_int_equal(seed, 0xaa75b97d9cad57cd);
    assert_int_equal(hr_page_seed(&(struct hr_page_id){0}), 0x114ddfda264d5aa9);
    fill_golden(page, sizeof(page));
    for (int i = 0; i < 3; i++)
        assert_int_equal(hr_page_sum(page, golden[i].bytes, seed), golden[i].sum);
    memset(page, 0, sizeof(page));
    assert_int_equal(hr_page_sum(page, 4096, 0), 0x93d76fe148c689ba);
}

static uint64_t layout_of(const struct hr_geom *layers, int n)
{
    uint64_t layout = 0;
    for (int i = 0; i < n; i++)
        layout = hr_page_layout(layout, &layers[i]);
    return layout;
}

/* Each number that says where K/V lie in a page, the order of the layers and how many there are
 * count; how queries use them does not. */
static void test_layout(void **state)
{
    static const struct hr_geom good[2] = {{.kv_heads = 8, .dim = 128, .dtype = HR_BF16},
                                           {.kv_heads = 2, .dim = 64, .dtype = HR_FP16}};
    struct hr_geom layers[2] = {good[1], good[0]};
    uint64_t golden = 0xe5cc8ea4478bb570;
    assert_int_equal(layout_of(good, 2), golden);
    assert_int_not_equal(layout_of(layers, 2), golden);
    assert_int_not_equal(layout_of(good, 1), golden);
    for (int change = 0; change < 4; change++) {
        memcpy(layers, good, sizeof(good));
        layers[0].kv_heads += change == 0;
        layers[1].dim += change == 1;
        layers[1].dtype = change == 2 ? HR_BF16 : HR_FP16;
        layers[1].group = change == 3 ? 7 : 0;
        assert_int_equal(layout_of(layers, 2) == golden, change == 3);
    }
}

/* Flips a bit, which must show, and flips it back. */
static void flip(unsigned char *page, size_t bytes, uint64_t bit, uint64_t seed, uint64_t sum)
{
    page[bit / 8] ^= (unsigned char)(1 << bit % 8);
    assert_int_not_equal(hr_page_sum(page, bytes, seed), sum);
    page[bit / 8] ^= (unsigned char)(1 << bit % 8);
}

static void fill_random(unsigned char *page, size_t bytes, uint64_t *random)
{
    for (size_t i = 0; i < bytes; i++)
        page[i] = (unsigned char)(next_random(random) >> 32);
}

static void test_flipped_bits(void **state)
{
    static unsigned char page[PAGE_MAX];
    uint64_t random = SEED, seed = hr_page_seed(&golden_id);
    fill_random(page, sizeof(page), &random);
    uint64_t small = hr_page_sum(page, 4096, seed), large = hr_page_sum(page, PAGE_MAX, seed);
    for (uint64_t bit = 0; bit < 4096 * 8; bit++)
        flip(page, 4096, bit, seed, small);
    for (int i = 0; i < 10000; i++)
        flip(page, PAGE_MAX, next_random(&random) % (PAGE_MAX * 8), seed, large);
    assert_int_equal(hr_page_sum(page, PAGE_MAX, seed), large);
}

/* Torn writes and lost sectors: 512 bytes of something else, anywhere. */
static void test_lost_sectors(void **state)
{
    static unsigned char page[PAGE_MAX];
    unsigned char kept[512];
    uint64_t random = SEED, seed = hr_page_seed(&golden_id);
    fill_random(page, sizeof(page), &random);
    uint64_t sum = hr_page_sum(page, PAGE_MAX, seed);
    for (int at = 0; at < PAGE_MAX; at += 512) {
        memcpy(kept, page + at, 512);
        memset(page + at, 0, 512);
        assert_int_not_equal(hr_page_sum(page, PAGE_MAX, seed), sum);
        memcpy(page + at, page + (at + 512) % PAGE_MAX, 512);
        assert_int_not_equal(hr_page_sum(page, PAGE_MAX, seed), sum);
        memcpy(page + at, kept, 512);
    }
    assert_int_equal(hr_page_sum(page, PAGE_MAX, seed), sum);
}

/* Every bit of every field of what a page is gives another seed, and another sum of the same bytes:
 * of zeros too, which pages often are. */
static void test_identity(void **state)
{
    static unsigned char page[2][4096];
    uint64_t seeds[320], seed = hr_page_seed(&golden_id);
    fill_golden(page[0], 4096);
    for (int bit = 0; bit < 320; bit++) {
        unsigned char bytes[sizeof(struct hr_page_id)];
        struct hr_page_id id;
        memcpy(bytes, &golden_id, sizeof(bytes));
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        memcpy(&id, bytes, sizeof(id));
        seeds[bit] = hr_page_seed(&id);
        assert_int_not_equal(seeds[bit], seed);
        for (int i = 0; i < bit; i++)
            assert_int_not_equal(seeds[bit], seeds[i]);
        for (int i = 0; i < 2; i++)
            assert_int_not_equal(hr_page_sum(page[i], 4096, seeds[bit]),
                                 hr_page_sum(page[i], 4096, seed));
    }
}

/* Two pages of a block, each in the other's place. */
static void test_swapped_pages(void **state)
{
    static unsigned char page[2][32768];
    uint64_t random = SEED, seeds[2], sums[2];
    for (int round = 0; round < 200; round++) {
        struct hr_page_id id = golden_id;
        for (uint32_t head = 0; head < 2; head++) {
            id.head = head;
            id.block = (uint64_t)round;
            fill_random(page[head], sizeof(page[head]), &random);
            seeds[head] = hr_page_seed(&id);
            sums[head] = hr_page_sum(page[head], sizeof(page[head]), seeds[head]);
        }
        assert_int_not_equal(hr_page_sum(page[0], sizeof(page[0]), seeds[1]), sums[1]);
        assert_int_not_equal(hr_page_sum(page[1], sizeof(page[1]), seeds[0]), sums[0]);
        /* With equal bytes too, where an unseeded sum would agree. */
        assert_int_not_equal(hr_page_sum(page[0], sizeof(page[0]), seeds[1]), sums[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_layout),
        cmocka_unit_test(test_flipped_bits), cmocka_unit_test(test_lost_sectors),
        cmocka_unit_test(test_identity),     cmocka_unit_test(test_swapped_pages),
    };
    print_message("seed %llx\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */

/* Dequantisation bit for bit against the `gguf` Python package (tests/oracle/quant_golden.py). */
#include "tools/quant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 64, MAX_BLOCK_BYTES = 210, MAX_BLOCK_VALUES = 256 };

static const struct golden {
    enum quant_type type;
    uint32_t first[3]; /* bits of the first numbers */
    uint64_t hash;     /* FNV-1a over the bits of all */
} golden[] = {
    {QUANT_F32, {0xac4ff4af, 0x3ce1ea9b, 0xb609a6c3}, UINT64_C(0x880e3e26975023c0)},
    {QUANT_F16, {0xbe95e000, 0xbd89e000, 0xbd536000}, UINT64_C(0xa666a93c23ea9d93)},
    {QUANT_BF16, {0xb4af0000, 0xac4f0000, 0xaa9b0000}, UINT64_C(0xa998a00f13d9319a)},
    {QUANT_Q8_0, {0xc1b90080, 0x40bb5800, 0x41ec8580}, UINT64_C(0x5436b9c143693d2b)},
    {QUANT_Q4_0, {0xc0032400, 0xbf95e000, 0xbf60d000}, UINT64_C(0xb8d975d20cb64714)},
    {QUANT_Q4_1, {0xc0526300, 0xc03fa700, 0xbeb85800}, UINT64_C(0x64c2ad70e6018157)},
    {QUANT_Q4_K, {0xc21d4370, 0xc23ce0b0, 0xc1fb4c60}, UINT64_C(0x57b62896a44bc5fd)},
    {QUANT_Q6_K, {0xbda4ea00, 0xc0104cc0, 0x401fc2b0}, UINT64_C(0x21f6f88f8631a8bd)},
};

enum { N_GOLDEN = sizeof golden / sizeof golden[0] };

/* The same bytes as the script's: splitmix64, one byte of each number. */
static void fill_stream(uint8_t *out, size_t n)
{
    uint64_t state = 0;
    for (size_t i = 0; i < n; i++) {
        state += UINT64_C(0x9e3779b97f4a7c15);
        uint64_t z = (state ^ state >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        out[i] = (uint8_t)(z ^ z >> 31);
    }
}

/* Keeps the exponents of floats small, so that none is infinite or NaN. */
static void tame_block(enum quant_type type, uint8_t *block)
{
    uint32_t last = quant_block_bytes(type) - 1;
    if (type == QUANT_F32 || type == QUANT_BF16 || type == QUANT_Q6_K)
        block[last] &= 0xbf;
    else
        block[1] &= 0xbf;
    if (type == QUANT_Q4_1 || type == QUANT_Q4_K)
        block[3] &= 0xbf;
}

static uint64_t hash_of(const float *values, size_t n)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    const uint8_t *bytes = (const uint8_t *)values;
    for (size_t i = 0; i < n * sizeof *values; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void check_golden(const struct golden *g, size_t misalignment)
{
    static uint8_t bytes[BLOCKS * MAX_BLOCK_BYTES + 8];
    static float values[BLOCKS * MAX_BLOCK_VALUES + 1];
    uint32_t block_bytes = quant_block_bytes(g->type);
    size_t n_values = (size_t)BLOCKS * quant_block_values(g->type);
    assert_int_equal(quant_bytes(g->type, n_values), BLOCKS * block_bytes);
    fill_stream(bytes + misalignment, BLOCKS * block_bytes);
    for (size_t i = 0; i < BLOCKS; i++)
        tame_block(g->type, bytes + misalignment + i * block_bytes);
    values[n_values] = 12345;
    quant_to_f32(g->type, bytes + misalignment, n_values, values);
    assert_memory_equal(values, g->first, sizeof g->first);
    assert_true(hash_of(values, n_values) == g->hash);
    assert_true(values[n_values] == 12345); /* nothing is written past the end */
}

static void golden_vectors(void **state)
{
    (void)state;
    for (int i = 0; i < N_GOLDEN; i++)
        for (size_t misalignment = 0; misalignment < 4; misalignment++)
            check_golden(&golden[i], misalignment);
}

/* Every fp16 number, subnormals and infinities included; NaNs stay NaNs. */
static void every_half(void **state)
{
    (void)state;
    uint16_t *halves = malloc(65536 * sizeof *halves);
    float *values = malloc(65536 * sizeof *values);
    assert_non_null(halves);
    assert_non_null(values);
    for (uint32_t i = 0; i < 65536; i++)
        halves[i] = (uint16_t)i;
    quant_to_f32(QUANT_F16, halves, 65536, values);
    size_t n = 0;
    for (uint32_t i = 0; i < 65536; i++) {
        bool is_nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff);
        assert_int_equal(is_nan, values[i] != values[i]);
        if (!is_nan)
            values[n++] = values[i];
    }
    assert_true(hash_of(values, n) == UINT64_C(0xa7a575fd4882f925));
    free(halves);
    free(values);
}

static void types_and_sizes(void **state)
{
    (void)state;
    assert_true(quant_is_known(QUANT_Q6_K));
    assert_false(quant_is_known(13)); /* Q5_K: named, not read */
    assert_false(quant_is_known(5));  /* a number that the format gave up */
    assert_false(quant_is_known(1000000));
    assert_string_equal(quant_name(QUANT_Q4_1), "Q4_1");
    assert_string_equal(quant_name(13), "Q5_K");
    assert_string_equal(quant_name(5), "unknown");
    assert_string_equal(quant_name(UINT32_MAX), "unknown");
    assert_true(quant_bytes(QUANT_Q4_1, UINT64_C(1) << 56) == (UINT64_C(1) << 56) / 32 * 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_vectors),
        cmocka_unit_test(every_half),
        cmocka_unit_test(types_and_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

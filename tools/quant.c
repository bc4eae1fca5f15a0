/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quant.h"

#include <stddef.h>
#include <string.h>

/* Blocks as the file holds them; every field is unaligned, so all loads go through bytes. */
enum {
    SMALL_VALUES = 32,
    SUPER_VALUES = 256,
    Q4_0_BYTES = 2 + 16,
    Q4_1_BYTES = 2 + 2 + 16,
    Q8_0_BYTES = 2 + 32,
    Q4_K_BYTES = 2 + 2 + 12 + 128,
    Q6_K_BYTES = 128 + 64 + 16 + 2,
};

struct layout {
    const char *name;
    uint16_t values;
    uint16_t bytes; /* 0: a type of the format that is not read */
};

static const struct layout layouts[] = {
    [QUANT_F32] = {"F32", 1, 4},
    [QUANT_F16] = {"F16", 1, 2},
    [QUANT_Q4_0] = {"Q4_0", SMALL_VALUES, Q4_0_BYTES},
    [QUANT_Q4_1] = {"Q4_1", SMALL_VALUES, Q4_1_BYTES},
    [6] = {"Q5_0", 0, 0},
    [7] = {"Q5_1", 0, 0},
    [QUANT_Q8_0] = {"Q8_0", SMALL_VALUES, Q8_0_BYTES},
    [9] = {"Q8_1", 0, 0},
    [10] = {"Q2_K", 0, 0},
    [11] = {"Q3_K", 0, 0},
    [QUANT_Q4_K] = {"Q4_K", SUPER_VALUES, Q4_K_BYTES},
    [13] = {"Q5_K", 0, 0},
    [QUANT_Q6_K] = {"Q6_K", SUPER_VALUES, Q6_K_BYTES},
    [15] = {"Q8_K", 0, 0},
    [16] = {"IQ2_XXS", 0, 0},
    [17] = {"IQ2_XS", 0, 0},
    [18] = {"IQ3_XXS", 0, 0},
    [19] = {"IQ1_S", 0, 0},
    [20] = {"IQ4_NL", 0, 0},
    [21] = {"IQ3_S", 0, 0},
    [22] = {"IQ2_S", 0, 0},
    [23] = {"IQ4_XS", 0, 0},
    [24] = {"I8", 0, 0},
    [25] = {"I16", 0, 0},
    [26] = {"I32", 0, 0},
    [27] = {"I64", 0, 0},
    [28] = {"F64", 0, 0},
    [29] = {"IQ1_M", 0, 0},
    [QUANT_BF16] = {"BF16", 1, 2},
    [34] = {"TQ1_0", 0, 0},
    [35] = {"TQ2_0", 0, 0},
    [39] = {"MXFP4", 0, 0},
};

static const uint32_t n_layouts = sizeof layouts / sizeof layouts[0];

bool quant_is_known(uint32_t type)
{
    return type < n_layouts && layouts[type].bytes != 0;
}

const char *quant_name(uint32_t type)
{
    return type < n_layouts && layouts[type].name ? layouts[type].name : "unknown";
}

uint32_t quant_block_values(enum quant_type type)
{
    return layouts[type].values;
}

uint32_t quant_block_bytes(enum quant_type type)
{
    return layouts[type].bytes;
}

uint64_t quant_bytes(enum quant_type type, uint64_t n_values)
{
    return n_values / layouts[type].values * layouts[type].bytes;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float load_f16(const uint8_t *bytes)
{
    uint32_t half = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
    uint32_t sign = (half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 0x1f;
    uint32_t fraction = half & 0x3ff;
    /* A subnormal is fraction / 2^24, which fp32 holds exactly. */
    float small = (float)(int32_t)fraction * 0x1p-24f;
    uint32_t small_bits;
    memcpy(&small_bits, &small, sizeof small_bits);
    uint32_t normal_bits = (exponent + 112) << 23 | fraction << 13;
    uint32_t huge_bits = 0x7f800000 | fraction << 13; /* infinity, NaN */
    uint32_t bits = exponent == 0 ? small_bits : exponent == 31 ? huge_bits : normal_bits;
    return float_of_bits(sign | bits);
}

static void f32_to_f32(const uint8_t *in, uint64_t n_values, float *out)
{
    memcpy(out, in, n_values * sizeof *out);
}

static void f16_to_f32(const uint8_t *in, uint64_t n_values, float *out)
{
    for (uint64_t i = 0; i < n_values; i++)
        out[i] = load_f16(in + 2 * i);
}

static void bf16_to_f32(const uint8_t *in, uint64_t n_values, float *out)
{
    for (uint64_t i = 0; i < n_values; i++)
        out[i] = float_of_bits((uint32_t)in[2 * i] << 16 | (uint32_t)in[2 * i + 1] << 24);
}

static void q8_0_to_f32(const uint8_t *in, uint64_t n_values, float *out)
{
    for (; n_values; n_values -= SMALL_VALUES, in += Q8_0_BYTES, out += SMALL_VALUES) {
        float scale = load_f16(in);
        for (int i = 0; i < SMALL_VALUES; i++)
            out[i] = scale * (float)(int8_t)in[2 + i];
    }
}

/* Low nibbles are the first half of a block, high nibbles the second. */
static void q4_0_to_f32(const uint8_t *in, uint64_t n_values, float *out)
{
    for (; n_values; n_values -= SMALL_VALUES, in += Q4_0_BYTES, out += SMALL_VALUES) {
        float scale = load_f16(in);
        for (int i = 0; i < SMALL_VALUES / 2; i++) {
            out[i] = scale * (float)((in[2 + i] & 15) - 8);
            out[i + SMALL_VALUES / 2] = scale * (float)((in[2 + i] >> 4) - 8);
        }
    }
}

static void q4_1_to_f32(const uint8_t *in, uint64_t n_values, float *out)
{
    for (; n_values; n_values -= SMALL_VALUES, in += Q4_1_BYTES, out += SMALL_VALUES) {
        float scale = load_f16(in);
        float least = load_f16(in + 2);
        for (int i = 0; i < SMALL_VALUES / 2; i++) {
            out[i] = scale * (float)(in[4 + i] & 15) + least;
            out[i + SMALL_VALUES / 2] = scale * (float)(in[4 + i] >> 4) + least;
        }
    }
}

/*
 * The 12 bytes after the two fp16 factors of Q4_K hold eight 6-bit scales and eight 6-bit minima:
 * the first four of each are the low six bits of bytes 0..3 and 4..7; the last four have their low
 * nibbles in bytes 8..11 and their upper two bits on top of bytes 0..3 and 4..7.
 */
static void q4_k_factors(const uint8_t *packed, int i, uint8_t *scale, uint8_t *least)
{
    if (i < 4) {
        *scale = packed[i] & 63;
        *least = packed[i + 4] & 63;
        return;
    }
    *scale = (uint8_t)((packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4);
    *least = (uint8_t)(packed[i + 4] >> 4 | (packed[i] >> 6) << 4);
}

static void q4_k_to_f32(const uint8_t *in, uint64_t n_values, float *out)
{
    for (; n_values; n_values -= SUPER_VALUES, in += Q4_K_BYTES, out += SUPER_VALUES) {
        float all_scale = load_f16(in);
        float all_least = load_f16(in + 2);
        for (int group = 0; group < 8; group++) { /* of 32 numbers; two share 32 bytes */
            uint8_t scale_code, least_code;
            q4_k_factors(in + 4, group, &scale_code, &least_code);
            float scale = all_scale * (float)scale_code;
            float least = all_least * (float)least_code;
            const uint8_t *nibbles = in + 16 + group / 2 * 32;
            int shift = group % 2 * 4;
            for (int i = 0; i < 32; i++)
                out[group * 32 + i] = scale * (float)(nibbles[i] >> shift & 15) - least;
        }
    }
}

/* 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, the fp16 factor. */
static void q6_k_half(const uint8_t *low, const uint8_t *high, const uint8_t *scale_codes,
                      float all_scale, float *out)
{
    for (int group = 0; group < 4; group++) {
        const uint8_t *nibbles = low + group % 2 * 32;
        int low_shift = group / 2 * 4, high_shift = group * 2;
        for (int i = 0; i < 32; i++) {
            int code = (nibbles[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
            float scale = all_scale * (float)(int8_t)scale_codes[group * 2 + i / 16];
            out[group * 32 + i] = scale * (float)(code - 32);
        }
    }
}

static void q6_k_to_f32(const uint8_t *in, uint64_t n_values, float *out)
{
    for (; n_values; n_values -= SUPER_VALUES, in += Q6_K_BYTES, out += SUPER_VALUES) {
        float all_scale = load_f16(in + 208);
        q6_k_half(in, in + 128, in + 192, all_scale, out);
        q6_k_half(in + 64, in + 160, in + 200, all_scale, out + 128);
    }
}

void quant_to_f32(enum quant_type type, const void *rows, uint64_t n_values, float *out)
{
    switch (type) {
    case QUANT_F32:
        f32_to_f32(rows, n_values, out);
        return;
    case QUANT_F16:
        f16_to_f32(rows, n_values, out);
        return;
    case QUANT_BF16:
        bf16_to_f32(rows, n_values, out);
        return;
    case QUANT_Q8_0:
        q8_0_to_f32(rows, n_values, out);
        return;
    case QUANT_Q4_0:
        q4_0_to_f32(rows, n_values, out);
        return;
    case QUANT_Q4_1:
        q4_1_to_f32(rows, n_values, out);
        return;
    case QUANT_Q4_K:
        q4_k_to_f32(rows, n_values, out);
        return;
    case QUANT_Q6_K:
        q6_k_to_f32(rows, n_values, out);
        return;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TOOLS_QUANT_H
#define HEADRACE_TOOLS_QUANT_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The tensor types that GGUF files hold and headrace reads, with the numbers the file format gives
 * them. A quantised row is a run of blocks: `quant_block_values` numbers in `quant_block_bytes`.
 */
enum quant_type {
    QUANT_F32 = 0,
    QUANT_F16 = 1,
    QUANT_Q4_0 = 2,
    QUANT_Q4_1 = 3,
    QUANT_Q8_0 = 8,
    QUANT_Q4_K = 12,
    QUANT_Q6_K = 14,
    QUANT_BF16 = 30,
};

/* Whether headrace reads tensors of this type. The functions below want a type that it does. */
bool quant_is_known(uint32_t type);

/* The type's name ("Q4_1"), also for types of the format that are not read; else "unknown". */
const char *quant_name(uint32_t type);

uint32_t quant_block_values(enum quant_type type); /* 1, 32 or 256 */
uint32_t quant_block_bytes(enum quant_type type);

/* Bytes of n_values numbers. n_values: a multiple of quant_block_values, at most 2^56. */
uint64_t quant_bytes(enum quant_type type, uint64_t n_values);

/*
 * Writes n_values fp32 numbers to `out`, bit for bit what the format's reference gives. `rows` may
 * have any alignment and holds quant_bytes(type, n_values) bytes; n_values may span many rows, and
 * is a multiple of quant_block_values(type). Does not allocate; safe from several threads.
 */
void quant_to_f32(enum quant_type type, const void *rows, uint64_t n_values, float *out);

#endif

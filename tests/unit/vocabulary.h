/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TESTS_VOCABULARY_H
#define HEADRACE_TESTS_VOCABULARY_H

/* A byte-level vocabulary by hand, as a GGUF file in memory. */

#include "tests/unit/gguf_bytes.h"

#include <stdio.h>

/* Ids: 0..2 control, 3..258 the units of the bytes 0..255, then the results of the merges. */
enum { UNIT_0 = 3, MERGED_0 = UNIT_0 + 256 };

static const char *const merges[] = {"b c", "a b", "ab c", "l o", "lo w", "Ġ low", "Ġ Ġ", "e r"};
static const char *const merged[] = {"bc", "ab", "abc", "lo", "low", "Ġlow", "ĠĠ", "er"};

enum { N_MERGES = sizeof merges / sizeof merges[0], LITERAL = MERGED_0 + N_MERGES, N_TOKENS };

/* What a test changes in an otherwise good vocabulary. */
struct change {
    const char *model, *pre;
    const char *token_5; /* another text for token 5 */
    const char *merge_3; /* another merge for the fourth */
    const char *flag;    /* a boolean key set to true */
    uint32_t eos;        /* 0: the key is left out */
    uint32_t n_types;    /* 0: all */
    uint32_t bos;        /* 0: left out */
};

static inline void unit_text(int byte, char *out)
{
    static int shifted;
    shifted = byte == 0 ? 0x100 : shifted;
    bool is_own = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    int point = is_own ? byte : shifted++;
    if (point < 0x80)
        snprintf(out, 3, "%c", point);
    else
        snprintf(out, 3, "%c%c", 0xc0 | point >> 6, 0x80 | (point & 0x3f));
}

static inline void put_vocabulary(struct bytes *b, const struct change *change)
{
    char unit[4];
    put_key_array(b, "tokenizer.ggml.tokens", GGUF_STR, N_TOKENS);
    put_text(b, "<|endoftext|>");
    put_text(b, "<|im_start|>");
    put_text(b, "<|im_end|>");
    for (int byte = 0; byte < 256; byte++) {
        unit_text(byte, unit);
        /* Byte 0x04 is left without a token. */
        put_text(b, byte == 4                      ? "-left out-"
                    : byte == 2 && change->token_5 ? change->token_5
                                                   : unit);
    }
    for (int i = 0; i < N_MERGES; i++)
        put_text(b, merged[i]);
    put_text(b, "<lit>");
    put_key_array(b, "tokenizer.ggml.merges", GGUF_STR, N_MERGES);
    for (int i = 0; i < N_MERGES; i++)
        put_text(b, i == 3 && change->merge_3 ? change->merge_3 : merges[i]);
    uint32_t n_types = change->n_types ? change->n_types : N_TOKENS;
    put_key_array(b, "tokenizer.ggml.token_type", GGUF_I32, n_types);
    for (uint32_t i = 0; i < n_types; i++)
        put_u32(b, i < 3 ? 3 : i == LITERAL ? 4 : 1);
}

static inline void put_vocabulary_file(struct bytes *b, const struct change *change)
{
    put_head(b, 0, 5u + !!change->flag + !!change->eos + !!change->bos);
    put_key_text(b, "tokenizer.ggml.model", change->model ? change->model : "gpt2");
    put_key_text(b, "tokenizer.ggml.pre", change->pre ? change->pre : "gpt-2");
    if (change->flag)
        put_key_bool(b, change->flag, 1);
    if (change->bos)
        put_key_u32(b, "tokenizer.ggml.bos_token_id", change->bos);
    if (change->eos)
        put_key_u32(b, "tokenizer.ggml.eos_token_id", change->eos);
    put_vocabulary(b, change);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TOOLS_TOKENIZER_H
#define HEADRACE_TOOLS_TOKENIZER_H

#include "tools/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Byte-level BPE from a GGUF's own tokenizer data (tokenizer.ggml.model = gpt2), with the
 * pre-tokenizer that tokenizer.ggml.pre names. Any other model or pre-tokenizer is an error that
 * names it. Ids equal llama.cpp's.
 *
 * Text is UTF-8. A NUL byte or a byte that is not UTF-8 is an error with its offset, never replaced
 * silently. Errors as in gguf.h: a buffer of GGUF_ERROR_BYTES, written on failure only.
 */
struct tokenizer;

/* A growing list; start from {0}. Reuse keeps the memory; tokens_free frees it. */
struct tokens {
    int32_t *ids;
    size_t n;
    size_t capacity;
};

void tokens_free(struct tokens *tokens);
bool tokens_push(struct tokens *tokens, int32_t id); /* false: out of memory */

enum tokenizer_flags {
    TOKENIZER_ADD_SPECIAL = 1,   /* BOS and EOS where the file asks for them */
    TOKENIZER_PARSE_SPECIAL = 2, /* control tokens written in the text become their ids */
};

/*
 * Reads the tokenizer of `file`, which must outlive it. NULL and a sentence on failure. A tokenizer
 * is used by one thread at a time.
 */
struct tokenizer *tokenizer_open(const struct gguf *file, char *error);
void tokenizer_close(struct tokenizer *tokenizer); /* NULL is fine */

/*
 * Appends the ids of text[0..n_bytes) to `out`. `name` stands for the text in messages (a path, or
 * "the prompt"). An empty text gives only what ADD_SPECIAL adds. On failure `out` is cut back to
 * what it held. Time O(n log n) also for a text of one word.
 */
bool tokenizer_encode(struct tokenizer *tokenizer, const char *name, const char *text,
                      size_t n_bytes, unsigned flags, struct tokens *out, char *error);

/*
 * The bytes that the token stands for: a text is the concatenation of its tokens' bytes. One token
 * may hold part of a UTF-8 character. Control tokens give their text ("<|im_end|>"). An id out of
 * range gives no bytes. Lives as long as the tokenizer.
 */
struct gguf_str tokenizer_piece(const struct tokenizer *tokenizer, int32_t id);

/* The id whose text in the vocabulary is exactly `text` ("<|im_start|>"), or -1. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text);

uint32_t tokenizer_n_tokens(const struct tokenizer *tokenizer);
int32_t tokenizer_bos(const struct tokenizer *tokenizer); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *tokenizer); /* -1: none */
bool tokenizer_adds_bos(const struct tokenizer *tokenizer);
bool tokenizer_adds_eos(const struct tokenizer *tokenizer);
bool tokenizer_is_control(const struct tokenizer *tokenizer, int32_t id);
bool tokenizer_is_end(const struct tokenizer *tokenizer, int32_t id); /* ends a generated answer */
const char *tokenizer_pre(const struct tokenizer *tokenizer);         /* "smollm" */

#endif

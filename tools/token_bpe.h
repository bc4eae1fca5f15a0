/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TOOLS_TOKEN_BPE_H
#define HEADRACE_TOOLS_TOKEN_BPE_H

#include "tools/tokenizer.h"

/*
 * The vocabulary and the merges of a byte-level BPE. In the vocabulary a byte is written as one
 * printable character, its unit: itself for the printable bytes of Latin-1, else a character from
 * U+0100 on.
 */
struct bpe;

/* From tokenizer.ggml.tokens and .merges of the file, which must outlive it. */
struct bpe *bpe_open(const struct gguf *file, char *error);
void bpe_close(struct bpe *bpe);

uint32_t bpe_n_tokens(const struct bpe *bpe);
struct gguf_str bpe_text(const struct bpe *bpe, int32_t id); /* as the vocabulary writes it */
int32_t bpe_find(const struct bpe *bpe, const char *text, size_t n_bytes); /* or -1 */

/* Writes the bytes that a token's text stands for to out (at most text.n_bytes); their number. */
size_t bpe_decode(struct gguf_str text, char *out);

enum bpe_result {
    BPE_OK,
    BPE_NO_TOKEN, /* the byte at *bad_at of the word has no token */
    BPE_NO_MEMORY,
};

/* Appends the ids of one word. takes_whole: a word that is a token needs no merges. */
enum bpe_result bpe_encode(struct bpe *bpe, const char *word, size_t n_bytes, bool takes_whole,
                           struct tokens *out, size_t *bad_at);

/* The offset of the first byte that is no UTF-8 (or a NUL), or n_bytes when all is well. */
size_t utf8_check(const char *text, size_t n_bytes);

#endif

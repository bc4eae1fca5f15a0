/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TOOLS_TOKEN_SPLIT_H
#define HEADRACE_TOOLS_TOKEN_SPLIT_H

#include "tools/gguf.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * The pre-tokenizer: cuts a text into the words within which BPE merges. Each kind is a list of
 * patterns; each pattern cuts what the one before it left whole, and what lies between two matches
 * is a piece too, so that no byte is lost.
 */
struct token_splitter;

/* Traits that go with a pre-tokenizer's name rather than with its patterns. */
struct token_traits {
    bool takes_whole_words; /* a word that is a token is taken before any merge is tried */
    bool adds_bos;          /* unless the file says otherwise */
};

/* NULL and a sentence for an unknown name or no memory. `name` as in tokenizer.ggml.pre. */
struct token_splitter *token_splitter_open(const struct gguf *file, struct gguf_str name,
                                           char *error);
void token_splitter_close(struct token_splitter *splitter);
const struct token_traits *token_splitter_traits(const struct token_splitter *splitter);
const char *token_splitter_name(const struct token_splitter *splitter);

/* Takes one word; false stops the split. */
typedef bool token_word_fn(void *context, const char *word, size_t n_bytes);

/*
 * Calls `take` for each word of text, in order. The text must be UTF-8. False when `take` gave
 * false (*reason stays 0) or when the regular expression failed (*reason is PCRE2's code).
 */
bool token_split(struct token_splitter *splitter, const char *text, size_t n_bytes,
                 token_word_fn *take, void *context, int *reason);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tools/token_split.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The insides of character classes. White space is Unicode's White_Space property spelled out,
 * since PCRE2's \s has one character more (U+180E).
 */
#define SPACE                                                                                      \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"           \
    "\\x{202f}\\x{205f}\\x{3000}"

/*
 * The categories of Unicode 15.1, whichever version PCRE2 has: 10.42's is 14, and the letters,
 * numbers and punctuation that came after it are named here.
 */
#define LETTER                                                                                     \
    "\\p{L}\\x{1123f}\\x{11240}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}"     \
    "\\x{13441}-\\x{13446}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}"          \
    "\\x{1e4d0}-\\x{1e4eb}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"
#define NUMBER "\\p{N}\\x{11f50}-\\x{11f59}\\x{1d2c0}-\\x{1d2d3}\\x{1e4f0}-\\x{1e4f9}"
#define PUNCTUATION "\\p{P}\\x{11b00}-\\x{11b09}\\x{11f43}-\\x{11f4f}"
#define MARK "[^" SPACE LETTER NUMBER "]" /* none of the three */

/* White space up to the last one before a word, which the word may take; then what is left. */
#define TRAILING_SPACE "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

/* The pattern of GPT-2's tokenizer. */
#define GPT2 "'(?:[stmd]|re|ve|ll)| ?[" LETTER "]+| ?[" NUMBER "]+| ?" MARK "+|" TRAILING_SPACE

/* Llama 3's and its kin; they differ in how many digits make a word. */
#define LLAMA3(digits)                                                                             \
    "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\\r\\n" LETTER NUMBER "]?[" LETTER "]+|[" NUMBER \
    "]" digits "| ?" MARK "+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" TRAILING_SPACE

enum { PATTERNS_MAX = 4 };

struct kind {
    const char *patterns[PATTERNS_MAX];
    struct token_traits traits;
};

/* Every character of the number class alone, then GPT-2's words. */
static const struct kind single_digits = {{"[" NUMBER "]", GPT2}, {false, false}};
static const struct kind gpt2 = {{GPT2}, {false, false}};
static const struct kind punctuated = {
    {"[" PUNCTUATION "$+<=>^~|]+", GPT2, "[" NUMBER "]+", "[0-9][0-9][0-9]"}, {false, false}};
static const struct kind llama3 = {{LLAMA3("{1,3}")}, {true, true}};
static const struct kind triple_digits = {{LLAMA3("{1,3}")}, {false, false}};
static const struct kind qwen2 = {{LLAMA3("")}, {false, false}};

static const struct {
    const char *name;
    const struct kind *kind;
} names[] = {
    {"default", &punctuated},
    {"gpt-2", &gpt2},
    {"phi-2", &gpt2},
    {"olmo", &gpt2},
    {"mpt", &gpt2},
    {"exaone4", &gpt2},
    {"smollm", &single_digits},
    {"starcoder", &single_digits},
    {"refact", &single_digits},
    {"command-r", &single_digits},
    {"codeshell", &single_digits},
    {"exaone", &single_digits},
    {"minerva-7b", &single_digits},
    {"llama-bpe", &llama3},
    {"llama3", &llama3},
    {"llama-v3", &llama3},
    {"falcon3", &llama3},
    {"pixtral", &llama3},
    {"dbrx", &triple_digits},
    {"smaug-bpe", &triple_digits},
    {"qwen2", &qwen2},
    {"deepseek-r1-qwen", &qwen2},
    {"stablelm2", &qwen2},
    {"megrez", &qwen2},
};

enum { N_NAMES = sizeof names / sizeof names[0] };

struct token_splitter {
    const char *name;
    const struct kind *kind;
    int n_patterns;
    pcre2_code *codes[PATTERNS_MAX];
    pcre2_match_data *matches[PATTERNS_MAX]; /* one each: a split nests within the one above */
};

/* Just-in-time compiled where the machine lets us; PCRE2 interprets the pattern otherwise. */
static bool compile(struct token_splitter *splitter, const char *pattern)
{
    int code;
    PCRE2_SIZE offset;
    int i = splitter->n_patterns++;
    splitter->codes[i] = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                       PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    if (!splitter->codes[i])
        return false;
    (void)pcre2_jit_compile(splitter->codes[i], PCRE2_JIT_COMPLETE);
    splitter->matches[i] = pcre2_match_data_create(1, NULL);
    return splitter->matches[i];
}

static struct token_splitter *open_kind(const char *name, const struct kind *kind)
{
    struct token_splitter *splitter = calloc(1, sizeof *splitter);
    if (!splitter)
        return NULL;
    splitter->name = name;
    splitter->kind = kind;
    for (int i = 0; i < PATTERNS_MAX && kind->patterns[i]; i++) {
        if (!compile(splitter, kind->patterns[i])) {
            token_splitter_close(splitter);
            return NULL;
        }
    }
    return splitter;
}

static void explain_unknown(const struct gguf *file, struct gguf_str name, char *error)
{
    char known[320] = "";
    size_t n = 0;
    for (int i = 0; i < N_NAMES && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", names[i].name);
    char shown[64];
    size_t n_shown = name.n_bytes < sizeof shown - 1 ? name.n_bytes : sizeof shown - 1;
    for (size_t i = 0; i < n_shown; i++) {
        unsigned char byte = (unsigned char)name.bytes[i];
        shown[i] = (char)(byte >= 32 && byte < 127 ? byte : '?');
    }
    shown[n_shown] = 0;
    gguf_explain(error, gguf_name(file), gguf_offset(file, name.bytes),
                 "tokenizer.ggml.pre names the pre-tokenizer '%s', which is not known (%s are)",
                 shown, known);
}

struct token_splitter *token_splitter_open(const struct gguf *file, struct gguf_str name,
                                           char *error)
{
    for (int i = 0; i < N_NAMES; i++) {
        if (!gguf_str_is(name, names[i].name))
            continue;
        struct token_splitter *splitter = open_kind(names[i].name, names[i].kind);
        if (!splitter)
            gguf_explain(error, gguf_name(file), gguf_offset(file, name.bytes),
                         "no memory for the pre-tokenizer '%s'", names[i].name);
        return splitter;
    }
    explain_unknown(file, name, error);
    return NULL;
}

void token_splitter_close(struct token_splitter *splitter)
{
    if (!splitter)
        return;
    for (int i = 0; i < splitter->n_patterns; i++) {
        pcre2_match_data_free(splitter->matches[i]);
        pcre2_code_free(splitter->codes[i]);
    }
    free(splitter);
}

const struct token_traits *token_splitter_traits(const struct token_splitter *splitter)
{
    return &splitter->kind->traits;
}

const char *token_splitter_name(const struct token_splitter *splitter)
{
    return splitter->name;
}

struct split {
    struct token_splitter *splitter;
    token_word_fn *take;
    void *context;
    int *reason;
};

/* Cuts text with pattern `i` and hands the pieces on; depth is at most PATTERNS_MAX. */
static bool split_with(const struct split *split, int i, const char *text, size_t n_bytes)
{
    if (n_bytes == 0)
        return true;
    if (i >= PATTERNS_MAX || i >= split->splitter->n_patterns)
        return split->take(split->context, text, n_bytes);
    pcre2_match_data *match = split->splitter->matches[i];
    size_t done = 0;
    while (done < n_bytes) {
        int code = pcre2_match(split->splitter->codes[i], (PCRE2_SPTR)text, n_bytes, done,
                               PCRE2_NO_UTF_CHECK, match, NULL);
        if (code < 0 && code != PCRE2_ERROR_NOMATCH) {
            *split->reason = code;
            return false;
        }
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(match);
        size_t start = code < 0 ? n_bytes : ends[0], end = code < 0 ? n_bytes : ends[1];
        if (!split_with(split, i + 1, text + done, start - done) ||
            !split_with(split, i + 1, text + start, end - start))
            return false;
        done = end;
    }
    return true;
}

bool token_split(struct token_splitter *splitter, const char *text, size_t n_bytes,
                 token_word_fn *take, void *context, int *reason)
{
    *reason = 0;
    struct split split = {splitter, take, context, reason};
    return split_with(&split, 0, text, n_bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/tokenizer.h"
#include "tools/token_bpe.h"
#include "tools/token_split.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Token types as tokenizer.ggml.token_type numbers them. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_MAX = 6 };

enum {
    TRAIT_CONTROL = 1, /* found in a text only when asked for */
    TRAIT_LITERAL = 2, /* found in every text, before it is cut into words */
    TRAIT_END = 4,
};

struct tokenizer {
    const struct gguf *file;
    struct bpe *bpe;
    struct token_splitter *splitter;
    uint32_t n_tokens;
    uint8_t *traits;
    int32_t *specials; /* control and literal tokens, the longest text first */
    uint32_t n_specials;
    char *pieces; /* what all tokens stand for, side by side */
    uint64_t *piece_ends;
    int32_t bos, eos;
    bool adds_bos, adds_eos;
};

void tokens_free(struct tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct tokens){0};
}

bool tokens_push(struct tokens *tokens, int32_t id)
{
    if (tokens->n == tokens->capacity) {
        size_t capacity = tokens->capacity ? 2 * tokens->capacity : 256;
        int32_t *ids = realloc(tokens->ids, capacity * sizeof *ids);
        if (!ids)
            return false;
        tokens->ids = ids;
        tokens->capacity = capacity;
    }
    tokens->ids[tokens->n++] = id;
    return true;
}

/*
 * Texts that end an answer in the chat formats in use. Files often mark only one of them as EOS, or
 * forget that they are control tokens; so they are known by their text.
 */
static const char *const end_texts[] = {
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>",      "<|eom_id|>", "<|end|>",
    "<|return|>", "<|call|>",      "<|end_of_text|>", "</s>",       "<EOT>",
    "_<EOT>",     "[EOT]",         "<end_of_turn>",   "[EOS]",      "<end_of_utterance>",
};

static void mark_ends(struct tokenizer *t)
{
    for (size_t i = 0; i < sizeof end_texts / sizeof end_texts[0]; i++) {
        int32_t id = tokenizer_find(t, end_texts[i]);
        if (id >= 0)
            t->traits[id] |= TRAIT_CONTROL | TRAIT_END;
    }
}

static bool read_types(struct tokenizer *t, char *error)
{
    static const char key[] = "tokenizer.ggml.token_type";
    struct gguf_array types;
    enum gguf_found found = gguf_get_array(t->file, key, GGUF_I64, &types, error);
    if (found != GGUF_OK)
        return found == GGUF_ABSENT; /* then all are normal */
    if (types.n != t->n_tokens) {
        gguf_explain(error, gguf_name(t->file), gguf_offset(t->file, types.bytes),
                     "%s has %" PRIu64 " elements for %" PRIu32 " tokens", key, types.n,
                     t->n_tokens);
        return false;
    }
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        int64_t type = gguf_array_i64(&types, i);
        if (type < 0 || type > TYPE_MAX) {
            gguf_explain(error, gguf_name(t->file), gguf_offset(t->file, types.bytes),
                         "%s[%" PRIu32 "] is %" PRId64 "; 0 to %d are known", key, i, type,
                         TYPE_MAX);
            return false;
        }
        t->traits[i] = type == TYPE_CONTROL || type == TYPE_UNKNOWN ? TRAIT_CONTROL
                       : type == TYPE_USER_DEFINED                  ? TRAIT_LITERAL
                                                                    : 0;
    }
    return true;
}

/* An id that the file may name; -1 when it does not. */
static bool read_id(struct tokenizer *t, const char *key, int32_t *id, char *error)
{
    uint32_t value;
    *id = -1;
    enum gguf_found found = gguf_get_u32(t->file, key, &value, error);
    if (found != GGUF_OK)
        return found == GGUF_ABSENT;
    if (value >= t->n_tokens) {
        if (error)
            snprintf(error, GGUF_ERROR_BYTES,
                     "%.200s: key '%s' is %" PRIu32 ", but there are only %" PRIu32 " tokens",
                     gguf_name(t->file), key, value, t->n_tokens);
        return false;
    }
    *id = (int32_t)value;
    return true;
}

static bool read_flag(struct tokenizer *t, const char *key, bool *flag, int32_t id,
                      const char *id_key, char *error)
{
    if (gguf_get_bool(t->file, key, flag, error) == GGUF_BAD)
        return false;
    if (!*flag || id >= 0)
        return true;
    if (error)
        snprintf(error, GGUF_ERROR_BYTES, "%.200s: %s is asked for, but the file has no key '%s'",
                 gguf_name(t->file), key, id_key);
    return false;
}

static bool read_special_ids(struct tokenizer *t, char *error)
{
    static const char bos_key[] = "tokenizer.ggml.bos_token_id";
    static const char eos_key[] = "tokenizer.ggml.eos_token_id";
    int32_t eot, eom;
    bool adds_separator = false;
    t->adds_bos = token_splitter_traits(t->splitter)->adds_bos;
    bool is_read =
        read_id(t, bos_key, &t->bos, error) && read_id(t, eos_key, &t->eos, error) &&
        read_id(t, "tokenizer.ggml.eot_token_id", &eot, error) &&
        read_id(t, "tokenizer.ggml.eom_token_id", &eom, error) &&
        read_flag(t, "tokenizer.ggml.add_bos_token", &t->adds_bos, t->bos, bos_key, error) &&
        read_flag(t, "tokenizer.ggml.add_eos_token", &t->adds_eos, t->eos, eos_key, error) &&
        gguf_get_bool(t->file, "tokenizer.ggml.add_sep_token", &adds_separator, error) != GGUF_BAD;
    if (!is_read)
        return false;
    if (adds_separator) {
        if (error)
            snprintf(error, GGUF_ERROR_BYTES,
                     "%.200s: tokenizer.ggml.add_sep_token is set, which is not supported",
                     gguf_name(t->file));
        return false;
    }
    mark_ends(t);
    int32_t ends[] = {t->eos, eot, eom};
    for (int i = 0; i < 3; i++)
        if (ends[i] >= 0)
            t->traits[ends[i]] |= TRAIT_END;
    return true;
}

static int compare_specials(const void *a, const void *b, void *context)
{
    const struct bpe *bpe = context;
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    uint64_t left_bytes = bpe_text(bpe, left).n_bytes, right_bytes = bpe_text(bpe, right).n_bytes;
    if (left_bytes != right_bytes)
        return left_bytes < right_bytes ? 1 : -1;
    return (left > right) - (left < right);
}

static void list_specials(struct tokenizer *t)
{
    for (uint32_t i = 0; i < t->n_tokens; i++)
        if (t->traits[i] & (TRAIT_CONTROL | TRAIT_LITERAL) &&
            bpe_text(t->bpe, (int32_t)i).n_bytes > 0)
            t->specials[t->n_specials++] = (int32_t)i;
    qsort_r(t->specials, t->n_specials, sizeof *t->specials, compare_specials, t->bpe);
}

static void fill_pieces(struct tokenizer *t)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        struct gguf_str text = bpe_text(t->bpe, (int32_t)i);
        if (t->traits[i] & (TRAIT_CONTROL | TRAIT_LITERAL)) {
            memcpy(t->pieces + n, text.bytes, text.n_bytes);
            n += text.n_bytes;
        } else {
            n += bpe_decode(text, t->pieces + n);
        }
        t->piece_ends[i] = n;
    }
}

static bool allocate(struct tokenizer *t, char *error)
{
    uint64_t n_bytes = 1;
    for (uint32_t i = 0; i < t->n_tokens; i++)
        n_bytes += bpe_text(t->bpe, (int32_t)i).n_bytes;
    t->traits = calloc(t->n_tokens, sizeof *t->traits);
    t->specials = calloc(t->n_tokens, sizeof *t->specials);
    t->piece_ends = calloc(t->n_tokens, sizeof *t->piece_ends);
    t->pieces = malloc(n_bytes);
    if (t->traits && t->specials && t->piece_ends && t->pieces)
        return true;
    gguf_explain(error, gguf_name(t->file), 0, "no memory for %" PRIu32 " tokens", t->n_tokens);
    return false;
}

static bool check_model(const struct gguf *file, char *error)
{
    struct gguf_str model;
    if (gguf_get_str(file, "tokenizer.ggml.model", &model, error) != GGUF_OK)
        return false;
    if (gguf_str_is(model, "gpt2"))
        return true;
    char shown[64];
    size_t n = model.n_bytes < sizeof shown - 1 ? model.n_bytes : sizeof shown - 1;
    for (size_t i = 0; i < n; i++)
        shown[i] = (char)(model.bytes[i] >= 32 && model.bytes[i] < 127 ? model.bytes[i] : '?');
    shown[n] = 0;
    gguf_explain(error, gguf_name(file), gguf_offset(file, model.bytes),
                 "tokenizer.ggml.model is '%s'; only 'gpt2' (byte-level BPE) is supported", shown);
    return false;
}

static bool fill(struct tokenizer *t, char *error)
{
    struct gguf_str pre;
    if (!check_model(t->file, error) ||
        gguf_get_str(t->file, "tokenizer.ggml.pre", &pre, error) != GGUF_OK)
        return false;
    t->splitter = token_splitter_open(t->file, pre, error);
    t->bpe = t->splitter ? bpe_open(t->file, error) : NULL;
    if (!t->bpe)
        return false;
    t->n_tokens = bpe_n_tokens(t->bpe);
    if (!allocate(t, error) || !read_types(t, error) || !read_special_ids(t, error))
        return false;
    list_specials(t);
    fill_pieces(t);
    return true;
}

struct tokenizer *tokenizer_open(const struct gguf *file, char *error)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        gguf_explain(error, gguf_name(file), 0, "no memory for the tokenizer");
        return NULL;
    }
    t->file = file;
    if (fill(t, error))
        return t;
    tokenizer_close(t);
    return NULL;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_close(t->bpe);
    token_splitter_close(t->splitter);
    free(t->traits);
    free(t->specials);
    free(t->pieces);
    free(t->piece_ends);
    free(t);
}

/* A stretch of the text that is one special token, or (id < 0) still to be cut into words. */
struct stretch {
    size_t start, n_bytes;
    int32_t id;
};

struct stretches {
    struct stretch *items;
    size_t n, capacity;
};

static bool push_stretch(struct stretches *list, size_t start, size_t n_bytes, int32_t id)
{
    if (n_bytes == 0)
        return true;
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 16;
        struct stretch *items = realloc(list->items, capacity * sizeof *items);
        if (!items)
            return false;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = (struct stretch){start, n_bytes, id};
    return true;
}

/* Copies `from` to `to` with each occurrence of the token's text as a stretch of its own. */
static bool cut_out(const char *text, const struct stretches *from, struct gguf_str special,
                    int32_t id, struct stretches *to)
{
    bool is_stored = true;
    to->n = 0;
    for (size_t i = 0; i < from->n && is_stored; i++) {
        struct stretch rest = from->items[i];
        const char *found;
        while (rest.id < 0 && rest.n_bytes && is_stored &&
               (found = memmem(text + rest.start, rest.n_bytes, special.bytes, special.n_bytes))) {
            size_t before = (size_t)(found - text) - rest.start;
            is_stored = push_stretch(to, rest.start, before, -1) &&
                        push_stretch(to, rest.start + before, special.n_bytes, id);
            rest.start += before + special.n_bytes;
            rest.n_bytes -= before + special.n_bytes;
        }
        is_stored = is_stored && push_stretch(to, rest.start, rest.n_bytes, rest.id);
    }
    return is_stored;
}

/* Cuts the text at special tokens, the longest first; *list holds the whole text at first. */
static bool cut_specials(const struct tokenizer *t, const char *text, size_t n_bytes,
                         bool parses_control, struct stretches *list)
{
    struct stretches other = {0};
    bool is_cut = true;
    for (uint32_t i = 0; i < t->n_specials && is_cut; i++) {
        int32_t id = t->specials[i];
        struct gguf_str special = bpe_text(t->bpe, id);
        bool is_wanted = parses_control || !(t->traits[id] & TRAIT_CONTROL);
        if (!is_wanted || !memmem(text, n_bytes, special.bytes, special.n_bytes))
            continue;
        is_cut = cut_out(text, list, special, id, &other);
        struct stretches swapped = *list;
        *list = other;
        other = swapped;
    }
    free(other.items);
    return is_cut;
}

/* What one call of tokenizer_encode works on. */
struct encoding {
    struct tokenizer *tokenizer;
    const char *name, *text;
    struct tokens *out;
    char *error;
};

static bool take_word(void *context, const char *word, size_t n_bytes)
{
    struct encoding *e = context;
    bool takes_whole = token_splitter_traits(e->tokenizer->splitter)->takes_whole_words;
    size_t bad_at = 0;
    switch (bpe_encode(e->tokenizer->bpe, word, n_bytes, takes_whole, e->out, &bad_at)) {
    case BPE_OK:
        return true;
    case BPE_NO_TOKEN:
        gguf_explain(e->error, e->name, (uint64_t)(word - e->text) + bad_at,
                     "the byte 0x%02x has no token in the vocabulary of %.160s; remove it from "
                     "the text",
                     (uint8_t)word[bad_at], gguf_name(e->tokenizer->file));
        return false;
    case BPE_NO_MEMORY:
        break;
    }
    gguf_explain(e->error, e->name, (uint64_t)(word - e->text),
                 "no memory to tokenize a word of %zu bytes", n_bytes);
    return false;
}

static bool encode_stretch(struct encoding *e, const struct stretch *stretch)
{
    int reason = 0;
    if (stretch->id >= 0) {
        if (tokens_push(e->out, stretch->id))
            return true;
        gguf_explain(e->error, e->name, stretch->start, "no memory for the tokens");
        return false;
    }
    if (token_split(e->tokenizer->splitter, e->text + stretch->start, stretch->n_bytes, take_word,
                    e, &reason))
        return true;
    if (reason)
        gguf_explain(e->error, e->name, stretch->start,
                     "the text that begins here cannot be cut into words (PCRE2 error %d)", reason);
    return false;
}

static bool encode_text(struct encoding *e, size_t n_bytes, bool parses_control)
{
    struct stretches list = {0};
    bool is_encoded = push_stretch(&list, 0, n_bytes, -1) &&
                      cut_specials(e->tokenizer, e->text, n_bytes, parses_control, &list);
    if (!is_encoded)
        gguf_explain(e->error, e->name, 0, "no memory to tokenize %zu bytes", n_bytes);
    for (size_t i = 0; i < list.n && is_encoded; i++)
        is_encoded = encode_stretch(e, &list.items[i]);
    free(list.items);
    return is_encoded;
}

static bool check_text(const char *name, const char *text, size_t n_bytes, char *error)
{
    if (n_bytes > INT32_MAX) {
        gguf_explain(error, name, INT32_MAX, "the text has %zu bytes; at most %d are allowed",
                     n_bytes, INT32_MAX);
        return false;
    }
    size_t good = utf8_check(text, n_bytes);
    if (good == n_bytes)
        return true;
    if (text[good] == 0)
        gguf_explain(error, name, good,
                     "there is a NUL byte, so this is no text; give a UTF-8 text file");
    else
        gguf_explain(error, name, good,
                     "the byte 0x%02x is not UTF-8; convert the text to UTF-8 (iconv can)",
                     (uint8_t)text[good]);
    return false;
}

bool tokenizer_encode(struct tokenizer *t, const char *name, const char *text, size_t n_bytes,
                      unsigned flags, struct tokens *out, char *error)
{
    if (!check_text(name, text, n_bytes, error))
        return false;
    struct encoding encoding = {t, name, text, out, error};
    size_t n_before = out->n;
    bool adds = flags & TOKENIZER_ADD_SPECIAL;
    bool has_room = !(adds && t->adds_bos) || tokens_push(out, t->bos);
    bool is_encoded = has_room && encode_text(&encoding, n_bytes, flags & TOKENIZER_PARSE_SPECIAL);
    if (is_encoded && adds && t->adds_eos)
        has_room = tokens_push(out, t->eos);
    if (!has_room)
        gguf_explain(error, name, 0, "no memory for the tokens");
    if (!has_room || !is_encoded)
        out->n = n_before;
    return has_room && is_encoded;
}

struct gguf_str tokenizer_piece(const struct tokenizer *t, int32_t id)
{
    if (id < 0 || (uint32_t)id >= t->n_tokens)
        return (struct gguf_str){"", 0};
    uint64_t start = id ? t->piece_ends[id - 1] : 0;
    return (struct gguf_str){t->pieces + start, t->piece_ends[id] - start};
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text)
{
    return bpe_find(t->bpe, text, strlen(text));
}

uint32_t tokenizer_n_tokens(const struct tokenizer *t)
{
    return t->n_tokens;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->adds_bos;
}

bool tokenizer_adds_eos(const struct tokenizer *t)
{
    return t->adds_eos;
}

static bool has_trait(const struct tokenizer *t, int32_t id, unsigned trait)
{
    return id >= 0 && (uint32_t)id < t->n_tokens && t->traits[id] & trait;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    return has_trait(t, id, TRAIT_CONTROL);
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id)
{
    return has_trait(t, id, TRAIT_END);
}

const char *tokenizer_pre(const struct tokenizer *t)
{
    return token_splitter_name(t->splitter);
}

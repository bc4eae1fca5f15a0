/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/vocabulary.h"
#include "tools/token_split.h"
#include "tools/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static struct bytes b;
static char error[GGUF_ERROR_BYTES];

static struct gguf *open_file(const struct change *change)
{
    put_vocabulary_file(&b, change);
    struct gguf *file = gguf_open_memory("m.gguf", b.data, b.n, error);
    if (!file)
        fail_msg("%s", error);
    return file;
}

static void check_refused(const struct change *change, const char *sentence)
{
    struct gguf *file = open_file(change);
    assert_null(tokenizer_open(file, error));
    if (!strstr(error, sentence) || strncmp(error, "m.gguf: ", 8) != 0)
        fail_msg("'%s' is not in '%s'", sentence, error);
    gguf_close(file);
}

static void refusals(void **state)
{
    (void)state;
    check_refused(&(struct change){.model = "llama"},
                  "tokenizer.ggml.model is 'llama'; only 'gpt2' (byte-level BPE) is supported");
    check_refused(&(struct change){.pre = "tekken\n"},
                  "names the pre-tokenizer 'tekken?', which is not known (default, gpt-2, ");
    check_refused(&(struct change){.token_5 = "x"}, "tokenizer.ggml.tokens[123] has the text of an "
                                                    "earlier token");
    check_refused(&(struct change){.token_5 = "\xc3"}, "tokenizer.ggml.tokens[5] is not UTF-8");
    check_refused(&(struct change){.merge_3 = "lo"},
                  "tokenizer.ggml.merges[3] has no space between two parts");
    check_refused(&(struct change){.merge_3 = " lo"}, "merges[3] has no space between two parts");
    check_refused(&(struct change){.merge_3 = "zz o"}, "has a left part that is no token");
    check_refused(&(struct change){.merge_3 = "o zz"}, "has a right part that is no token");
    check_refused(&(struct change){.merge_3 = "o l"}, "gives a text that is no token");
    check_refused(&(struct change){.n_types = 10}, "has 10 elements for 268 tokens");
    check_refused(&(struct change){.eos = 268}, "key 'tokenizer.ggml.eos_token_id' is 268, but "
                                                "there are only 268 tokens");
    check_refused(&(struct change){.flag = "tokenizer.ggml.add_bos_token"},
                  "add_bos_token is asked for, but the file has no key "
                  "'tokenizer.ggml.bos_token_id'");
    check_refused(&(struct change){.flag = "tokenizer.ggml.add_sep_token"}, "is not supported");
}

static void missing_keys(void **state)
{
    (void)state;
    put_head(&b, 0, 1);
    put_key_text(&b, "tokenizer.ggml.model", "gpt2");
    struct gguf *file = gguf_open_memory("m.gguf", b.data, b.n, error);
    assert_null(tokenizer_open(file, error));
    assert_string_equal(error, "m.gguf: the file has no key 'tokenizer.ggml.pre'");
    gguf_close(file);
    put_head(&b, 0, 2);
    put_key_text(&b, "tokenizer.ggml.model", "gpt2");
    put_key_text(&b, "tokenizer.ggml.pre", "smollm");
    file = gguf_open_memory("m.gguf", b.data, b.n, error);
    assert_null(tokenizer_open(file, error));
    assert_string_equal(error, "m.gguf: the file has no key 'tokenizer.ggml.tokens'");
    gguf_close(file);
}

struct opened {
    struct gguf *file;
    struct tokenizer *tokenizer;
    struct tokens tokens;
};

static struct opened open_good(const struct change *change)
{
    struct opened o = {open_file(change), NULL, {0}};
    o.tokenizer = tokenizer_open(o.file, error);
    if (!o.tokenizer)
        fail_msg("%s", error);
    return o;
}

static void close_good(struct opened *o)
{
    tokens_free(&o->tokens);
    tokenizer_close(o->tokenizer);
    gguf_close(o->file);
}

static void check_ids(struct opened *o, const char *text, unsigned flags, const int32_t *ids,
                      size_t n)
{
    o->tokens.n = 0;
    if (!tokenizer_encode(o->tokenizer, "text", text, strlen(text), flags, &o->tokens, error))
        fail_msg("%s", error);
    assert_int_equal(o->tokens.n, n);
    assert_memory_equal(o->tokens.ids, ids, n * sizeof *ids);
}

#define CHECK_IDS(o, text, flags, ...)                                                             \
    check_ids(o, text, flags, (const int32_t[]){__VA_ARGS__},                                      \
              sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void merge_order(void **state)
{
    (void)state;
    struct opened o = open_good(&(struct change){0});
    /* The lowest rank wins over the leftmost: a bc, not ab c; and "a bc" is no merge. */
    CHECK_IDS(&o, "abc", 0, UNIT_0 + 'a', MERGED_0);
    CHECK_IDS(&o, "abx", 0, MERGED_0 + 1, UNIT_0 + 'x');
    CHECK_IDS(&o, "low lower", 0, MERGED_0 + 4, MERGED_0 + 5, MERGED_0 + 7);
    /* Of equal ranks the leftmost goes first. */
    CHECK_IDS(&o, "     ", 0, MERGED_0 + 6, MERGED_0 + 6, UNIT_0 + ' ');
    CHECK_IDS(&o, "\xc3\xa9", 0, UNIT_0 + 0xc3, UNIT_0 + 0xa9);
    close_good(&o);
    /* Llama 3 takes a word that is a token as it stands. */
    struct opened whole = open_good(&(struct change){.pre = "llama-bpe", .bos = 1});
    CHECK_IDS(&whole, "abc", 0, MERGED_0 + 2);
    CHECK_IDS(&whole, "abcd", 0, UNIT_0 + 'a', MERGED_0, UNIT_0 + 'd');
    close_good(&whole);
}

static void special_tokens(void **state)
{
    (void)state;
    struct opened o =
        open_good(&(struct change){.flag = "tokenizer.ggml.add_bos_token", .bos = 1, .eos = 2});
    const unsigned both = TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL;
    check_ids(&o, "", 0, NULL, 0);
    CHECK_IDS(&o, "", both, 1);
    CHECK_IDS(&o, "<|im_end|>lo<|im_end|>", both, 1, 2, MERGED_0 + 3, 2);
    CHECK_IDS(&o, "x<lit>", 0, UNIT_0 + 'x', LITERAL); /* user-defined: always */
    assert_true(tokenizer_encode(o.tokenizer, "t", "<|im_end|>", 10, 0, &o.tokens, error));
    assert_int_equal(o.tokens.n, 2 + 10); /* appended; control tokens are text here */
    assert_int_equal(tokenizer_find(o.tokenizer, "<|im_start|>"), 1);
    assert_int_equal(tokenizer_find(o.tokenizer, "<|no_such|>"), -1);
    assert_int_equal(tokenizer_find(o.tokenizer, ""), -1);
    assert_int_equal(tokenizer_bos(o.tokenizer), 1);
    assert_int_equal(tokenizer_eos(o.tokenizer), 2);
    assert_true(tokenizer_adds_bos(o.tokenizer) && !tokenizer_adds_eos(o.tokenizer));
    assert_true(tokenizer_is_control(o.tokenizer, 1) && !tokenizer_is_control(o.tokenizer, 3));
    assert_true(tokenizer_is_end(o.tokenizer, 0) && !tokenizer_is_end(o.tokenizer, 1));
    assert_true(tokenizer_is_end(o.tokenizer, 2) && !tokenizer_is_end(o.tokenizer, -1));
    assert_int_equal(tokenizer_n_tokens(o.tokenizer), N_TOKENS);
    assert_string_equal(tokenizer_pre(o.tokenizer), "gpt-2");
    close_good(&o);
}

static void pieces(void **state)
{
    (void)state;
    struct opened o = open_good(&(struct change){0});
    for (int byte = 0; byte < 256; byte++) {
        struct gguf_str piece = tokenizer_piece(o.tokenizer, UNIT_0 + byte);
        if (byte == 4)
            assert_true(gguf_str_is(piece, "-left out-"));
        else
            assert_true(piece.n_bytes == 1 && (uint8_t)piece.bytes[0] == byte);
    }
    assert_true(gguf_str_is(tokenizer_piece(o.tokenizer, MERGED_0 + 5), " low"));
    assert_true(gguf_str_is(tokenizer_piece(o.tokenizer, 2), "<|im_end|>"));
    assert_int_equal(tokenizer_piece(o.tokenizer, -1).n_bytes, 0);
    assert_int_equal(tokenizer_piece(o.tokenizer, N_TOKENS).n_bytes, 0);
    close_good(&o);
}

static void check_text_refused(struct opened *o, const char *text, size_t n_bytes,
                               const char *sentence)
{
    o->tokens.n = 0;
    assert_true(tokens_push(&o->tokens, 77));
    assert_false(tokenizer_encode(o->tokenizer, "a.txt", text, n_bytes, 0, &o->tokens, error));
    assert_string_equal(error, sentence);
    assert_int_equal(o->tokens.n, 1); /* cut back to what it held */
}

static void bad_texts(void **state)
{
    (void)state;
    static const char *const bad[] = {"\x80",
                                      "\xc0\xaf",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xe2\x82",
                                      "\xc3(",
                                      "\xf0\x9f\x98"};
    struct opened o = open_good(&(struct change){0});
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[16], sentence[GGUF_ERROR_BYTES];
        snprintf(text, sizeof text, "ok %s", bad[i]);
        snprintf(sentence, sizeof sentence,
                 "a.txt: at byte 3: the byte 0x%02x is not UTF-8; convert the text to UTF-8 (iconv "
                 "can)",
                 (uint8_t)bad[i][0]);
        check_text_refused(&o, text, strlen(text), sentence);
    }
    check_text_refused(&o, "a\0b", 3,
                       "a.txt: at byte 1: there is a NUL byte, so this is no text; "
                       "give a UTF-8 text file");
    check_text_refused(&o, "low \4", 5,
                       "a.txt: at byte 4: the byte 0x04 has no token in the "
                       "vocabulary of m.gguf; remove it from the text");
    close_good(&o);
}

/* One word of 1 MB, and one stretch of white space: not quadratic, or this never ends. */
static void long_words(void **state)
{
    (void)state;
    static const char *const pres[] = {"gpt-2", "smollm", "default", "llama-bpe", "qwen2"};
    const size_t n_bytes = (size_t)1 << 20;
    char *text = malloc(n_bytes);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++) {
        struct opened o = open_good(&(struct change){.pre = pres[i], .bos = 1});
        memset(text, 'a', n_bytes);
        for (size_t at = 0; at < n_bytes; at += 2)
            text[at + 1] = 'b';
        assert_true(tokenizer_encode(o.tokenizer, "t", text, n_bytes, 0, &o.tokens, error));
        assert_int_equal(o.tokens.n, n_bytes / 2);
        memset(text, ' ', n_bytes);
        o.tokens.n = 0;
        assert_true(tokenizer_encode(o.tokenizer, "t", text, n_bytes, 0, &o.tokens, error));
        assert_int_equal(o.tokens.n, n_bytes / 2);
        close_good(&o);
    }
    free(text);
}

struct words {
    char joined[256];
};

static bool join(void *context, const char *word, size_t n_bytes)
{
    struct words *words = context;
    size_t n = strlen(words->joined);
    snprintf(words->joined + n, sizeof words->joined - n, "%s%.*s", n ? "|" : "", (int)n_bytes,
             word);
    return true;
}

/* The words of llama.cpp for the same pre-tokenizers. */
static void word_splits(void **state)
{
    (void)state;
    static const struct {
        const char *pre, *text, *words;
    } cases[] = {
        {"gpt-2", "It's  2024, isn't IT'S?\n\n x", "It|'s| | 2024|,| isn|'t| IT|'|S|?|\n\n| x"},
        {"smollm", "a 12  3b  ", "a| |1|2|  |3|b|  "},
        {"smollm", "\n\nx\ty", "\n|\n|x|\t|y"},
        {"default", "a+b 1234 x.", "a|+|b| |123|4| x|."},
        {"llama-bpe", "IT'S (foo)\r\n  bar 12345", "IT|'S| (|foo|)\r\n| | bar| |123|45"},
        {"qwen2", "\tx 123 \n\n y", "\tx| |1|2|3| \n\n| y"},
        {"qwen2", "e\u0301te\u0301 \u00bd", "e|\u0301te|\u0301| |\u00bd"},
    };
    struct gguf *file = open_file(&(struct change){0});
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gguf_str name = {cases[i].pre, strlen(cases[i].pre)};
        struct token_splitter *splitter = token_splitter_open(file, name, error);
        assert_non_null(splitter);
        struct words words = {""};
        int reason;
        assert_true(
            token_split(splitter, cases[i].text, strlen(cases[i].text), join, &words, &reason));
        assert_string_equal(words.joined, cases[i].words);
        token_splitter_close(splitter);
    }
    gguf_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),    cmocka_unit_test(missing_keys),
        cmocka_unit_test(merge_order), cmocka_unit_test(special_tokens),
        cmocka_unit_test(pieces),      cmocka_unit_test(bad_texts),
        cmocka_unit_test(long_words),  cmocka_unit_test(word_splits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

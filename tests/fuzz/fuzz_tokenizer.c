/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes as a text, after a first byte that picks the pre-tokenizer and the flags. The pieces
 * of the ids must give the text back; what is not UTF-8 must be refused with a sentence.
 */
#include "tests/unit/vocabulary.h"
#include "tools/tokenizer.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static const char *const pres[] = {"gpt-2", "smollm", "default", "llama-bpe", "qwen2", "dbrx"};

enum { N_PRES = sizeof pres / sizeof pres[0] };

static struct bytes files[N_PRES];
static struct tokenizer *tokenizers[N_PRES];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    for (int i = 0; i < N_PRES; i++) {
        put_vocabulary_file(&files[i], &(struct change){.pre = pres[i], .bos = 1, .eos = 2});
        struct gguf *file = gguf_open_memory("fuzz.gguf", files[i].data, files[i].n, NULL);
        tokenizers[i] = file ? tokenizer_open(file, NULL) : NULL;
        if (!tokenizers[i])
            abort();
    }
    return 0;
}

static void check_pieces(const struct tokenizer *tokenizer, const struct tokens *tokens,
                         size_t first, const uint8_t *text, size_t n_bytes)
{
    size_t at = 0;
    for (size_t i = first; i < tokens->n; i++) {
        struct gguf_str piece = tokenizer_piece(tokenizer, tokens->ids[i]);
        if (piece.n_bytes > n_bytes - at || memcmp(piece.bytes, text + at, piece.n_bytes) != 0)
            abort();
        at += piece.n_bytes;
    }
    if (at != n_bytes)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    char error[GGUF_ERROR_BYTES] = "";
    struct tokens tokens = {0};
    struct tokenizer *tokenizer = tokenizers[bytes[0] / 4 % N_PRES];
    unsigned flags = bytes[0] & 3;
    bool has_bos = flags & TOKENIZER_ADD_SPECIAL && tokenizer_adds_bos(tokenizer);
    if (tokenizer_encode(tokenizer, "text", (const char *)bytes + 1, n_bytes - 1, flags, &tokens,
                         error))
        check_pieces(tokenizer, &tokens, has_bos, bytes + 1, n_bytes - 1);
    else if (strncmp(error, "text: at byte ", 14) != 0 || tokens.n != 0)
        abort();
    tokens_free(&tokens);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tokenize MODEL.gguf TEXT [--bos] [--special]: prints the ids of a text, one a line, after it has
 * checked that their pieces give the text back. Without TEXT it only opens the file.
 */
#include "tools/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static char *read_text(const char *path, size_t *n_bytes)
{
    FILE *stream = fopen(path, "rb");
    char *text = NULL;
    size_t capacity = 0;
    *n_bytes = 0;
    while (stream && !feof(stream) && !ferror(stream)) {
        capacity = capacity ? 2 * capacity : 1 << 16;
        char *more = realloc(text, capacity);
        if (!more)
            break;
        text = more;
        *n_bytes += fread(text + *n_bytes, 1, capacity - *n_bytes, stream);
    }
    if (stream)
        fclose(stream);
    return text;
}

/* Whether the pieces of ids, from number `first` on, side by side are the text. */
static bool gives_back(const struct tokenizer *tokenizer, const struct tokens *tokens, size_t first,
                       const char *text, size_t n_bytes)
{
    size_t at = 0;
    for (size_t i = first; i < tokens->n; i++) {
        struct gguf_str piece = tokenizer_piece(tokenizer, tokens->ids[i]);
        if (piece.n_bytes > n_bytes - at || memcmp(text + at, piece.bytes, piece.n_bytes) != 0)
            return false;
        at += piece.n_bytes;
    }
    return at == n_bytes;
}

static int print_ids(struct tokenizer *tokenizer, const char *path, unsigned flags)
{
    char error[GGUF_ERROR_BYTES];
    size_t n_bytes;
    char *text = read_text(path, &n_bytes);
    if (!text) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return 1;
    }
    struct tokens tokens = {0};
    double start_s = now_s();
    bool is_encoded = tokenizer_encode(tokenizer, path, text, n_bytes, flags, &tokens, error);
    fprintf(stderr, "%zu bytes, %zu tokens, %.3f s\n", n_bytes, tokens.n, now_s() - start_s);
    bool has_bos = flags & TOKENIZER_ADD_SPECIAL && tokenizer_adds_bos(tokenizer);
    if (!is_encoded)
        fprintf(stderr, "%s\n", error);
    else if (!gives_back(tokenizer, &tokens, has_bos, text, n_bytes)) {
        fprintf(stderr, "%s: the pieces of the tokens do not give the text back\n", path);
        is_encoded = false;
    }
    for (size_t i = 0; is_encoded && i < tokens.n; i++)
        printf("%d\n", (int)tokens.ids[i]);
    tokens_free(&tokens);
    free(text);
    return !is_encoded;
}

int main(int argc, char **argv)
{
    char error[GGUF_ERROR_BYTES];
    unsigned flags = 0;
    for (int i = 3; i < argc; i++)
        flags |= !strcmp(argv[i], "--bos")       ? TOKENIZER_ADD_SPECIAL
                 : !strcmp(argv[i], "--special") ? TOKENIZER_PARSE_SPECIAL
                                                 : 0;
    if (argc < 2) {
        fprintf(stderr, "usage: tokenize MODEL.gguf [TEXT [--bos] [--special]]\n");
        return 2;
    }
    double start_s = now_s();
    struct gguf *file = gguf_open(argv[1], error);
    struct tokenizer *tokenizer = file ? tokenizer_open(file, error) : NULL;
    int status = 1;
    if (!tokenizer) {
        fprintf(stderr, "%s\n", error);
    } else {
        fprintf(stderr, "opened in %.3f s\n", now_s() - start_s);
        status = argc > 2 ? print_ids(tokenizer, argv[2], flags) : 0;
    }
    tokenizer_close(tokenizer);
    gguf_close(file);
    return status;
}

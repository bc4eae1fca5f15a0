/* SPDX-License-Identifier: Apache-2.0 */

/*
 * test-hostile SMALL.gguf [MODEL.gguf]: damages GGUF files in thousands of seeded ways. Each must
 * give a sentence that names the file, or a file that can be read and tokenized with from end to
 * end. The small file is cut at every byte; a model file, when there is one, here and there.
 */
#include "tools/tokenizer.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char name[] = "damaged.gguf";
static uint64_t n_refused, n_read, n_tokenized;
static volatile uint8_t sink;

static void die(const char *what, const char *error)
{
    fprintf(stderr, "%s: '%s'\n", what, error);
    exit(1);
}

/* splitmix64 */
static uint64_t draw(uint64_t *state, uint64_t below)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (z ^ z >> 31) % below;
}

static void check_sentence(const char *error)
{
    size_t n = strnlen(error, GGUF_ERROR_BYTES);
    if (n == GGUF_ERROR_BYTES || n < sizeof name + 10 || strncmp(error, name, sizeof name - 1) != 0)
        die("this is no sentence that names the file", error);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)error[i] < 32 || (unsigned char)error[i] > 126)
            die("a control byte in a message", error);
}

static void touch(const void *bytes, uint64_t n_bytes)
{
    for (uint64_t i = 0; i < n_bytes; i++)
        sink ^= ((const uint8_t *)bytes)[i];
}

/* Reads all that the file hands out; a sanitizer sees what lies outside. */
static void touch_keys(const struct gguf *file)
{
    for (uint64_t i = 0; i < gguf_n_keys(file); i++) {
        enum gguf_type type;
        const char *key = gguf_key_at(file, i, &type);
        struct gguf_str str;
        struct gguf_array array;
        uint64_t whole;
        float real;
        if (gguf_get_str(file, key, &str, NULL) == GGUF_OK)
            touch(str.bytes, str.n_bytes);
        if (gguf_get_u64(file, key, &whole, NULL) == GGUF_OK)
            sink ^= (uint8_t)whole;
        if (gguf_get_f32(file, key, &real, NULL) == GGUF_OK)
            touch(&real, sizeof real);
        for (uint64_t k = 0;
             gguf_get_array(file, key, GGUF_STR, &array, NULL) == GGUF_OK && k < array.n; k++)
            touch(gguf_array_str(&array, k).bytes, gguf_array_str(&array, k).n_bytes);
        for (uint64_t k = 0;
             gguf_get_array(file, key, GGUF_I64, &array, NULL) == GGUF_OK && k < array.n; k++)
            sink ^= (uint8_t)gguf_array_i64(&array, k);
        for (uint64_t k = 0;
             gguf_get_array(file, key, GGUF_F64, &array, NULL) == GGUF_OK && k < array.n; k++)
            sink ^= gguf_array_f64(&array, k) > 0;
    }
}

static void check_tensors(const struct gguf *file, const uint8_t *bytes, uint64_t n_bytes)
{
    for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(file, i);
        const uint8_t *data = tensor->data;
        if (data < bytes || tensor->n_bytes > n_bytes - (uint64_t)(data - bytes))
            die("a tensor lies outside the file", tensor->name);
        if (gguf_tensor_find(file, tensor->name) != tensor)
            die("a tensor is not found by its name", tensor->name);
        touch(data, tensor->n_bytes < 4096 ? tensor->n_bytes : 4096);
        touch(data + tensor->n_bytes - 1, 1);
    }
}

static void check_tokenizer(const struct gguf *file)
{
    static const char text[] =
        "The lower one\u2014it's 12 <|im_end|>\n\n  of the \u65e5\u672c.\tEnd";
    char error[GGUF_ERROR_BYTES] = "";
    struct tokenizer *tokenizer = tokenizer_open(file, error);
    if (!tokenizer) {
        check_sentence(error);
        return;
    }
    struct tokens tokens = {0};
    if (tokenizer_encode(tokenizer, name, text, sizeof text - 1, TOKENIZER_PARSE_SPECIAL, &tokens,
                         error)) {
        for (size_t i = 0; i < tokens.n; i++)
            touch(tokenizer_piece(tokenizer, tokens.ids[i]).bytes,
                  tokenizer_piece(tokenizer, tokens.ids[i]).n_bytes);
        n_tokenized++;
    } else {
        check_sentence(error);
    }
    tokens_free(&tokens);
    tokenizer_close(tokenizer);
}

/* Whether the file was read. */
static bool check(const uint8_t *bytes, size_t n_bytes)
{
    char error[GGUF_ERROR_BYTES] = "";
    struct gguf *file = gguf_open_memory(name, bytes, n_bytes, error);
    if (!file) {
        check_sentence(error);
        n_refused++;
        return false;
    }
    touch_keys(file);
    check_tensors(file, bytes, n_bytes);
    check_tokenizer(file);
    gguf_close(file);
    n_read++;
    return true;
}

static void cut_everywhere(const uint8_t *bytes, size_t n_bytes)
{
    for (size_t n = 0; n < n_bytes; n++) {
        uint8_t *copy = malloc(n ? n : 1); /* of just its size: a sanitizer guards the end */
        if (!copy)
            die("no memory", "");
        memcpy(copy, bytes, n);
        if (check(copy, n))
            die("a truncated file was read", "");
        free(copy);
    }
}

static void flip_bits(uint8_t *bytes, uint64_t n_head, size_t n_bytes, int n_rounds)
{
    uint64_t state = 7;
    for (int i = 0; i < n_rounds; i++) {
        uint64_t saved = state, n_flips = 1 + draw(&state, 4);
        for (uint64_t k = 0; k < n_flips; k++)
            bytes[draw(&state, n_head)] ^= (uint8_t)(1 << draw(&state, 8));
        check(bytes, n_bytes);
        state = saved; /* the same again takes it back */
        n_flips = 1 + draw(&state, 4);
        for (uint64_t k = 0; k < n_flips; k++)
            bytes[draw(&state, n_head)] ^= (uint8_t)(1 << draw(&state, 8));
    }
}

/* Puts absurd numbers where counts, lengths, offsets and types may lie. */
static void put_absurd(uint8_t *bytes, uint64_t n_head, size_t n_bytes, int n_rounds)
{
    static const uint64_t absurd[] = {0,
                                      1,
                                      0x7fffffff,
                                      0xffffffff,
                                      UINT64_C(1) << 32,
                                      UINT64_C(1) << 61,
                                      UINT64_C(1) << 63,
                                      UINT64_MAX - 7,
                                      UINT64_MAX};
    uint64_t state = 8;
    for (int i = 0; i < n_rounds; i++) {
        uint64_t at = draw(&state, n_head - 8), old;
        uint64_t value = absurd[draw(&state, sizeof absurd / sizeof absurd[0])];
        memcpy(&old, bytes + at, 8);
        memcpy(bytes + at, &value, draw(&state, 2) ? 8 : 4);
        check(bytes, n_bytes);
        memcpy(bytes + at, &old, 8);
    }
}

/* A private, writable copy-on-write view of a file. */
static uint8_t *view_file(const char *path, size_t *n_bytes)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0)
        return NULL;
    *n_bytes = (size_t)status.st_size;
    void *bytes = mmap(NULL, *n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    close(fd);
    return bytes == MAP_FAILED ? NULL : bytes;
}

/* Where the tensor data begin. */
static uint64_t head_bytes(const uint8_t *bytes, size_t n_bytes)
{
    char error[GGUF_ERROR_BYTES];
    struct gguf *file = gguf_open_memory(name, bytes, n_bytes, error);
    if (!file)
        die("the undamaged file is refused", error);
    uint64_t n_head = n_bytes;
    for (uint64_t i = 0; i < gguf_n_tensors(file); i++)
        n_head = gguf_tensor_at(file, i)->file_offset < n_head
                     ? gguf_tensor_at(file, i)->file_offset
                     : n_head;
    gguf_close(file);
    return n_head;
}

static void damage_small(const char *path)
{
    size_t n_bytes;
    uint8_t *view = view_file(path, &n_bytes);
    uint8_t *bytes = view ? malloc(n_bytes) : NULL;
    if (!bytes)
        die("cannot be read", path);
    memcpy(bytes, view, n_bytes);
    uint64_t n_head = head_bytes(bytes, n_bytes);
    if (!check(bytes, n_bytes) || n_tokenized != 1)
        die("the undamaged file is not read", path);
    cut_everywhere(bytes, n_bytes);
    flip_bits(bytes, n_head, n_bytes, 8000);
    put_absurd(bytes, n_head, n_bytes, 8000);
    free(bytes);
    munmap(view, n_bytes);
}

static void damage_model(const char *path)
{
    size_t n_bytes;
    uint8_t *bytes = view_file(path, &n_bytes);
    if (!bytes) {
        printf("skipped: there is no %s\n", path);
        return;
    }
    uint64_t n_head = head_bytes(bytes, n_bytes), state = 9;
    for (int i = 0; i < 300; i++)
        if (check(bytes, draw(&state, i % 3 ? n_head : n_bytes)))
            die("a truncated file was read", path);
    flip_bits(bytes, n_head, n_bytes, 60);
    put_absurd(bytes, n_head, n_bytes, 60);
    munmap(bytes, n_bytes);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: test-hostile SMALL.gguf [MODEL.gguf]\n");
        return 2;
    }
    damage_small(argv[1]);
    if (argc > 2)
        damage_model(argv[2]);
    printf("%llu refused, %llu read, of them %llu tokenized with\n", (unsigned long long)n_refused,
           (unsigned long long)n_read, (unsigned long long)n_tokenized);
    return n_refused < 1000 || n_read < 1000 || n_tokenized < 100;
}

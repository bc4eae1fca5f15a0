/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/gguf_bytes.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct bytes b;
static char error[GGUF_ERROR_BYTES];

/* From a block of just its size, so that a sanitizer sees every byte read past the end. */
static struct gguf *open_bytes(void **copy)
{
    *copy = malloc(b.n ? b.n : 1);
    assert_non_null(*copy);
    memcpy(*copy, b.data, b.n);
    memset(error, 0, sizeof error);
    return gguf_open_memory("m.gguf", *copy, b.n, error);
}

static void check_refused(const char *sentence)
{
    void *copy;
    struct gguf *file = open_bytes(&copy);
    assert_null(file);
    assert_string_equal(error, sentence);
    free(copy);
}

static void write_good(void)
{
    static const int16_t shorts[] = {-3, 7};
    static const char *const texts[] = {"one", "", "three"};
    put_head(&b, 2, 8);
    put_key_u32(&b, "count", 7);
    put_key_text(&b, "text", "hello");
    put_key_bool(&b, "flag", 1);
    put_text(&b, "half");
    put_u32(&b, GGUF_F64);
    put(&b, &(double){0.5}, 8);
    put_text(&b, "negative");
    put_u32(&b, GGUF_I8);
    put(&b, &(int8_t){-5}, 1);
    put_text(&b, "huge");
    put_u32(&b, GGUF_U64);
    put_u64(&b, UINT64_MAX - 1);
    put_key_array(&b, "shorts", GGUF_I16, 2);
    put(&b, shorts, sizeof shorts);
    put_key_texts(&b, "texts", texts, 3);
    put_tensor(&b, "second", QUANT_F32, 4, 2, 64);
    put_tensor(&b, "first", QUANT_Q8_0, 32, 1, 0);
    put_zeros(&b, 96, 32);
}

static void scalars(void **state)
{
    (void)state;
    void *copy;
    write_good();
    struct gguf *file = open_bytes(&copy);
    assert_non_null(file);
    uint32_t count = 0;
    uint64_t huge = 0;
    float half = 0;
    bool flag = false;
    struct gguf_str text;
    assert_int_equal(gguf_get_u32(file, "count", &count, error), GGUF_OK);
    assert_int_equal(count, 7);
    assert_int_equal(gguf_get_u64(file, "huge", &huge, error), GGUF_OK);
    assert_true(huge == UINT64_MAX - 1);
    assert_int_equal(gguf_get_f32(file, "half", &half, error), GGUF_OK);
    assert_true(half == 0.5f);
    assert_int_equal(gguf_get_bool(file, "flag", &flag, error), GGUF_OK);
    assert_true(flag);
    assert_int_equal(gguf_get_str(file, "text", &text, error), GGUF_OK);
    assert_true(gguf_str_is(text, "hello") && !gguf_str_is(text, "hell"));
    assert_true(gguf_offset(file, text.bytes) == (uint64_t)(text.bytes - (char *)copy));
    assert_int_equal(gguf_version(file), 3);
    assert_string_equal(gguf_name(file), "m.gguf");
    assert_int_equal(gguf_n_keys(file), 8);
    enum gguf_type type;
    assert_string_equal(gguf_key_at(file, 6, &type), "shorts");
    assert_int_equal(type, GGUF_ARRAY);
    gguf_close(file);
    free(copy);
}

static void wrong_look_ups(void **state)
{
    (void)state;
    void *copy;
    write_good();
    struct gguf *file = open_bytes(&copy);
    uint32_t count = 99;
    struct gguf_array array;
    assert_int_equal(gguf_get_u32(file, "nothing", &count, error), GGUF_ABSENT);
    assert_string_equal(error, "m.gguf: the file has no key 'nothing'");
    assert_int_equal(gguf_get_u32(file, "huge", &count, error), GGUF_BAD);
    assert_non_null(strstr(error, "key 'huge' is 18446744073709551614; at most 4294967295"));
    assert_int_equal(gguf_get_u32(file, "negative", &count, error), GGUF_BAD);
    assert_non_null(strstr(error, "key 'negative' is -5; a number of 0 or more is needed"));
    assert_int_equal(gguf_get_u32(file, "text", &count, error), GGUF_BAD);
    assert_string_equal(error, "m.gguf: at byte 61: key 'text' is a value of type string, not "
                               "an integer");
    assert_int_equal(gguf_get_array(file, "texts", GGUF_I64, &array, error), GGUF_BAD);
    assert_non_null(strstr(error, "key 'texts' is an array of type string, not an array of int"));
    assert_int_equal(gguf_get_array(file, "text", GGUF_STR, &array, error), GGUF_BAD);
    assert_int_equal(gguf_get_bool(file, "count", &(bool){0}, error), GGUF_BAD);
    assert_int_equal(gguf_get_f32(file, "count", &(float){0}, error), GGUF_BAD);
    assert_int_equal(gguf_get_str(file, "texts", &(struct gguf_str){0}, error), GGUF_BAD);
    assert_int_equal(gguf_get_u32(file, "nothing", &count, NULL), GGUF_ABSENT);
    assert_int_equal(count, 99);
    gguf_close(file);
    free(copy);
}

static void arrays(void **state)
{
    (void)state;
    void *copy;
    write_good();
    struct gguf *file = open_bytes(&copy);
    struct gguf_array array;
    assert_int_equal(gguf_get_array(file, "shorts", GGUF_I64, &array, error), GGUF_OK);
    assert_int_equal(array.n, 2);
    assert_int_equal(gguf_array_i64(&array, 0), -3);
    assert_int_equal(gguf_array_i64(&array, 1), 7);
    assert_int_equal(gguf_get_array(file, "shorts", GGUF_F64, &array, error), GGUF_BAD);
    assert_int_equal(gguf_get_array(file, "texts", GGUF_STR, &array, error), GGUF_OK);
    assert_int_equal(array.n, 3);
    assert_true(gguf_str_is(gguf_array_str(&array, 1), ""));
    assert_true(gguf_str_is(gguf_array_str(&array, 2), "three"));
    gguf_close(file);
    free(copy);
}

static void floats(void **state)
{
    (void)state;
    void *copy;
    static const float numbers[] = {1.5f, -2.25f};
    put_head(&b, 0, 1);
    put_key_array(&b, "floats", GGUF_F32, 2);
    put(&b, numbers, sizeof numbers);
    struct gguf *file = open_bytes(&copy);
    struct gguf_array array;
    assert_int_equal(gguf_get_array(file, "floats", GGUF_F64, &array, error), GGUF_OK);
    assert_true(gguf_array_f64(&array, 1) == -2.25);
    gguf_close(file);
    free(copy);
}

static void tensors(void **state)
{
    (void)state;
    void *copy;
    write_good();
    struct gguf *file = open_bytes(&copy);
    assert_int_equal(gguf_n_tensors(file), 2);
    const struct gguf_tensor *first = gguf_tensor_find(file, "first");
    const struct gguf_tensor *second = gguf_tensor_find(file, "second");
    assert_non_null(first);
    assert_non_null(second);
    assert_null(gguf_tensor_find(file, "third"));
    assert_null(gguf_tensor_find(file, ""));
    assert_ptr_equal(second, gguf_tensor_at(file, 0));
    assert_int_equal(gguf_tensor_index(file, first), 1);
    assert_int_equal(second->n_dims, 2);
    assert_true(second->dims[0] == 4 && second->dims[1] == 2 && second->dims[2] == 1);
    assert_true(second->n_values == 8 && second->n_bytes == 32 && first->n_bytes == 34);
    assert_ptr_equal(second->data, (char *)copy + second->file_offset);
    assert_true(second->file_offset + 32 == b.n && first->file_offset + 96 == b.n);
    gguf_close(file);
    free(copy);
}

static void bad_heads(void **state)
{
    (void)state;
    b.n = 0;
    check_refused("m.gguf: at byte 0: the file ends within the four bytes 'GGUF' that begin a GGUF "
                  "file (4 bytes are needed, 0 are left); it is truncated or damaged");
    put(&b, "PK\3\4rest", 8);
    check_refused("m.gguf: at byte 0: this is no GGUF file: it begins with 'PK\?\?', not with "
                  "'GGUF'");
    put_head(&b, 0, 0);
    b.data[4] = 1;
    check_refused("m.gguf: at byte 4: GGUF version 1; versions 2 and 3 are read");
    memcpy(b.data + 4, "\0\0\0\3", 4);
    check_refused("m.gguf: at byte 4: this GGUF file is big-endian; only little-endian ones are "
                  "read");
    put_head(&b, UINT64_MAX, 0);
    check_refused("m.gguf: at byte 8: 18446744073709551615 tensors; at most 1048576 are allowed");
    put_head(&b, 1000, 0);
    check_refused("m.gguf: at byte 8: 1000 tensors do not fit in the 0 bytes that follow; the file "
                  "is truncated or damaged");
    put_head(&b, 0, 65537);
    check_refused("m.gguf: at byte 16: 65537 keys; at most 65536 are allowed");
}

static void bad_keys(void **state)
{
    (void)state;
    put_head(&b, 0, 2);
    put_key_u32(&b, "twice", 1);
    put_key_u32(&b, "twice", 2);
    check_refused("m.gguf: at byte 62: key 'twice' occurs twice");
    put_head(&b, 0, 1);
    put_key_u32(&b, "", 1);
    check_refused("m.gguf: at byte 24: a key has 0 bytes; 1 to 65535 are allowed");
    put_head(&b, 0, 1);
    put_key_u32(&b, "new\nline", 1);
    check_refused("m.gguf: at byte 24: a key 'new?line' holds the control byte 0x0a");
    put_head(&b, 0, 1);
    put_u64(&b, UINT64_MAX);
    put_u64(&b, 0);
    check_refused("m.gguf: at byte 24: a key claims 18446744073709551615 bytes, but the file has "
                  "only 8 more; it is truncated or damaged");
}

static void bad_values(void **state)
{
    (void)state;
    put_head(&b, 0, 1);
    put_text(&b, "k");
    put_u32(&b, 13);
    put_u64(&b, 0);
    check_refused("m.gguf: at byte 33: key 'k' has the unknown type 13");
    put_head(&b, 0, 1);
    put_key_bool(&b, "k", 2);
    check_refused("m.gguf: at byte 37: a boolean is 2; only 0 and 1 are allowed");
    put_head(&b, 0, 1);
    put_key_array(&b, "k", GGUF_ARRAY, 1);
    check_refused("m.gguf: at byte 37: key 'k' is an array of arrays, which is not supported");
    put_head(&b, 0, 1);
    put_key_array(&b, "k", 77, 1);
    check_refused("m.gguf: at byte 37: key 'k' is an array of the unknown type 77");
    put_head(&b, 0, 1);
    put_key_array(&b, "k", GGUF_F64, UINT64_C(1) << 61); /* times 8 is 0 in 64 bits */
    check_refused("m.gguf: at byte 41: 2305843009213693952 elements of an array do not fit in the "
                  "0 bytes that follow; the file is truncated or damaged");
    put_head(&b, 0, 1);
    put_key_array(&b, "k", GGUF_STR, (1 << 24) + 1);
    check_refused("m.gguf: at byte 41: 16777217 strings of an array; at most 16777216 are allowed");
}

static void bad_alignments(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {0, 1, 4, 48, 1 << 17, UINT32_MAX};
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        char sentence[GGUF_ERROR_BYTES];
        put_head(&b, 0, 1);
        put_key_u32(&b, "general.alignment", alignments[i]);
        snprintf(sentence, sizeof sentence,
                 "m.gguf: at byte 53: general.alignment is %u; a power of two from 8 to 65536 is "
                 "needed",
                 alignments[i]);
        check_refused(sentence);
    }
    put_head(&b, 0, 1);
    put_key_text(&b, "general.alignment", "wide");
    check_refused("m.gguf: at byte 53: key 'general.alignment' is a value of type string, not an "
                  "integer");
}

static void bad_shapes(void **state)
{
    (void)state;
    put_head(&b, 1, 0);
    put_text(&b, "blk.0.attn_q.weight");
    put_u32(&b, 5);
    put_zeros(&b, 64, 1);
    check_refused("m.gguf: at byte 51: tensor 'blk.0.attn_q.weight' has 5 dimensions, 1 to 4 are "
                  "allowed");
    put_head(&b, 1, 0);
    put_tensor(&b, "t", QUANT_F32, 32, 0, 0);
    check_refused("m.gguf: at byte 45: dimension 1 of tensor 't' is 0");
    put_head(&b, 1, 0);
    put_tensor(&b, "t", QUANT_F32, UINT64_C(1) << 32, UINT64_C(1) << 32, 0);
    check_refused("m.gguf: at byte 45: dimension 1 of tensor 't' is 4294967296, which gives it "
                  "more than 2^56 elements");
    put_head(&b, 1, 0);
    put_tensor(&b, "t", 13, 256, 1, 0);
    check_refused("m.gguf: at byte 53: tensor 't' has type 13 (Q5_K); headrace reads F32, F16, "
                  "BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K");
    put_head(&b, 1, 0);
    put_tensor(&b, "t", QUANT_Q4_K, 128, 2, 0);
    check_refused("m.gguf: at byte 53: tensor 't' has rows of 128 elements, but Q4_K needs a "
                  "multiple of 256");
}

static void bad_places(void **state)
{
    (void)state;
    put_head(&b, 1, 0);
    put_tensor(&b, "t", QUANT_F32, 4, 1, 8);
    put_zeros(&b, 64, 32);
    check_refused("m.gguf: at byte 57: tensor 't' has offset 8, which is no multiple of the "
                  "alignment 32");
    put_head(&b, 1, 0);
    put_tensor(&b, "t", QUANT_F32, 4, 4, 32);
    put_zeros(&b, 64, 32);
    check_refused("m.gguf: at byte 24: tensor 't' wants 64 bytes at offset 32 of the tensor data, "
                  "but the file has 64; it is truncated or damaged");
    put_head(&b, 1, 0);
    put_tensor(&b, "t", QUANT_F32, 4, 4, UINT64_MAX - 31);
    put_zeros(&b, 64, 32);
    check_refused("m.gguf: at byte 24: tensor 't' wants 64 bytes at offset 18446744073709551584 of "
                  "the tensor data, but the file has 64; it is truncated or damaged");
    put_head(&b, 2, 0);
    put_tensor(&b, "t", QUANT_F32, 4, 4, 0);
    put_tensor(&b, "u", QUANT_F32, 4, 1, 32);
    put_zeros(&b, 64, 32);
    check_refused("m.gguf: at byte 65: the data of tensors 't' and 'u' overlap");
    put_head(&b, 2, 0);
    put_tensor(&b, "t", QUANT_F32, 4, 1, 0);
    put_tensor(&b, "t", QUANT_F32, 4, 1, 32);
    put_zeros(&b, 64, 32);
    check_refused("m.gguf: at byte 65: tensor 't' occurs twice");
}

static void write_file(const char *path, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_true(write(fd, b.data, n) == (ssize_t)n);
    close(fd);
}

static void files(void **state)
{
    (void)state;
    char folder[] = "/tmp/headrace-gguf-XXXXXX", path[64], fifo[64], sentence[GGUF_ERROR_BYTES];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_null(gguf_open(path, error));
    snprintf(sentence, sizeof sentence, "%s: cannot be opened: No such file or directory", path);
    assert_string_equal(error, sentence);
    assert_null(gguf_open(folder, error));
    assert_non_null(strstr(error, ": cannot be read: it is a directory"));
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_null(gguf_open(fifo, error)); /* must not wait for a writer */
    assert_non_null(strstr(error, ": cannot be read: it is no regular file"));
    write_file(path, 0);
    assert_null(gguf_open(path, error));
    assert_non_null(strstr(error, ": cannot be read: the file is empty"));
    write_good();
    write_file(path, b.n);
    struct gguf *file = gguf_open(path, error);
    assert_non_null(file);
    assert_string_equal(gguf_name(file), path);
    assert_true(memcmp(gguf_tensor_at(file, 0)->data, b.data + b.n - 32, 32) == 0);
    gguf_close(file);
    gguf_close(NULL);
    unlink(path);
    unlink(fifo);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars),        cmocka_unit_test(wrong_look_ups),
        cmocka_unit_test(arrays),         cmocka_unit_test(floats),
        cmocka_unit_test(tensors),        cmocka_unit_test(bad_heads),
        cmocka_unit_test(bad_keys),       cmocka_unit_test(bad_values),
        cmocka_unit_test(bad_alignments), cmocka_unit_test(bad_shapes),
        cmocka_unit_test(bad_places),     cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

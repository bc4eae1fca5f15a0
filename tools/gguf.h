/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TOOLS_GGUF_H
#define HEADRACE_TOOLS_GGUF_H

#include "tools/quant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Reads GGUF files (versions 2 and 3, little-endian). Nothing in the file is trusted: gguf_open
 * checks every count, length, offset and shape once, so that what the functions below hand out lies
 * inside the file. A struct gguf is read-only after open and may be used by several threads.
 *
 * Errors are one sentence that names the file, the byte offset and the field. `error` is always a
 * buffer of GGUF_ERROR_BYTES, or NULL; it is written only on failure, and then ends with a NUL.
 */
enum { GGUF_ERROR_BYTES = 512, GGUF_DIMS_MAX = 4 };

struct gguf;

/* Bytes inside the file, no NUL at the end; they live until gguf_close. */
struct gguf_str {
    const char *bytes;
    uint64_t n_bytes;
};

/* Value types, numbered as in the file format. */
enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STR = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
};

/* An array value; elements are read by the gguf_array_* functions. */
struct gguf_array {
    enum gguf_type type;         /* of the elements; never GGUF_ARRAY */
    uint64_t n;                  /* elements */
    const unsigned char *bytes;  /* numbers and booleans, little-endian, unaligned */
    const struct gguf_str *strs; /* strings, when type is GGUF_STR */
};

struct gguf_tensor {
    const char *name; /* ends with a NUL; at most 255 bytes, no control bytes */
    enum quant_type type;
    uint32_t n_dims;              /* 1..GGUF_DIMS_MAX */
    uint64_t dims[GGUF_DIMS_MAX]; /* dims[0] runs fastest (the row length); 1 past n_dims */
    uint64_t n_values;            /* product of dims, > 0 */
    uint64_t n_bytes;
    uint64_t file_offset; /* of data, for messages */
    uint64_t info_offset; /* of its description in the header, for messages */
    const void *data;     /* n_bytes inside the mapping; aligned as the file has it */
};

enum gguf_found {
    GGUF_OK = 0,
    GGUF_ABSENT, /* no such key */
    GGUF_BAD,    /* there, but of another type or out of range */
};

/*
 * Maps `path` read-only and checks it. NULL and a sentence on failure (also for what is no file).
 * Blocks on the disk for the header only; tensor pages are read when they are touched, so the file
 * must not be shortened while it is open.
 */
struct gguf *gguf_open(const char *path, char *error);

/* The same from memory, which must outlive the result; `name` stands for the file in messages. */
struct gguf *gguf_open_memory(const char *name, const void *bytes, size_t n_bytes, char *error);

void gguf_close(struct gguf *file); /* NULL is fine */

const char *gguf_name(const struct gguf *file); /* the path or name given at open */
uint32_t gguf_version(const struct gguf *file);

/*
 * Typed look-ups. On GGUF_OK *value is written; otherwise it is left alone, so that a default may
 * stand in it, and `error` holds the sentence for both GGUF_ABSENT and GGUF_BAD (a caller that
 * needs the key just reports it). Integer look-ups take any integer type whose value fits; f32
 * takes F32, and F64 rounded.
 */
enum gguf_found gguf_get_u32(const struct gguf *file, const char *key, uint32_t *value,
                             char *error);
enum gguf_found gguf_get_u64(const struct gguf *file, const char *key, uint64_t *value,
                             char *error);
enum gguf_found gguf_get_f32(const struct gguf *file, const char *key, float *value, char *error);
enum gguf_found gguf_get_bool(const struct gguf *file, const char *key, bool *value, char *error);
enum gguf_found gguf_get_str(const struct gguf *file, const char *key, struct gguf_str *value,
                             char *error);

/* `class` of the elements: GGUF_STR, GGUF_I64 (any integer type, no bool), GGUF_F64 (any float). */
enum gguf_found gguf_get_array(const struct gguf *file, const char *key, enum gguf_type class,
                               struct gguf_array *value, char *error);

/* Element i < n. The array must be of the class; a U64 above INT64_MAX reads as INT64_MAX. */
int64_t gguf_array_i64(const struct gguf_array *array, uint64_t i);
double gguf_array_f64(const struct gguf_array *array, uint64_t i);
struct gguf_str gguf_array_str(const struct gguf_array *array, uint64_t i);

bool gguf_str_is(struct gguf_str s, const char *text);

/* The byte offset in the file of something that the functions above handed out, for messages. */
uint64_t gguf_offset(const struct gguf *file, const void *inside);

/* Writes "NAME: at byte OFFSET: " and the sentence to error, cut to fit; a NULL error is fine. */
void gguf_explain(char *error, const char *name, uint64_t offset, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Iteration over keys, in file order (to find keys that a reader does not know). */
uint64_t gguf_n_keys(const struct gguf *file);
const char *gguf_key_at(const struct gguf *file, uint64_t i, enum gguf_type *type);

/* Tensors in file order; gguf_tensor_find gives NULL for none of that name. */
uint64_t gguf_n_tensors(const struct gguf *file);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *file, uint64_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *file, const char *name);
/* The index for gguf_tensor_at of a tensor of this file (to tick off those in use). */
uint64_t gguf_tensor_index(const struct gguf *file, const struct gguf_tensor *tensor);

#endif

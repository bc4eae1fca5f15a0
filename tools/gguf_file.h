/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TOOLS_GGUF_FILE_H
#define HEADRACE_TOOLS_GGUF_FILE_H

/* What gguf.c (parsing) and gguf_get.c (look-ups) share; nobody else includes this. */

#include "tools/gguf.h"

struct gguf_entry {
    char *key; /* owned */
    enum gguf_type type;
    uint64_t value_offset;      /* in the file, for messages */
    const unsigned char *value; /* numbers and booleans */
    struct gguf_str str;        /* GGUF_STR */
    struct gguf_array array;    /* GGUF_ARRAY; array.strs is owned */
};

struct gguf {
    char *name; /* owned */
    const unsigned char *bytes;
    uint64_t n_bytes;
    bool is_mapped;
    uint32_t version;
    uint64_t alignment;

    struct gguf_entry *entries; /* file order */
    uint64_t n_entries;
    const struct gguf_entry **entries_by_key; /* sorted */

    struct gguf_tensor *tensors; /* file order; names are owned */
    uint64_t n_tensors;
    const struct gguf_tensor **tensors_by_name; /* sorted */
};

const struct gguf_entry *gguf_find(const struct gguf *file, const char *key); /* or NULL */

const char *gguf_type_name(uint32_t type); /* "u32", "string" */
uint64_t gguf_type_bytes(uint32_t type);   /* of one element; 0 for strings, arrays, unknown */

#endif

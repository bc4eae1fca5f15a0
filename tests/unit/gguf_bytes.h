/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TESTS_GGUF_BYTES_H
#define HEADRACE_TESTS_GGUF_BYTES_H

/* Writes GGUF files into memory by hand, wrong ones too. */

#include "tools/gguf.h"

#include <stdlib.h>
#include <string.h>

struct bytes {
    uint8_t data[16384];
    size_t n;
};

static inline void put(struct bytes *b, const void *data, size_t n)
{
    if (n > sizeof b->data - b->n)
        abort();
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static inline void put_u32(struct bytes *b, uint32_t value)
{
    put(b, &value, sizeof value);
}

static inline void put_u64(struct bytes *b, uint64_t value)
{
    put(b, &value, sizeof value);
}

static inline void put_text(struct bytes *b, const char *text)
{
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

static inline void put_head(struct bytes *b, uint64_t n_tensors, uint64_t n_keys)
{
    b->n = 0;
    put(b, "GGUF", 4);
    put_u32(b, 3);
    put_u64(b, n_tensors);
    put_u64(b, n_keys);
}

static inline void put_key_u32(struct bytes *b, const char *key, uint32_t value)
{
    put_text(b, key);
    put_u32(b, GGUF_U32);
    put_u32(b, value);
}

static inline void put_key_bool(struct bytes *b, const char *key, uint8_t value)
{
    put_text(b, key);
    put_u32(b, GGUF_BOOL);
    put(b, &value, 1);
}

static inline void put_key_text(struct bytes *b, const char *key, const char *text)
{
    put_text(b, key);
    put_u32(b, GGUF_STR);
    put_text(b, text);
}

static inline void put_key_array(struct bytes *b, const char *key, uint32_t type, uint64_t n)
{
    put_text(b, key);
    put_u32(b, GGUF_ARRAY);
    put_u32(b, type);
    put_u64(b, n);
}

static inline void put_key_texts(struct bytes *b, const char *key, const char *const *texts,
                                 uint64_t n)
{
    put_key_array(b, key, GGUF_STR, n);
    for (uint64_t i = 0; i < n; i++)
        put_text(b, texts[i]);
}

static inline void put_tensor(struct bytes *b, const char *name, uint32_t type, uint64_t dim0,
                              uint64_t dim1, uint64_t offset)
{
    put_text(b, name);
    put_u32(b, 2);
    put_u64(b, dim0);
    put_u64(b, dim1);
    put_u32(b, type);
    put_u64(b, offset);
}

static inline void put_zeros(struct bytes *b, size_t n, size_t alignment)
{
    static const uint8_t zeros[8192];
    put(b, zeros, (alignment - b->n % alignment) % alignment);
    put(b, zeros, n);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as a GGUF file with a tokenizer. */
#include "tools/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static volatile uint64_t sink;

static void check_error(const char *error)
{
    if (strncmp(error, "fuzz.gguf: ", 11) != 0 || strnlen(error, GGUF_ERROR_BYTES) < 20)
        abort();
}

static void read_keys(const struct gguf *file)
{
    for (uint64_t i = 0; i < gguf_n_keys(file); i++) {
        enum gguf_type type;
        const char *key = gguf_key_at(file, i, &type);
        char error[GGUF_ERROR_BYTES];
        uint32_t number = 0;
        struct gguf_array array;
        if (gguf_get_u32(file, key, &number, error) != GGUF_OK)
            check_error(error);
        if (gguf_get_array(file, key, GGUF_I64, &array, error) != GGUF_OK)
            check_error(error);
        else
            for (uint64_t k = 0; k < array.n; k++)
                sink += (uint64_t)gguf_array_i64(&array, k);
        sink += number;
    }
}

static void read_tensors(const struct gguf *file)
{
    float block[256];
    for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(file, i);
        uint32_t values = quant_block_values(tensor->type);
        uint64_t last = tensor->n_bytes - quant_block_bytes(tensor->type);
        quant_to_f32(tensor->type, tensor->data, values, block);
        quant_to_f32(tensor->type, (const char *)tensor->data + last, values, block);
        if (gguf_tensor_find(file, tensor->name) != tensor || gguf_tensor_index(file, tensor) != i)
            abort();
    }
}

static void encode(const struct gguf *file)
{
    static const char text[] = "The lower one's 12 <|im_end|>\n\n  of \u65e5\u672c.";
    char error[GGUF_ERROR_BYTES] = "";
    struct tokenizer *tokenizer = tokenizer_open(file, error);
    if (!tokenizer) {
        check_error(error);
        return;
    }
    struct tokens tokens = {0};
    if (!tokenizer_encode(tokenizer, "fuzz.gguf", text, sizeof text - 1, TOKENIZER_PARSE_SPECIAL,
                          &tokens, error))
        check_error(error);
    for (size_t i = 0; i < tokens.n; i++)
        if (tokens.ids[i] < 0 || (uint32_t)tokens.ids[i] >= tokenizer_n_tokens(tokenizer))
            abort();
    tokens_free(&tokens);
    tokenizer_close(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    char error[GGUF_ERROR_BYTES] = "";
    struct gguf *file = gguf_open_memory("fuzz.gguf", bytes, n_bytes, error);
    if (!file) {
        check_error(error);
        return 0;
    }
    read_keys(file);
    read_tensors(file);
    encode(file);
    gguf_close(file);
    return 0;
}

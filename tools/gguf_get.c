/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gguf_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    uint64_t n_bytes;
} types[] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STR] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(uint32_t type)
{
    return type <= GGUF_F64 ? types[type].name : "unknown";
}

uint64_t gguf_type_bytes(uint32_t type)
{
    return type <= GGUF_F64 ? types[type].n_bytes : 0;
}

const struct gguf_entry *gguf_find(const struct gguf *file, const char *key)
{
    uint64_t low = 0, high = file->n_entries;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = strcmp(key, file->entries_by_key[middle]->key);
        if (order == 0)
            return file->entries_by_key[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static enum gguf_found absent(const struct gguf *file, const char *key, char *error)
{
    if (error)
        snprintf(error, GGUF_ERROR_BYTES, "%.200s: the file has no key '%.100s'", file->name, key);
    return GGUF_ABSENT;
}

static enum gguf_found wrong_type(const struct gguf *file, const struct gguf_entry *entry,
                                  const char *wanted, char *error)
{
    gguf_explain(error, file->name, entry->value_offset, "key '%.100s' is %s of type %s, not %s",
                 entry->key, entry->type == GGUF_ARRAY ? "an array" : "a value",
                 gguf_type_name(entry->type == GGUF_ARRAY ? entry->array.type : entry->type),
                 wanted);
    return GGUF_BAD;
}

/* A number of any integer type; is_big: a u64 above INT64_MAX. */
static bool integer_of(enum gguf_type type, const unsigned char *bytes, int64_t *value,
                       bool *is_big)
{
    uint64_t raw = 0;
    *is_big = false;
    memcpy(&raw, bytes, gguf_type_bytes(type));
    switch (type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
        *value = (int64_t)raw;
        return true;
    case GGUF_U64:
        *is_big = raw > INT64_MAX;
        *value = *is_big ? INT64_MAX : (int64_t)raw;
        return true;
    case GGUF_I8:
        *value = (int8_t)raw;
        return true;
    case GGUF_I16:
        *value = (int16_t)raw;
        return true;
    case GGUF_I32:
        *value = (int32_t)raw;
        return true;
    case GGUF_I64:
        *value = (int64_t)raw;
        return true;
    default:
        return false;
    }
}

static bool is_integer(enum gguf_type type)
{
    return gguf_type_bytes(type) && type != GGUF_F32 && type != GGUF_F64 && type != GGUF_BOOL;
}

static double float_of(enum gguf_type type, const unsigned char *bytes)
{
    float single;
    double value;
    if (type == GGUF_F32) {
        memcpy(&single, bytes, sizeof single);
        return single;
    }
    memcpy(&value, bytes, sizeof value);
    return value;
}

enum gguf_found gguf_get_u64(const struct gguf *file, const char *key, uint64_t *value, char *error)
{
    const struct gguf_entry *entry = gguf_find(file, key);
    if (!entry)
        return absent(file, key, error);
    int64_t number;
    bool is_big;
    if (!is_integer(entry->type) || !integer_of(entry->type, entry->value, &number, &is_big))
        return wrong_type(file, entry, "an integer", error);
    if (number < 0) {
        gguf_explain(error, file->name, entry->value_offset,
                     "key '%.100s' is %" PRId64 "; a number of 0 or more is needed", key, number);
        return GGUF_BAD;
    }
    if (is_big)
        memcpy(value, entry->value, sizeof *value);
    else
        *value = (uint64_t)number;
    return GGUF_OK;
}

enum gguf_found gguf_get_u32(const struct gguf *file, const char *key, uint32_t *value, char *error)
{
    uint64_t wide;
    enum gguf_found found = gguf_get_u64(file, key, &wide, error);
    if (found != GGUF_OK)
        return found;
    if (wide > UINT32_MAX) {
        gguf_explain(error, file->name, gguf_find(file, key)->value_offset,
                     "key '%.100s' is %" PRIu64 "; at most %" PRIu32 " is allowed", key, wide,
                     UINT32_MAX);
        return GGUF_BAD;
    }
    *value = (uint32_t)wide;
    return GGUF_OK;
}

enum gguf_found gguf_get_f32(const struct gguf *file, const char *key, float *value, char *error)
{
    const struct gguf_entry *entry = gguf_find(file, key);
    if (!entry)
        return absent(file, key, error);
    if (entry->type != GGUF_F32 && entry->type != GGUF_F64)
        return wrong_type(file, entry, "a float", error);
    *value = (float)float_of(entry->type, entry->value);
    return GGUF_OK;
}

enum gguf_found gguf_get_bool(const struct gguf *file, const char *key, bool *value, char *error)
{
    const struct gguf_entry *entry = gguf_find(file, key);
    if (!entry)
        return absent(file, key, error);
    if (entry->type != GGUF_BOOL)
        return wrong_type(file, entry, "a bool", error);
    *value = entry->value[0];
    return GGUF_OK;
}

enum gguf_found gguf_get_str(const struct gguf *file, const char *key, struct gguf_str *value,
                             char *error)
{
    const struct gguf_entry *entry = gguf_find(file, key);
    if (!entry)
        return absent(file, key, error);
    if (entry->type != GGUF_STR)
        return wrong_type(file, entry, "a string", error);
    *value = entry->str;
    return GGUF_OK;
}

enum gguf_found gguf_get_array(const struct gguf *file, const char *key, enum gguf_type class,
                               struct gguf_array *value, char *error)
{
    const struct gguf_entry *entry = gguf_find(file, key);
    if (!entry)
        return absent(file, key, error);
    enum gguf_type type = entry->array.type;
    bool is_float = type == GGUF_F32 || type == GGUF_F64;
    bool fits = class == GGUF_I64 ? is_integer(type) : class == GGUF_F64 ? is_float : type == class;
    if (entry->type != GGUF_ARRAY || !fits)
        return wrong_type(file, entry,
                          class == GGUF_I64   ? "an array of integers"
                          : class == GGUF_F64 ? "an array of floats"
                                              : "an array of strings",
                          error);
    *value = entry->array;
    return GGUF_OK;
}

int64_t gguf_array_i64(const struct gguf_array *array, uint64_t i)
{
    int64_t value = 0;
    bool is_big;
    integer_of(array->type, array->bytes + i * gguf_type_bytes(array->type), &value, &is_big);
    return value;
}

double gguf_array_f64(const struct gguf_array *array, uint64_t i)
{
    return float_of(array->type, array->bytes + i * gguf_type_bytes(array->type));
}

struct gguf_str gguf_array_str(const struct gguf_array *array, uint64_t i)
{
    return array->strs[i];
}

bool gguf_str_is(struct gguf_str s, const char *text)
{
    return s.n_bytes == strlen(text) && memcmp(s.bytes, text, s.n_bytes) == 0;
}

uint64_t gguf_offset(const struct gguf *file, const void *inside)
{
    return (uint64_t)((const unsigned char *)inside - file->bytes);
}

const char *gguf_name(const struct gguf *file)
{
    return file->name;
}

uint32_t gguf_version(const struct gguf *file)
{
    return file->version;
}

uint64_t gguf_n_keys(const struct gguf *file)
{
    return file->n_entries;
}

const char *gguf_key_at(const struct gguf *file, uint64_t i, enum gguf_type *type)
{
    *type = file->entries[i].type;
    return file->entries[i].key;
}

uint64_t gguf_n_tensors(const struct gguf *file)
{
    return file->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *file, uint64_t i)
{
    return &file->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *file, const char *name)
{
    uint64_t low = 0, high = file->n_tensors;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = strcmp(name, file->tensors_by_name[middle]->name);
        if (order == 0)
            return file->tensors_by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

uint64_t gguf_tensor_index(const struct gguf *file, const struct gguf_tensor *tensor)
{
    return (uint64_t)(tensor - file->tensors);
}

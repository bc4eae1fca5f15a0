/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gguf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "this reader takes GGUF's little-endian numbers as they lie in memory"
#endif

enum {
    KEYS_MAX = 1 << 16,
    KEY_BYTES_MAX = 65535, /* the format's own limit */
    TENSORS_MAX = 1 << 20,
    TENSOR_NAME_BYTES_MAX = 255,
    STRINGS_MAX = 1 << 24, /* in one array: 80 times the largest vocabulary in use */
    ALIGNMENT_MAX = 1 << 16,
    ALIGNMENT_DEFAULT = 32,
};

/* A place in the file being read; the first failure is written to error and ends the reading. */
struct reader {
    struct gguf *file;
    uint64_t at;
    char *error;
};

void gguf_explain(char *error, const char *name, uint64_t offset, const char *format, ...)
{
    if (!error)
        return;
    int n = snprintf(error, GGUF_ERROR_BYTES, "%.200s: at byte %" PRIu64 ": ", name, offset);
    if (n < 0 || n >= GGUF_ERROR_BYTES)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error + n, (size_t)(GGUF_ERROR_BYTES - n), format, arguments);
    va_end(arguments);
}

#define FAIL(reader, offset, ...)                                                                  \
    (gguf_explain((reader)->error, (reader)->file->name, offset, __VA_ARGS__), false)

/* A name of the file made fit for a message: at most 80 bytes, others than printable ASCII as ?. */
struct shown {
    char text[84];
};

static struct shown show(const void *bytes, uint64_t n_bytes)
{
    struct shown shown;
    uint64_t n = n_bytes < 80 ? n_bytes : 80;
    for (uint64_t i = 0; i < n; i++) {
        unsigned char byte = ((const unsigned char *)bytes)[i];
        shown.text[i] = (char)(byte >= 32 && byte < 127 ? byte : '?');
    }
    memcpy(shown.text + n, n < n_bytes ? "..." : "", n < n_bytes ? 4 : 1);
    return shown;
}

static struct shown show_str(struct gguf_str s)
{
    return show(s.bytes, s.n_bytes);
}

static uint64_t left(const struct reader *r)
{
    return r->file->n_bytes - r->at;
}

static bool need(struct reader *r, uint64_t n_bytes, const char *what)
{
    if (left(r) < n_bytes)
        return FAIL(r, r->at,
                    "the file ends within %s (%" PRIu64 " bytes are needed, %" PRIu64
                    " are left); it is truncated or damaged",
                    what, n_bytes, left(r));
    return true;
}

static bool take(struct reader *r, void *out, uint64_t n_bytes, const char *what)
{
    if (!need(r, n_bytes, what))
        return false;
    memcpy(out, r->file->bytes + r->at, n_bytes);
    r->at += n_bytes;
    return true;
}

static bool take_u32(struct reader *r, uint32_t *value, const char *what)
{
    return take(r, value, sizeof *value, what);
}

static bool take_u64(struct reader *r, uint64_t *value, const char *what)
{
    return take(r, value, sizeof *value, what);
}

static bool take_str(struct reader *r, struct gguf_str *s, const char *what)
{
    uint64_t start = r->at;
    if (!take_u64(r, &s->n_bytes, what))
        return false;
    if (s->n_bytes > left(r))
        return FAIL(r, start,
                    "%s claims %" PRIu64 " bytes, but the file has only %" PRIu64
                    " more; it is truncated or damaged",
                    what, s->n_bytes, left(r));
    s->bytes = (const char *)r->file->bytes + r->at;
    r->at += s->n_bytes;
    return true;
}

/* A key or tensor name, as an owned C string. */
static bool take_name(struct reader *r, char **name, uint64_t max_bytes, const char *what)
{
    uint64_t start = r->at;
    struct gguf_str s;
    if (!take_str(r, &s, what))
        return false;
    if (s.n_bytes == 0 || s.n_bytes > max_bytes)
        return FAIL(r, start, "%s has %" PRIu64 " bytes; 1 to %" PRIu64 " are allowed", what,
                    s.n_bytes, max_bytes);
    for (uint64_t i = 0; i < s.n_bytes; i++) {
        unsigned char byte = (unsigned char)s.bytes[i];
        if (byte < 32 || byte == 127)
            return FAIL(r, start, "%s '%s' holds the control byte 0x%02x", what, show_str(s).text,
                        byte);
    }
    *name = malloc(s.n_bytes + 1);
    if (!*name)
        return FAIL(r, start, "no memory for %s of %" PRIu64 " bytes", what, s.n_bytes);
    memcpy(*name, s.bytes, s.n_bytes);
    (*name)[s.n_bytes] = 0;
    return true;
}

/* Refuses a count that the rest of the file cannot hold, before anything is allocated for it. */
static bool check_count(struct reader *r, uint64_t offset, uint64_t count, uint64_t max,
                        uint64_t min_bytes_each, const char *what)
{
    if (count > max)
        return FAIL(r, offset, "%" PRIu64 " %s; at most %" PRIu64 " are allowed", count, what, max);
    if (count > left(r) / min_bytes_each)
        return FAIL(r, offset,
                    "%" PRIu64 " %s do not fit in the %" PRIu64
                    " bytes that follow; the file is truncated or damaged",
                    count, what, left(r));
    return true;
}

static bool take_string_table(struct reader *r, struct gguf_array *array)
{
    struct gguf_str *strs = calloc(array->n ? array->n : 1, sizeof *strs);
    array->strs = strs;
    if (!strs)
        return FAIL(r, r->at, "no memory for an array of %" PRIu64 " strings", array->n);
    for (uint64_t i = 0; i < array->n; i++)
        if (!take_str(r, &strs[i], "a string of an array"))
            return false;
    return true;
}

static bool check_bools(struct reader *r, const unsigned char *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (bytes[i] > 1)
            return FAIL(r, (uint64_t)(bytes + i - r->file->bytes),
                        "a boolean is %u; only 0 and 1 are allowed", bytes[i]);
    return true;
}

static bool take_array(struct reader *r, const char *key, struct gguf_array *array)
{
    uint64_t start = r->at;
    uint32_t type;
    if (!take_u32(r, &type, "an array's element type"))
        return false;
    if (type == GGUF_ARRAY)
        return FAIL(r, start, "key '%s' is an array of arrays, which is not supported",
                    show(key, strlen(key)).text);
    if (type != GGUF_STR && gguf_type_bytes(type) == 0)
        return FAIL(r, start, "key '%s' is an array of the unknown type %" PRIu32,
                    show(key, strlen(key)).text, type);
    array->type = type;
    uint64_t count_offset = r->at;
    if (!take_u64(r, &array->n, "an array's length"))
        return false;
    if (type == GGUF_STR)
        return check_count(r, count_offset, array->n, STRINGS_MAX, 8, "strings of an array") &&
               take_string_table(r, array);
    uint64_t each_bytes = gguf_type_bytes(type);
    if (!check_count(r, count_offset, array->n, UINT64_MAX, each_bytes, "elements of an array"))
        return false;
    array->bytes = r->file->bytes + r->at;
    r->at += array->n * each_bytes;
    return type != GGUF_BOOL || check_bools(r, array->bytes, array->n);
}

static bool take_value(struct reader *r, struct gguf_entry *entry)
{
    uint64_t start = r->at;
    uint32_t type;
    if (!take_u32(r, &type, "a value's type"))
        return false;
    entry->type = type;
    entry->value_offset = r->at;
    if (type == GGUF_STR)
        return take_str(r, &entry->str, "a string value");
    if (type == GGUF_ARRAY)
        return take_array(r, entry->key, &entry->array);
    uint64_t n_bytes = gguf_type_bytes(type);
    if (n_bytes == 0)
        return FAIL(r, start, "key '%s' has the unknown type %" PRIu32,
                    show(entry->key, strlen(entry->key)).text, type);
    if (!need(r, n_bytes, "a value"))
        return false;
    entry->value = r->file->bytes + r->at;
    r->at += n_bytes;
    return type != GGUF_BOOL || check_bools(r, entry->value, 1);
}

static int compare_entries(const void *a, const void *b)
{
    const struct gguf_entry *const *left_entry = a, *const *right_entry = b;
    return strcmp((*left_entry)->key, (*right_entry)->key);
}

static bool take_entries(struct reader *r, uint64_t n)
{
    struct gguf *file = r->file;
    file->entries = calloc(n ? n : 1, sizeof *file->entries);
    file->entries_by_key = calloc(n ? n : 1, sizeof *file->entries_by_key);
    if (!file->entries || !file->entries_by_key)
        return FAIL(r, r->at, "no memory for %" PRIu64 " keys", n);
    for (; file->n_entries < n; file->n_entries++) {
        struct gguf_entry *entry = &file->entries[file->n_entries];
        file->entries_by_key[file->n_entries] = entry;
        bool is_read = take_name(r, &entry->key, KEY_BYTES_MAX, "a key") && take_value(r, entry);
        if (!is_read) {
            file->n_entries++; /* what it holds is freed by gguf_close */
            return false;
        }
    }
    qsort(file->entries_by_key, n, sizeof *file->entries_by_key, compare_entries);
    for (uint64_t i = 1; i < n; i++) {
        const struct gguf_entry *entry = file->entries_by_key[i];
        if (strcmp(file->entries_by_key[i - 1]->key, entry->key) == 0)
            return FAIL(r, entry->value_offset, "key '%s' occurs twice",
                        show(entry->key, strlen(entry->key)).text);
    }
    return true;
}

static bool take_alignment(struct reader *r)
{
    struct gguf *file = r->file;
    uint64_t alignment = ALIGNMENT_DEFAULT;
    enum gguf_found found = gguf_get_u64(file, "general.alignment", &alignment, r->error);
    if (found == GGUF_BAD)
        return false;
    if (alignment < 8 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
        return FAIL(r, gguf_find(file, "general.alignment")->value_offset,
                    "general.alignment is %" PRIu64 "; a power of two from 8 to %d is needed",
                    alignment, ALIGNMENT_MAX);
    file->alignment = alignment;
    return true;
}

static bool take_shape(struct reader *r, struct gguf_tensor *tensor)
{
    uint64_t start = r->at;
    struct shown shown = show(tensor->name, strlen(tensor->name));
    const char *name = shown.text;
    if (!take_u32(r, &tensor->n_dims, "a tensor's number of dimensions"))
        return false;
    if (tensor->n_dims < 1 || tensor->n_dims > GGUF_DIMS_MAX)
        return FAIL(r, start, "tensor '%s' has %" PRIu32 " dimensions, 1 to %d are allowed", name,
                    tensor->n_dims, GGUF_DIMS_MAX);
    tensor->n_values = 1;
    for (uint32_t i = 0; i < GGUF_DIMS_MAX; i++) {
        tensor->dims[i] = 1;
        uint64_t dim_offset = r->at;
        if (i < tensor->n_dims && !take_u64(r, &tensor->dims[i], "a tensor's dimension"))
            return false;
        if (tensor->dims[i] == 0)
            return FAIL(r, dim_offset, "dimension %" PRIu32 " of tensor '%s' is 0", i, name);
        if (__builtin_mul_overflow(tensor->n_values, tensor->dims[i], &tensor->n_values) ||
            tensor->n_values > UINT64_C(1) << 56)
            return FAIL(r, dim_offset,
                        "dimension %" PRIu32 " of tensor '%s' is %" PRIu64
                        ", which gives it more than 2^56 elements",
                        i, name, tensor->dims[i]);
    }
    return true;
}

static bool take_tensor(struct reader *r, struct gguf_tensor *tensor, char **name)
{
    tensor->info_offset = r->at;
    if (!take_name(r, name, TENSOR_NAME_BYTES_MAX, "a tensor's name"))
        return false;
    tensor->name = *name;
    if (!take_shape(r, tensor))
        return false;
    struct shown shown = show(*name, strlen(*name));
    uint64_t type_offset = r->at;
    uint32_t type;
    if (!take_u32(r, &type, "a tensor's type"))
        return false;
    if (!quant_is_known(type))
        return FAIL(r, type_offset,
                    "tensor '%s' has type %" PRIu32 " (%s); headrace reads F32, F16, BF16, Q8_0, "
                    "Q4_0, Q4_1, Q4_K and Q6_K",
                    shown.text, type, quant_name(type));
    tensor->type = type;
    uint32_t block_values = quant_block_values(type);
    if (tensor->dims[0] % block_values)
        return FAIL(r, type_offset,
                    "tensor '%s' has rows of %" PRIu64 " elements, but %s needs a multiple of "
                    "%" PRIu32,
                    shown.text, tensor->dims[0], quant_name(type), block_values);
    tensor->n_bytes = quant_bytes(type, tensor->n_values);
    uint64_t offset_offset = r->at;
    if (!take_u64(r, &tensor->file_offset, "a tensor's offset"))
        return false;
    if (tensor->file_offset % r->file->alignment)
        return FAIL(r, offset_offset,
                    "tensor '%s' has offset %" PRIu64 ", which is no multiple of the alignment "
                    "%" PRIu64,
                    shown.text, tensor->file_offset, r->file->alignment);
    return true;
}

static int compare_tensor_names(const void *a, const void *b)
{
    const struct gguf_tensor *const *left_tensor = a, *const *right_tensor = b;
    return strcmp((*left_tensor)->name, (*right_tensor)->name);
}

static bool take_tensors(struct reader *r, uint64_t n)
{
    struct gguf *file = r->file;
    file->tensors = calloc(n ? n : 1, sizeof *file->tensors);
    file->tensors_by_name = calloc(n ? n : 1, sizeof *file->tensors_by_name);
    if (!file->tensors || !file->tensors_by_name)
        return FAIL(r, r->at, "no memory for %" PRIu64 " tensors", n);
    for (uint64_t i = 0; i < n; i++) {
        char *name = NULL;
        bool is_read = take_tensor(r, &file->tensors[i], &name);
        file->tensors[i].name = name;
        file->tensors_by_name[i] = &file->tensors[i];
        file->n_tensors = i + 1;
        if (!is_read)
            return false;
    }
    qsort(file->tensors_by_name, n, sizeof *file->tensors_by_name, compare_tensor_names);
    for (uint64_t i = 1; i < n; i++) {
        const struct gguf_tensor *tensor = file->tensors_by_name[i];
        if (strcmp(file->tensors_by_name[i - 1]->name, tensor->name) == 0)
            return FAIL(r, tensor->info_offset, "tensor '%s' occurs twice",
                        show(tensor->name, strlen(tensor->name)).text);
    }
    return true;
}

static int compare_tensor_offsets(const void *a, const void *b)
{
    const struct gguf_tensor *const *left_tensor = a, *const *right_tensor = b;
    uint64_t left_offset = (*left_tensor)->file_offset, right_offset = (*right_tensor)->file_offset;
    return (left_offset > right_offset) - (left_offset < right_offset);
}

static bool check_overlaps(struct reader *r)
{
    struct gguf *file = r->file;
    uint64_t n = file->n_tensors;
    const struct gguf_tensor **sorted = malloc((n ? n : 1) * sizeof *sorted);
    if (!sorted)
        return FAIL(r, r->at, "no memory to sort %" PRIu64 " tensors", n);
    for (uint64_t i = 0; i < n; i++)
        sorted[i] = &file->tensors[i];
    qsort(sorted, n, sizeof *sorted, compare_tensor_offsets);
    bool is_apart = true;
    for (uint64_t i = 1; i < n && is_apart; i++) {
        const struct gguf_tensor *a = sorted[i - 1], *b = sorted[i];
        if (a->file_offset + a->n_bytes > b->file_offset)
            is_apart =
                FAIL(r, b->info_offset, "the data of tensors '%s' and '%s' overlap",
                     show(a->name, strlen(a->name)).text, show(b->name, strlen(b->name)).text);
    }
    free(sorted);
    return is_apart;
}

/* Turns offsets from the start of the data into places in the file, all inside it. */
static bool place_tensors(struct reader *r)
{
    struct gguf *file = r->file;
    uint64_t data_offset = (r->at + file->alignment - 1) & ~(file->alignment - 1);
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        struct gguf_tensor *tensor = &file->tensors[i];
        uint64_t room = file->n_bytes > data_offset ? file->n_bytes - data_offset : 0;
        if (tensor->n_bytes > room || tensor->file_offset > room - tensor->n_bytes)
            return FAIL(r, tensor->info_offset,
                        "tensor '%s' wants %" PRIu64 " bytes at offset %" PRIu64
                        " of the tensor data, but the file has %" PRIu64
                        "; it is truncated or damaged",
                        show(tensor->name, strlen(tensor->name)).text, tensor->n_bytes,
                        tensor->file_offset, room);
        tensor->file_offset += data_offset;
        tensor->data = file->bytes + tensor->file_offset;
    }
    return check_overlaps(r);
}

static bool take_magic(struct reader *r)
{
    unsigned char magic[4];
    if (!take(r, magic, sizeof magic, "the four bytes 'GGUF' that begin a GGUF file"))
        return false;
    if (memcmp(magic, "GGUF", 4) != 0)
        return FAIL(r, 0, "this is no GGUF file: it begins with '%s', not with 'GGUF'",
                    show(magic, 4).text);
    if (!take_u32(r, &r->file->version, "the version"))
        return false;
    if (r->file->version == 0x02000000 || r->file->version == 0x03000000)
        return FAIL(r, 4, "this GGUF file is big-endian; only little-endian ones are read");
    if (r->file->version != 2 && r->file->version != 3)
        return FAIL(r, 4, "GGUF version %" PRIu32 "; versions 2 and 3 are read", r->file->version);
    return true;
}

static bool take_file(struct reader *r)
{
    enum { KEY_BYTES_MIN = 8 + 1 + 4 + 1, TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8 };
    uint64_t n_tensors, n_keys;
    return take_magic(r) && take_u64(r, &n_tensors, "the number of tensors") &&
           take_u64(r, &n_keys, "the number of keys") &&
           check_count(r, 8, n_tensors, TENSORS_MAX, TENSOR_BYTES_MIN, "tensors") &&
           check_count(r, 16, n_keys, KEYS_MAX, KEY_BYTES_MIN, "keys") && take_entries(r, n_keys) &&
           take_alignment(r) && take_tensors(r, n_tensors) && place_tensors(r);
}

static struct gguf *parse(const char *name, const void *bytes, uint64_t n_bytes, bool is_mapped,
                          char *error)
{
    struct gguf *file = calloc(1, sizeof *file);
    char *name_copy = strdup(name);
    if (!file || !name_copy) {
        gguf_explain(error, name, 0, "no memory");
        if (is_mapped)
            munmap((void *)(uintptr_t)bytes, n_bytes);
        free(file);
        free(name_copy);
        return NULL;
    }
    file->name = name_copy;
    file->bytes = bytes;
    file->n_bytes = n_bytes;
    file->is_mapped = is_mapped;
    struct reader reader = {.file = file, .error = error};
    if (take_file(&reader))
        return file;
    gguf_close(file);
    return NULL;
}

struct gguf *gguf_open_memory(const char *name, const void *bytes, size_t n_bytes, char *error)
{
    return parse(name, bytes, n_bytes, false, error);
}

/* The mapping, or NULL and a sentence. */
static void *map_file(const char *path, int fd, uint64_t *n_bytes, char *error)
{
    struct stat status;
    const char *reason = NULL;
    if (fstat(fd, &status) != 0)
        reason = strerror(errno);
    else if (S_ISDIR(status.st_mode))
        reason = "it is a directory";
    else if (!S_ISREG(status.st_mode))
        reason = "it is no regular file";
    else if (status.st_size == 0)
        reason = "the file is empty";
    if (reason) {
        snprintf(error, GGUF_ERROR_BYTES, "%.200s: cannot be read: %s", path, reason);
        return NULL;
    }
    *n_bytes = (uint64_t)status.st_size;
    void *bytes = mmap(NULL, *n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes != MAP_FAILED)
        return bytes;
    snprintf(error, GGUF_ERROR_BYTES, "%.200s: its %" PRIu64 " bytes cannot be mapped: %s", path,
             *n_bytes, strerror(errno));
    return NULL;
}

struct gguf *gguf_open(const char *path, char *error)
{
    char unwanted[GGUF_ERROR_BYTES];
    error = error ? error : unwanted;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (fd < 0) {
        snprintf(error, GGUF_ERROR_BYTES, "%.200s: cannot be opened: %s", path, strerror(errno));
        return NULL;
    }
    uint64_t n_bytes = 0;
    void *bytes = map_file(path, fd, &n_bytes, error);
    close(fd);
    return bytes ? parse(path, bytes, n_bytes, true, error) : NULL;
}

void gguf_close(struct gguf *file)
{
    if (!file)
        return;
    for (uint64_t i = 0; i < file->n_entries; i++) {
        free(file->entries[i].key);
        free((void *)(uintptr_t)file->entries[i].array.strs);
    }
    for (uint64_t i = 0; i < file->n_tensors; i++)
        free((void *)(uintptr_t)file->tensors[i].name);
    free(file->entries);
    free(file->entries_by_key);
    free(file->tensors);
    free(file->tensors_by_name);
    if (file->is_mapped)
        munmap((void *)(uintptr_t)file->bytes, file->n_bytes);
    free(file->name);
    free(file);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the file says about the model, every key of it: one that is not known may change the
 * arithmetic, so it is refused. */
#include "tools/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct arch {
    const char *name;
    bool rope_halves, qk_norm, qkv_bias;
};

static const struct arch archs[] = {
    {"llama", false, false, false},
    {"qwen2", true, false, true},
    {"qwen3", true, true, false},
};

enum { ARCHS = sizeof(archs) / sizeof(archs[0]), KEY_BYTES = 128 };

/* Keys behind "<arch>." that are read here or change nothing. */
static const char *const known_keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "expert_count",
    "expert_used_count",
};

static bool fail(const struct gguf *file, char *error, const char *what)
{
    snprintf(error, GGUF_ERROR_BYTES, "%s: %s", gguf_name(file), what);
    return false;
}

static bool find_arch(const struct gguf *file, struct model_dims *dims, char *error)
{
    struct gguf_str name;
    char what[256];
    if (gguf_get_str(file, "general.architecture", &name, error) != GGUF_OK)
        return false;
    for (int i = 0; i < ARCHS; i++) {
        if (!gguf_str_is(name, archs[i].name))
            continue;
        dims->arch = archs[i].name;
        dims->rope_halves = archs[i].rope_halves;
        dims->qk_norm = archs[i].qk_norm;
        dims->qkv_bias = archs[i].qkv_bias;
        return true;
    }
    snprintf(what, sizeof(what),
             "general.architecture is \"%.*s\"; this program runs llama, qwen2 and qwen3",
             name.n_bytes < 80 ? (int)name.n_bytes : 80, name.bytes);
    return fail(file, error, what);
}

static const char *key_of(const struct model_dims *dims, const char *name, char *key)
{
    snprintf(key, KEY_BYTES, "%s.%s", dims->arch, name);
    return key;
}

/* A count of 1 .. max; with `fallback` > 0 it may be absent. */
static bool read_count(const struct gguf *file, const struct model_dims *dims, const char *name,
                       uint32_t max, uint32_t fallback, int32_t *value, char *error)
{
    char key[KEY_BYTES], what[256];
    uint32_t v = fallback;
    enum gguf_found found = gguf_get_u32(file, key_of(dims, name, key), &v, error);
    if (found == GGUF_BAD || (found == GGUF_ABSENT && fallback == 0))
        return false;
    *value = (int32_t)v;
    if (v >= 1 && v <= max)
        return true;
    snprintf(what, sizeof(what), "%s is %u; 1 to %u is possible", key, v, max);
    return fail(file, error, what);
}

/* A positive number; with `fallback` > 0 it may be absent. */
static bool read_number(const struct gguf *file, const struct model_dims *dims, const char *name,
                        float fallback, float *value, char *error)
{
    char key[KEY_BYTES], what[256];
    *value = fallback;
    enum gguf_found found = gguf_get_f32(file, key_of(dims, name, key), value, error);
    if (found == GGUF_BAD || (found == GGUF_ABSENT && fallback == 0))
        return false;
    if (*value > 0 && isfinite(*value))
        return true;
    snprintf(what, sizeof(what), "%s is %g; a positive number is wanted", key, (double)*value);
    return fail(file, error, what);
}

static bool check_scaling(const struct gguf *file, const struct model_dims *dims, char *error)
{
    char key[KEY_BYTES], what[256];
    struct gguf_str type;
    enum gguf_found found =
        gguf_get_str(file, key_of(dims, "rope.scaling.type", key), &type, error);
    if (found == GGUF_ABSENT || (found == GGUF_OK && gguf_str_is(type, "none")))
        return true;
    if (found == GGUF_BAD)
        return false;
    snprintf(what, sizeof(what), "%s is \"%.*s\"; only \"none\" is supported", key,
             type.n_bytes < 80 ? (int)type.n_bytes : 80, type.bytes);
    return fail(file, error, what);
}

/* Experts would need another feed-forward; files of dense models may say 0. */
static bool check_experts(const struct gguf *file, const struct model_dims *dims, char *error)
{
    char key[KEY_BYTES], what[256];
    uint32_t n = 0;
    if (gguf_get_u32(file, key_of(dims, "expert_count", key), &n, error) == GGUF_BAD)
        return false;
    if (n == 0)
        return true;
    snprintf(what, sizeof(what), "%s is %u; mixtures of experts are not supported", key, n);
    return fail(file, error, what);
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < sizeof(known_keys) / sizeof(known_keys[0]); i++)
        if (strcmp(name, known_keys[i]) == 0)
            return true;
    return false;
}

static bool check_keys(const struct gguf *file, const struct model_dims *dims, char *error)
{
    char what[384];
    size_t prefix = strlen(dims->arch);
    for (uint64_t i = 0; i < gguf_n_keys(file); i++) {
        enum gguf_type type;
        const char *key = gguf_key_at(file, i, &type);
        if (strncmp(key, dims->arch, prefix) != 0 || key[prefix] != '.' ||
            is_known(key + prefix + 1))
            continue;
        snprintf(what, sizeof(what),
                 "key %.200s is not known: the model may need arithmetic that is not there", key);
        return fail(file, error, what);
    }
    return true;
}

static bool check_heads(const struct gguf *file, const struct model_dims *d, int32_t head_v,
                        char *error)
{
    char what[256] = "";
    if (d->q_heads % d->kv_heads != 0)
        snprintf(what, sizeof(what), "%d query heads are no multiple of %d KV heads", d->q_heads,
                 d->kv_heads);
    else if (d->head % 8 != 0 || head_v != d->head)
        snprintf(what, sizeof(what),
                 "heads of %d (K) and %d (V) dimensions; equal multiples of 8 are supported",
                 d->head, head_v);
    else if (d->rope % 2 != 0 || d->rope > d->head)
        snprintf(what, sizeof(what), "%s.rope.dimension_count is %d; even, at most %d, is wanted",
                 d->arch, d->rope, d->head);
    return what[0] == '\0' || fail(file, error, what);
}

static bool read_heads(const struct gguf *file, struct model_dims *d, char *error)
{
    int32_t head_v;
    if (!read_count(file, d, "attention.head_count", 4096, 0, &d->q_heads, error) ||
        !read_count(file, d, "attention.head_count_kv", 1024, (uint32_t)d->q_heads, &d->kv_heads,
                    error))
        return false;
    uint32_t head = (uint32_t)(d->width / d->q_heads);
    head = head ? head : 1;
    return read_count(file, d, "attention.key_length", 256, head, &d->head, error) &&
           read_count(file, d, "attention.value_length", 256, head, &head_v, error) &&
           read_count(file, d, "rope.dimension_count", 256, (uint32_t)d->head, &d->rope, error) &&
           check_heads(file, d, head_v, error);
}

bool model_read_dims(const struct gguf *file, struct model_dims *d, char *error)
{
    *d = (struct model_dims){0};
    return find_arch(file, d, error) && check_keys(file, d, error) &&
           check_scaling(file, d, error) && check_experts(file, d, error) &&
           read_count(file, d, "block_count", 4096, 0, &d->layers, error) &&
           read_count(file, d, "context_length", 1 << 30, 0, &d->context, error) &&
           read_count(file, d, "embedding_length", 1 << 20, 0, &d->width, error) &&
           read_count(file, d, "feed_forward_length", 1 << 22, 0, &d->ffn, error) &&
           read_heads(file, d, error) &&
           read_number(file, d, "rope.freq_base", 10000, &d->rope_base, error) &&
           read_number(file, d, "attention.layer_norm_rms_epsilon", 0, &d->norm_eps, error);
}

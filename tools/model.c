/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loading {
    const struct gguf *file;
    struct gemm *gemm;
    struct model *model;
    bool *used; /* [tensors of the file] */
    char *error;
};

static bool fail(const struct loading *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool fail(const struct loading *l, const char *format, ...)
{
    char what[GGUF_ERROR_BYTES - 128];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    snprintf(l->error, GGUF_ERROR_BYTES, "%s: %s", gguf_name(l->file), what);
    return false;
}

/* The tensor, if its shape is [inputs] (outputs 0) or [inputs, outputs]. */
static const struct gguf_tensor *find(struct loading *l, const char *name, int64_t inputs,
                                      int64_t outputs)
{
    const struct gguf_tensor *t = gguf_tensor_find(l->file, name);
    if (!t) {
        fail(l, "tensor %s is missing", name);
        return NULL;
    }
    l->used[gguf_tensor_index(l->file, t)] = true;
    if (t->n_dims == (outputs ? 2u : 1u) && t->dims[0] == (uint64_t)inputs &&
        (outputs == 0 || t->dims[1] == (uint64_t)outputs))
        return t;
    fail(l, "tensor %s is [%llu, %llu] (%u dimensions); [%lld, %lld] is wanted", name,
         (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], t->n_dims,
         (long long)inputs, (long long)(outputs ? outputs : 1));
    return NULL;
}

static bool load_vector(struct loading *l, const char *name, int64_t n, float **out)
{
    const struct gguf_tensor *t = find(l, name, n, 0);
    if (!t)
        return false;
    *out = malloc((size_t)n * sizeof(float));
    if (!*out)
        return fail(l, "out of memory for tensor %s", name);
    quant_to_f32(t->type, t->data, (uint64_t)n, *out);
    return true;
}

static bool pack(struct loading *l, const struct gguf_tensor *t, struct gemm_weight **out)
{
    char why[GGUF_ERROR_BYTES];
    *out = gemm_weight_create(l->gemm, t->type, t->data, (int64_t)t->dims[1], (int64_t)t->dims[0],
                              why);
    if (!*out)
        return fail(l, "tensor %s: %s", t->name, why);
    l->model->weight_bytes += gemm_weight_bytes(*out);
    return true;
}

static bool load_matrix(struct loading *l, const char *name, int64_t inputs, int64_t outputs,
                        struct gemm_weight **out)
{
    const struct gguf_tensor *t = find(l, name, inputs, outputs);
    return t && pack(l, t, out);
}

static const char *layer_name(char *buffer, size_t size, int layer, const char *part)
{
    snprintf(buffer, size, "blk.%d.%s", layer, part);
    return buffer;
}

#define NAME(part) layer_name(name, sizeof(name), i, part)

static bool load_attention(struct loading *l, int i)
{
    const struct model_dims *d = &l->model->dims;
    struct model_layer *at = &l->model->layers[i];
    const int64_t q = (int64_t)d->q_heads * d->head, kv = (int64_t)d->kv_heads * d->head;
    char name[64];
    bool ok = load_vector(l, NAME("attn_norm.weight"), d->width, &at->attn_norm) &&
              load_matrix(l, NAME("attn_q.weight"), d->width, q, &at->q) &&
              load_matrix(l, NAME("attn_k.weight"), d->width, kv, &at->k) &&
              load_matrix(l, NAME("attn_v.weight"), d->width, kv, &at->v) &&
              load_matrix(l, NAME("attn_output.weight"), q, d->width, &at->o);
    if (ok && d->qk_norm)
        ok = load_vector(l, NAME("attn_q_norm.weight"), d->head, &at->q_norm) &&
             load_vector(l, NAME("attn_k_norm.weight"), d->head, &at->k_norm);
    if (ok && d->qkv_bias)
        ok = load_vector(l, NAME("attn_q.bias"), q, &at->q_bias) &&
             load_vector(l, NAME("attn_k.bias"), kv, &at->k_bias) &&
             load_vector(l, NAME("attn_v.bias"), kv, &at->v_bias);
    return ok;
}

static bool load_ffn(struct loading *l, int i)
{
    const struct model_dims *d = &l->model->dims;
    struct model_layer *at = &l->model->layers[i];
    char name[64];
    return load_vector(l, NAME("ffn_norm.weight"), d->width, &at->ffn_norm) &&
           load_matrix(l, NAME("ffn_gate.weight"), d->width, d->ffn, &at->gate) &&
           load_matrix(l, NAME("ffn_up.weight"), d->width, d->ffn, &at->up) &&
           load_matrix(l, NAME("ffn_down.weight"), d->ffn, d->width, &at->down);
}

/* Embedding, final norm and head. The vocabulary's size is the embedding's. */
static bool load_ends(struct loading *l)
{
    struct model *m = l->model;
    const struct gguf_tensor *t = gguf_tensor_find(l->file, "token_embd.weight");
    if (t && (t->dims[1] < 1 || t->dims[1] > 1 << 26))
        return fail(l, "tensor token_embd.weight has %llu rows", (unsigned long long)t->dims[1]);
    m->dims.vocab = t ? (int32_t)t->dims[1] : 1;
    m->embedding = find(l, "token_embd.weight", m->dims.width, m->dims.vocab);
    if (!m->embedding || !load_vector(l, "output_norm.weight", m->dims.width, &m->out_norm))
        return false;
    if (gguf_tensor_find(l->file, "output.weight"))
        return load_matrix(l, "output.weight", m->dims.width, m->dims.vocab, &m->head);
    return pack(l, m->embedding, &m->head);
}

static bool all_used(struct loading *l)
{
    for (uint64_t i = 0; i < gguf_n_tensors(l->file); i++)
        if (!l->used[i])
            return fail(l,
                        "tensor %s would not be used: this is not a %s model as this program "
                        "knows it",
                        gguf_tensor_at(l->file, i)->name, l->model->dims.arch);
    return true;
}

static bool load(struct loading *l)
{
    struct model *m = l->model;
    m->layers = calloc((size_t)m->dims.layers, sizeof(*m->layers));
    l->used = calloc(gguf_n_tensors(l->file) + 1, sizeof(*l->used));
    if (!m->layers || !l->used)
        return fail(l, "out of memory for %d layers", m->dims.layers);
    bool ok = load_ends(l);
    for (int i = 0; ok && i < m->dims.layers; i++)
        ok = load_attention(l, i) && load_ffn(l, i);
    return ok && all_used(l);
}

struct model *model_open(const struct gguf *file, struct gemm *gemm, char *error)
{
    struct model_dims dims;
    if (!model_read_dims(file, &dims, error))
        return NULL;
    struct model *model = calloc(1, sizeof(*model));
    struct loading l = {file, gemm, model, NULL, error};
    if (!model) {
        fail(&l, "out of memory");
        return NULL;
    }
    model->dims = dims;
    bool ok = load(&l);
    free(l.used);
    if (ok)
        return model;
    model_close(model);
    return NULL;
}

static void close_layer(struct model_layer *l)
{
    float *vectors[] = {l->attn_norm, l->ffn_norm, l->q_norm, l->k_norm,
                        l->q_bias,    l->k_bias,   l->v_bias};
    struct gemm_weight *weights[] = {l->q, l->k, l->v, l->o, l->gate, l->up, l->down};
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
        free(vectors[i]);
    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++)
        gemm_weight_destroy(weights[i]);
}

void model_close(struct model *model)
{
    if (!model)
        return;
    for (int i = 0; model->layers && i < model->dims.layers; i++)
        close_layer(&model->layers[i]);
    gemm_weight_destroy(model->head);
    free(model->out_norm);
    free(model->layers);
    free(model);
}

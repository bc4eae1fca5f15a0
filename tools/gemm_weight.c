/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gemm_weight.h"
#include "tools/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks of 32 values as the file has them. */
struct block_q4_0 {
    uint8_t scale[2], codes[16];
};

struct block_q4_1 {
    uint8_t scale[2], offset[2], codes[16];
};

struct block_q8_0 {
    uint8_t scale[2];
    int8_t codes[32];
};

struct packing {
    struct gemm_weight *weight;
    enum quant_type type;
    const unsigned char *rows;
    size_t row_bytes;
};

const float *gemm_weight_slab(const struct gemm_weight *weight, const struct model_ops *ops,
                              int64_t panel, int64_t first, int64_t inputs, float *room)
{
    const void *data = weight->data + (size_t)panel * weight->panel_bytes;
    int64_t group = first / OPS_GROUP, n = inputs / OPS_GROUP;
    if (weight->form == GEMM_FLOATS)
        return (const float *)data + first * GEMM_PANEL;
    if (weight->form == GEMM_CODES4)
        ops->expand4((const struct ops_group4 *)data + group, n, room);
    else
        ops->expand8((const struct ops_group8 *)data + group, n, room);
    return room;
}

static float half(const uint8_t *bytes)
{
    float value;
    quant_to_f32(QUANT_F16, bytes, 1, &value);
    return value;
}

/* Values 0 .. 15 of a block are the low halves of its bytes, 16 .. 31 the high ones; a group has
 * neighbours in one byte. */
static void pack_codes4(struct ops_group4 *group, int lane, const uint8_t *codes)
{
    for (int r = 0; r < OPS_GROUP / 4; r++) {
        const uint8_t a = codes[2 * r], b = codes[2 * r + 1];
        group->codes[r][lane] = (uint8_t)((a & 15) | (b & 15) << 4);
        group->codes[r + OPS_GROUP / 4][lane] = (uint8_t)(a >> 4 | (b & 0xf0));
    }
}

static void pack_group4(enum quant_type type, struct ops_group4 *group, int lane, const void *block)
{
    if (type == QUANT_Q4_0) {
        const struct block_q4_0 *b = block;
        group->scale[lane] = half(b->scale);
        group->offset[lane] = -8 * group->scale[lane];
        pack_codes4(group, lane, b->codes);
    } else {
        const struct block_q4_1 *b = block;
        group->scale[lane] = half(b->scale);
        group->offset[lane] = half(b->offset);
        pack_codes4(group, lane, b->codes);
    }
}

static void pack_group8(struct ops_group8 *group, int lane, const struct block_q8_0 *block)
{
    group->scale[lane] = half(block->scale);
    for (int i = 0; i < OPS_GROUP; i++)
        group->codes[i][lane] = block->codes[i];
}

/* One value block of one output goes to one lane of the panel. */
static void pack_block(const struct packing *p, void *panel, int lane, int64_t index,
                       const unsigned char *block)
{
    if (p->weight->form == GEMM_CODES4) {
        pack_group4(p->type, (struct ops_group4 *)panel + index, lane, block);
    } else if (p->weight->form == GEMM_CODES8) {
        pack_group8((struct ops_group8 *)panel + index, lane, (const void *)block);
    } else {
        float values[256];
        int64_t n = quant_block_values(p->type);
        float *out = (float *)panel + index * n * GEMM_PANEL + lane;
        quant_to_f32(p->type, block, (uint64_t)n, values);
        for (int64_t i = 0; i < n; i++)
            out[i * GEMM_PANEL] = values[i];
    }
}

static void pack_panel(const void *args, int64_t item, int thread)
{
    (void)thread;
    const struct packing *p = args;
    struct gemm_weight *w = p->weight;
    unsigned char *panel = w->data + (size_t)item * w->panel_bytes;
    int64_t blocks = w->inputs / quant_block_values(p->type);
    size_t block_bytes = quant_block_bytes(p->type);
    memset(panel, 0, w->panel_bytes);
    for (int lane = 0; lane < GEMM_PANEL && item * GEMM_PANEL + lane < w->outputs; lane++) {
        const unsigned char *row = p->rows + (size_t)(item * GEMM_PANEL + lane) * p->row_bytes;
        for (int64_t i = 0; i < blocks; i++)
            pack_block(p, panel, lane, i, row + (size_t)i * block_bytes);
    }
}

/* Whether the first output's packed values are those of the file. */
static bool packed_right(const struct gemm *gemm, const struct packing *p)
{
    const struct gemm_weight *w = p->weight;
    float *row = malloc((size_t)w->inputs * sizeof(float));
    float *room = gemm_room(gemm, 0);
    bool same = row != NULL;
    if (same)
        quant_to_f32(p->type, p->rows, (uint64_t)w->inputs, row);
    for (int64_t first = 0; same && first < w->inputs; first += GEMM_SLAB) {
        int64_t n = w->inputs - first < GEMM_SLAB ? w->inputs - first : GEMM_SLAB;
        const float *values = gemm_weight_slab(w, gemm_ops(gemm), 0, first, n, room);
        for (int64_t i = 0; i < n; i++) {
            float a = values[i * GEMM_PANEL], b = row[first + i];
            same = same && (a == b || (a != a && b != b));
        }
    }
    free(row);
    return same;
}

static void set_form(struct gemm_weight *w, enum quant_type type)
{
    size_t groups = (size_t)w->inputs / OPS_GROUP;
    if (type == QUANT_Q4_0 || type == QUANT_Q4_1) {
        w->form = GEMM_CODES4;
        w->panel_bytes = groups * sizeof(struct ops_group4);
    } else if (type == QUANT_Q8_0) {
        w->form = GEMM_CODES8;
        w->panel_bytes = groups * sizeof(struct ops_group8);
    } else {
        w->form = GEMM_FLOATS;
        w->panel_bytes = (size_t)w->inputs * GEMM_PANEL * sizeof(float);
    }
}

struct gemm_weight *gemm_weight_create(struct gemm *gemm, enum quant_type type, const void *rows,
                                       int64_t outputs, int64_t inputs, char *error)
{
    struct gemm_weight *w = calloc(1, sizeof(*w));
    if (!w) {
        snprintf(error, GGUF_ERROR_BYTES, "out of memory");
        return NULL;
    }
    *w = (struct gemm_weight){.outputs = outputs, .inputs = inputs};
    w->panels = (outputs + GEMM_PANEL - 1) / GEMM_PANEL;
    set_form(w, type);
    w->single_row = gemm_single_row(gemm, inputs);
    w->data = aligned_alloc(64, (size_t)w->panels * w->panel_bytes);
    struct packing p = {w, type, rows, quant_bytes(type, (uint64_t)inputs)};
    if (w->data) {
        gemm_pool_run(gemm_threads(gemm), pack_panel, &p, w->panels);
        if (packed_right(gemm, &p))
            return w;
    }
    snprintf(error, GGUF_ERROR_BYTES, "%s (%zu bytes of packed weights)",
             w->data ? "packed weights differ from the file's: report this" : "out of memory",
             gemm_weight_bytes(w));
    gemm_weight_destroy(w);
    return NULL;
}

void gemm_weight_destroy(struct gemm_weight *weight)
{
    if (!weight)
        return;
    free(weight->data);
    free(weight);
}

size_t gemm_weight_bytes(const struct gemm_weight *weight)
{
    return (size_t)weight->panels * weight->panel_bytes;
}

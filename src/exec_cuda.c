/* SPDX-License-Identifier: Apache-2.0 */
/* On a CUDA device: begin brings all lists of the step to the device in one copy, append and attend
 * are kernels on the step's stream; nothing waits. */
#include "src/exec.h"

#include <string.h>

#include "kernels/cuda/launch.h"

struct hr_step_cuda {
    unsigned char *pinned, *lists; /* the same bytes, on the host and on the device */
    size_t bytes;
    struct hr_dev_event *uploaded, *attended;
    void *queries; /* q in the layer's type and packed, where kernels can't read it in place */
    size_t queries_bytes;
    int64_t n_blocks; /* of all sequences, one layer */
    /* Where the lists begin, in bytes. */
    size_t seqs, first_item, pages, copy_from;
    size_t end; /* of those: then tiles, chunks and folds of each class */
};

static struct hr_dev *dev_of(const hr_step *step)
{
    return step->cache->context->dev;
}

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t place(size_t *end, int64_t count, size_t size)
{
    size_t at = *end;
    *end = round_up(at + (size_t)count * size);
    return at;
}

/* The lists of one class, behind those of the classes before it. */
struct class_lists {
    size_t tiles, chunks, folds;
};

static struct class_lists place_class(const struct hr_plan *plan, size_t *end)
{
    struct class_lists at;
    at.tiles = place(end, plan->n_tiles, sizeof(struct hr_cu_tile));
    at.chunks = place(end, plan->n_chunks, sizeof(struct hr_chunk));
    at.folds = place(end, plan->n_folds, sizeof(struct hr_fold));
    return at;
}

static struct class_lists lists_of(const hr_step *step, int32_t class)
{
    size_t end = step->cuda->end;
    struct class_lists at = {0};
    for (int32_t i = 0; i <= class; i++)
        at = place_class(&step->plans[i], &end);
    return at;
}

/* ---- begin ---- */

/* What is there already stays. */
static bool make(hr_step *step)
{
    struct hr_dev *dev = dev_of(step);
    if (!step->cuda)
        step->cuda = hr_alloc_zero(&step->cache->context->alloc, sizeof(*step->cuda));
    struct hr_step_cuda *cu = step->cuda;
    if (cu && !cu->uploaded)
        cu->uploaded = dev->ops->event_make(dev);
    if (cu && !cu->attended)
        cu->attended = dev->ops->event_make(dev);
    return cu && cu->uploaded && cu->attended;
}

static void put_lists(hr_step *step)
{
    struct hr_dev *dev = dev_of(step);
    struct hr_step_cuda *cu = step->cuda;
    dev->ops->pinned_put(dev, cu->pinned, cu->bytes);
    dev->ops->memory_put(dev, cu->lists, cu->bytes);
    cu->pinned = cu->lists = NULL;
    cu->bytes = 0;
}

static size_t place_all(hr_step *step)
{
    struct hr_step_cuda *cu = step->cuda;
    int64_t layers = step->cache->n_layers;
    cu->n_blocks = 0;
    for (int32_t i = 0; i < step->n_seqs; i++)
        cu->n_blocks += hr_blocks_of(step->views[i].n_kv);
    cu->end = 0;
    cu->seqs = place(&cu->end, step->n_seqs, sizeof(struct hr_cu_seq));
    cu->first_item = place(&cu->end, step->n_seqs + 1, sizeof(int64_t));
    cu->pages = place(&cu->end, cu->n_blocks * layers, sizeof(uint32_t));
    cu->copy_from = place(&cu->end, step->n_seqs * layers, sizeof(uint32_t));
    size_t end = cu->end;
    for (int32_t i = 0; i < step->cache->n_classes; i++)
        place_class(&step->plans[i], &end);
    return end;
}

/* Twice what is needed, so that a growing sequence does not ask for memory in every step. */
static bool make_lists(hr_step *step, size_t bytes)
{
    struct hr_dev *dev = dev_of(step);
    struct hr_step_cuda *cu = step->cuda;
    if (bytes <= cu->bytes)
        return true;
    put_lists(step);
    cu->pinned = dev->ops->pinned_get(dev, 2 * bytes);
    cu->lists = dev->ops->memory_get(dev, 2 * bytes);
    cu->bytes = 2 * bytes;
    if (cu->pinned && cu->lists)
        return true;
    put_lists(step);
    return false;
}

static void fill_seqs(const hr_step *step)
{
    const struct hr_step_cuda *cu = step->cuda;
    struct hr_cu_seq *seqs = (struct hr_cu_seq *)(cu->pinned + cu->seqs);
    int64_t block = 0;
    for (int32_t i = 0; i < step->n_seqs; i++) {
        seqs[i] = hr_cu_seq_of(&step->views[i], block);
        block += hr_blocks_of(step->views[i].n_kv);
    }
    memcpy(cu->pinned + cu->first_item, step->first_item,
           (size_t)(step->n_seqs + 1) * sizeof(*step->first_item));
}

/* The block's place in the arena, in the kernels' units. */
static uint32_t page_of(const hr_step *step, int32_t layer, uint32_t slot)
{
    const struct hr_pool_view *view = hr_cache_view(step->cache, layer);
    uint64_t at = (uint64_t)(hr_block_addr(view, slot) - view->base);
    const struct hr_geom *g = hr_cache_geom(step->cache, layer);
    return (uint32_t)(at / (uint64_t)hr_unit_bytes(g->dim, (int32_t)hr_dtype_bytes(g->dtype)));
}

static void fill_layer(const hr_step *step, int32_t layer)
{
    const struct hr_step_cuda *cu = step->cuda;
    uint32_t *page = (uint32_t *)(cu->pinned + cu->pages) + layer * cu->n_blocks;
    uint32_t *copy = (uint32_t *)(cu->pinned + cu->copy_from) + (int64_t)layer * step->n_seqs;
    for (int32_t i = 0; i < step->n_seqs; i++) {
        const uint32_t *slots = hr_seq_slots(step->seqs[i], layer);
        uint32_t copied = hr_step_copied_slot(step, i, layer);
        int64_t n = hr_blocks_of(step->views[i].n_kv);
        for (int64_t b = 0; b < n; b++)
            *page++ = page_of(step, layer, slots[b]);
        copy[i] = copied == HR_BLOCK_NONE ? UINT32_MAX : page_of(step, layer, copied);
    }
}

static void fill_class(const hr_step *step, int32_t class)
{
    const struct hr_plan *plan = &step->plans[class];
    struct class_lists at = lists_of(step, class);
    struct hr_cu_tile *tiles = (struct hr_cu_tile *)(step->cuda->pinned + at.tiles);
    for (int64_t i = 0; i < plan->n_tiles; i++)
        tiles[i] = hr_cu_tile_of(&plan->tiles[i]);
    if (plan->n_chunks > 0)
        memcpy(step->cuda->pinned + at.chunks, plan->chunks,
               (size_t)plan->n_chunks * sizeof(*plan->chunks));
    if (plan->n_folds > 0)
        memcpy(step->cuda->pinned + at.folds, plan->folds,
               (size_t)plan->n_folds * sizeof(*plan->folds));
}

static bool begin(hr_step *step)
{
    struct hr_dev *dev = dev_of(step);
    if (!make(step))
        return false;
    struct hr_step_cuda *cu = step->cuda;
    size_t bytes = place_all(step);
    dev->ops->event_wait(dev, cu->uploaded, INT64_MAX);
    if (!make_lists(step, bytes))
        return false;
    fill_seqs(step);
    for (int32_t l = 0; l < step->cache->n_layers; l++)
        fill_layer(step, l);
    for (int32_t i = 0; i < step->cache->n_classes; i++)
        fill_class(step, i);
    dev->ops->upload(dev, HR_DEV_WORK, cu->lists, cu->pinned, bytes);
    dev->ops->event_record(dev, cu->uploaded, HR_DEV_WORK);
    return true;
}

/* ---- append, attend ---- */

static const uint32_t *pages_of(const hr_step *step, int32_t layer)
{
    return (const uint32_t *)(step->cuda->lists + step->cuda->pages) + layer * step->cuda->n_blocks;
}

static hr_status append(hr_step *step, int32_t layer, const struct hr_rows *k,
                        const struct hr_rows *v)
{
    const struct hr_step_cuda *cu = step->cuda;
    struct hr_dev *dev = dev_of(step);
    struct hr_cu_append a = hr_cu_append_of(hr_cache_geom(step->cache, layer), k, v);
    a.seqs = (const struct hr_cu_seq *)(cu->lists + cu->seqs);
    a.pages = pages_of(step, layer);
    a.copy_from = (const uint32_t *)(cu->lists + cu->copy_from) + (int64_t)layer * step->n_seqs;
    a.first_item = (const int64_t *)(cu->lists + cu->first_item);
    a.arena = dev->arena;
    a.n_items = step->first_item[step->n_seqs];
    a.n_seqs = step->n_seqs;
    dev->ops->set_stream(dev, step->stream);
    hr_cu_append(step->cache->context->cuda, &a);
    return hr_context_device_status(step->cache->context);
}

/* Room for a copy of q. */
static bool make_queries(hr_step *step, size_t bytes)
{
    struct hr_dev *dev = dev_of(step);
    struct hr_step_cuda *cu = step->cuda;
    if (bytes <= cu->queries_bytes)
        return true;
    dev->ops->memory_put(dev, cu->queries, cu->queries_bytes);
    cu->queries = dev->ops->memory_get(dev, bytes);
    cu->queries_bytes = cu->queries ? bytes : 0;
    return cu->queries;
}

/* Adds the step's lists to the request. */
static void add_lists(const hr_step *step, int32_t layer, struct hr_cu_attend *a)
{
    int32_t class = step->cache->class_of[layer];
    const struct hr_plan *plan = &step->plans[class];
    struct class_lists at = lists_of(step, class);
    unsigned char *lists = step->cuda->lists;
    a->seqs = (const struct hr_cu_seq *)(lists + step->cuda->seqs);
    a->tiles = (const struct hr_cu_tile *)(lists + at.tiles);
    a->pages = pages_of(step, layer);
    a->chunks = (const struct hr_chunk *)(lists + at.chunks);
    a->folds = (const struct hr_fold *)(lists + at.folds);
    a->state = step->state;
    a->n_tiles = (int32_t)plan->n_tiles;
    a->n_chunks = (int32_t)plan->n_chunks;
    a->n_folds = (int32_t)plan->n_folds;
    a->tile_tokens = (int32_t)plan->tile_tokens;
}

static hr_status no_queries(hr_step *step, size_t bytes)
{
    hr_context *c = step->cache->context;
    hr_status dead = hr_context_device_status(c);
    if (dead != HR_OK)
        return dead;
    return hr_fail(&c->error, HR_E_NO_MEMORY, "no device memory for a copy of q (%zu bytes)",
                   bytes);
}

static hr_status attend(hr_step *step, int32_t layer, struct hr_attend *in)
{
    struct hr_dev *dev = dev_of(step);
    struct hr_cu_kernels *kernels = step->cache->context->cuda;
    const struct hr_cu_class *class = &step->cache->classes[step->cache->class_of[layer]].cuda;
    const struct hr_plan *plan = &step->plans[step->cache->class_of[layer]];
    int64_t rows = step->query_tokens;
    struct hr_rows q = in->q;
    dev->ops->set_stream(dev, step->stream);
    if (rows > 0 && !hr_cu_reads_queries(class, &q, in->scale)) {
        size_t bytes = hr_cu_staged_bytes(&in->geom, rows);
        if (!make_queries(step, bytes))
            return no_queries(step, bytes);
        q = hr_cu_stage_queries(kernels, &in->geom, &q, rows, in->scale, step->cuda->queries);
    }
    struct hr_cu_attend a = hr_cu_attend_of(in, &q);
    add_lists(step, layer, &a);
    for (int64_t wave = 0; wave < plan->waves; wave++) {
        a.first = wave == 0;
        a.last = wave == plan->waves - 1;
        a.wave_begin = wave * plan->wave_blocks;
        a.wave_end = a.last ? HR_TOKENS_MAX : (wave + 1) * plan->wave_blocks;
        hr_cu_prefill(kernels, class, &a, rows);
        hr_cu_decode(kernels, class, &a, rows);
    }
    hr_cu_fold(kernels, class, &a);
    dev->ops->event_record(dev, step->cuda->attended, HR_DEV_WORK);
    return hr_context_device_status(step->cache->context);
}

static enum hr_dev_wait wait_attended(hr_step *step, int64_t deadline_ns)
{
    struct hr_dev *dev = dev_of(step);
    return dev->ops->event_wait(dev, step->cuda->attended, deadline_ns);
}

static void put_all(hr_step *step)
{
    struct hr_dev *dev = dev_of(step);
    struct hr_step_cuda *cu = step->cuda;
    if (!cu)
        return;
    put_lists(step);
    dev->ops->memory_put(dev, cu->queries, cu->queries_bytes);
    if (cu->uploaded)
        dev->ops->event_free(dev, cu->uploaded);
    if (cu->attended)
        dev->ops->event_free(dev, cu->attended);
    hr_alloc_put(&step->cache->context->alloc, cu, sizeof(*cu));
}

const struct hr_exec_ops hr_exec_cuda = {
    .begin = begin,
    .append = append,
    .attend = attend,
    .wait = wait_attended,
    .free = put_all,
};

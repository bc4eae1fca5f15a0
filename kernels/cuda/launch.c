/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/shapes.h"
#include "src/dev/driver.h"

/* ---- The kernels ---- */

#define KIND_prefill HR_CU_PREFILL
#define KIND_decode HR_CU_DECODE
#define FILE_prefill_90 "prefill_sm90"
#define FILE_decode_90 "decode_sm90"
#define FILE_prefill_80 "attend_sm80"
#define FILE_decode_80 "attend_sm80"
#define TYPED(kind, level, dim, type, TYPE, ...)                                                   \
    {                                                                                              \
        "hr_" #kind "_sm" #level "_d" #dim type, FILE_##kind##_##level, KIND_##kind,               \
            HR_CU_SM##level, dim, TYPE, __VA_ARGS__                                                \
    }
#define ATTEND(kind, level, dim, ...)                                                              \
    TYPED(kind, level, dim, "_bf16", HR_BF16, __VA_ARGS__),                                        \
        TYPED(kind, level, dim, "_fp16", HR_FP16, __VA_ARGS__),
#define OTHER(kind, name, file, threads, registers)                                                \
    {                                                                                              \
        "hr_" name, file, kind, HR_CU_SM80, 0, HR_BF16, threads, 0, registers, 0, 0                \
    }

const struct hr_cu_kernel hr_cu_kernels_all[] = {
    HR_CU_SHAPES(ATTEND) OTHER(HR_CU_FOLD, "fold", "fold", 256, 64),
    OTHER(HR_CU_APPEND, "append", "append", 128, 80),
    OTHER(HR_CU_STAGE, "stage", "stage", 256, 255),
    OTHER(HR_CU_ZERO_ROWS, "zero_rows", "stage", 256, 255),
    OTHER(HR_CU_GATHER, "gather", "gather", 512, 128),
};

enum {
    N_KERNELS = sizeof hr_cu_kernels_all / sizeof hr_cu_kernels_all[0],
    MODULES_MAX = 16,
    FOLD_LANES = 8,
    FOLD_COLUMN_MAX = 16, /* CTAs that share the rows of a fold */
    GATHER_CTAS = 8,      /* fill the link */
    GRID_Z_MAX = 65535,
    SHARED_UNASKED = 48 << 10,
    COUNTERS_BYTES = 2 * sizeof(uint32_t),
};

const int32_t hr_cu_kernels_count = N_KERNELS;

bool hr_cu_level_known(const char *name)
{
    return !name || !*name || strcmp(name, "sm80") == 0 || strcmp(name, "sm90") == 0;
}

int hr_cu_level_choose(int32_t major, int32_t minor, const char *forced, char *why)
{
    int best = major == 9 && minor == 0 ? HR_CU_SM90 : major >= 8 ? HR_CU_SM80 : 0;
    if (best == 0) {
        snprintf(why, HR_DEV_TEXT_BYTES, "compute capability %d.%d has no kernels; 8.0 is needed",
                 major, minor);
        return 0;
    }
    if (!forced || !*forced)
        return best;
    if (strcmp(forced, "sm80") == 0)
        return HR_CU_SM80;
    if (strcmp(forced, "sm90") != 0) {
        snprintf(why, HR_DEV_TEXT_BYTES, "the kernel level is \"%.40s\"; it must be sm80 or sm90",
                 forced);
        return 0;
    }
    if (best < HR_CU_SM90)
        snprintf(why, HR_DEV_TEXT_BYTES,
                 "kernel level sm90 needs compute capability 9.0; the GPU's is %d.%d", major,
                 minor);
    return best < HR_CU_SM90 ? 0 : best;
}

int32_t hr_cu_kernel_find(enum hr_cu_kind kind, int level, int32_t dim, hr_dtype dtype)
{
    int32_t found = -1;
    for (int32_t i = 0; i < N_KERNELS; i++) {
        const struct hr_cu_kernel *x = &hr_cu_kernels_all[i];
        bool fits = x->dim == 0 || (x->dim == dim && x->dtype == dtype);
        if (x->kind != kind || (int)x->level > level || !fits)
            continue;
        if (found < 0 || x->level > hr_cu_kernels_all[found].level)
            found = i;
    }
    return found;
}

/* ---- Loading ---- */

struct hr_cu_kernels {
    struct hr_dev *dev;
    const struct hr_cu_driver *cu;
    struct hr_alloc *alloc;
    int level;
    int32_t multiprocessors;
    bool fold_waits;    /* its code waits for the kernel before it by itself */
    uint32_t *counters; /* of tiles, of chunks; device memory */
    CUmodule modules[MODULES_MAX];
    CUfunction functions[N_KERNELS]; /* NULL: of a higher level, or not in this build */
};

#define TRY(k, function, ...) hr_dev_cuda_went((k)->dev, (k)->cu->function(__VA_ARGS__), #function)

int hr_cu_kernels_level(const struct hr_cu_kernels *k)
{
    return k->level;
}

/* A kernel's launch must be one that its code was compiled for. */
static bool check_kernel(struct hr_cu_kernels *k, const struct hr_cu_kernel *x, CUfunction f)
{
    char text[HR_DEV_TEXT_BYTES];
    int threads = 0, registers = 0, shared = 0;
    int32_t room = hr_dev_cuda_info(k->dev)->shared_bytes;
    if (!TRY(k, cuFuncGetAttribute, &threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f) ||
        !TRY(k, cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, f) ||
        !TRY(k, cuFuncGetAttribute, &shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f))
        return false;
    if (threads >= x->threads && registers <= x->registers && shared + x->shared_bytes <= room)
        return true;
    snprintf(text, sizeof(text),
             "kernel %s: %d threads of at most %d, %d registers of at most %d, %d bytes of shared "
             "memory of at most %d",
             x->name, x->threads, threads, registers, x->registers, shared + x->shared_bytes, room);
    hr_dev_cuda_kill(k->dev, text);
    return false;
}

static bool load_kernel(struct hr_cu_kernels *k, int32_t i, CUmodule module)
{
    const struct hr_cu_kernel *x = &hr_cu_kernels_all[i];
    CUfunction f = NULL;
    int version = 0;
    if (!TRY(k, cuModuleGetFunction, &f, module, x->name) || !check_kernel(k, x, f))
        return false;
    if (x->shared_bytes > SHARED_UNASKED &&
        (!TRY(k, cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
              x->shared_bytes) ||
         !TRY(k, cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
              CU_SHAREDMEM_CARVEOUT_MAX_SHARED)))
        return false;
    if (x->kind == HR_CU_FOLD) {
        if (!TRY(k, cuFuncGetAttribute, &version, CU_FUNC_ATTRIBUTE_PTX_VERSION, f))
            return false;
        k->fold_waits = version >= 90;
    }
    k->functions[i] = f;
    return true;
}

/* One module, if a kernel of the level is in it, with those kernels. */
static bool load_module(struct hr_cu_kernels *k, const struct hr_cu_module *m, CUmodule *module)
{
    for (int32_t i = 0; i < N_KERNELS; i++) {
        const struct hr_cu_kernel *x = &hr_cu_kernels_all[i];
        if ((int)x->level > k->level || strcmp(x->module, m->name) != 0)
            continue;
        if (!*module && !TRY(k, cuModuleLoadData, module, m->bytes))
            return false;
        if (!load_kernel(k, i, *module))
            return false;
    }
    return true;
}

static bool load_all(struct hr_cu_kernels *k, const struct hr_cu_module *modules, int32_t count)
{
    k->counters = k->dev->ops->memory_get(k->dev, COUNTERS_BYTES);
    if (!k->counters || !hr_dev_cuda_enter(k->dev))
        return false;
    k->dev->ops->zero(k->dev, k->counters, COUNTERS_BYTES);
    bool good = TRY(k, cuStreamSynchronize, hr_dev_cuda_stream(k->dev, HR_DEV_WORK));
    for (int32_t i = 0; good && i < count && i < MODULES_MAX; i++)
        good = load_module(k, &modules[i], &k->modules[i]);
    hr_dev_cuda_leave(k->dev);
    return good;
}

struct hr_cu_kernels *hr_cu_kernels_load_from(const struct hr_cu_module *modules, int32_t count,
                                              struct hr_dev *dev, struct hr_alloc *alloc,
                                              const char *forced_level, char *why)
{
    const struct hr_dev_cuda_info *info = hr_dev_cuda_info(dev);
    int level = hr_cu_level_choose(info->major, info->minor, forced_level, why);
    if (level == 0)
        return NULL;
    struct hr_cu_kernels *k = hr_alloc_zero(alloc, sizeof(*k));
    if (!k) {
        snprintf(why, HR_DEV_TEXT_BYTES, "no host memory for the table of CUDA kernels");
        return NULL;
    }
    k->dev = dev;
    k->cu = hr_dev_cuda_driver(dev);
    k->alloc = alloc;
    k->level = level;
    k->multiprocessors = info->multiprocessors;
    if (load_all(k, modules, count) && !dev->ops->error(dev))
        return k;
    const char *error = dev->ops->error(dev);
    snprintf(why, HR_DEV_TEXT_BYTES, "%s", error ? error : "no device memory for two counters");
    hr_cu_kernels_free(k);
    return NULL;
}

struct hr_cu_kernels *hr_cu_kernels_load(struct hr_dev *dev, struct hr_alloc *alloc,
                                         const char *forced_level, char *why)
{
    return hr_cu_kernels_load_from(hr_cu_modules, hr_cu_modules_count, dev, alloc, forced_level,
                                   why);
}

void hr_cu_kernels_free(struct hr_cu_kernels *k)
{
    if (!k)
        return;
    if (hr_dev_cuda_enter_to_free(k->dev)) {
        for (int i = 0; i < MODULES_MAX; i++)
            if (k->modules[i])
                TRY(k, cuModuleUnload, k->modules[i]);
        hr_dev_cuda_leave(k->dev);
    }
    k->dev->ops->memory_put(k->dev, k->counters, COUNTERS_BYTES);
    hr_alloc_put(k->alloc, k, sizeof(*k));
}

/* ---- Classes ---- */

static const struct hr_cu_kernel *loaded(const struct hr_cu_kernels *k, enum hr_cu_kind kind,
                                         const struct hr_geom *g)
{
    int32_t i = hr_cu_kernel_find(kind, k->level, g->dim, g->dtype);
    return i >= 0 && k->functions[i] ? &hr_cu_kernels_all[i] : NULL;
}

/* The driver encodes maps only where a context is current. */
static bool encode(struct hr_cu_kernels *k, const struct hr_cu_map_shape *shape,
                   struct hr_cu_map *map)
{
    if (!hr_dev_cuda_enter(k->dev))
        return false;
    bool good =
        hr_dev_cuda_went(k->dev, hr_cu_map_encode(k->cu, shape, map), "cuTensorMapEncodeTiled");
    hr_dev_cuda_leave(k->dev);
    return good;
}

static bool map_pages(struct hr_cu_kernels *k, struct hr_cu_class *class, char *why)
{
    struct hr_cu_map_shape shape =
        hr_cu_map_pages(&class->geom, k->dev->arena, k->dev->arena_bytes);
    const char *refused = hr_cu_map_refuses(&shape);
    if (refused) {
        snprintf(why, HR_DEV_TEXT_BYTES, "tensor map of the K/V pages: %s", refused);
        return false;
    }
    bool good = encode(k, &shape, &class->pages);
    if (!good)
        snprintf(why, HR_DEV_TEXT_BYTES, "%s", k->dev->ops->error(k->dev));
    return good;
}

bool hr_cu_class_make(struct hr_cu_kernels *k, const struct hr_geom *g, uint64_t extent_bytes,
                      struct hr_cu_class *class, char *why)
{
    *class = (struct hr_cu_class){
        .geom = *g,
        .prefill = loaded(k, HR_CU_PREFILL, g),
        .decode = loaded(k, HR_CU_DECODE, g),
    };
    if (!class->prefill || !class->decode) {
        snprintf(why, HR_DEV_TEXT_BYTES,
                 "dim %d in %s has no CUDA kernel: bf16 and fp16 of dim 64, 96, 128 and 256 have",
                 g->dim,
                 g->dtype == HR_BF16   ? "bf16"
                 : g->dtype == HR_FP16 ? "fp16"
                                       : "fp32");
        return false;
    }
    if (g->group > class->prefill->rows) {
        snprintf(why, HR_DEV_TEXT_BYTES,
                 "%d query heads share a KV head; a tile of %s has room for %d", g->group,
                 class->prefill->name, class->prefill->rows);
        return false;
    }
    uint64_t unit = (uint64_t)hr_unit_bytes(g->dim, (int32_t)hr_dtype_bytes(g->dtype));
    if (extent_bytes % unit != 0) {
        snprintf(why, HR_DEV_TEXT_BYTES,
                 "places in units of %llu bytes (dim %d) are counted across extents of %llu, which "
                 "is no multiple of them",
                 (unsigned long long)unit, g->dim, (unsigned long long)extent_bytes);
        return false;
    }
    bool tensor_maps = class->prefill->level >= HR_CU_SM90 || class->decode->level >= HR_CU_SM90;
    return !tensor_maps || map_pages(k, class, why);
}

/* ---- Requests ---- */

struct hr_cu_attend hr_cu_attend_of(const struct hr_attend *in, const struct hr_rows *q)
{
    const float log2e = 1.44269504f, scale = fabsf(in->scale);
    return (struct hr_cu_attend){
        .q = q->data,
        .out = in->out.data,
        .lse = in->lse.data,
        .sink_logits = in->sink_logits,
        .q_stride_token = q->stride_token,
        .q_stride_head = q->stride_head,
        .out_stride_token = in->out.stride_token,
        .out_stride_head = in->out.stride_head,
        .lse_stride_token = in->lse.stride_token,
        .lse_stride_head = in->lse.stride_head,
        .window = in->geom.window,
        .sinks = in->geom.sinks,
        .group = in->geom.group,
        .causal = in->mask == HR_MASK_CAUSAL,
        .out_type = (int32_t)in->out.dtype,
        .factor = (in->softcap > 0 ? in->softcap : scale) * log2e,
        .softcap = in->softcap > 0 ? scale / in->softcap : 0,
    };
}

struct hr_cu_append hr_cu_append_of(const struct hr_geom *g, const struct hr_rows *k,
                                    const struct hr_rows *v)
{
    return (struct hr_cu_append){
        .k = k->data,
        .v = v->data,
        .k_stride_token = k->stride_token,
        .k_stride_head = k->stride_head,
        .v_stride_token = v->stride_token,
        .v_stride_head = v->stride_head,
        .kv_heads = g->kv_heads,
        .dim = g->dim,
        .kv_type = (int32_t)k->dtype,
        .cache_type = (int32_t)g->dtype,
    };
}

bool hr_cu_reads_queries(const struct hr_cu_class *class, const struct hr_rows *q, float scale)
{
    struct hr_cu_map_shape shape = hr_cu_map_queries(&class->geom, q->data, 1, q->stride_token,
                                                     q->stride_head, hr_cu_tile_tokens(class));
    return q->dtype == class->geom.dtype && !(scale < 0) && q->stride_token >= 0 &&
           q->stride_head >= 0 && !hr_cu_map_refuses(&shape);
}

/* ---- Launches ---- */

struct shape {
    int64_t x, y, z; /* of the grid */
    int32_t threads_x, threads_y;
};

/* `early`: may begin before the kernel in front of it is over; waits for it by itself. */
static void launch(struct hr_cu_kernels *k, const struct hr_cu_kernel *kernel, struct shape shape,
                   void **parameters, bool early, enum hr_dev_queue queue)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {
        .gridDimX = (unsigned)shape.x,
        .gridDimY = (unsigned)shape.y,
        .gridDimZ = (unsigned)shape.z,
        .blockDimX = (unsigned)shape.threads_x,
        .blockDimY = (unsigned)shape.threads_y,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)kernel->shared_bytes,
        .hStream = hr_dev_cuda_stream(k->dev, queue),
        .attrs = &attribute,
        .numAttrs = early ? 1 : 0,
    };
    CUfunction function = k->functions[kernel - hr_cu_kernels_all];
    if (!function) {
        hr_dev_cuda_kill(k->dev, "a CUDA kernel that is not in this build was to be launched");
        return;
    }
    if (!hr_dev_cuda_enter(k->dev))
        return;
    hr_dev_cuda_went(k->dev, k->cu->cuLaunchKernelEx(&config, function, parameters, NULL),
                     kernel->name);
    hr_dev_cuda_leave(k->dev);
}

/* The kernel of a kind that takes every geometry. */
static const struct hr_cu_kernel *the_one(enum hr_cu_kind kind)
{
    return &hr_cu_kernels_all[hr_cu_kernel_find(kind, HR_CU_SM80, 0, HR_BF16)];
}

/* Of items (tiles, chunks): a CTA for each; on Hopper up to so many, which draw items from a
 * counter and read `tokens` of q at a time through a map. */
struct attend_launch {
    const struct hr_cu_kernel *kernel;
    int64_t items, ctas_max;
    uint32_t *counter;
    int64_t rows;
    int32_t tokens;
};

static void attend_hopper(struct hr_cu_kernels *k, const struct hr_cu_class *class,
                          struct hr_cu_attend *a, const struct attend_launch *l)
{
    struct hr_cu_map_shape q = hr_cu_map_queries(&class->geom, a->q, l->rows, a->q_stride_token,
                                                 a->q_stride_head, l->tokens);
    struct hr_cu_map queries, pages = class->pages;
    void *parameters[] = {a, &queries, &pages};
    const char *refused = hr_cu_map_refuses(&q);
    a->next = l->counter;
    if (refused) {
        hr_dev_cuda_kill(k->dev, refused);
        return;
    }
    if (!encode(k, &q, &queries))
        return;
    int64_t ctas = hr_cu_at_most(l->items, l->ctas_max);
    launch(k, l->kernel, (struct shape){ctas, 1, 1, l->kernel->threads, 1}, parameters, true,
           HR_DEV_WORK);
}

static void attend(struct hr_cu_kernels *k, const struct hr_cu_class *class,
                   const struct hr_cu_attend *a, const struct attend_launch *l)
{
    struct hr_cu_attend mine = *a;
    void *parameters[] = {&mine, &k->dev->arena};
    if (l->items == 0 || k->dev->ops->error(k->dev))
        return;
    if (l->kernel->level >= HR_CU_SM90)
        attend_hopper(k, class, &mine, l);
    else
        launch(k, l->kernel, (struct shape){l->items, 1, 1, l->kernel->threads, 1}, parameters,
               false, HR_DEV_WORK);
}

void hr_cu_prefill(struct hr_cu_kernels *k, const struct hr_cu_class *class,
                   const struct hr_cu_attend *a, int64_t rows)
{
    struct attend_launch l = {class->prefill, a->n_tiles, k->multiprocessors,
                              k->counters,    rows,       a->tile_tokens};
    attend(k, class, a, &l);
}

void hr_cu_decode(struct hr_cu_kernels *k, const struct hr_cu_class *class,
                  const struct hr_cu_attend *a, int64_t rows)
{
    struct attend_launch l = {class->decode,   a->n_chunks, 2 * k->multiprocessors,
                              k->counters + 1, rows,        1};
    attend(k, class, a, &l);
}

void hr_cu_fold(struct hr_cu_kernels *k, const struct hr_cu_class *class,
                const struct hr_cu_attend *a)
{
    const struct hr_cu_kernel *kernel = the_one(HR_CU_FOLD);
    struct hr_cu_attend mine = *a;
    void *parameters[] = {&mine};
    int32_t pairs = class->geom.dim / 2, lanes = FOLD_LANES;
    while (lanes * pairs > kernel->threads)
        lanes /= 2;
    if (a->n_folds == 0)
        return;
    int64_t share = 4 * k->multiprocessors / a->n_folds; /* four CTAs of a multiprocessor run */
    share = hr_cu_at_most(share > 0 ? share : 1, FOLD_COLUMN_MAX);
    launch(k, kernel, (struct shape){a->n_folds, share, 1, pairs, lanes}, parameters, k->fold_waits,
           HR_DEV_WORK);
}

void hr_cu_append(struct hr_cu_kernels *k, const struct hr_cu_append *a)
{
    const struct hr_cu_kernel *kernel = the_one(HR_CU_APPEND);
    struct hr_cu_append mine = *a;
    void *parameters[] = {&mine};
    if (a->n_items > 0)
        launch(k, kernel,
               (struct shape){a->kv_heads, 2, hr_cu_at_most(a->n_items, GRID_Z_MAX),
                              kernel->threads, 1},
               parameters, false, HR_DEV_WORK);
}

static void launch_some(struct hr_cu_kernels *k, enum hr_cu_kind kind, void *a, int64_t items)
{
    const struct hr_cu_kernel *kernel = the_one(kind);
    if (items > 0)
        launch(
            k, kernel,
            (struct shape){hr_cu_at_most(items, 8 * k->multiprocessors), 1, 1, kernel->threads, 1},
            &a, false, HR_DEV_WORK);
}

void hr_cu_stage(struct hr_cu_kernels *k, const struct hr_cu_stage *a)
{
    struct hr_cu_stage mine = *a;
    launch_some(k, HR_CU_STAGE, &mine, a->rows);
}

struct hr_rows hr_cu_stage_queries(struct hr_cu_kernels *k, const struct hr_geom *g,
                                   const struct hr_rows *q, int64_t rows, float scale, void *to)
{
    int32_t heads = g->kv_heads * g->group;
    struct hr_cu_stage a = {
        .from = q->data,
        .to = to,
        .stride_token = q->stride_token,
        .stride_head = q->stride_head,
        .rows = rows,
        .heads = heads,
        .dim = g->dim,
        .from_type = (int32_t)q->dtype,
        .to_type = (int32_t)g->dtype,
        .negate = scale < 0,
    };
    hr_cu_stage(k, &a);
    return (struct hr_rows){to, (int64_t)heads * g->dim, g->dim, g->dtype};
}

void hr_cu_zero_rows(struct hr_cu_kernels *k, const struct hr_cu_zero_rows *a)
{
    struct hr_cu_zero_rows mine = *a;
    launch_some(k, HR_CU_ZERO_ROWS, &mine, a->n_list * a->kv_heads);
}

void hr_cu_gather(struct hr_cu_kernels *k, const struct hr_cu_gather *a, enum hr_dev_queue queue)
{
    const struct hr_cu_kernel *kernel = the_one(HR_CU_GATHER);
    struct hr_cu_gather mine = *a;
    void *parameters[] = {&mine};
    if (a->n_pieces > 0)
        launch(k, kernel, (struct shape){GATHER_CTAS, 1, 1, kernel->threads, 1}, parameters, false,
               queue);
}

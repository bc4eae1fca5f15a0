/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the CUDA kernels, one per kind. They enqueue on a queue of a CUDA device and return;
 * errors are the device's (hr_dev_ops.error). Plain C: nothing of <cuda.h> is seen here. */
#ifndef HR_KERNELS_CUDA_LAUNCH_H
#define HR_KERNELS_CUDA_LAUNCH_H

#include "kernels/cuda/params.h"
#include "kernels/cuda/stage.h"
#include "kernels/cuda/tensormap.h"
#include "src/dev/cuda.h"

/* Compiled code in the library: cubins, or fatbins of several. */
struct hr_cu_module {
    const char *name, *arch;
    const void *bytes;
    size_t size;
};

extern const struct hr_cu_module hr_cu_modules[];
extern const int32_t hr_cu_modules_count;

enum hr_cu_kind {
    HR_CU_PREFILL,
    HR_CU_DECODE,
    HR_CU_FOLD,
    HR_CU_APPEND,
    HR_CU_STAGE,
    HR_CU_ZERO_ROWS,
    HR_CU_GATHER,
};

/* Of code: it runs on a GPU of the same or a higher level. */
enum hr_cu_level { HR_CU_SM80 = 80, HR_CU_SM90 = 90 };

/* What a launch has to know of a kernel. dim 0: any geometry. */
struct hr_cu_kernel {
    const char *name, *module;
    enum hr_cu_kind kind;
    enum hr_cu_level level;
    int32_t dim;
    hr_dtype dtype;
    int32_t threads, shared_bytes; /* dynamic */
    int32_t registers;             /* at most, per thread */
    int32_t rows;                  /* (token, g) of a tile or a chunk, at most */
    int32_t carry_floats;          /* of a tile */
};

extern const struct hr_cu_kernel hr_cu_kernels_all[];
extern const int32_t hr_cu_kernels_count;

/* NULL, "", "sm80" or "sm90". */
bool hr_cu_level_known(const char *name);

/* The level of a compute capability; `forced` "sm80" or "sm90": that one; NULL or "": the best. 0:
 * none, and why[HR_DEV_TEXT_BYTES] says so. */
int hr_cu_level_choose(int32_t major, int32_t minor, const char *forced, char *why);

/* The kernel of the highest level up to `level`, an index into hr_cu_kernels_all; -1: none. */
int32_t hr_cu_kernel_find(enum hr_cu_kind kind, int level, int32_t dim, hr_dtype dtype);

/* What the engine's plan needs to know of a level. */
const struct hr_kernels *hr_cu_planner(int level);

static inline int64_t hr_cu_at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* Loaded kernels of one device. */
struct hr_cu_kernels;

/* May compile for some seconds on a GPU newer than this library. NULL: why[HR_DEV_TEXT_BYTES] says
 * what is wrong. */
struct hr_cu_kernels *hr_cu_kernels_load(struct hr_dev *dev, struct hr_alloc *alloc,
                                         const char *forced_level, char *why);
/* The same of other compiled code, for tests. */
struct hr_cu_kernels *hr_cu_kernels_load_from(const struct hr_cu_module *modules, int32_t count,
                                              struct hr_dev *dev, struct hr_alloc *alloc,
                                              const char *forced_level, char *why);
void hr_cu_kernels_free(struct hr_cu_kernels *k);
int hr_cu_kernels_level(const struct hr_cu_kernels *k);

/* Layers of one geometry. */
struct hr_cu_class {
    struct hr_geom geom;
    const struct hr_cu_kernel *prefill, *decode;
    struct hr_cu_map pages; /* of the arena; for sm90 */
};

/* False: no kernel takes this geometry; why[HR_DEV_TEXT_BYTES] says what it would take. */
bool hr_cu_class_make(struct hr_cu_kernels *k, const struct hr_geom *g, uint64_t extent_bytes,
                      struct hr_cu_class *class, char *why);

/* Tokens of a full tile. */
static inline int32_t hr_cu_tile_tokens(const struct hr_cu_class *class)
{
    return class->prefill->rows / class->geom.group;
}

/* Lists and requests as the kernels take them. The rest of an attend or append is memory of the
 * device: sequences, lists, pages and workspace. A negative scale's sign is q's
 * (hr_cu_stage_queries).
 */
static inline struct hr_cu_seq hr_cu_seq_of(const struct hr_seq_view *v, int64_t first_block)
{
    return (struct hr_cu_seq){v->n_kv, v->n_q, v->q_row, first_block, v->n_new, v->new_row};
}

static inline struct hr_cu_tile hr_cu_tile_of(const struct hr_tile *t)
{
    return (struct hr_cu_tile){t->seq, t->head, t->token, t->carry, t->tokens, -1, 0};
}

struct hr_cu_attend hr_cu_attend_of(const struct hr_attend *in, const struct hr_rows *q);
struct hr_cu_append hr_cu_append_of(const struct hr_geom *g, const struct hr_rows *k,
                                    const struct hr_rows *v);

/* Whether kernels read q in place; else it has to be brought into packed rows first. They take a
 * scale >= 0: of a negative one the sign goes into q. */
bool hr_cu_reads_queries(const struct hr_cu_class *class, const struct hr_rows *q, float scale);

/* Brings q into memory of the device for so many packed rows, which it gives back. */
struct hr_rows hr_cu_stage_queries(struct hr_cu_kernels *k, const struct hr_geom *g,
                                   const struct hr_rows *q, int64_t rows, float scale, void *to);
static inline size_t hr_cu_staged_bytes(const struct hr_geom *g, int64_t rows)
{
    return (size_t)rows * (size_t)(g->kv_heads * g->group * g->dim) * hr_dtype_bytes(g->dtype);
}

/* Attention of a wave: tiles, then chunks; after the last wave the fold. Lists that are empty are
 * no launch. `rows` are those of q. a->next is set here. */
void hr_cu_prefill(struct hr_cu_kernels *k, const struct hr_cu_class *class,
                   const struct hr_cu_attend *a, int64_t rows);
void hr_cu_decode(struct hr_cu_kernels *k, const struct hr_cu_class *class,
                  const struct hr_cu_attend *a, int64_t rows);
void hr_cu_fold(struct hr_cu_kernels *k, const struct hr_cu_class *class,
                const struct hr_cu_attend *a);

void hr_cu_append(struct hr_cu_kernels *k, const struct hr_cu_append *a);
void hr_cu_stage(struct hr_cu_kernels *k, const struct hr_cu_stage *a);
void hr_cu_zero_rows(struct hr_cu_kernels *k, const struct hr_cu_zero_rows *a);
void hr_cu_gather(struct hr_cu_kernels *k, const struct hr_cu_gather *a, enum hr_dev_queue queue);

#endif

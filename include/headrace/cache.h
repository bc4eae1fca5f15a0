/* SPDX-License-Identifier: Apache-2.0 */
/* Caches and sequences. A cache fixes the K/V geometry of a model, layer by layer; a sequence is
 * the K/V of one token stream in it. K/V are stored in blocks of 128 tokens of one layer; forks
 * share whole blocks, and a block that both sides go on from is copied at the first append to it.
 */
#ifndef HEADRACE_CACHE_H
#define HEADRACE_CACHE_H

#include <headrace/status.h>
#include <headrace/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One layer's geometry. Zero-initialised fields mean what is said behind them. A CUDA device has
 * kernels for bf16 and fp16 of dim 64, 96, 128 and 256, and for up to 128 query heads per KV head
 * (64 at dim 256). */
typedef struct hr_layer_options {
    int32_t q_heads;  /* Hq: 1 .. 4096, a multiple of kv_heads */
    int32_t kv_heads; /* Hkv: 1 .. 1024; query head h reads KV head h / (Hq / Hkv) */
    int32_t dim_k;    /* D: a multiple of 8, 8 .. 256 */
    int32_t dim_v;    /* 0: dim_k. Other values than dim_k are refused in this version */
    hr_dtype dtype;   /* of the stored K and V */
    /* Sliding window: a row at position p sees keys j > p - window (itself included). 0: no window.
     * With HR_MASK_FULL the window bounds the past only. */
    int64_t window;
    /* With a window: the first `sinks` tokens stay visible to all rows (StreamingLLM,
     * arXiv 2309.17453). */
    int64_t sinks;
    /* Reserved, refused unless 0: reuse the K/V of the layer this many places before. */
    int32_t kv_layers_back;
    /* Reserved, refused unless 0: bytes behind each page for scales of quantised K/V. */
    int32_t aux_bytes;
    /* Reserved, refused unless false: V is the first dim_v columns of K (MLA). */
    bool v_is_prefix_of_k;
} hr_layer_options;

typedef struct hr_cache_options {
    /* sizeof(hr_cache_options). */
    size_t struct_size;
    /* sizeof(hr_layer_options): the stride of layers[]. */
    size_t layer_size;
    /* n_layers entries, copied. */
    const hr_layer_options *layers;
    /* 1 .. 4096. */
    int32_t n_layers;
} hr_cache_options;

/* Creates a cache. The kernel is chosen here and stays the same for the cache's life. *cache is
 * owned by the caller; on failure it is set to NULL. Errors: HR_E_INVALID, HR_E_UNSUPPORTED,
 * HR_E_NO_MEMORY, HR_E_BUDGET (a block is larger than the whole budget). A context with disks has
 * one cache at a time, which takes both budgets; HR_E_BUDGET then says the least that would do. */
HR_API hr_status hr_cache_create(hr_context *context, const hr_cache_options *options,
                                 hr_cache **cache);

/* Destroys a cache and sets *cache to NULL. Its steps and sequences must have been destroyed
 * before: otherwise HR_E_BUSY, and the cache stays. */
HR_API hr_status hr_cache_destroy(hr_cache **cache);

typedef struct hr_layer_info {
    /* sizeof(hr_layer_info), set by the caller. */
    size_t struct_size;
    uint64_t block_bytes; /* of 128 tokens: kv_heads * 2 * 128 * dim * bytes per element */
    uint32_t kernel_id;   /* two caches with the same id give the same bits */
    /* From this many query tokens on, a sequence's rows take the tile path. There, a row's bits do
     * not depend on how many tokens the step brings: prefill in chunks of any size, each at least
     * this long, gives the same bits. Shorter queries take the split path. */
    int64_t tile_tokens_min;
} hr_layer_info;

/* Fills *info for one layer. Errors: HR_E_INVALID. */
HR_API hr_status hr_cache_layer_info(const hr_cache *cache, int32_t layer, hr_layer_info *info);

/* Creates an empty sequence, owned by the caller. Errors: HR_E_NO_MEMORY. */
HR_API hr_status hr_seq_create(hr_cache *cache, hr_seq **seq);

/* Creates *child with the first `length` tokens of `parent` (0 .. its length), sharing its blocks.
 * The two are independent from then on. Errors: HR_E_INVALID, HR_E_BUSY, HR_E_NO_MEMORY. */
HR_API hr_status hr_seq_fork(hr_seq *parent, int64_t length, hr_seq **child);

/* Drops all tokens from position `length` (0 .. the current length) on. Errors: HR_E_INVALID,
 * HR_E_BUSY. */
HR_API hr_status hr_seq_truncate(hr_seq *seq, int64_t length);

/* Where a sequence's K/V should lie, in a context with disks (hr_options.disks). */
typedef enum hr_advice {
    HR_ADVISE_NORMAL = 0, /* as the budget allows, like all others */
    HR_ADVISE_PARK = 1,   /* on disk, until a step uses it: evicted now and while it is idle */
    HR_ADVISE_PIN = 2,    /* all of it resident, whatever others need */
    HR_ADVISE_WARM = 3,   /* as NORMAL, and as much of it as the budget allows comes up now */
} hr_advice;

/* Advises; K/V begin to move now (PARK; WARM while no step is open) or in later steps. What comes
 * up does so in the background: calls of the library and hr_poll move it on. Changes no bit of any
 * output. Without disks it has no effect. Errors: HR_E_INVALID, HR_E_BUSY, HR_E_NO_MEMORY. */
HR_API hr_status hr_seq_advise(hr_seq *seq, hr_advice advice);

/* Tokens committed so far. */
HR_API int64_t hr_seq_length(const hr_seq *seq);

/* Destroys a sequence and sets *seq to NULL; a fork keeps the blocks it shares. HR_E_BUSY while a
 * step holds it. */
HR_API hr_status hr_seq_destroy(hr_seq **seq);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA kernels take: plain structs, read by C and by CUDA C++. Pointers are device
 * addresses; strides count elements. */
#ifndef HR_KERNELS_CUDA_PARAMS_H
#define HR_KERNELS_CUDA_PARAMS_H

#include "kernels/kernel.h"

/* One sequence: its blocks are pages[first_block + b], b = 0 the oldest. */
struct hr_cu_seq {
    int64_t n_kv; /* this step's new tokens included */
    int64_t n_q;
    int64_t q_row; /* first of its rows in q, out and lse */
    int64_t first_block;
    int64_t n_new;
    int64_t new_row; /* first of its rows in the appended k and v */
};

/* Tile path: rows (token, g) of one KV head, tokens [token, token + tokens) of the n_q. */
struct hr_cu_tile {
    int32_t seq, head;
    int64_t token;
    int64_t carry; /* first float of its carry in state */
    int32_t tokens;
    int32_t list_count; /* entries of `lists` from list_first on; -1: every block */
    int64_t list_first;
};

/* The lists, up to folds, are read before the kernel in front is over: copies may write them,
 * kernels may not. */
struct hr_cu_attend {
    const struct hr_cu_seq *seqs;
    const struct hr_cu_tile *tiles;
    /* Per block: its place in the arena in units (a page is hr_page_units of them; one at D 64, 128
     * and 256). The same in copy_from and lists of rows below. */
    const uint32_t *pages;
    const uint32_t *lists; /* logical blocks of a sequence, falling */
    const struct hr_chunk *chunks;
    const struct hr_fold *folds;
    float *state;  /* carries and partials */
    const void *q; /* [rows][q_heads][dim]; the tile path reads it through its tensor map */
    void *out;     /* [rows][q_heads][dim], of out_type */
    float *lse;    /* [rows][q_heads]; NULL: not wanted */
    const float *sink_logits;
    uint32_t *next; /* tile or chunk to be drawn: 0, and 0 again behind the launch */
    int64_t q_stride_token, q_stride_head;
    int64_t out_stride_token, out_stride_head;
    int64_t lse_stride_token, lse_stride_head;
    int64_t window, sinks; /* window 0: none */
    /* The blocks [n - wave_end, n - wave_begin) of each sequence, n its number of blocks. */
    int64_t wave_begin, wave_end;
    int32_t n_tiles, n_chunks, n_folds;
    int32_t group;       /* G: query heads per KV head */
    int32_t tile_tokens; /* most of one tile: what a box of q holds */
    int32_t causal;
    int32_t first, last; /* wave */
    int32_t out_type;    /* hr_dtype */
    float factor;        /* scale * log2(e); with a softcap cap * log2(e) */
    float softcap;       /* scale / cap; 0: no softcap */
};

/* Item i of sequence s: the (i - first_item[s])th block that its append touches, all KV heads. */
struct hr_cu_append {
    const struct hr_cu_seq *seqs;
    const uint32_t *pages;
    /* [n_seqs]: page of KV head 0 of the block whose first rows, up to the fill before the append,
     * are copied first (fork, then append); UINT32_MAX: none. */
    const uint32_t *copy_from;
    const int64_t *first_item; /* [n_seqs + 1] */
    unsigned char *arena;
    const void *k, *v; /* [rows][kv_heads][dim] */
    int64_t k_stride_token, k_stride_head, v_stride_token, v_stride_head;
    int64_t n_items;
    int32_t n_seqs, kv_heads, dim;
    int32_t kv_type, cache_type; /* hr_dtype of k and v, of the pages */
};

#endif

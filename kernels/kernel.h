/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table: one table of launchers per capability level, filled with the portable one first
 * and overwritten by what the machine can do.
 *
 * A launcher computes one item of a list; the device runs items in any order, on any thread. Every
 * item depends only on its own inputs, so the order never changes a bit. */
#ifndef HR_KERNELS_KERNEL_H
#define HR_KERNELS_KERNEL_H

#include "src/base/cpu.h"
#include "src/base/geom.h"

/* One sequence of a batch, seen from one layer. */
struct hr_seq_view {
    const uint32_t *blocks; /* [ceil(n_kv / 128)] ids, oldest first */
    int64_t n_kv;           /* this step's new tokens included */
    int64_t n_q;
    int64_t n_new;
    int64_t q_row;   /* first of its rows in q, out and lse */
    int64_t new_row; /* first of its rows in the appended k and v */
};

/* Tile path: rows (token, g) of one KV head, tokens [token, token + tokens) of the n_q. */
struct hr_tile {
    int32_t seq, head;
    int64_t token;
    int64_t carry; /* first float of its carry in hr_attend.state */
    int32_t tokens;
};

/* Split path: all n_q * G rows of one KV head over the blocks [block, block + blocks), counted from
 * token 0. Gives one partial: o[rows][dim], m[rows], l[rows] (row = token * G + g), m in base 2. It
 * is begun by the launch whose wave holds its newest block, whatever `first` says, and gone on with
 * by the next ones; a launch that holds none of its blocks leaves it alone. */
struct hr_chunk {
    int32_t seq, head;
    int64_t block;
    int64_t partial; /* first float in hr_attend.state */
    int32_t blocks;
};

/* Merges the n_chunks partials of (seq, head), the newest (the last in the list) first; they lie
 * one behind the other, without gaps, in the order of the list. */
struct hr_fold {
    int32_t seq, head;
    int64_t chunk; /* first one in hr_attend.chunks */
    int32_t n_chunks;
};

/* Strides in elements. */
struct hr_rows {
    void *data;
    int64_t stride_token, stride_head;
    hr_dtype dtype;
};

struct hr_attend {
    struct hr_geom geom;
    struct hr_pool_view pool;
    const struct hr_seq_view *seqs;
    const struct hr_tile *tiles;
    const struct hr_chunk *chunks;
    const struct hr_fold *folds;
    struct hr_rows q, out; /* [rows][q_heads][dim] */
    struct hr_rows lse;    /* fp32 [rows][q_heads]; data NULL: not wanted */
    hr_mask mask;
    float scale, softcap;     /* softcap 0: off */
    const float *sink_logits; /* [q_heads] or NULL */
    float *state;             /* carries and partials */
    /* This launch visits, of each sequence, the blocks [n - wave_end, n - wave_begin), where n is
     * its number of blocks: newest first. First wave: wave_begin = 0, state is not read. Last wave:
     * wave_end reaches every block; the tile path writes out and no carry. */
    int64_t wave_begin, wave_end;
    bool first, last;
};

struct hr_append {
    struct hr_geom geom;
    struct hr_pool_view pool;
    const struct hr_seq_view *seqs;
    /* k, v: [rows][kv_heads][dim] */
    struct hr_rows k, v;
    /* [n_seqs]: block whose first rows [0, n_kv - n_new) mod 128 are copied into the sequence's own
     * copy of it before the append (fork, then append); UINT32_MAX: none. */
    const uint32_t *copy_from;
    /* Item -> (seq, block of it): prefix counts, [n_seqs + 1]; item i of sequence s is the
     * (i - first_item[s])th block that the append touches. All heads of the block. */
    const int64_t *first_item;
    int32_t n_seqs;
};

struct hr_kernels {
    const char *name;    /* the level's name in HEADRACE_CAPS */
    const char *variant; /* how it multiplies: a level may have several tables, by CPU vendor */
    enum hr_caps caps;   /* what the CPU must have */
    uint32_t id;         /* changes whenever any bit of any output may change */
    /* Rows (n_q * G) from which on a sequence takes the tile path. */
    int32_t tile_rows_min;
    /* Most rows of one tile. A tile holds max(1, tile_rows / G) tokens. */
    int32_t (*tile_rows)(const struct hr_geom *g);
    /* Floats of carry of a tile of so many rows. */
    int64_t (*carry_floats)(const struct hr_geom *g, int32_t rows);
    /* Blocks per chunk of the split path. Depends on nothing else: it decides bits. */
    int32_t (*chunk_blocks)(int64_t n_kv, int64_t n_q, const struct hr_geom *g);
    /* Bytes of K/V that a cache keeps: tiles of so many heads run together. 0: of all heads. */
    int64_t section_bytes;
    /* Bytes of scratch per thread, any geometry of hr_geom's limits; aligned to 64. */
    size_t (*scratch_bytes)(void);
    /* args: struct hr_attend. */
    void (*tile)(const void *args, int64_t item, void *scratch);
    void (*chunk)(const void *args, int64_t item, void *scratch);
    void (*fold)(const void *args, int64_t item, void *scratch);
    /* args: struct hr_append. Zeroes V rows past the fill of a block that it opens. */
    void (*append)(const void *args, int64_t item, void *scratch);
};

/* The best table whose level is in `caps`; never NULL. Static storage. */
const struct hr_kernels *hr_kernels_select(enum hr_caps caps);

/* The tables of this build, i = 0, 1, ...; NULL behind the last. For tests. */
const struct hr_kernels *hr_kernels_at(int32_t i);

#endif

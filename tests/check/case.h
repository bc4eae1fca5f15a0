/* SPDX-License-Identifier: Apache-2.0 */
/* One attention problem built by hand: pages in shuffled blocks, poison in every unused row,
 * canaries around every output. */
#ifndef HR_CHECK_CASE_H
#define HR_CHECK_CASE_H

#include "kernels/kernel.h"

enum { HC_SEQS = 8 };

struct hc_random {
    uint64_t state;
};

uint64_t hc_next(struct hc_random *r);
int64_t hc_range(struct hc_random *r, int64_t low, int64_t high); /* both included */
bool hc_chance(struct hc_random *r, int percent);
/* A value near the normal distribution that depends on its arguments alone. */
float hc_value(uint64_t uid, uint64_t kind, int64_t token, int64_t head, int64_t d);

/* What a case is; its data follow from the uids. */
struct hc_shape {
    struct hr_geom geom;
    hr_mask mask;
    hr_dtype q_dtype, out_dtype;
    float scale, softcap;
    bool sink_logits, lse, head_major;
    int32_t pad; /* elements between rows of q and out */
    int32_t n_seqs;
    int64_t n_kv[HC_SEQS], n_q[HC_SEQS];
    uint64_t uid[HC_SEQS];
    uint64_t layout; /* of blocks */
};

/* For a table of a GPU: what no CUDA kernel takes becomes what one does. */
void hc_shape_fit(struct hc_shape *s, const struct hr_kernels *k);

/* Random, ragged, with at most `work` products of q and K. */
void hc_shape_random(struct hc_shape *s, uint64_t seed, int64_t work);

/* One line of text. */
void hc_shape_text(const struct hc_shape *s, char *buffer, size_t size);

/* How a case is brought to a GPU, bits; no bit of out may depend on them, but for HC_SPARSE. */
enum hc_way {
    HC_FAR = 1, /* blocks all over the arena; rows of q and out far apart: past 2^31 elements */
    HC_APPENDED = 2, /* K and V by the append kernel, into blocks full of NaN */
    HC_LISTED = 4,   /* each tile has a list of all blocks of its sequence */
    HC_SPARSE = 8,   /* with it: of about half of them */
    HC_LATE = 16,    /* kernels that come late at every barrier */
};

struct hc_case {
    struct hc_shape shape;
    uint32_t ways; /* 0 unless a test sets it */
    struct hr_attend attend;
    struct hr_seq_view seqs[HC_SEQS];
    unsigned char *pool, *out, *lse;
    void *q;
    uint32_t *extents, *blocks;
    float *sink_logits;
    size_t pool_bytes, out_bytes, lse_bytes, q_bytes;
    int64_t rows; /* of q and out */
    void *scratch;
    size_t scratch_bytes;
};

/* Bytes that fill what nobody may read (NaN in every type) and what nobody may write. */
enum { HC_POISON = 0xff, HC_CANARY = 0xab };

void hc_case_make(struct hc_case *c, const struct hc_shape *shape);
void hc_case_free(struct hc_case *c);

/* The list of a sequence's tiles of one KV head: blocks, falling; all, or with HC_SPARSE about
 * half. The number of its entries. */
int32_t hc_case_list(const struct hc_case *c, int32_t seq, int32_t head, uint32_t *list);

/* How the work is cut; 0: as the kernels say. */
struct hc_cut {
    int64_t tile_tokens, wave_blocks;
};

/* Fills out and lse with canaries, the scratch with NaN, then runs all items. */
void hc_case_run(struct hc_case *c, const struct hr_kernels *k, struct hc_cut cut);

/* Something outside the rows of out and lse was written. */
bool hc_case_spilled(const struct hc_case *c);

/* First element of the row of (seq, token, q_head) in out; of its lse. */
int64_t hc_out_at(const struct hc_case *c, int32_t seq, int64_t token, int32_t q_head);
int64_t hc_lse_at(const struct hc_case *c, int32_t seq, int64_t token, int32_t q_head);

/* The row `token` of a and `other_token` of b have the same bits in out and lse, all heads. */
bool hc_same_row(const struct hc_case *a, int32_t seq, int64_t token, const struct hc_case *b,
                 int32_t other_seq, int64_t other_token);

/* Memory or the end of the program. */
void *hc_alloc(size_t bytes);

#endif

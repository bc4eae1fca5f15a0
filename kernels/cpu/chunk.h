/* SPDX-License-Identifier: Apache-2.0 */
/* The split path: few rows over a run of blocks, bound by the reading of K and V. Lanes are d. K
 * and V are read once for all rows of a KV head; while K is read V is prefetched, and the next
 * block's K while V is. A row's bits do not depend on which rows are computed beside it. */
#ifndef HR_KERNELS_CPU_CHUNK_H
#define HR_KERNELS_CPU_CHUNK_H

enum {
    HR_CHUNK_ROWS = 32,  /* tile_rows_min */
    HR_ROWS_AT_ONCE = 4, /* rows that share a converted vector */
};

struct chunk_scratch {
    float q[HR_CHUNK_ROWS * HR_DIM_MAX]; /* pitch: dim rounded up to HR_VW, zeros behind dim */
    float o[HR_CHUNK_ROWS * HR_DIM_MAX];
    float s[HR_CHUNK_ROWS * HR_BLOCK_TOKENS];
    float m[HR_CHUNK_ROWS], l[HR_CHUNK_ROWS], alpha[HR_CHUNK_ROWS];
    struct visible visible[HR_CHUNK_ROWS];
};

struct chunk_run {
    const struct hr_attend *a;
    const struct hr_seq_view *seq;
    struct chunk_scratch *w;
    float *partial;
    int32_t rows, head;
    size_t dim, pitch, row_bytes;
    struct factors f;
    const unsigned char *k, *v, *next_k; /* of the block */
    int key, end;                        /* keys of it that some row sees */
};

/* Loads `d`..`d + HR_VW` of a row of the page; zeros past dim. */
HR_INLINE vf load_lanes(const unsigned char *row, size_t d, size_t dim, hr_dtype dtype)
{
    const unsigned char *p = row + d * hr_dtype_bytes(dtype);
    return d + HR_VW <= dim ? vf_load_as(p, dtype) : vf_load_part(p, dtype, dim - d);
}

/* Scores of nr rows (or one) against HR_VW / nr_lanes keys; nr <= nr_lanes. */
HR_INLINE void score_keys(const struct chunk_run *t, int row, int key, int nr, int nr_lanes,
                          hr_dtype dtype)
{
    const int keys = HR_VW / nr_lanes;
    const float *q = t->w->q + (size_t)row * t->pitch;
    const unsigned char *k = t->k + (size_t)key * t->row_bytes;
    const unsigned char *v = t->v + (size_t)key * t->row_bytes;
    vf acc[HR_VW];
    HR_UNROLL(16)
    for (int i = 0; i < HR_VW; i++)
        acc[i] = vf_set1(0);
    for (size_t d = 0; d < t->dim; d += HR_VW) {
        vf x[HR_VW];
        if (row == 0) /* V of these keys */
            prefetch(v + d * (size_t)keys * hr_dtype_bytes(dtype),
                     (size_t)keys * HR_VW * hr_dtype_bytes(dtype));
        HR_UNROLL(16)
        for (int i = 0; i < keys; i++)
            x[i] = load_lanes(k + (size_t)i * t->row_bytes, d, t->dim, dtype);
        HR_UNROLL(4)
        for (int r = 0; r < nr; r++) {
            vf y = vf_load(q + (size_t)r * t->pitch + d);
            HR_UNROLL(16)
            for (int i = 0; i < keys; i++)
                acc[r * keys + i] = vf_fma(x[i], y, acc[r * keys + i]);
        }
    }
    vf sums = vf_sum_each(acc);
    for (int r = 0; r < nr; r++)
        memcpy(t->w->s + (row + r) * HR_BLOCK_TOKENS + key, (const float *)&sums + r * keys,
               (size_t)keys * 4);
}

HR_INLINE void score_rows(const struct chunk_run *t, int key, hr_dtype dtype)
{
    for (int r = 0; r < t->rows; r += HR_ROWS_AT_ONCE) {
        switch (t->rows - r) {
        case 1:
        case 2:
            score_keys(t, r, key, t->rows - r == 2 ? 2 : 1, HR_ROWS_AT_ONCE, dtype);
            break;
        case 3:
            score_keys(t, r, key, 3, HR_ROWS_AT_ONCE, dtype);
            break;
        default:
            score_keys(t, r, key, 4, HR_ROWS_AT_ONCE, dtype);
        }
    }
}

HR_INLINE void chunk_scores(const struct chunk_run *t, hr_dtype dtype)
{
    const int one = HR_VW, some = HR_VW / HR_ROWS_AT_ONCE;
    int step = t->rows == 1 ? one : some;
    for (int key = t->key / step * step; key < t->end; key += step) {
        if (t->rows == 1)
            score_keys(t, 0, key, 1, 1, dtype);
        else
            score_rows(t, key, dtype);
    }
}

HR_INLINE float vf_reduce_max(vf x)
{
    float y = x[0];
    for (int i = 1; i < HR_VW; i++)
        y = x[i] > y ? x[i] : y;
    return y;
}

HR_INLINE float vf_reduce_sum(vf x)
{
    float y[HR_VW];
    vf_store(y, x);
    for (int n = HR_VW / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            y[i] += y[i + n];
    return y[0];
}

HR_INLINE vf adjusted(const struct chunk_run *t, vf s, int key, bool masked, struct visible see)
{
    if (t->f.pre > 0)
        s = vf_tanh(s * vf_set1(t->f.pre));
    if (masked) {
        vi lane;
        for (int i = 0; i < HR_VW; i++)
            lane[i] = key + i;
        const vi none = {0};
        s = vf_mask(s, lane, see.lo - none, see.hi - none, see.sink - none);
    }
    return s;
}

/* Scores of one row to P, in place. */
static void chunk_softmax(const struct chunk_run *t, int row)
{
    struct chunk_scratch *w = t->w;
    float *s = w->s + row * HR_BLOCK_TOKENS;
    struct visible see = w->visible[row];
    int begin = t->key / HR_VW * HR_VW, end = (t->end + HR_VW - 1) / HR_VW * HR_VW;
    bool masked = see.lo > begin || see.hi < end, rounded = t->a->geom.dtype != HR_FP32;
    const vf c = vf_set1(t->f.c), split = vf_set1(split_of(t->a->geom.dtype));
    vf top = vf_set1(-INFINITY), sum = vf_set1(0);
    for (int key = begin; key < end; key += HR_VW) {
        vf x = adjusted(t, vf_load(s + key), key, masked, see);
        top = vf_max(top, x);
        vf_store(s + key, x);
    }
    float old = w->m[row], new = vf_reduce_max(top) * t->f.c;
    float m = new > old ? new : old, ref = m > -FLT_MAX ? m : -FLT_MAX;
    for (int key = begin; key < end; key += HR_VW) {
        vf p = vf_exp2(vf_fma(vf_load(s + key), c, vf_set1(-ref)));
        sum = sum + p;
        vf_store(s + key, rounded ? vf_round_p(p, split) : p);
    }
    w->alpha[row] = exp2_one(old - ref);
    w->m[row] = m;
    w->l[row] = w->l[row] * w->alpha[row] + vf_reduce_sum(sum);
}

/* o of nr rows, nd vectors of d: o * alpha + sum of P * V. */
HR_INLINE void value_rows(const struct chunk_run *t, int row, size_t d, int nr, int nd,
                          hr_dtype dtype, struct fetch *fetch)
{
    struct chunk_scratch *w = t->w;
    const float *s = w->s + row * HR_BLOCK_TOKENS;
    float *o = w->o + (size_t)row * t->pitch + d;
    vf acc[HR_ROWS_AT_ONCE][HR_ND];
    HR_UNROLL(4)
    for (int r = 0; r < nr; r++)
        for (int j = 0; j < nd; j++)
            acc[r][j] = vf_load(o + (size_t)r * t->pitch + j * HR_VW) * vf_set1(w->alpha[row + r]);
    for (int key = t->key; key < t->end; key++) {
        const unsigned char *v = t->v + (size_t)key * t->row_bytes;
        prefetch(fetch->from, fetch->step);
        fetch->from += fetch->step;
        vf x[HR_ND];
        HR_UNROLL(4)
        for (int j = 0; j < nd; j++)
            x[j] = nd == HR_ND
                       ? vf_load_as(v + (d + (size_t)j * HR_VW) * hr_dtype_bytes(dtype), dtype)
                       : load_lanes(v, d, t->dim, dtype);
        HR_UNROLL(4)
        for (int r = 0; r < nr; r++) {
            vf p = vf_set1(s[r * HR_BLOCK_TOKENS + key]);
            HR_UNROLL(4)
            for (int j = 0; j < nd; j++)
                acc[r][j] = vf_fma(p, x[j], acc[r][j]);
        }
    }
    HR_UNROLL(4)
    for (int r = 0; r < nr; r++)
        for (int j = 0; j < nd; j++)
            vf_store(o + (size_t)r * t->pitch + j * HR_VW, acc[r][j]);
}

HR_INLINE void value_columns(const struct chunk_run *t, int row, int nr, hr_dtype dtype,
                             struct fetch *fetch)
{
    size_t d = 0, wide = HR_ND * HR_VW;
    for (; d + wide <= t->dim; d += wide)
        value_rows(t, row, d, nr, HR_ND, dtype, fetch);
    for (; d < t->dim; d += HR_VW)
        value_rows(t, row, d, nr, 1, dtype, fetch);
}

/* The next block's K, in even parts for each key of each pass over V. */
HR_INLINE struct fetch fetch_next(const struct chunk_run *t)
{
    size_t wide = HR_ND * HR_VW, columns = t->dim / wide + (t->dim % wide + HR_VW - 1) / HR_VW;
    size_t groups = (size_t)(t->rows + HR_ROWS_AT_ONCE - 1) / HR_ROWS_AT_ONCE;
    size_t parts = columns * groups * (size_t)(t->end - t->key);
    return (struct fetch){t->next_k, (HR_BLOCK_TOKENS * t->row_bytes + parts - 1) / parts};
}

HR_INLINE void chunk_values(const struct chunk_run *t, hr_dtype dtype)
{
    struct fetch fetch = fetch_next(t);
    for (int r = 0; r < t->rows; r += HR_ROWS_AT_ONCE) {
        switch (t->rows - r) {
        case 1:
            value_columns(t, r, 1, dtype, &fetch);
            break;
        case 2:
            value_columns(t, r, 2, dtype, &fetch);
            break;
        case 3:
            value_columns(t, r, 3, dtype, &fetch);
            break;
        default:
            value_columns(t, r, 4, dtype, &fetch);
        }
    }
}

HR_INLINE void chunk_block_as(const struct chunk_run *t, hr_dtype dtype)
{
    chunk_scores(t, dtype);
    for (int r = 0; r < t->rows; r++)
        chunk_softmax(t, r);
    chunk_values(t, dtype);
}

/* The instances: one per dtype of K and V. */
HR_NOINLINE void chunk_block_bf16(const struct chunk_run *t)
{
    chunk_block_as(t, HR_BF16);
}

HR_NOINLINE void chunk_block_fp16(const struct chunk_run *t)
{
    chunk_block_as(t, HR_FP16);
}

HR_NOINLINE void chunk_block_fp32(const struct chunk_run *t)
{
    chunk_block_as(t, HR_FP32);
}

/* Finds the keys of the block that some row sees. False: none. */
static bool chunk_keys(struct chunk_run *t, int64_t block)
{
    t->key = HR_BLOCK_TOKENS;
    t->end = 0;
    for (int32_t r = 0; r < t->rows; r++) {
        struct visible see = visible_of(t->a, t->seq, r / t->a->geom.group, block);
        t->w->visible[r] = see;
        if (sees_nothing(see))
            continue;
        int first = see.sink > 0 ? 0 : see.lo, last = see.lo < see.hi ? see.hi : see.sink;
        t->key = first < t->key ? first : t->key;
        t->end = last > t->end ? last : t->end;
    }
    return t->key < t->end;
}

static void chunk_block(struct chunk_run *t, int64_t block, bool more)
{
    if (!chunk_keys(t, block))
        return;
    t->k = page_of(t->a, t->seq, t->head, block);
    t->v = t->k + hr_page_bytes(&t->a->geom) / 2;
    t->next_k = more ? page_of(t->a, t->seq, t->head, block - 1) : t->k;
    if (t->a->geom.dtype == HR_BF16)
        chunk_block_bf16(t);
    else if (t->a->geom.dtype == HR_FP16)
        chunk_block_fp16(t);
    else
        chunk_block_fp32(t);
}

/* Loads q, and the partial or a fresh one. */
static void chunk_begin(const struct chunk_run *t, bool fresh)
{
    struct chunk_scratch *w = t->w;
    size_t rows = (size_t)t->rows;
    memset(w->q, 0, rows * t->pitch * 4);
    memset(w->o, 0, rows * t->pitch * 4);
    for (size_t r = 0; r < rows; r++) {
        load_query(w->q + r * t->pitch, t->a, t->seq, t->head, (int64_t)r);
        if (!fresh)
            memcpy(w->o + r * t->pitch, t->partial + r * t->dim, t->dim * 4);
        w->m[r] = fresh ? -INFINITY : t->partial[rows * t->dim + r];
        w->l[r] = fresh ? 0 : t->partial[rows * (t->dim + 1) + r];
    }
}

static void chunk_end(const struct chunk_run *t)
{
    const struct chunk_scratch *w = t->w;
    size_t rows = (size_t)t->rows;
    for (size_t r = 0; r < rows; r++)
        memcpy(t->partial + r * t->dim, w->o + r * t->pitch, t->dim * 4);
    memcpy(t->partial + rows * t->dim, w->m, rows * 4);
    memcpy(t->partial + rows * (t->dim + 1), w->l, rows * 4);
}

/* A chunk's first wave is the one that holds its newest block: launches before it leave it alone.
 */
static void chunk_item(const void *args, int64_t item, void *scratch)
{
    const struct hr_attend *a = args;
    const struct hr_chunk *chunk = a->chunks + item;
    const struct hr_seq_view *seq = a->seqs + chunk->seq;
    size_t dim = (size_t)a->geom.dim;
    struct chunk_run t = {.a = a,
                          .seq = seq,
                          .w = scratch,
                          .partial = a->state + chunk->partial,
                          .rows = (int32_t)(seq->n_q * a->geom.group),
                          .head = chunk->head,
                          .dim = dim,
                          .pitch = (dim + HR_VW - 1) / HR_VW * HR_VW,
                          .row_bytes = dim * hr_dtype_bytes(a->geom.dtype),
                          .f = factors_of(a)};
    int64_t n = hr_blocks_of(seq->n_kv);
    int64_t begin = n - a->wave_end, end = n - a->wave_begin;
    int64_t newest = chunk->block + chunk->blocks < n ? chunk->block + chunk->blocks : n;
    bool fresh = end >= newest;
    begin = begin > chunk->block ? begin : chunk->block;
    end = end < newest ? end : newest;
    if (begin >= end)
        return;
    chunk_begin(&t, fresh);
    for (int64_t b = end - 1; b >= begin; b--)
        chunk_block(&t, b, b > begin);
    chunk_end(&t);
}

static int32_t chunk_blocks(int64_t n_kv, int64_t n_q, const struct hr_geom *g)
{
    int64_t want = hr_blocks_of(n_kv) * g->kv_heads / 256;
    int32_t low = (g->group + 15) / 16 > 4 ? (g->group + 15) / 16 : 4;
    int32_t blocks = 1;
    if (low > 16)
        low = 16;
    while (blocks * 2 <= want && blocks < 16)
        blocks *= 2;
    return blocks < low ? low : blocks;
}

#endif

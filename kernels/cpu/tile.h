/* SPDX-License-Identifier: Apache-2.0 */
/* The tile path. A tile's rows go through in passes of HR_TILE_ROWS, a pass visits the key blocks
 * newest first, a block is converted once for all strips of the pass. */
#ifndef HR_KERNELS_CPU_TILE_H
#define HR_KERNELS_CPU_TILE_H

enum { HR_TILE_ROWS = HR_TILE_STRIPS * HR_STRIP };

struct tile_scratch {
    float q[HR_TILE_ROWS * HR_DIM_MAX]; /* [strip][d][row], or [strip][d / 2][row][2] bf16 */
    float o[HR_TILE_ROWS * HR_DIM_MAX]; /* [strip][d][row] */
    float k[HR_BLOCK_TOKENS * HR_DIM_MAX];
    float v[HR_BLOCK_TOKENS * HR_DIM_MAX];
    float s[HR_BLOCK_TOKENS * HR_STRIP];
    float m[HR_TILE_ROWS], l[HR_TILE_ROWS];
    float max[HR_STRIP], alpha[HR_STRIP];
    int32_t lo[HR_STRIP], hi[HR_STRIP], sink[HR_STRIP];
    float rows[8 * HR_DIM_MAX];
};

struct pass {
    const struct hr_attend *a;
    const struct hr_seq_view *seq;
    struct tile_scratch *w;
    float *carry;
    int64_t row; /* its first one of the sequence's n_q * G */
    int32_t rows, strips, head;
    bool pairs; /* multiplies pairs of bf16 */
    size_t dim;
    struct factors f;
};

/* A strip in one block. */
struct strip {
    float *q, *o, *m, *l;
    int64_t row;
    int32_t rows;
    int key, end; /* keys that some row sees, rounded outwards to HR_KEY_STEP */
    bool masked;  /* not all rows see all of them */
    struct fetch fetch;
};

static void pack_queries(const struct pass *t, int32_t first)
{
    struct tile_scratch *w = t->w;
    size_t dim = t->dim, n = t->pairs ? (dim / 2 + 7) / 8 * 8 : dim;
    float *q = w->q + (size_t)(first / HR_STRIP * HR_STRIP) * dim + first % HR_STRIP;
    for (int32_t r = first + 8; r < first + 16 && r < t->rows; r++)
        prefetch(query_row(t->a, t->seq, t->head, t->row + r), dim * hr_dtype_bytes(t->a->q.dtype));
    memset(w->rows, 0, sizeof w->rows);
    for (int32_t r = 0; r < 8 && first + r < t->rows; r++) {
        float *row = w->rows + (size_t)r * dim;
        load_query(row, t->a, t->seq, t->head, t->row + first + r);
        if (t->pairs) {
            uint16_t bits[HR_DIM_MAX];
            row_store(bits, HR_BF16, row, dim);
            memset(row, 0, dim * 4);
            memcpy(row, bits, dim * 2);
        }
    }
    for (size_t d = 0; d < n; d += 8)
        transpose8(q + d * HR_STRIP, HR_STRIP, w->rows + d, dim);
}

static void pass_begin(const struct pass *t)
{
    struct tile_scratch *w = t->w;
    size_t rows = (size_t)t->strips * HR_STRIP;
    for (int32_t r = 0; r < t->strips * HR_STRIP; r += 8)
        pack_queries(t, r);
    if (t->a->first) {
        memset(w->o, 0, rows * t->dim * 4);
        memset(w->l, 0, rows * 4);
        for (size_t r = 0; r < rows; r++)
            w->m[r] = -INFINITY;
    } else {
        memcpy(w->o, t->carry, rows * t->dim * 4);
        memcpy(w->m, t->carry + rows * t->dim, rows * 4);
        memcpy(w->l, t->carry + rows * (t->dim + 1), rows * 4);
    }
}

static void pass_suspend(const struct pass *t)
{
    struct tile_scratch *w = t->w;
    size_t rows = (size_t)t->strips * HR_STRIP;
    memcpy(t->carry, w->o, rows * t->dim * 4);
    memcpy(t->carry + rows * t->dim, w->m, rows * 4);
    memcpy(t->carry + rows * (t->dim + 1), w->l, rows * 4);
}

static void finish_rows(const struct pass *t, int32_t first)
{
    struct tile_scratch *w = t->w;
    size_t dim = t->dim;
    const float *o = w->o + (size_t)(first / HR_STRIP * HR_STRIP) * dim + first % HR_STRIP;
    for (size_t d = 0; d < dim; d += 8)
        transpose8(w->rows + d, dim, o + d * HR_STRIP, HR_STRIP);
    for (int32_t r = first; r < first + 8 && r < t->rows; r++) {
        float *row = w->rows + (size_t)(r - first) * dim;
        int64_t at = t->row + r;
        struct row_end end = end_row(w->m[r], w->l[r], sink_of(t->a, t->head, at));
        for (size_t d = 0; d < dim; d++)
            row[d] = row[d] * end.factor + 0.0f; /* never -0: it would tell of skipped keys */
        store_row(t->a, t->seq, t->head, at, row, end.lse);
    }
}

/* Finds which keys of the block the strip needs. False: none. */
static bool strip_keys(const struct pass *t, struct strip *p, int64_t block)
{
    struct tile_scratch *w = t->w;
    int32_t group = t->a->geom.group;
    int64_t token = p->row / group, left = group - p->row % group;
    struct visible first = visible_of(t->a, t->seq, token, block);
    struct visible last = visible_of(t->a, t->seq, (p->row + p->rows - 1) / group, block);
    int32_t lo = last.sink > 0 ? 0 : first.lo;
    int32_t hi = last.hi > last.sink ? last.hi : last.sink;
    if (lo >= hi)
        return false;
    p->key = lo / HR_KEY_STEP * HR_KEY_STEP;
    p->end = round_up(hi, HR_KEY_STEP);
    p->masked = first.hi < p->end || last.lo > p->key;
    for (int32_t r = 0; p->masked && r < HR_STRIP; r++, left--) {
        if (left == 0 && r < p->rows) {
            token++;
            left = group;
            first = visible_of(t->a, t->seq, token, block);
        }
        w->lo[r] = first.lo;
        w->hi[r] = first.hi;
        w->sink[r] = first.sink;
    }
    return true;
}

/* Softcap and mask, where there are any. */
HR_NOINLINE void adjust_scores(const struct pass *t, const struct strip *p)
{
    struct tile_scratch *w = t->w;
    for (int v = 0; v * HR_VW < p->rows; v++) {
        vf top = vf_set1(-INFINITY), pre = vf_set1(t->f.pre);
        vi lo = vi_load(w->lo + v * HR_VW), hi = vi_load(w->hi + v * HR_VW);
        vi sink = vi_load(w->sink + v * HR_VW);
        float *s = w->s + v * HR_VW;
        for (int32_t key = p->key; key < p->end; key++) {
            vf x = vf_load(s + key * HR_STRIP);
            if (t->f.pre > 0)
                x = vf_tanh(x * pre);
            if (p->masked)
                x = vf_mask(x, key - (vi){0}, lo, hi, sink);
            top = vf_max(top, x);
            vf_store(s + key * HR_STRIP, x);
        }
        vf_store(w->max + v * HR_VW, top);
    }
}

enum p_form { P_FP32, P_ROUNDED, P_PAIRS };

/* Scores to P, in place; raises m, gives alpha, brings l up to date. Pairs of keys (2i, 2i + 1) go
 * to row i. */
HR_INLINE void probabilities_v(const struct pass *t, const struct strip *p, int v, enum p_form form)
{
    struct tile_scratch *w = t->w;
    const vf c = vf_set1(t->f.c), split = vf_set1(split_of(t->a->geom.dtype));
    float *s = w->s + v * HR_VW;
    vf old = vf_load(p->m + v * HR_VW);
    vf m = vf_max(old, vf_load(w->max + v * HR_VW) * c);
    vf ref = vf_max(m, vf_set1(-FLT_MAX)); /* no key yet: every P below is 2^-inf */
    vf alpha = vf_exp2(old - ref), sum = vf_set1(0);
    for (int key = p->key; key < p->end; key += 2) {
        vf x = vf_exp2(vf_fma(vf_load(s + key * HR_STRIP), c, -ref));
        vf y = vf_exp2(vf_fma(vf_load(s + (key + 1) * HR_STRIP), c, -ref));
        sum = sum + x;
        sum = sum + y;
#if HR_PAIRS
        if (form == P_PAIRS) {
            vf_store(s + key / 2 * HR_STRIP, vf_pair_bf16(x, y));
            continue;
        }
#endif
        if (form == P_ROUNDED) {
            x = vf_round_p(x, split);
            y = vf_round_p(y, split);
        }
        vf_store(s + key * HR_STRIP, x);
        vf_store(s + (key + 1) * HR_STRIP, y);
    }
    vf_store(p->m + v * HR_VW, m);
    vf_store(p->l + v * HR_VW, vf_fma(vf_load(p->l + v * HR_VW), alpha, sum));
    vf_store(w->alpha + v * HR_VW, alpha);
}

#if HR_AMX
HR_INLINE void strip_amx_nv(const struct pass *t, const struct strip *p, const float *k, int nv)
{
    struct tile_scratch *w = t->w;
    amx_scores(w->s, (const unsigned char *)k, t->dim * 2, p->q, p->key, p->end, nv, p->fetch);
    if (p->masked || t->f.pre > 0)
        adjust_scores(t, p);
    else
        score_maxima(w->s, w->max, p->key, p->end, nv);
    for (int v = 0; v < nv; v++)
        probabilities_v(t, p, v, P_PAIRS);
    scale_rows(p->o, w->alpha, t->dim, nv);
    amx_values(p->o, w->v, w->s, p->key, p->end, t->dim, nv);
}
#endif

HR_INLINE void strip_nv(const struct pass *t, const struct strip *p, const float *k, size_t k_pitch,
                        int nv, enum p_form form)
{
#if HR_AMX
    if (form == P_PAIRS) {
        strip_amx_nv(t, p, k, nv);
        return;
    }
#endif
    struct tile_scratch *w = t->w;
    bool pairs = form == P_PAIRS;
    size_t fold = pairs ? 2 : 1, key = (size_t)p->key / fold, end = (size_t)p->end / fold;
    scores_nv(w->s, w->max, k, k_pitch, p->q, t->dim / fold, p->key, p->end, nv, pairs, p->fetch);
    if (p->masked || t->f.pre > 0)
        adjust_scores(t, p);
    for (int v = 0; v < nv; v++)
        probabilities_v(t, p, v, form);
    for (size_t d = 0; d < t->dim; d += HR_MB)
        value_group(p->o + d * HR_STRIP, w->v + d * (HR_BLOCK_TOKENS / fold) + key * HR_MB,
                    w->s + key * HR_STRIP, w->alpha, end - key, nv, pairs);
}

#define STRIP_FN(name, nv, form)                                                                   \
    HR_NOINLINE void name(const struct pass *t, const struct strip *p, const float *k,             \
                          size_t k_pitch)                                                          \
    {                                                                                              \
        strip_nv(t, p, k, k_pitch, nv, form);                                                      \
    }
#define STRIP_FNS(name, form)                                                                      \
    STRIP_FN(name##_1, 1, form)                                                                    \
    STRIP_FN(name##_2, 2, form)                                                                    \
    STRIP_FN(name##_n, HR_NV, form)

typedef void strip_fn(const struct pass *t, const struct strip *p, const float *k, size_t k_pitch);

STRIP_FNS(strip_fp32, P_FP32)
STRIP_FNS(strip_rounded, P_ROUNDED)
#if HR_PAIRS
STRIP_FNS(strip_pairs, P_PAIRS)
#endif

static strip_fn *strip_of(enum p_form form, int32_t rows)
{
    static strip_fn *const fns[][3] = {
        {strip_fp32_1, strip_fp32_2, strip_fp32_n},
        {strip_rounded_1, strip_rounded_2, strip_rounded_n},
#if HR_PAIRS
        {strip_pairs_1, strip_pairs_2, strip_pairs_n},
#endif
    };
    int32_t nv = (rows + HR_VW - 1) / HR_VW;
    return fns[form][nv <= 2 ? nv - 1 : 2];
}

/* Makes the block's K (returned) and V ready for the micro-tiles. */
static const float *pack_block(const struct pass *t, const unsigned char *page, int64_t block)
{
    struct tile_scratch *w = t->w;
    hr_dtype dtype = t->a->geom.dtype;
    int64_t left = t->seq->n_kv - block * HR_BLOCK_TOKENS;
    int32_t n = left < HR_BLOCK_TOKENS ? (int32_t)left : HR_BLOCK_TOKENS;
    pack_values(w->v, page + hr_page_bytes(&t->a->geom) / 2, dtype, t->dim, n, t->pairs);
    if (t->pairs || dtype == HR_FP32)
        return (const float *)(const void *)page;
    pack_keys(w->k, page, dtype, t->dim, n);
    return w->k;
}

enum { BLOCK_GROUPS = HR_BLOCK_TOKENS / HR_MB };

/* `oldest`: the wave's; what lies behind it may not be there yet, and is not prefetched. */
static void pass_block(const struct pass *t, int64_t block, int64_t oldest)
{
    struct tile_scratch *w = t->w;
    const unsigned char *page = page_of(t->a, t->seq, t->head, block);
    const unsigned char *next = block > oldest ? page_of(t->a, t->seq, t->head, block - 1) : page;
    size_t lines = hr_page_bytes(&t->a->geom) / HR_CACHE_LINE;
    size_t parts = (size_t)(BLOCK_GROUPS * t->strips);
    size_t share = (lines + parts - 1) / parts * HR_CACHE_LINE;
    hr_dtype dtype = t->a->geom.dtype;
    enum p_form form = t->pairs ? P_PAIRS : dtype == HR_FP32 ? P_FP32 : P_ROUNDED;
    const float *k = NULL;
    for (int32_t i = 0; i < t->strips; i++) {
        size_t first = (size_t)i * HR_STRIP;
        int32_t rest = t->rows - i * HR_STRIP;
        struct strip p = {w->q + first * t->dim,
                          w->o + first * t->dim,
                          w->m + first,
                          w->l + first,
                          t->row + i * HR_STRIP,
                          rest < HR_STRIP ? rest : HR_STRIP,
                          0,
                          0,
                          false,
                          {0}};
        if (!strip_keys(t, &p, block))
            continue;
        p.fetch.from = next + (size_t)(i * BLOCK_GROUPS) * share;
        p.fetch.step = share;
        if (!k)
            k = pack_block(t, page, block);
        strip_of(form, p.rows)(t, &p, k, t->pairs ? t->dim / 2 : t->dim);
    }
}

/* The blocks of this wave that some row of the pass may see, newest first. */
static void pass_blocks(const struct pass *t)
{
    const struct hr_attend *a = t->a;
    const struct hr_seq_view *seq = t->seq;
    int32_t group = a->geom.group;
    int64_t n = hr_blocks_of(seq->n_kv);
    struct hr_visible first =
        hr_visible_keys(&a->geom, a->mask, seq->n_kv, seq->n_q, t->row / group);
    struct hr_visible last =
        hr_visible_keys(&a->geom, a->mask, seq->n_kv, seq->n_q, (t->row + t->rows - 1) / group);
    int64_t end = hr_blocks_of(last.hi), begin = first.lo / HR_BLOCK_TOKENS;
    int64_t sinks = last.lo > 0 ? hr_blocks_of(a->geom.sinks) : 0;
    int64_t wave_end = n - a->wave_end > 0 ? n - a->wave_end : 0;
    if (end > n - a->wave_begin)
        end = n - a->wave_begin;
    for (int64_t b = end - 1; b >= wave_end; b--) {
        if (b < begin && b >= sinks) { /* between window and sinks */
            if (sinks <= wave_end)
                break;
            b = sinks;
            continue;
        }
        pass_block(t, b, wave_end);
    }
}

/* Whether bf16 goes through as pairs; AMX takes whole tiles of d only. */
static bool multiplies_pairs(const struct hr_geom *g)
{
    return HR_PAIRS && g->dtype == HR_BF16 && (!HR_AMX || g->dim % 32 == 0);
}

static void tile_passes(const void *args, int64_t item, void *scratch)
{
    const struct hr_attend *a = args;
    const struct hr_tile *tile = a->tiles + item;
    const struct hr_geom *g = &a->geom;
    int64_t rows = (int64_t)tile->tokens * g->group;
    struct pass t = {.a = a,
                     .seq = a->seqs + tile->seq,
                     .w = scratch,
                     .head = tile->head,
                     .pairs = multiplies_pairs(g),
                     .dim = (size_t)g->dim,
                     .f = factors_of(a)};
    for (int64_t r = 0; r < rows; r += HR_TILE_ROWS) {
        t.row = tile->token * g->group + r;
        t.rows = (int32_t)(rows - r < HR_TILE_ROWS ? rows - r : HR_TILE_ROWS);
        t.strips = (t.rows + HR_STRIP - 1) / HR_STRIP;
        t.carry = a->first && a->last ? NULL : a->state + tile->carry + r * (g->dim + 2);
        pass_begin(&t);
        pass_blocks(&t);
        if (!a->last) {
            pass_suspend(&t);
            continue;
        }
        for (int32_t i = 0; i < t.rows; i += 8)
            finish_rows(&t, i);
    }
}

static void tile_run(const void *args, int64_t item, void *scratch)
{
    if (!multiplies_pairs(&((const struct hr_attend *)args)->geom)) {
        tile_passes(args, item, scratch);
        return;
    }
#if HR_PAIRS
    /* The products flush subnormals: so must all else, or skipping a masked pair would show. */
    unsigned int csr = _mm_getcsr();
    _mm_setcsr(csr | 0x8040u);
#if HR_AMX
    amx_begin();
    tile_passes(args, item, scratch);
    amx_end();
#else
    tile_passes(args, item, scratch);
#endif
    _mm_setcsr(csr);
#endif
}

static int32_t tile_rows(const struct hr_geom *g)
{
    return HR_TILE_ROWS;
}

static int64_t carry_floats(const struct hr_geom *g, int32_t rows)
{
    return (int64_t)(rows + HR_STRIP - 1) / HR_STRIP * HR_STRIP * (g->dim + 2);
}

#endif

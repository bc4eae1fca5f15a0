/* SPDX-License-Identifier: Apache-2.0 */
/* The two products of the tile path by AMX (Intel SDM, TDPBF16PS): 16 keys, or 16 columns of V,
 * against 16 query rows a tile, pairs of bf16 as in micro.h.
 *
 *   S^T[key][row] = sum over d                     of K[key][d]    * Q^T[d / 2][row][2]
 *   O^T[d][row]   = O^T[d][row] + sum over key     of V^T[d][key]  * P^T[key / 2][row][2]
 *
 * Tiles 0-2 hold the result of a strip's vectors, 3 the left operand, 4-6 the right one. */
#ifndef HR_KERNELS_CPU_AMX_H
#define HR_KERNELS_CPU_AMX_H

enum {
    AMX_ROWS = 16,
    AMX_BYTES = 64,                    /* of a tile's row */
    AMX_PAIRS = 16,                    /* in it */
    AMX_STRIP_BYTES = HR_STRIP * 4,    /* from row to row of a panel */
    AMX_V_BYTES = HR_BLOCK_TOKENS * 2, /* from row to row of V^T */
};

/* gcc's tile loads do not tell that they read memory. */
#define AMX_FENCE() __asm__ volatile("" ::: "memory")

/* All tiles: 16 rows of 64 bytes. */
static void amx_begin(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = AMX_BYTES;
        config.rows[i] = AMX_ROWS;
    }
    AMX_FENCE();
    _tile_loadconfig(&config);
}

/* Without it every switch of the thread would save 8 KiB of tiles. */
static void amx_end(void)
{
    _tile_release();
}

/* Result tiles += a * b, 32 elements deep: `a` has 16 rows, `b` nv vectors of query rows. */
HR_INLINE void amx_multiply(const void *a, size_t a_bytes, const float *b, int nv)
{
    _tile_loadd(3, a, a_bytes);
    _tile_loadd(4, b, AMX_STRIP_BYTES);
    _tile_dpbf16ps(0, 3, 4);
    if (nv > 1) {
        _tile_loadd(5, b + HR_VW, AMX_STRIP_BYTES);
        _tile_dpbf16ps(1, 3, 5);
    }
    if (nv > 2) {
        _tile_loadd(6, b + 2 * HR_VW, AMX_STRIP_BYTES);
        _tile_dpbf16ps(2, 3, 6);
    }
}

HR_INLINE void amx_store(float *c, int nv)
{
    _tile_stored(0, c, AMX_STRIP_BYTES);
    if (nv > 1)
        _tile_stored(1, c + HR_VW, AMX_STRIP_BYTES);
    if (nv > 2)
        _tile_stored(2, c + 2 * HR_VW, AMX_STRIP_BYTES);
}

/* Scores of keys [key, end), multiples of HR_KEY_STEP, into s[key][row]; K as in the page. */
HR_INLINE void amx_scores(float *s, const unsigned char *k, size_t row_bytes, const float *q,
                          int key, int end, int nv, struct fetch fetch)
{
    AMX_FENCE();
    for (; key < end; key += AMX_ROWS) {
        const unsigned char *a = k + (size_t)key * row_bytes;
        const float *b = q;
        float *c = s + key * HR_STRIP;
        prefetch(fetch.from, fetch.step * (AMX_ROWS / HR_MB));
        fetch.from += fetch.step * (AMX_ROWS / HR_MB);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        for (size_t i = 0; i < row_bytes; i += AMX_BYTES, b += AMX_PAIRS * HR_STRIP) {
            amx_multiply(a + i, row_bytes, b, nv);
        }
        amx_store(c, nv);
    }
    AMX_FENCE();
}

/* max[row] of those scores. */
HR_INLINE void score_maxima(const float *s, float *max, int key, int end, int nv)
{
    vf top[HR_NV];
    for (int v = 0; v < nv; v++)
        top[v] = vf_set1(-INFINITY);
    for (; key < end; key++)
        for (int v = 0; v < nv; v++)
            top[v] = vf_max(top[v], vf_load(s + key * HR_STRIP + v * HR_VW));
    for (int v = 0; v < nv; v++)
        vf_store(max + v * HR_VW, top[v]);
}

/* o[d][row] *= alpha[row] */
HR_INLINE void scale_rows(float *o, const float *alpha, size_t dim, int nv)
{
    for (size_t d = 0; d < dim; d++, o += HR_STRIP)
        for (int v = 0; v < nv; v++)
            vf_store(o + v * HR_VW, vf_load(o + v * HR_VW) * vf_load(alpha + v * HR_VW));
}

/* o[d][row] += sum over keys [key, end), multiples of HR_KEY_STEP. */
HR_INLINE void amx_values(float *o, const float *values, const float *p, int key, int end,
                          size_t dim, int nv)
{
    AMX_FENCE();
    for (size_t d = 0; d < dim; d += AMX_ROWS, o += AMX_ROWS * HR_STRIP) {
        const float *a = values + d * (HR_BLOCK_TOKENS / 2) + key / 2;
        const float *b = p + key / 2 * HR_STRIP;
        _tile_loadd(0, o, AMX_STRIP_BYTES);
        if (nv > 1)
            _tile_loadd(1, o + HR_VW, AMX_STRIP_BYTES);
        if (nv > 2)
            _tile_loadd(2, o + 2 * HR_VW, AMX_STRIP_BYTES);
        for (int e = key; e < end; e += HR_KEY_STEP, a += AMX_PAIRS, b += AMX_PAIRS * HR_STRIP) {
            amx_multiply(a, AMX_V_BYTES, b, nv);
        }
        amx_store(o, nv);
    }
    AMX_FENCE();
}

#endif

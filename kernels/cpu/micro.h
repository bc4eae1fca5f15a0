/* SPDX-License-Identifier: Apache-2.0 */
/* The two products of the tile path. Lanes are query rows; the other operand is broadcast.
 *
 *   S^T[key][row]  = sum over d   of K[key][d]   * Q^T[d][row]
 *   O^T[d][row]    = O^T[d][row] * alpha[row] + sum over key of V[key][d] * P^T[key][row]
 *
 * With `pairs` an element is a pair of bf16, of neighbouring d in the first product, of
 * neighbouring keys in the second, and a product is one vdpbf16ps. Panels have a pitch of HR_STRIP;
 * `nv` is how many vectors of a strip hold rows. A lane's bits never depend on nv or on other
 * lanes. */
#ifndef HR_KERNELS_CPU_MICRO_H
#define HR_KERNELS_CPU_MICRO_H

/* *acc += a * b */
HR_INLINE void multiply(vf *acc, vf a, vf b, bool pairs)
{
#if HR_PAIRS
    if (pairs) {
        vf_dp_to(acc, a, b);
        return;
    }
#endif
    vf_fma_to(acc, a, b);
}

/* acc[i] += sum of k[i][e] * q[e], e in [0, n); n is a multiple of 4. */
HR_INLINE void score_group(vf acc[HR_MB][HR_NV], const float *const k[HR_MB], const float *q,
                           size_t n, int nv, bool pairs)
{
    for (size_t e = 0; e < n; e += 4) {
        HR_UNROLL(4)
        for (size_t u = 0; u < 4; u++) {
            vf x[HR_NV];
            HR_UNROLL(3)
            for (int v = 0; v < nv; v++)
                x[v] = vf_load(q + (e + u) * HR_STRIP + v * HR_VW);
            HR_UNROLL(8)
            for (int i = 0; i < HR_MB; i++) {
                vf b = vf_set1(k[i][e + u]);
                HR_UNROLL(3)
                for (int v = 0; v < nv; v++)
                    multiply(&acc[i][v], b, x[v], pairs);
            }
        }
    }
}

enum { HR_CACHE_LINE = 64 };

/* Bytes to bring towards the caches, a part per micro-tile: in one go they would stall. */
struct fetch {
    const unsigned char *from;
    size_t step;
};

HR_INLINE void prefetch(const unsigned char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += HR_CACHE_LINE)
        __builtin_prefetch(from + i, 0, 2);
}

/* Scores of keys [key, end), multiples of HR_MB, into s[key][row]; max[row] is that of the row. */
HR_INLINE void scores_nv(float *s, float *max, const float *k, size_t k_pitch, const float *q,
                         size_t n, int key, int end, int nv, bool pairs, struct fetch fetch)
{
    vf top[HR_NV];
    for (int v = 0; v < nv; v++)
        top[v] = vf_set1(-INFINITY);
    for (; key < end; key += HR_MB) {
        vf acc[HR_MB][HR_NV];
        const float *rows[HR_MB];
        prefetch(fetch.from, fetch.step);
        fetch.from += fetch.step;
        HR_UNROLL(8)
        for (int i = 0; i < HR_MB; i++) {
            rows[i] = k + (size_t)(key + i) * k_pitch;
            for (int v = 0; v < nv; v++)
                acc[i][v] = vf_set1(0);
        }
        score_group(acc, rows, q, n, nv, pairs);
        HR_UNROLL(8)
        for (int i = 0; i < HR_MB; i++) {
            HR_UNROLL(3)
            for (int v = 0; v < nv; v++) {
                vf_store(s + (key + i) * HR_STRIP + v * HR_VW, acc[i][v]);
                top[v] = vf_max(top[v], acc[i][v]);
            }
        }
    }
    for (int v = 0; v < nv; v++)
        vf_store(max + v * HR_VW, top[v]);
}

/* o[HR_MB][row] = o * alpha + sum of v[e][i] * p[e], e in [0, n). */
HR_INLINE void value_group(float *o, const float *values, const float *p, const float *alpha,
                           size_t n, int nv, bool pairs)
{
    vf acc[HR_MB][HR_NV];
    HR_UNROLL(8)
    for (int i = 0; i < HR_MB; i++) {
        HR_UNROLL(3)
        for (int v = 0; v < nv; v++)
            acc[i][v] = vf_load(o + i * HR_STRIP + v * HR_VW) * vf_load(alpha + v * HR_VW);
    }
    for (size_t e = 0; e < n; e += 4) {
        HR_UNROLL(4)
        for (size_t u = 0; u < 4; u++) {
            vf x[HR_NV];
            HR_UNROLL(3)
            for (int v = 0; v < nv; v++)
                x[v] = vf_load(p + (e + u) * HR_STRIP + v * HR_VW);
            HR_UNROLL(8)
            for (int i = 0; i < HR_MB; i++) {
                vf b = vf_set1(values[(e + u) * HR_MB + i]);
                HR_UNROLL(3)
                for (int v = 0; v < nv; v++)
                    multiply(&acc[i][v], b, x[v], pairs);
            }
        }
    }
    HR_UNROLL(8)
    for (int i = 0; i < HR_MB; i++) {
        HR_UNROLL(3)
        for (int v = 0; v < nv; v++)
            vf_store(o + i * HR_STRIP + v * HR_VW, acc[i][v]);
    }
}

#endif

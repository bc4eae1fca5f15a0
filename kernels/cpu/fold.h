/* SPDX-License-Identifier: Apache-2.0 */
/* Merges the partials of (sequence, KV head): the maximum of all first, then sums, newest first. */
#ifndef HR_KERNELS_CPU_FOLD_H
#define HR_KERNELS_CPU_FOLD_H

struct fold_scratch {
    float row[HR_DIM_MAX];
};

static void fold_item(const void *args, int64_t item, void *scratch)
{
    const struct hr_attend *a = args;
    const struct hr_fold *fold = a->folds + item;
    const struct hr_chunk *chunks = a->chunks + fold->chunk;
    const struct hr_seq_view *seq = a->seqs + fold->seq;
    struct fold_scratch *w = scratch;
    int64_t rows = seq->n_q * a->geom.group;
    int64_t dim = a->geom.dim;
    for (int64_t r = 0; r < rows; r++) {
        float m = -INFINITY, l = 0;
        memset(w->row, 0, (size_t)dim * 4);
        for (int32_t i = 0; i < fold->n_chunks; i++) {
            float part = a->state[chunks[i].partial + rows * dim + r];
            m = part > m ? part : m;
        }
        for (int32_t i = fold->n_chunks - 1; i >= 0 && m > -INFINITY; i--) {
            const float *part = a->state + chunks[i].partial;
            float weight = exp2_one(part[rows * dim + r] - m);
            l = l + part[rows * (dim + 1) + r] * weight;
            for (int64_t d = 0; d < dim; d++)
                w->row[d] = w->row[d] + part[r * dim + d] * weight;
        }
        struct row_end end = end_row(m, l, sink_of(a, fold->head, r));
        for (int64_t d = 0; d < dim; d++)
            w->row[d] = w->row[d] * end.factor + 0.0f; /* never -0 */
        store_row(a, seq, fold->head, r, w->row, end.lse);
    }
}

#endif

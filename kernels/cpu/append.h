/* SPDX-License-Identifier: Apache-2.0 */
/* Appends new K and V to one block, all heads. */
#ifndef HR_KERNELS_CPU_APPEND_H
#define HR_KERNELS_CPU_APPEND_H

/* Rows [row, row + n) of a half page from tokens `token`.. of the batch. */
static void append_rows(unsigned char *page, const struct hr_geom *g, const struct hr_rows *src,
                        int32_t head, int64_t token, int32_t row, int32_t n)
{
    size_t dim = (size_t)g->dim, row_bytes = dim * hr_dtype_bytes(g->dtype);
    const unsigned char *data = src->data;
    for (int32_t i = 0; i < n; i++) {
        int64_t at = (token + i) * src->stride_token + head * src->stride_head;
        row_cast(page + (size_t)(row + i) * row_bytes, g->dtype,
                 data + at * (int64_t)hr_dtype_bytes(src->dtype), src->dtype, dim);
    }
}

/* The sequence whose items include `item`. */
static int32_t append_seq(const struct hr_append *a, int64_t item)
{
    int32_t low = 0, high = a->n_seqs;
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        if (a->first_item[mid] <= item)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void append_item(const void *args, int64_t item, void *scratch)
{
    const struct hr_append *a = args;
    const struct hr_geom *g = &a->geom;
    int32_t s = append_seq(a, item);
    const struct hr_seq_view *seq = a->seqs + s;
    int64_t start = seq->n_kv - seq->n_new;
    int64_t block = start / HR_BLOCK_TOKENS + (item - a->first_item[s]);
    int64_t base = block * HR_BLOCK_TOKENS;
    int32_t row = start > base ? (int32_t)(start - base) : 0;
    int32_t end =
        seq->n_kv - base < HR_BLOCK_TOKENS ? (int32_t)(seq->n_kv - base) : HR_BLOCK_TOKENS;
    int64_t token = seq->new_row + base + row - start;
    uint32_t source = row > 0 ? a->copy_from[s] : UINT32_MAX;
    size_t row_bytes = (size_t)g->dim * hr_dtype_bytes(g->dtype), half = hr_page_bytes(g) / 2;
    for (int32_t head = 0; head < g->kv_heads; head++) {
        unsigned char *page = hr_page_addr(g, &a->pool, seq->blocks[block], head);
        if (source != UINT32_MAX) {
            const unsigned char *from = hr_page_addr(g, &a->pool, source, head);
            memcpy(page, from, (size_t)row * row_bytes);
            memcpy(page + half, from + half, (size_t)row * row_bytes);
        }
        append_rows(page, g, &a->k, head, token, row, end - row);
        append_rows(page + half, g, &a->v, head, token, row, end - row);
        if (row == 0 || source != UINT32_MAX)
            memset(page + half + (size_t)end * row_bytes, 0,
                   (size_t)(HR_BLOCK_TOKENS - end) * row_bytes);
    }
}

#endif

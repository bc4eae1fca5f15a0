/* SPDX-License-Identifier: Apache-2.0 */
/* Attention row by row in float64, and in fp32 as a naive implementation has it: the arithmetic of
 * kernels/ref/ref.c in the same order. One CTA per row; a thread owns a key while scores are made,
 * elements of the output while values are summed. Two passes over K: the first finds the maxima. */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/params.h"
#include "tests/check/reference.h"

#include <math_constants.h>

enum {
    THREADS = HR_BLOCK_TOKENS,
    SLICE = 32, /* columns of K in shared memory */
    SHIFTS = 4,
    OWN = HR_DIM_MAX / THREADS, /* elements of a thread: d = thread, thread + THREADS */
};

struct shared_words {
    float q[HR_DIM_MAX];
    float k[HR_BLOCK_TOKENS][SLICE + 1];
    double p[HR_BLOCK_TOKENS];
    float weight[SHIFTS][HR_BLOCK_TOKENS], rounded[SHIFTS][HR_BLOCK_TOKENS];
};

/* The row, and the keys [0, sinks) and [lo, hi) that it sees. */
struct row_view {
    struct hr_cu_seq seq;
    int64_t token, q_row, lo, hi, sinks;
    int32_t q_head;

    __device__ bool sees(int64_t key) const { return key < hi && (key >= lo || key < sinks); }

    __device__ bool sees_block(int64_t block) const
    {
        int64_t first = block * HR_BLOCK_TOKENS;
        return first < hi && (first + HR_BLOCK_TOKENS > lo || first < sinks);
    }
};

struct score {
    double exact;
    float naive;
};

struct result {
    double out[OWN], sum;
    float naive[SHIFTS][OWN], naive_sum[SHIFTS];
};

HR_DEVICE float element(int32_t type, const void *data, int64_t i)
{
    if (type == HR_FP32)
        return static_cast<const float *>(data)[i];
    uint16_t bits = static_cast<const uint16_t *>(data)[i];
    return type == HR_BF16 ? bf16::value(bits) : fp16::value(bits);
}

HR_DEVICE float rounded(float x, int32_t type)
{
    if (type == HR_BF16)
        return bf16::value((uint16_t)bf16::pack(x, 0));
    return type == HR_FP16 ? fp16::value((uint16_t)fp16::pack(x, 0)) : x;
}

HR_DEVICE struct hr_cu_reference_row find_row(const struct hr_cu_attend &a,
                                              const struct hr_cu_reference &r, int64_t i)
{
    if (r.rows)
        return r.rows[i];
    struct hr_cu_reference_row row = {0, (int32_t)(i % r.q_heads), i / r.q_heads};
    while (row.seq < r.n_seqs - 1 && row.token >= a.seqs[row.seq].n_q) {
        row.token -= a.seqs[row.seq].n_q;
        row.seq++;
    }
    return row;
}

HR_DEVICE struct row_view view_row(const struct hr_cu_attend &a,
                                   const struct hr_cu_reference_row &row)
{
    struct row_view v;
    v.seq = a.seqs[row.seq];
    v.token = row.token;
    v.q_row = v.seq.q_row + row.token;
    v.q_head = row.q_head;
    int64_t position = v.seq.n_kv - v.seq.n_q + row.token;
    v.hi = a.causal ? min(position + 1, v.seq.n_kv) : v.seq.n_kv;
    v.lo = a.window > 0 ? position - a.window + 1 : 0;
    v.sinks = a.window > 0 ? a.sinks : 0;
    return v;
}

HR_DEVICE int64_t half_bytes(const struct hr_cu_reference &r)
{
    return (int64_t)HR_BLOCK_TOKENS * r.dim * (r.kv_type == HR_FP32 ? 4 : 2);
}

/* K of the row's KV head in the block; V begins half a page behind it. */
HR_DEVICE const unsigned char *page_of(const struct hr_cu_attend &a,
                                       const struct hr_cu_reference &r, const struct row_view &v,
                                       int64_t block)
{
    int64_t page_bytes = 2 * half_bytes(r),
            unit = hr_unit_bytes(r.dim, r.kv_type == HR_FP32 ? 4 : 2);
    return r.arena + a.pages[v.seq.first_block + block] * unit + v.q_head / a.group * page_bytes;
}

/* Columns [from, from + 8 * octets) of K to shared memory. */
HR_DEVICE void load_slice(const struct hr_cu_reference &r, struct shared_words &w,
                          const unsigned char *page, int32_t from, int32_t octets)
{
    __syncthreads();
    with_type(r.kv_type, [&](auto t) {
        constexpr hr_dtype type = decltype(t)::value;
        for (int32_t i = threadIdx.x; i < HR_BLOCK_TOKENS * octets; i += THREADS) {
            int32_t row = i / octets, column = i % octets * 8;
            int32_t at = (row * r.dim + from + column) * t.bytes;
            float x[8];
            unpack<type>(load_octet<type, true>(page + at), x);
            for (int j = 0; j < 8; j++)
                w.k[row][column + j] = x[j];
        }
    });
    __syncthreads();
}

/* Of the thread's key. All threads call. */
HR_DEVICE struct score score_of(const struct hr_cu_reference &r, struct shared_words &w,
                                const unsigned char *page)
{
    struct score s = {0, 0};
    for (int32_t from = 0; from < r.dim; from += SLICE) {
        int32_t columns = min((int32_t)SLICE, r.dim - from);
        load_slice(r, w, page, from, columns / 8);
        for (int32_t d = 0; d < columns; d++) {
            float q = w.q[from + d], k = w.k[threadIdx.x][d];
            s.exact += (double)q * (double)k;
            s.naive += q * k;
        }
    }
    s.exact *= (double)r.scale;
    s.naive *= r.scale;
    if (r.softcap > 0) {
        s.exact = (double)r.softcap * tanh(s.exact / (double)r.softcap);
        s.naive = r.softcap * tanhf(s.naive / r.softcap);
    }
    return s;
}

/* The largest of all threads' values, a NaN left out. */
HR_DEVICE double largest(struct shared_words &w, double x)
{
    __syncthreads();
    w.p[threadIdx.x] = x;
    __syncthreads();
    for (int i = 0; i < THREADS; i++)
        x = fmax(x, w.p[i]);
    return x;
}

HR_DEVICE struct score find_top(const struct hr_cu_attend &a, const struct hr_cu_reference &r,
                                struct shared_words &w, const struct row_view &v)
{
    struct score top = {-CUDART_INF, -CUDART_INF_F};
    for (int64_t block = 0; block * HR_BLOCK_TOKENS < v.hi; block++) {
        if (!v.sees_block(block))
            continue;
        struct score s = score_of(r, w, page_of(a, r, v, block));
        if (v.sees(block * HR_BLOCK_TOKENS + threadIdx.x)) {
            top.exact = fmax(top.exact, s.exact);
            top.naive = fmaxf(top.naive, s.naive);
        }
    }
    float sink = a.sink_logits ? a.sink_logits[v.q_head] : -CUDART_INF_F;
    top.exact = fmax(largest(w, top.exact), (double)sink);
    top.naive = fmaxf((float)largest(w, (double)top.naive), sink);
    return top;
}

/* expf, rounded from float64: what the C library gives, so that naive errors are the same. */
HR_DEVICE float naive_exp(float x)
{
    return (float)exp((double)x);
}

/* The naive maximum of a run. */
HR_DEVICE float shifted(const struct score &top, int shift)
{
    return top.naive + 0.3f * (float)shift;
}

/* The weights of a block's keys are in shared memory. */
HR_DEVICE void add_values(const struct hr_cu_reference &r, const struct shared_words &w,
                          const struct row_view &v, int64_t block, const unsigned char *values,
                          struct result &x)
{
    int64_t first = block * HR_BLOCK_TOKENS;
    for (int32_t j = 0; j < HR_BLOCK_TOKENS; j++) {
        if (!v.sees(first + j))
            continue;
        x.sum += w.p[j];
#pragma unroll
        for (int i = 0; i < SHIFTS; i++)
            x.naive_sum[i] += w.weight[i][j];
#pragma unroll
        for (int o = 0; o < OWN; o++) {
            int32_t d = threadIdx.x + o * THREADS;
            float value = d < r.dim ? element(r.kv_type, values, j * r.dim + d) : 0;
            x.out[o] += w.p[j] * (double)value;
#pragma unroll
            for (int i = 0; i < SHIFTS; i++)
                x.naive[i][o] += w.rounded[i][j] * value;
        }
    }
}

HR_DEVICE void sum_values(const struct hr_cu_attend &a, const struct hr_cu_reference &r,
                          struct shared_words &w, const struct row_view &v, const struct score &top,
                          struct result &x)
{
    for (int64_t block = 0; block * HR_BLOCK_TOKENS < v.hi; block++) {
        if (!v.sees_block(block))
            continue;
        const unsigned char *page = page_of(a, r, v, block);
        struct score s = score_of(r, w, page);
        w.p[threadIdx.x] = exp(s.exact - top.exact);
#pragma unroll
        for (int i = 0; i < SHIFTS; i++) {
            float p = i < r.shifts ? naive_exp(s.naive - shifted(top, i)) : 0;
            w.weight[i][threadIdx.x] = p;
            w.rounded[i][threadIdx.x] = rounded(p, r.kv_type);
        }
        __syncthreads();
        add_values(r, w, v, block, page + half_bytes(r), x);
    }
    float sink = a.sink_logits ? a.sink_logits[v.q_head] : -CUDART_INF_F;
    x.sum += exp((double)sink - top.exact);
#pragma unroll
    for (int i = 0; i < SHIFTS; i++)
        x.naive_sum[i] += naive_exp(sink - shifted(top, i));
#pragma unroll
    for (int o = 0; o < OWN; o++) {
        x.out[o] /= x.sum;
#pragma unroll
        for (int i = 0; i < SHIFTS; i++)
            x.naive[i][o] /= x.naive_sum[i];
    }
}

HR_DEVICE void write_errors(const struct hr_cu_attend &a, const struct hr_cu_reference &r,
                            struct shared_words &w, const struct row_view &v,
                            const struct result &x, struct hr_cu_reference_errors *to)
{
    struct hr_cu_reference_errors e = {0, 0, 0};
#pragma unroll
    for (int o = 0; o < OWN; o++) {
        int32_t d = threadIdx.x + o * THREADS;
        if (d >= r.dim)
            break;
        int64_t at = v.q_row * a.out_stride_token + v.q_head * a.out_stride_head + d;
        double ours = fabs((double)element(a.out_type, a.out, at) - x.out[o]);
        e.ours = fmax(e.ours, isnan(ours) ? CUDART_INF : ours);
        e.top = fmax(e.top, fabs(x.out[o]));
#pragma unroll
        for (int i = 0; i < SHIFTS; i++)
            if (i < r.shifts)
                e.naive =
                    fmax(e.naive, fabs((double)rounded(x.naive[i][o], a.out_type) - x.out[o]));
    }
    e.ours = largest(w, e.ours);
    e.naive = largest(w, e.naive);
    e.top = largest(w, e.top);
    if (threadIdx.x == 0)
        *to = e;
}

HR_DEVICE void reference_row(const struct hr_cu_attend &a, const struct hr_cu_reference &r,
                             struct shared_words &w, int64_t i)
{
    struct row_view v = view_row(a, find_row(a, r, i));
    int64_t q = v.q_row * a.q_stride_token + v.q_head * a.q_stride_head;
    struct result x = {};
    __syncthreads();
    for (int32_t d = threadIdx.x; d < r.dim; d += THREADS)
        w.q[d] = rounded(element(r.q_type, a.q, q + d), r.kv_type);
    struct score top = find_top(a, r, w, v);
    if (!isinf(top.exact))
        sum_values(a, r, w, v, top, x);
    if (r.errors)
        write_errors(a, r, w, v, x, r.errors + i);
    if (threadIdx.x == 0)
        r.lse[i] = isinf(top.exact) ? -CUDART_INF : top.exact + log(x.sum);
#pragma unroll
    for (int o = 0; o < OWN; o++)
        if (r.out && threadIdx.x + o * THREADS < r.dim)
            r.out[i * r.dim + threadIdx.x + o * THREADS] = x.out[o];
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    hr_reference(const __grid_constant__ struct hr_cu_attend a,
                 const __grid_constant__ struct hr_cu_reference r)
{
    __shared__ struct shared_words w;
    for (int64_t i = blockIdx.x; i < r.n_rows; i += gridDim.x)
        reference_row(a, r, w, i);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Merges the partials of each (sequence, KV head), newest first. A CTA has (dim / 2, lanes)
 * threads: a lane merges one run of a row's partials, two elements per thread; lanes share a row of
 * many partials, and their runs are put together in order. lanes is the largest power of two up to
 * 8 that 256 threads have room for, so that how a row is cut depends on dim and on its sequence
 * alone. Grid (folds, any): the rows of a fold are dealt to the CTAs of its column. */
#include "kernels/cuda/finish.cuh"
#include "kernels/cuda/params.h"

enum {
    RUN = 8, /* partials of a run whose loads are all on their way at once */
    THREADS_MAX = 256,
};

/* One row's merged partials: o of two elements. */
struct merged {
    float m, l, x, y;
};

/* Puts the older one behind the newer one. */
HR_DEVICE void merge(struct merged &to, const struct merged &older)
{
    float top = fmaxf(to.m, older.m), ref = top == -CUDART_INF_F ? 0.0f : top;
    float keep = exp2_approx(__fsub_rn(to.m, ref)), add = exp2_approx(__fsub_rn(older.m, ref));
    to.m = top;
    to.l = __fmaf_rn(older.l, add, __fmul_rn(to.l, keep));
    to.x = __fmaf_rn(older.x, add, __fmul_rn(to.x, keep));
    to.y = __fmaf_rn(older.y, add, __fmul_rn(to.y, keep));
}

/* Partials of a row, newest first; they lie one behind the other. */
struct run {
    const float *newest;
    int32_t left;
};

/* Merges up to RUN partials. */
HR_DEVICE void merge_some(struct run &run, int32_t rows, int32_t row, struct merged &sum)
{
    struct merged part[RUN];
    int32_t dim = blockDim.x * 2;
    float top = sum.m;
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        part[i] = {-CUDART_INF_F, 0.0f, 0.0f, 0.0f};
        if (i >= run.left)
            continue;
        const float *from = run.newest - (int64_t)i * rows * (dim + 2);
        float2 o = *reinterpret_cast<const float2 *>(from + row * dim + threadIdx.x * 2);
        part[i] = {from[rows * dim + row], from[rows * (dim + 1) + row], o.x, o.y};
    }
    run.newest -= (int64_t)RUN * rows * (dim + 2);
    run.left -= RUN;
#pragma unroll
    for (int i = 0; i < RUN; i++)
        top = fmaxf(top, part[i].m);
    float ref = top == -CUDART_INF_F ? 0.0f : top, keep = exp2_approx(__fsub_rn(sum.m, ref));
    sum = {top, __fmul_rn(sum.l, keep), __fmul_rn(sum.x, keep), __fmul_rn(sum.y, keep)};
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        float weight = exp2_approx(__fsub_rn(part[i].m, ref));
        sum.l = __fmaf_rn(part[i].l, weight, sum.l);
        sum.x = __fmaf_rn(part[i].x, weight, sum.x);
        sum.y = __fmaf_rn(part[i].y, weight, sum.y);
    }
}

/* Divides by l (and the sink's weight); writes out and lse. */
HR_DEVICE void finish(const struct hr_cu_attend &a, int64_t token, int64_t head,
                      const struct merged &sum)
{
    struct row_end end(a, sum.m, sum.l, head);
    store_pair(a, token * a.out_stride_token + head * a.out_stride_head + threadIdx.x * 2,
               __fmaf_rn(sum.x, end.scale, 0.0f), __fmaf_rn(sum.y, end.scale, 0.0f));
    if (a.lse && threadIdx.x == 0)
        a.lse[token * a.lse_stride_token + head * a.lse_stride_head] = end.lse;
}

extern "C" __global__ void __launch_bounds__(THREADS_MAX, 4)
    hr_fold(const __grid_constant__ struct hr_cu_attend a)
{
    __shared__ struct merged parts[THREADS_MAX];
    struct hr_fold fold = a.folds[blockIdx.x];
    struct hr_cu_seq seq = a.seqs[fold.seq];
    int32_t rows = (int32_t)seq.n_q * a.group, lanes = blockDim.y, share = 1;
    while (share < lanes && (fold.n_chunks > share * RUN || share * rows * 2 <= lanes))
        share *= 2;
    int32_t at_once = lanes / share, each = (fold.n_chunks + share - 1) / share;
    int32_t nth = threadIdx.y % share;
    int64_t newest = 0;
    if (fold.n_chunks > 0) /* a sequence without keys has none */
        newest = a.chunks[fold.chunk + fold.n_chunks - 1].partial -
                 (int64_t)nth * each * rows * (blockDim.x * 2 + 2);
    grid_wait();
    grid_launch_dependents();
    for (int32_t first = blockIdx.y * at_once; first < rows; first += gridDim.y * at_once) {
        int32_t row = first + threadIdx.y / share;
        struct merged sum = {-CUDART_INF_F, 0.0f, 0.0f, 0.0f};
        struct run run = {a.state + newest, min(each, fold.n_chunks - nth * each)};
        while (row < rows && run.left > 0)
            merge_some(run, rows, row, sum);
        parts[threadIdx.y * blockDim.x + threadIdx.x] = sum;
        __syncthreads();
        if (row < rows && nth == 0) {
            for (int32_t i = 1; i < share; i++)
                merge(sum, parts[(threadIdx.y + i) * blockDim.x + threadIdx.x]);
            finish(a, seq.q_row + row / a.group, (int64_t)fold.head * a.group + row % a.group, sum);
        }
        __syncthreads();
    }
}

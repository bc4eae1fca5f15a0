/* SPDX-License-Identifier: Apache-2.0 */
/* The split path on Hopper: two CTAs per multiprocessor draw chunks. In the producer warpgroup one
 * thread plans the next chunk, one loads its Q, and one streams K and V through a ring, in the
 * order of their use and from one chunk into the next; one consumer warpgroup holds all rows
 * (token, g) of the KV head as the 64 rows of its tensor core products. The rows that are padding
 * cost time of the tensor cores, of which there is plenty: the kernel waits for memory. */
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/params.h"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/shapes.h"
#include "kernels/cuda/walk.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    KEYS = HR_BLOCK_TOKENS,
    ROWS = 64,
    HALF = ROWS / 2,
    CONSUMERS = 128, /* threads */
    THREADS = CONSUMERS + 128,
    STAGES_MAX = 8,
    CHUNKS = 2, /* the consumers' and the next one */
};

template <int D> struct layout {
    static constexpr int ctas = 2; /* per multiprocessor */
    static constexpr int producer_registers = 40;
    static constexpr int consumer_registers = 216;
    static constexpr int stages = D == 64 ? 6 : 3;
    /* Shared memory; slabs are 64 columns wide: [row][128 bytes], swizzled. */
    static constexpr int slabs = D / 64;
    static constexpr int q_slab = ROWS * 128;
    static constexpr int kv_slab = KEYS * 128;
    static constexpr int kv_bytes = slabs * kv_slab; /* of a stage: K or V */
    static constexpr int q = 0;
    static constexpr int ring = q + slabs * q_slab;
    static constexpr int words = ring + stages * kv_bytes;
};

struct shared_words {
    uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    uint64_t chunk_full[CHUNKS], chunk_empty[CHUNKS], q_full[CHUNKS];
    uint32_t word[STAGES_MAX]; /* of a stage with K */
    struct chunk_view chunk[CHUNKS];
    struct walk walk[CHUNKS];
    int32_t first_page[CHUNKS];
    enum work work[CHUNKS];
};

/* The first chunk of a CTA is that of its number and planned while the kernel in front still runs;
 * the others are drawn. */
HR_DEVICE void plan_chunks(const struct hr_cu_attend &a, struct shared_words *w)
{
    struct ring chunks;
    int32_t number = blockIdx.x, drawn = -1;
    for (; number < a.n_chunks; number = (int32_t)gridDim.x + drawn) {
        if (w->chunk[chunks.at].begin(a, a.chunks[number], w->walk[chunks.at])) {
            struct walk walk = w->walk[chunks.at];
            int32_t block = walk.next();
            w->work[chunks.at] = block < 0 ? NO_BLOCKS : BLOCKS;
            w->first_page[chunks.at] = block < 0 ? 0 : walk.page(block);
            barrier_arrive(shared_address(&w->chunk_full[chunks.at]));
            chunks.next(CHUNKS);
            barrier_wait(shared_address(&w->chunk_empty[chunks.at]), chunks.phase ^ 1);
        }
        if (drawn < 0)
            grid_wait();
        drawn = (int32_t)atomicAdd(a.next, 1u);
    }
    if (drawn == a.n_chunks - 1)
        *a.next = 0; /* the last number that any CTA draws */
    w->work[chunks.at] = NO_MORE;
    barrier_arrive(shared_address(&w->chunk_full[chunks.at]));
}

HR_DEVICE enum work await_chunk(const struct shared_words *w, const struct ring &chunks)
{
    barrier_wait(shared_address(&w->chunk_full[chunks.at]), chunks.phase);
    return w->work[chunks.at];
}

/* Where a chunk's Q is: in a half of the room, turn and turn about, if that is enough. The rest of
 * the 64 rows is whatever lies there, and each row is its own affair. */
HR_DEVICE uint32_t query_room(int32_t rows, uint32_t at)
{
    return rows > HALF ? 0 : at * HALF * 128;
}

template <int D>
HR_DEVICE void load_queries(const struct hr_cu_attend &a, const CUtensorMap *map, uint32_t base,
                            struct shared_words *w)
{
    using l = layout<D>;
    struct ring chunks;
    for (int32_t rows, before = 0; await_chunk(w, chunks) != NO_MORE; before = rows) {
        const struct chunk_view &chunk = w->chunk[chunks.at];
        uint32_t full = shared_address(&w->q_full[chunks.at]);
        rows = chunk.rows;
        if (max(rows, before) > HALF) /* the chunk before has to be over */
            barrier_wait(shared_address(&w->chunk_empty[chunks.at ^ 1]),
                         chunks.phase ^ chunks.at ^ 1);
        barrier_expect(full, rows * D * 2);
        for (int32_t i = 0; i < chunk.n_q * l::slabs; i++)
            tensor_load5(base + l::q + query_room(rows, chunks.at) + i % l::slabs * l::q_slab +
                             i / l::slabs * a.group * 128,
                         map, full, 0, 0, (int)chunk.q_row + i / l::slabs, i % l::slabs,
                         chunk.head);
        chunks.next(CHUNKS);
    }
}

template <int D> struct producer {
    using l = layout<D>;
    const CUtensorMap *map;
    struct shared_words *w;
    uint32_t base;
    struct ring stages, chunks;

    __device__ __forceinline__ void await_room(void)
    {
        barrier_wait(shared_address(&w->empty[stages.at]), stages.phase ^ 1);
    }

    __device__ __forceinline__ void load(int32_t page, int side)
    {
        uint32_t full = shared_address(&w->full[stages.at]);
        barrier_expect(full, l::kv_bytes);
        tensor_load5_once(base + l::ring + stages.at * l::kv_bytes, map, full, 0, 0, 0, side, page);
        stages.next(l::stages);
    }

    __device__ __forceinline__ void load_blocks(struct walk walk, int32_t page)
    {
        for (int32_t block = walk.next(), after; block >= 0; block = after) {
            after = walk.next();
            int32_t page_after = after < 0 ? 0 : walk.page(after); /* ahead of its use */
            await_room();
            w->word[stages.at] = walk.word(block, after);
            load(page, 0);
            await_room();
            load(page, 1);
            page = page_after;
        }
    }

    __device__ __forceinline__ void run(void)
    {
        for (enum work work; (work = await_chunk(w, chunks)) != NO_MORE;) {
            if (work == BLOCKS)
                load_blocks(w->walk[chunks.at], w->first_page[chunks.at]);
            barrier_arrive(shared_address(&w->chunk_empty[chunks.at]));
            chunks.next(CHUNKS);
        }
    }
};

/* The consumers' warpgroup. */
template <int D, class T> struct consumer {
    using l = layout<D>;
    const struct hr_cu_attend &a;
    struct shared_words *w;
    uint32_t base;
    struct ring stages, chunks;
    float o[D / 2];
    struct split_rows rows;

    __device__ __forceinline__ const struct chunk_view &chunk(void) const
    {
        return w->chunk[chunks.at];
    }

    /* One of the thread's two rows in the partial: its o, and m with l behind the m of all. */
    __device__ __forceinline__ float *partial_o(int r) const
    {
        return a.state + chunk().partial + (rows.first_row() + 8 * r) * D + threadIdx.x % 4 * 2;
    }

    __device__ __forceinline__ float *partial_m(int r) const
    {
        return a.state + chunk().partial + chunk().rows * D + rows.first_row() + 8 * r;
    }

    __device__ __forceinline__ void load_state(void)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            bool stored = !chunk().fresh && rows.first_row() + 8 * r < chunk().rows;
            rows.m[r] = stored ? partial_m(r)[0] : -CUDART_INF_F;
            rows.l[r] = stored ? partial_m(r)[chunk().rows] : 0.0f;
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                float2 x = {0.0f, 0.0f};
                if (stored)
                    x = *reinterpret_cast<const float2 *>(partial_o(r) + 8 * j);
                o[4 * j + 2 * r] = x.x;
                o[4 * j + 2 * r + 1] = x.y;
            }
        }
    }

    __device__ __forceinline__ void store_state(void) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (rows.first_row() + 8 * r >= chunk().rows)
                continue;
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                *reinterpret_cast<float2 *>(partial_o(r) + 8 * j) = {o[4 * j + 2 * r],
                                                                     o[4 * j + 2 * r + 1]};
            if (threadIdx.x % 4 == 0) {
                partial_m(r)[0] = rows.m[r];
                partial_m(r)[chunk().rows] = rows.l[r];
            }
        }
    }

    __device__ __forceinline__ uint32_t tile(void) const
    {
        return base + l::ring + stages.at * l::kv_bytes;
    }

    __device__ __forceinline__ void await(void)
    {
        barrier_wait(shared_address(&w->full[stages.at]), stages.phase);
    }

    __device__ __forceinline__ void release(void)
    {
        if (threadIdx.x % 32 == 0)
            barrier_arrive(shared_address(&w->empty[stages.at]));
        stages.next(l::stages);
    }

    /* S = Q K^T: D / 16 steps. */
    __device__ __forceinline__ void multiply_keys(float (&s)[KEYS / 2])
    {
        uint32_t q = base + l::q + query_room(chunk().rows, chunks.at);
        struct wgmma_matrix q_matrix(q, 0, 1024), k_matrix(tile(), 0, 1024);
        registers_fence(s);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < D / 16; step++)
            wgmma_shared(T(), s, q_matrix.at(step / 4 * l::q_slab + step % 4 * 32),
                         k_matrix.at(step / 4 * l::kv_slab + step % 4 * 32), step > 0);
        wgmma_commit();
        wgmma_wait<0>();
        registers_fence(s);
    }

    /* O += P V: 8 steps of 16 keys. */
    __device__ __forceinline__ void multiply_values(const uint32_t (&p)[KEYS / 4])
    {
        struct wgmma_matrix v_matrix(tile(), l::kv_slab, 1024);
        registers_fence(o);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++)
            wgmma_registers(T(), o, p + step * 4, v_matrix.at(step * 2048));
        wgmma_commit();
        wgmma_wait<0>();
        registers_fence(o);
    }

    /* Scores to weights; O is made ready for their V. */
    __device__ __forceinline__ void weigh(int32_t block, bool partly, float (&s)[KEYS / 2],
                                          uint32_t (&p)[KEYS / 4])
    {
        float alpha[2];
        if (a.softcap > 0)
            rows.cap(a, s);
        if (partly)
            rows.mask(a, chunk(), block, s);
        rows.weigh(a, s, alpha);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = __fmul_rn(o[i], alpha[i / 2 % 2]);
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++)
            p[i] = T::pack(s[2 * i], s[2 * i + 1]);
    }

    __device__ __forceinline__ void run_block(uint32_t word)
    {
        float s[KEYS / 2];
        uint32_t p[KEYS / 4] = {0};
        multiply_keys(s);
        release();
        if (threadIdx.x / 32 * 16 < chunk().rows) /* the whole warp */
            weigh((int32_t)(word >> WORD_BITS), word & PARTLY, s, p);
        await();
        multiply_values(p);
        release();
    }

    __device__ __forceinline__ void run_blocks(void)
    {
        uint32_t word;
        do {
            await();
            word = w->word[stages.at];
            run_block(word);
        } while (!(word & LAST));
    }

    __device__ __forceinline__ void leave_chunk(void)
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(shared_address(&w->chunk_empty[chunks.at]));
        chunks.next(CHUNKS);
    }

    __device__ __forceinline__ void run(void)
    {
        for (enum work work; (work = await_chunk(w, chunks)) != NO_MORE; leave_chunk()) {
            load_state();
            barrier_wait(shared_address(&w->q_full[chunks.at]), chunks.phase);
            if (work == BLOCKS)
                run_blocks();
            store_state();
        }
    }
};

template <int D, class T>
HR_DEVICE void decode(const struct hr_cu_attend &a, const CUtensorMap *q_map,
                      const CUtensorMap *kv_map)
{
    using l = layout<D>;
    extern __shared__ __align__(1024) uint8_t memory[];
    uint32_t base = shared_address(memory);
    struct shared_words *w = reinterpret_cast<struct shared_words *>(memory + l::words);
    if (threadIdx.x == CONSUMERS) {
        tensor_map_prefetch(q_map);
        tensor_map_prefetch(kv_map);
        for (int i = 0; i < l::stages; i++) {
            barrier_init(shared_address(&w->full[i]), 1);
            barrier_init(shared_address(&w->empty[i]), CONSUMERS / 32);
        }
        for (int i = 0; i < CHUNKS; i++) {
            barrier_init(shared_address(&w->q_full[i]), 1);
            barrier_init(shared_address(&w->chunk_full[i]), 1);
            barrier_init(shared_address(&w->chunk_empty[i]), CONSUMERS / 32 + 1);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        registers_give<l::producer_registers>();
        if (threadIdx.x == CONSUMERS) {
            grid_wait();
            struct producer<D> p = {
                kv_map, w, base,
            };
            p.run();
        } else if (threadIdx.x == CONSUMERS + 32) {
            grid_wait();
            load_queries<D>(a, q_map, base, w);
        } else if (threadIdx.x == CONSUMERS + 64) {
            plan_chunks(a, w);
        }
    } else {
        registers_take<l::consumer_registers>();
        grid_wait();
        grid_launch_dependents();
        struct consumer<D, T> c = {
            a, w, base,
        };
        c.run();
    }
}

#define CHECK_decode_90(D, thread_count, shared, row_count, carry)                                 \
    static_assert(THREADS == thread_count && ROWS == row_count &&                                  \
                      layout<D>::words + sizeof(struct shared_words) <= shared,                    \
                  "shapes.h");
#define CHECK_prefill_90(...)
#define CHECK_prefill_80(...)
#define CHECK_decode_80(...)
HR_CU_SHAPES(HR_CU_CHECK)

#define DECODE(name, dim, type)                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, layout<dim>::ctas)                       \
        name(const __grid_constant__ struct hr_cu_attend a, const __grid_constant__ CUtensorMap q, \
             const __grid_constant__ CUtensorMap kv)                                               \
    {                                                                                              \
        decode<dim, type>(a, &q, &kv);                                                             \
    }

DECODE(hr_decode_sm90_d64_bf16, 64, bf16)
DECODE(hr_decode_sm90_d64_fp16, 64, fp16)
DECODE(hr_decode_sm90_d128_bf16, 128, bf16)
DECODE(hr_decode_sm90_d128_fp16, 128, fp16)

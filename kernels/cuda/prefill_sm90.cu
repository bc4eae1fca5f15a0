/* SPDX-License-Identifier: Apache-2.0 */
/* The tile path on Hopper: tiles of 64 rows (token, g) per consumer warpgroup, one persistent CTA
 * per multiprocessor. In the producer warpgroup one thread plans tiles, one loads Q and K, one V;
 * the consumers multiply and take turns on the tensor cores (ping-pong, FlashAttention-3), with the
 * softmax of one block between the products of its neighbours, also across the ends of tiles. Key
 * blocks come newest first; every row has a reference of its own (softmax.cuh), so its bits do not
 * depend on the rows beside it. */
#include "kernels/cuda/output.cuh"
#include "kernels/cuda/params.h"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/shapes.h"
#include "kernels/cuda/softmax.cuh"
#include "kernels/cuda/walk.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    KEYS = HR_BLOCK_TOKENS,
    TILES = 2,   /* the consumers' and the next one */
    QUERIES = 2, /* tiles of Q */
    STAGES_MAX = 4,
    ASK_AHEAD = 6, /* the next tile is drawn with so many blocks left: early enough to be planned,
                    * late enough to go to the CTA that is free first */
    TURN = 1,      /* named barriers of the consumers' turns: TURN + warpgroup */
};

template <int D> struct layout {
    static constexpr int warpgroups = D == 64 ? 3 : 2; /* that consume */
    static constexpr int consumers = warpgroups * 128;
    static constexpr int threads = consumers + 128;
    static constexpr int producer_registers = warpgroups == 3 ? 32 : 40;
    static constexpr int consumer_registers = warpgroups == 3 ? 160 : 232;
    static constexpr int early = D == 64 ? 4 : 8; /* pairs of weights taken before O is awaited */
    static constexpr int stages = D == 64 ? 4 : 2;
    /* Shared memory; slabs are 64 columns wide: [row][128 bytes], swizzled. */
    static constexpr int slabs = D / 64;
    static constexpr int q_slab = warpgroups * 64 * 128;
    static constexpr int kv_slab = KEYS * 128;
    static constexpr int kv_bytes = slabs * kv_slab;
    static constexpr int q = 0;
    static constexpr int k = q + QUERIES * slabs * q_slab;
    static constexpr int v = k + stages * kv_bytes;
    static constexpr int words = v + stages * kv_bytes;
};

struct shared_words {
    uint64_t q_full[QUERIES], q_empty[QUERIES];
    uint64_t k_full[STAGES_MAX], k_empty[STAGES_MAX];
    uint64_t v_full[STAGES_MAX], v_empty[STAGES_MAX];
    uint64_t tile_full[TILES], tile_empty[TILES];
    uint64_t tile_asked;       /* the next one may be drawn */
    uint32_t word[STAGES_MAX]; /* of the K stage */
    struct tile_view tile[TILES];
    struct walk walk[TILES];
    enum work work[TILES];
    float unused;
};

template <int D>
HR_DEVICE void load_queries(const struct hr_cu_attend &a, const CUtensorMap *map,
                            const struct tile_view &tile, uint32_t to, uint32_t barrier)
{
    barrier_expect(barrier, (uint32_t)(a.tile_tokens * a.group * D * 2));
#pragma unroll
    for (int s = 0; s < layout<D>::slabs; s++)
        tensor_load5(to + s * layout<D>::q_slab, map, barrier, 0, 0, (int)tile.row, s, tile.head);
}

/* The first tile of a CTA is that of its number and planned while the kernel in front still runs;
 * the others are drawn. */
HR_DEVICE void plan_tiles(const struct hr_cu_attend &a, struct shared_words *w)
{
    struct ring tiles;
    int32_t number = blockIdx.x, drawn = -1;
    for (;;) {
        w->work[tiles.at] = NO_MORE;
        if (number < a.n_tiles) {
            w->tile[tiles.at].begin(a, a.tiles[number]);
            __syncwarp(1); /* first one, then the other: there are few registers */
            w->walk[tiles.at].begin(a, a.tiles[number]);
            __syncwarp(1);
            struct walk walk = w->walk[tiles.at];
            w->work[tiles.at] = walk.next() < 0 ? NO_BLOCKS : BLOCKS;
        }
        barrier_arrive(shared_address(&w->tile_full[tiles.at]));
        if (number >= a.n_tiles) {
            if (drawn == a.n_tiles - 1)
                *a.next = 0; /* the last number that any CTA draws */
            return;
        }
        tiles.next(TILES);
        barrier_wait(shared_address(&w->tile_empty[tiles.at]), tiles.phase ^ 1);
        barrier_wait(shared_address(&w->tile_asked), tiles.at ^ 1); /* TILES is 2 */
        grid_wait(); /* but for the first time it is no wait */
        drawn = (int32_t)atomicAdd(a.next, 1u);
        number = (int32_t)gridDim.x + drawn;
    }
}

/* The next tile's walk, for a thread that loads. */
HR_DEVICE enum work next_walk(struct shared_words *w, struct ring &tiles, struct walk &walk)
{
    barrier_wait(shared_address(&w->tile_full[tiles.at]), tiles.phase);
    walk = w->walk[tiles.at];
    return w->work[tiles.at];
}

HR_DEVICE void leave_tile(struct shared_words *w, struct ring &tiles)
{
    barrier_arrive(shared_address(&w->tile_empty[tiles.at]));
    tiles.next(TILES);
}

/* `plan`: the tile's walk as it was planned. What is not needed to go on is read there: there are
 * few registers. */
template <int D>
HR_DEVICE void load_keys(const CUtensorMap *map, uint32_t base, struct shared_words *w,
                         const struct walk &plan, struct walk &walk, struct ring &stages)
{
    using l = layout<D>;
    bool asked = false;
    for (int32_t block = walk.next(), following; block >= 0; block = following) {
        uint32_t full = shared_address(&w->k_full[stages.at]);
        int32_t page = plan.page(block);
        following = walk.next();
        if (!asked && (following < 0 || walk.ends_within(ASK_AHEAD))) {
            asked = true;
            barrier_arrive(shared_address(&w->tile_asked));
        }
        uint32_t word = plan.word(block, following);
        barrier_wait(shared_address(&w->k_empty[stages.at]), stages.phase ^ 1);
        w->word[stages.at] = word;
        barrier_expect(full, l::kv_bytes);
        tensor_load5(base + l::k + stages.at * l::kv_bytes, map, full, 0, 0, 0, 0, page);
        stages.next(l::stages);
    }
}

/* Q and K. */
template <int D>
HR_DEVICE void produce_keys(const struct hr_cu_attend &a, const CUtensorMap *q_map,
                            const CUtensorMap *kv_map, uint32_t base, struct shared_words *w)
{
    using l = layout<D>;
    struct ring tiles, queries, stages;
    struct walk walk;
    grid_wait();
    for (enum work work; (work = next_walk(w, tiles, walk)) != NO_MORE; leave_tile(w, tiles)) {
        if (work == NO_BLOCKS) {
            barrier_arrive(shared_address(&w->tile_asked));
            continue;
        }
        barrier_wait(shared_address(&w->q_empty[queries.at]), queries.phase ^ 1);
        shared_fence_async(); /* the warps wrote output there */
        load_queries<D>(a, q_map, w->tile[tiles.at],
                        base + l::q + queries.at * l::slabs * l::q_slab,
                        shared_address(&w->q_full[queries.at]));
        queries.next(QUERIES);
        load_keys<D>(kv_map, base, w, w->walk[tiles.at], walk, stages);
    }
}

template <int D>
HR_DEVICE void produce_values(const CUtensorMap *kv_map, uint32_t base, struct shared_words *w)
{
    using l = layout<D>;
    struct ring tiles, stages;
    struct walk walk;
    grid_wait();
    for (; next_walk(w, tiles, walk) != NO_MORE; leave_tile(w, tiles)) {
        const struct walk &plan = w->walk[tiles.at];
        for (int32_t block = walk.next(), following; block >= 0; block = following) {
            uint32_t full = shared_address(&w->v_full[stages.at]);
            int32_t page = plan.page(block);
            following = walk.next();
            barrier_wait(shared_address(&w->v_empty[stages.at]), stages.phase ^ 1);
            barrier_expect(full, l::kv_bytes);
            tensor_load5(base + l::v + stages.at * l::kv_bytes, kv_map, full, 0, 0, 0, 1, page);
            stages.next(l::stages);
        }
    }
}

/* S = Q K^T of 64 rows: D / 16 steps. */
template <int D, class T> HR_DEVICE void multiply_keys(float (&s)[KEYS / 2], uint32_t q, uint32_t k)
{
    struct wgmma_matrix q_matrix(q, 0, 1024), k_matrix(k, 0, 1024);
#pragma unroll
    for (int step = 0; step < D / 16; step++)
        wgmma_shared(T(), s, q_matrix.at(step / 4 * layout<D>::q_slab + step % 4 * 32),
                     k_matrix.at(step / 4 * layout<D>::kv_slab + step % 4 * 32), step > 0);
}

/* O += P V: 8 steps of 16 keys. */
template <int D, class T>
HR_DEVICE void multiply_values(float (&o)[D / 2], const uint32_t (&p)[KEYS / 4], uint32_t v)
{
    struct wgmma_matrix v_matrix(v, layout<D>::kv_slab, 1024);
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
        wgmma_registers(T(), o, p + step * 4, v_matrix.at(step * 2048));
}

/* One consumer warpgroup. */
template <int D, class T> struct consumer {
    using l = layout<D>;
    static constexpr int EARLY = l::early;
    const struct hr_cu_attend &a;
    struct shared_words *w;
    uint32_t base;
    int group; /* warpgroup: 0, 1, ... */
    struct ring tiles, queries, keys, values;
    bool keys_there, values_there;
    float o[D / 2];
    struct row_state rows;

    __device__ __forceinline__ void release(uint64_t *barrier)
    {
        if (threadIdx.x % 32 == 0)
            barrier_arrive(shared_address(barrier));
    }

    __device__ __forceinline__ enum work await_tile(const struct ring &at) const
    {
        barrier_wait(shared_address(&w->tile_full[at.at]), at.phase);
        return w->work[at.at];
    }

    __device__ __forceinline__ void await_queries(const struct ring &at) const
    {
        barrier_wait(shared_address(&w->q_full[at.at]), at.phase);
    }

    /* The warpgroup's rows of Q. */
    __device__ __forceinline__ uint32_t my_queries(const struct ring &at) const
    {
        return base + l::q + at.at * l::slabs * l::q_slab + group * 64 * 128;
    }

    __device__ __forceinline__ void take_turn(void) { named_sync(TURN + group, 256); }

    __device__ __forceinline__ void pass_turn(void)
    {
        named_arrive(TURN + (group == l::warpgroups - 1 ? 0 : group + 1), 256);
    }

    /* ptxas would hoist the wait for O above the exponentials; it does not cross a branch that only
     * numbers above 2^60 would take. At D 64 O does not take long. */
    __device__ __forceinline__ void hold_back(void)
    {
        float x = fmaxf(rows.sum[0], rows.sum[1]);
        if (D == 64)
            return;
        if (__any_sync(0xffffffffu, x > 0x1p60f))
            *reinterpret_cast<volatile float *>(&w->unused) = x;
    }

    /* Looks whether the next K and V tiles are there, early, so that the look costs no time. */
    __device__ __forceinline__ void look(void)
    {
        keys_there = barrier_test(shared_address(&w->k_full[keys.at]), keys.phase);
        values_there = barrier_test(shared_address(&w->v_full[values.at]), values.phase);
    }

    __device__ __forceinline__ void await_keys(void)
    {
        if (!keys_there)
            barrier_wait(shared_address(&w->k_full[keys.at]), keys.phase);
    }

    __device__ __forceinline__ void await_values(void)
    {
        if (!values_there)
            barrier_wait(shared_address(&w->v_full[values.at]), values.phase);
    }

    /* Issues S = Q K^T of the K tile at hand. */
    __device__ __forceinline__ void start_scores(float (&s)[KEYS / 2], uint32_t q)
    {
        registers_fence(s);
        wgmma_fence();
        multiply_keys<D, T>(s, q, base + l::k + keys.at * l::kv_bytes);
        wgmma_commit();
    }

    __device__ __forceinline__ void scores_done(float (&s)[KEYS / 2])
    {
        registers_fence(s);
        release(&w->k_empty[keys.at]);
        keys.next(l::stages);
    }

    /* Issues O += P V of the V tile at hand. */
    __device__ __forceinline__ void start_output(const uint32_t (&p)[KEYS / 4])
    {
        wgmma_fence();
        multiply_values<D, T>(o, p, base + l::v + values.at * l::kv_bytes);
        wgmma_commit();
    }

    /* Both, in turn with the other warpgroups. */
    __device__ __forceinline__ void start_both(float (&s)[KEYS / 2], uint32_t q,
                                               const uint32_t (&p)[KEYS / 4])
    {
        take_turn();
        registers_fence(o);
        start_scores(s, q);
        start_output(p);
        pass_turn();
    }

    __device__ __forceinline__ void output_done(void)
    {
        wgmma_wait<0>();
        registers_fence(o);
        release(&w->v_empty[values.at]);
        values.next(l::stages);
    }

    __device__ __forceinline__ void begin_weights(const float (&s)[KEYS / 2],
                                                  float2 (&early)[EARLY])
    {
        rows.restart_sums();
#pragma unroll
        for (int i = 0; i < EARLY; i++)
            early[i] = rows.weigh(a, i, s);
    }

    /* The other weights, once p and O are no more in use. */
    __device__ __forceinline__ void end_weights(const float (&s)[KEYS / 2],
                                                const float2 (&early)[EARLY],
                                                uint32_t (&p)[KEYS / 4])
    {
        float alpha[2] = {1.0f, 1.0f};
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            float2 pair = i < EARLY ? early[i] : rows.weigh(a, i, s);
            p[i] = T::pack(pair.x, pair.y);
        }
        if (rows.must_raise())
            weigh_again<false>(s, alpha, p);
        rows.add_up(alpha);
    }

    template <bool fresh>
    __device__ __forceinline__ void weigh_again(const float (&s)[KEYS / 2], float (&alpha)[2],
                                                uint32_t (&p)[KEYS / 4])
    {
        rows.raise(a, s, alpha);
        rows.restart_sums();
        if (!fresh) {
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                o[i] = __fmul_rn(o[i], alpha[i / 2 % 2]);
        }
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            float2 pair = rows.weigh(a, i, s);
            p[i] = T::pack(pair.x, pair.y);
        }
    }

    __device__ __forceinline__ void weigh_first(uint32_t word, float (&s)[KEYS / 2],
                                                uint32_t (&p)[KEYS / 4])
    {
        if (word & PARTLY)
            rows.limit(a, w->tile[tiles.at], group, (int32_t)(word >> WORD_BITS), s);
        if (a.first) { /* no row has a reference, O is 0 */
            float alpha[2] = {1.0f, 1.0f};
            rows.restart_sums();
            weigh_again<true>(s, alpha, p);
            rows.add_up(alpha);
        } else {
            float2 early[EARLY];
            begin_weights(s, early);
            end_weights(s, early, p);
        }
    }

    /* The newest block of a tile that none runs into. Its weights go to p. Its word. */
    __device__ __forceinline__ uint32_t first_block(uint32_t (&p)[KEYS / 4])
    {
        float s[KEYS / 2];
        await_queries(queries);
        keys_there = false;
        await_keys();
        start_scores(s, my_queries(queries)); /* out of turn: no softmax is there to hide yet */
        uint32_t word = w->word[keys.at];
        wgmma_wait<0>();
        scores_done(s);
        look();
        weigh_first(word, s, p);
        return word;
    }

    /* Another block, while the weights in p of the one before it meet their V. Its word. */
    __device__ __forceinline__ uint32_t next_block(uint32_t (&p)[KEYS / 4])
    {
        float s[KEYS / 2];
        float2 early[EARLY];
        start_both(s, my_queries(queries), p);
        uint32_t word = w->word[keys.at];
        wgmma_wait<1>();
        scores_done(s);
        if (word & PARTLY)
            rows.limit(a, w->tile[tiles.at], group, (int32_t)(word >> WORD_BITS), s);
        begin_weights(s, early);
        hold_back();
        output_done();
        look();
        end_weights(s, early, p);
        return word;
    }

    /* The newest block of the next tile, while the last weights of this one meet their V. */
    __device__ __forceinline__ uint32_t next_tile(uint32_t (&p)[KEYS / 4])
    {
        float s[KEYS / 2];
        struct ring next = queries;
        next.next(QUERIES);
        await_queries(next);
        await_keys();
        await_values();
        start_both(s, my_queries(next), p);
        uint32_t word = w->word[keys.at];
        wgmma_wait<1>();
        scores_done(s);
        output_done();
        look();
        leave(true);
        load_carry();
        weigh_first(word, s, p);
        return word;
    }

    /* The tile at hand and those behind it, as long as they have blocks. */
    __device__ __forceinline__ void run_tiles(void)
    {
        uint32_t p[KEYS / 4];
        uint32_t word = first_block(p);
        for (;;) {
            while (!(word & LAST)) {
                await_keys();
                await_values();
                word = next_block(p);
            }
            struct ring next = tiles;
            next.next(TILES);
            if (await_tile(next) != BLOCKS)
                break;
            word = next_tile(p);
        }
        await_values();
        registers_fence(o);
        start_output(p);
        output_done();
        leave(true);
    }

    /* Ends a tile. Lines of output are put together where its Q was, if it had one. */
    __device__ __forceinline__ void leave(bool had_blocks)
    {
        const struct tile_view tile = w->tile[tiles.at];
        if (!a.last) {
            store_carry(tile);
        } else {
            close_rows<D>(a, tile, group, rows, o);
            if (had_blocks && rows_are_lines<T>(a))
                write_lines<D, T>(a, tile, group, o, my_queries(queries), l::q_slab);
            else
                write_elements<D>(a, tile, group, o);
        }
        __syncwarp();
        if (had_blocks) {
            release(&w->q_empty[queries.at]);
            queries.next(QUERIES);
        }
        release(&w->tile_empty[tiles.at]);
        tiles.next(TILES);
    }

    __device__ __forceinline__ int consumer_thread(void) const
    {
        return threadIdx.x - 128;
    }

    /* Of the tile at hand. */
    __device__ __forceinline__ void load_carry(void)
    {
        if (a.first) {
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                o[i] = 0.0f;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                rows.refer(a, i, -CUDART_INF_F);
                rows.l[i] = 0.0f;
            }
            return;
        }
        const float *from = a.state + w->tile[tiles.at].carry + consumer_thread();
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = from[(i + 4) * l::consumers];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            rows.refer(a, i, from[i * l::consumers]);
            rows.l[i] = from[(i + 2) * l::consumers];
        }
    }

    __device__ __forceinline__ void store_carry(const struct tile_view &tile) const
    {
        float *to = a.state + tile.carry + consumer_thread();
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            to[(i + 4) * l::consumers] = o[i];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to[i * l::consumers] = rows.m[i];
            to[(i + 2) * l::consumers] = rows.l[i];
        }
    }

    __device__ __forceinline__ void run(void)
    {
        for (enum work work; (work = await_tile(tiles)) != NO_MORE;) {
            load_carry();
            if (work == BLOCKS)
                run_tiles();
            else
                leave(false);
        }
    }
};

template <int D> HR_DEVICE void make_words(const struct hr_cu_attend &a, struct shared_words *w)
{
    const int warps = layout<D>::consumers / 32;
    for (int i = 0; i < QUERIES; i++) {
        barrier_init(shared_address(&w->q_full[i]), 1);
        barrier_init(shared_address(&w->q_empty[i]), warps);
    }
    barrier_init(shared_address(&w->tile_asked), 1);
    for (int i = 0; i < TILES; i++) {
        w->tile[i].inverse = (65535 + (uint32_t)a.group) / (uint32_t)a.group;
        barrier_init(shared_address(&w->tile_full[i]), 1);
        barrier_init(shared_address(&w->tile_empty[i]), warps + 2); /* and two that load */
    }
    for (int i = 0; i < layout<D>::stages; i++) {
        barrier_init(shared_address(&w->k_full[i]), 1);
        barrier_init(shared_address(&w->k_empty[i]), warps);
        barrier_init(shared_address(&w->v_full[i]), 1);
        barrier_init(shared_address(&w->v_empty[i]), warps);
    }
    barrier_init_fence();
}

template <int D, class T>
HR_DEVICE void prefill(const struct hr_cu_attend &a, const CUtensorMap *q_map,
                       const CUtensorMap *kv_map)
{
    using l = layout<D>;
    extern __shared__ __align__(1024) uint8_t memory[];
    uint32_t base = shared_address(memory);
    struct shared_words *w = reinterpret_cast<struct shared_words *>(memory + l::words);
    if (threadIdx.x == 0) {
        tensor_map_prefetch(q_map);
        tensor_map_prefetch(kv_map);
        make_words<D>(a, w);
    }
    __syncthreads();
    int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (group == 0) {
        registers_give<l::producer_registers>();
        if (threadIdx.x == 0)
            produce_keys<D>(a, q_map, kv_map, base, w);
        else if (threadIdx.x == 32)
            produce_values<D>(kv_map, base, w);
        else if (threadIdx.x == 64)
            plan_tiles(a, w);
    } else {
        registers_take<l::consumer_registers>();
        grid_wait();
        grid_launch_dependents();
        struct consumer<D, T> c = {
            a, w, base, group - 1
        };
        if (group == l::warpgroups)
            c.pass_turn(); /* the first warpgroup begins */
        c.run();
        if (group == 1)
            c.take_turn(); /* takes what the last pass_turn left */
    }
}

#define CHECK_prefill_90(D, thread_count, shared, tile_rows, carry)                                \
    static_assert(layout<D>::threads == thread_count && layout<D>::warpgroups * 64 == tile_rows && \
                      layout<D>::words + sizeof(struct shared_words) <= shared &&                  \
                      layout<D>::consumers * (D / 2 + 4) == carry,                                 \
                  "shapes.h");
#define CHECK_decode_90(...)
#define CHECK_prefill_80(...)
#define CHECK_decode_80(...)
HR_CU_SHAPES(HR_CU_CHECK)

#define PREFILL(name, dim, type)                                                                   \
    extern "C" __global__ void __launch_bounds__(layout<dim>::threads, 1)                          \
        name(const __grid_constant__ struct hr_cu_attend a, const __grid_constant__ CUtensorMap q, \
             const __grid_constant__ CUtensorMap kv)                                               \
    {                                                                                              \
        prefill<dim, type>(a, &q, &kv);                                                            \
    }

PREFILL(hr_prefill_sm90_d64_bf16, 64, bf16)
PREFILL(hr_prefill_sm90_d64_fp16, 64, fp16)
PREFILL(hr_prefill_sm90_d128_bf16, 128, bf16)
PREFILL(hr_prefill_sm90_d128_fp16, 128, fp16)

/* SPDX-License-Identifier: Apache-2.0 */
/* The tile path on Hopper: 128 rows (token, g) a tile, one persistent CTA per multiprocessor. Warp
 * 0 of the producer warpgroup loads Q and K, warp 1 V; two consumer warpgroups of 64 rows each
 * multiply and take turns on the tensor cores (ping-pong, FlashAttention-3), with the softmax of
 * one block between the products of its neighbours. Key blocks come newest first; every row keeps
 * its own maximum, rescaled without branches, so its bits do not depend on the rows beside it. */
#include "kernels/cuda/params.h"
#include "kernels/cuda/softmax.cuh"
#include "kernels/cuda/walk.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    ROWS = 128, /* of a tile */
    KEYS = HR_BLOCK_TOKENS,
    STAGES = 2,
    TILES = 2, /* in the ring of tile numbers */
    THREADS = 384,
    CONSUMERS = 256,
    CONSUMER_WARPS = 8,
    GROUPS = KEYS / 8, /* of columns */
    EARLY_GROUPS = 5,  /* weighed while O is still being multiplied */
    TURN = 1,          /* named barriers of the consumers' turns: TURN + warpgroup */
    PRODUCER_REGISTERS = 40,
    CONSUMER_REGISTERS = 232,
};

/* Shared memory; slabs are 64 columns wide: [row][128 bytes], swizzled. */
template <int D> struct layout {
    static constexpr int slabs = D / 64;
    static constexpr int slab_bytes = ROWS * 128;
    static constexpr int bytes = slabs * slab_bytes; /* of a tile of q, K or V */
    static constexpr int q = 0;
    static constexpr int k = q + bytes;
    static constexpr int v = k + STAGES * bytes;
    static constexpr int barriers = v + STAGES * bytes;
};

struct shared_words {
    uint64_t q_full, q_empty;
    uint64_t k_full[STAGES], k_empty[STAGES];
    uint64_t v_full[STAGES], v_empty[STAGES];
    uint64_t tile_full[TILES], tile_empty[TILES];
    int64_t block[STAGES]; /* of the K stage: block * 2 + (no other follows) */
    int32_t tile[TILES];   /* its number; n_tiles: no more */
    int32_t none[TILES];   /* the tile sees no block */
    float unused;
};
static_assert(sizeof(struct shared_words) <= 256, "a launch leaves 256 bytes behind the tiles");

/* Where a ring stands. */
struct ring {
    uint32_t at = 0, phase = 0;

    __device__ __forceinline__ void next(uint32_t size)
    {
        at++;
        if (at == size) {
            at = 0;
            phase ^= 1;
        }
    }
};

template <int D>
HR_DEVICE void load_queries(const struct hr_cu_attend &a, const CUtensorMap *map,
                            const struct hr_cu_tile &tile, uint32_t to, uint32_t barrier)
{
    int64_t row = a.seqs[tile.seq].q_row + tile.token;
    barrier_expect(barrier, (uint32_t)(a.tile_tokens * a.group * D * 2));
#pragma unroll
    for (int s = 0; s < layout<D>::slabs; s++)
        tensor_load5(to + s * layout<D>::slab_bytes, map, barrier, 0, 0, (int)row, s, tile.head);
}

/* Tile numbers, Q and K. */
template <int D>
HR_DEVICE void produce_keys(const struct hr_cu_attend &a, const CUtensorMap *q_map,
                            const CUtensorMap *kv_map, uint32_t base, struct shared_words *w)
{
    struct ring tiles, stages;
    uint32_t q_phase = 0;
    for (;;) {
        int32_t number = (int32_t)atomicAdd(a.next_tile, 1u);
        barrier_wait(shared_address(&w->tile_empty[tiles.at]), tiles.phase ^ 1);
        w->tile[tiles.at] = number < a.n_tiles ? number : a.n_tiles;
        if (number >= a.n_tiles) {
            barrier_arrive(shared_address(&w->tile_full[tiles.at]));
            return;
        }
        struct hr_cu_tile tile = a.tiles[number];
        struct walk walk;
        walk.begin(a, tile);
        int64_t block = walk.next();
        w->none[tiles.at] = block < 0;
        barrier_arrive(shared_address(&w->tile_full[tiles.at]));
        tiles.next(TILES);
        if (block < 0)
            continue;
        barrier_wait(shared_address(&w->q_empty), q_phase ^ 1);
        q_phase ^= 1;
        load_queries<D>(a, q_map, tile, base + layout<D>::q, shared_address(&w->q_full));
        while (block >= 0) {
            int64_t after = walk.next();
            uint32_t full = shared_address(&w->k_full[stages.at]);
            uint32_t page = walk.page(block);
            barrier_wait(shared_address(&w->k_empty[stages.at]), stages.phase ^ 1);
            w->block[stages.at] = block * 2 + (after < 0);
            barrier_expect(full, layout<D>::bytes);
            tensor_load5(base + layout<D>::k + stages.at * layout<D>::bytes, kv_map, full, 0, 0, 0,
                         0, (int)page);
            stages.next(STAGES);
            block = after;
        }
    }
}

template <int D>
HR_DEVICE void produce_values(const struct hr_cu_attend &a, const CUtensorMap *kv_map,
                              uint32_t base, struct shared_words *w)
{
    struct ring tiles, stages;
    for (;;) {
        barrier_wait(shared_address(&w->tile_full[tiles.at]), tiles.phase);
        int32_t number = w->tile[tiles.at];
        barrier_arrive(shared_address(&w->tile_empty[tiles.at]));
        tiles.next(TILES);
        if (number == a.n_tiles)
            return;
        struct walk walk;
        walk.begin(a, a.tiles[number]);
        for (int64_t block = walk.next(); block >= 0; block = walk.next()) {
            uint32_t full = shared_address(&w->v_full[stages.at]);
            uint32_t page = walk.page(block);
            barrier_wait(shared_address(&w->v_empty[stages.at]), stages.phase ^ 1);
            barrier_expect(full, layout<D>::bytes);
            tensor_load5(base + layout<D>::v + stages.at * layout<D>::bytes, kv_map, full, 0, 0, 0,
                         1, (int)page);
            stages.next(STAGES);
        }
    }
}

/* S = Q K^T of 64 rows: D / 16 steps. */
template <int D, class T> HR_DEVICE void multiply_keys(float (&s)[KEYS / 2], uint32_t q, uint32_t k)
{
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t at = step / 4 * layout<D>::slab_bytes + step % 4 * 32;
        wgmma_shared(T(), s, wgmma_descriptor(q + at, 0, 1024), wgmma_descriptor(k + at, 0, 1024),
                     step > 0);
    }
}

/* O += P V: 8 steps of 16 keys. */
template <int D, class T>
HR_DEVICE void multiply_values(float (&o)[D / 2], const uint32_t (&p)[KEYS / 4], uint32_t v)
{
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
        wgmma_registers(T(), o, p + step * 4,
                        wgmma_descriptor(v + step * 2048, layout<D>::slab_bytes, 1024));
}

template <class T> HR_DEVICE void pack_weights(uint32_t (&p)[KEYS / 4], const float (&s)[KEYS / 2])
{
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
        p[i] = T::pack(s[2 * i], s[2 * i + 1]);
}

/* One consumer warpgroup. */
template <int D, class T> struct consumer {
    const struct hr_cu_attend &a;
    struct shared_words *w;
    uint32_t base;
    int group; /* warpgroup: 0, 1 */
    struct ring tiles, keys, values;
    uint32_t q_phase = 0;
    float o[D / 2];
    struct row_state rows;

    __device__ __forceinline__ void release(uint64_t *barrier)
    {
        if (threadIdx.x % 32 == 0)
            barrier_arrive(shared_address(barrier));
    }

    __device__ __forceinline__ void take_turn(void) { named_sync(TURN + group, CONSUMERS); }

    __device__ __forceinline__ void pass_turn(void) { named_arrive(TURN + (group ^ 1), CONSUMERS); }

    __device__ __forceinline__ uint32_t key_tile(void) const
    {
        return base + layout<D>::k + keys.at * layout<D>::bytes;
    }

    __device__ __forceinline__ uint32_t value_tile(void) const
    {
        return base + layout<D>::v + values.at * layout<D>::bytes;
    }

    __device__ __forceinline__ void scale_output(const float (&alpha)[2])
    {
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = __fmul_rn(o[i], alpha[i / 2 % 2]);
    }

    /* ptxas would hoist the wait for O above the exponentials; it does not cross a branch that only
     * sums above 2^60 would take. */
    __device__ __forceinline__ void hold_back(float sum)
    {
        if (__any_sync(0xffffffffu, sum > 0x1p60f))
            *reinterpret_cast<volatile float *>(&w->unused) = sum;
    }

    /* Issues S = Q K^T of the K tile at hand. */
    __device__ __forceinline__ void start_scores(float (&s)[KEYS / 2], uint32_t q)
    {
        registers_fence(s);
        wgmma_fence();
        multiply_keys<D, T>(s, q, key_tile());
        wgmma_commit();
    }

    __device__ __forceinline__ void scores_done(float (&s)[KEYS / 2])
    {
        registers_fence(s);
        release(&w->k_empty[keys.at]);
        keys.next(STAGES);
    }

    /* Issues O += P V of the V tile at hand, once it is there. */
    __device__ __forceinline__ void start_output(const uint32_t (&p)[KEYS / 4])
    {
        wgmma_fence();
        multiply_values<D, T>(o, p, value_tile());
        wgmma_commit();
    }

    __device__ __forceinline__ void output_done(void)
    {
        wgmma_wait<0>();
        registers_fence(o);
        release(&w->v_empty[values.at]);
        values.next(STAGES);
    }

    /* The weights of a block are all there: O is ready for its V. */
    __device__ __forceinline__ void settle(const float (&s)[KEYS / 2], const float (&alpha)[2],
                                           uint32_t (&p)[KEYS / 4])
    {
        rows.add_up(alpha);
        scale_output(alpha);
        pack_weights<T>(p, s);
    }

    /* The blocks of one tile. */
    __device__ __forceinline__ void run_blocks(void)
    {
        uint32_t q = base + layout<D>::q + group * 64 * 128;
        float s[KEYS / 2], alpha[2];
        uint32_t p[KEYS / 4];
        barrier_wait(shared_address(&w->q_full), q_phase);
        q_phase ^= 1;
        barrier_wait(shared_address(&w->k_full[keys.at]), keys.phase);
        int64_t block = w->block[keys.at];
        take_turn();
        start_scores(s, q);
        pass_turn();
        wgmma_wait<0>();
        scores_done(s);
        rows.raise(a, block >> 1, s, alpha);
        rows.template weigh<0, GROUPS>(a, s);
        settle(s, alpha, p);
        while ((block & 1) == 0) {
            barrier_wait(shared_address(&w->k_full[keys.at]), keys.phase);
            block = w->block[keys.at];
            take_turn();
            registers_fence(o);
            start_scores(s, q);
            barrier_wait(shared_address(&w->v_full[values.at]), values.phase);
            start_output(p);
            pass_turn();
            wgmma_wait<1>();
            scores_done(s);
            rows.raise(a, block >> 1, s, alpha);
            rows.template weigh<0, EARLY_GROUPS>(a, s);
            hold_back(fmaxf(rows.sum[0], rows.sum[1]));
            output_done();
            rows.template weigh<EARLY_GROUPS, GROUPS>(a, s);
            settle(s, alpha, p);
        }
        release(&w->q_empty);
        barrier_wait(shared_address(&w->v_full[values.at]), values.phase);
        take_turn();
        registers_fence(o);
        start_output(p);
        pass_turn();
        output_done();
    }

    __device__ __forceinline__ void load_carry(const struct hr_cu_tile &tile)
    {
        const float *from = a.state + tile.carry + threadIdx.x - (THREADS - CONSUMERS);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = a.first ? 0.0f : from[(i + 4) * CONSUMERS];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            rows.m[i] = a.first ? -CUDART_INF_F : from[i * CONSUMERS];
            rows.l[i] = a.first ? 0.0f : from[(i + 2) * CONSUMERS];
        }
    }

    __device__ __forceinline__ void store_carry(const struct hr_cu_tile &tile) const
    {
        float *to = a.state + tile.carry + threadIdx.x - (THREADS - CONSUMERS);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            to[(i + 4) * CONSUMERS] = o[i];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to[i * CONSUMERS] = rows.m[i];
            to[(i + 2) * CONSUMERS] = rows.l[i];
        }
    }

    __device__ __forceinline__ void run(void)
    {
        for (;;) {
            barrier_wait(shared_address(&w->tile_full[tiles.at]), tiles.phase);
            int32_t number = w->tile[tiles.at], none = w->none[tiles.at];
            __syncwarp();
            release(&w->tile_empty[tiles.at]);
            tiles.next(TILES);
            if (number == a.n_tiles)
                return;
            struct hr_cu_tile tile = a.tiles[number];
            load_carry(tile);
            rows.begin(a, tile, group);
            if (!none)
                run_blocks();
            if (a.last)
                rows.template finish<D>(a, tile, group, o);
            else
                store_carry(tile);
        }
    }
};

template <int D, class T>
HR_DEVICE void prefill(const struct hr_cu_attend &a, const CUtensorMap *q_map,
                       const CUtensorMap *kv_map)
{
    extern __shared__ __align__(1024) uint8_t memory[];
    uint32_t base = shared_address(memory);
    struct shared_words *w = reinterpret_cast<struct shared_words *>(memory + layout<D>::barriers);
    if (threadIdx.x == 0) {
        tensor_map_prefetch(q_map);
        tensor_map_prefetch(kv_map);
        barrier_init(shared_address(&w->q_full), 1);
        barrier_init(shared_address(&w->q_empty), CONSUMER_WARPS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared_address(&w->k_full[i]), 1);
            barrier_init(shared_address(&w->k_empty[i]), CONSUMER_WARPS);
            barrier_init(shared_address(&w->v_full[i]), 1);
            barrier_init(shared_address(&w->v_empty[i]), CONSUMER_WARPS);
        }
        for (int i = 0; i < TILES; i++) {
            barrier_init(shared_address(&w->tile_full[i]), 1);
            barrier_init(shared_address(&w->tile_empty[i]), CONSUMER_WARPS + 1);
        }
        barrier_init_fence();
    }
    __syncthreads();
    int group = threadIdx.x / 128;
    if (group == 0) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0)
            produce_keys<D>(a, q_map, kv_map, base, w);
        else if (threadIdx.x == 32)
            produce_values<D>(a, kv_map, base, w);
    } else {
        registers_take<CONSUMER_REGISTERS>();
        struct consumer<D, T> c = {
            a, w, base, group - 1
        };
        if (group == 2)
            c.pass_turn(); /* the first warpgroup begins */
        c.run();
        if (group == 1)
            c.take_turn(); /* takes what the last pass_turn of the other left */
    }
}

#define PREFILL(name, dim, type)                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                       \
        name(const __grid_constant__ struct hr_cu_attend a, const __grid_constant__ CUtensorMap q, \
             const __grid_constant__ CUtensorMap kv)                                               \
    {                                                                                              \
        prefill<dim, type>(a, &q, &kv);                                                            \
    }

PREFILL(hr_prefill_sm90_d64_bf16, 64, bf16)
PREFILL(hr_prefill_sm90_d64_fp16, 64, fp16)
PREFILL(hr_prefill_sm90_d128_bf16, 128, bf16)
PREFILL(hr_prefill_sm90_d128_fp16, 128, fp16)

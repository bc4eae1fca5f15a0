/* SPDX-License-Identifier: Apache-2.0 */
/* The portable kernels, for any GPU of compute capability 8.0 or later: matrix products of one warp
 * (mma.sync) on tiles that cp.async brings into shared memory. First the tile path, in the manner
 * of FlashAttention-2: one CTA of four warps a tile, each warp with rows of its own; then the split
 * path, where the warps share the rows and split keys and columns among them. Key tiles come newest
 * first; every row keeps its own maximum, rescaled without branches, so its bits do not depend on
 * the rows beside it. */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/params.h"
#include "kernels/cuda/shapes.h"
#include "kernels/cuda/softmax_mma.cuh"
#include "kernels/cuda/walk.cuh"

enum {
    WARPS = 4,
    THREADS = WARPS * 32,
    SHARED_MAX = 99 * 1024, /* what a CTA may have on the GPUs with least */
};

/* Brings rows * row_bytes contiguous bytes into swizzled rows. */
template <int row_bytes, int rows> HR_DEVICE void load_rows(uint32_t to, const unsigned char *from)
{
    constexpr int pieces = row_bytes / 16;
    static_assert(rows * pieces % THREADS == 0, "");
#pragma unroll
    for (int i = 0; i < rows * pieces / THREADS; i++) {
        uint32_t piece = i * THREADS + threadIdx.x;
        copy_async(to + swizzle<row_bytes>::at(piece / pieces, piece % pieces), from + piece * 16);
    }
}

/* Brings the tile's rows of q; zeros past its end. */
template <int row_bytes, int rows>
HR_DEVICE void load_queries(const struct hr_cu_attend &a, int64_t first_row, int32_t head,
                            int32_t tokens, uint32_t to)
{
    constexpr int pieces = row_bytes / 16;
    const unsigned char *q = static_cast<const unsigned char *>(a.q);
#pragma unroll 2
    for (uint32_t at = threadIdx.x; at < rows * pieces; at += THREADS) {
        uint32_t row = at / pieces, piece = at % pieces;
        bool there = row < (uint32_t)(tokens * a.group);
        uint32_t token = there ? row / a.group : 0, g = there ? row - token * a.group : 0;
        int64_t from = (first_row + token) * a.q_stride_token +
                       ((int64_t)head * a.group + g) * a.q_stride_head;
        copy_async_or_zero(to + swizzle<row_bytes>::at(row, piece), q + from * 2 + piece * 16,
                           there);
    }
}

template <int row_tiles, int groups> HR_DEVICE void clear(float (&x)[row_tiles][groups][4])
{
#pragma unroll
    for (int i = 0; i < row_tiles * groups * 4; i++)
        x[i / 4 / groups][i / 4 % groups][i % 4] = 0.0f;
}

/* ---- The tile path ---- */

template <int D> struct tile_shape {
    static constexpr int row_tiles = D == 256 ? 1 : 2; /* of 16 rows, a warp's */
    static constexpr int warp_rows = 16 * row_tiles, rows = WARPS * warp_rows;
    static constexpr int keys = D == 64 ? 128 : 64; /* of a key tile */
    static constexpr int k_stages = D == 96 || D == 128 ? 2 : 1;
    static constexpr int row_bytes = 2 * D;
    static constexpr int key_bytes = keys * row_bytes;
    /* Shared memory */
    static constexpr int q = 0, k = rows * row_bytes, v = k + k_stages * key_bytes;
    static constexpr int words = v + key_bytes;
};

/* A key tile that some row sees. */
struct key_tile {
    int64_t from;   /* its K, in bytes from the arena's start */
    int32_t number; /* its first key, in key tiles; < 0: no tile */
    int32_t partly; /* not every row sees all its keys */
};

/* In bytes from the arena's start. */
template <int D> HR_DEVICE int64_t page_place(const struct walk &walk, int32_t block)
{
    const int64_t page_bytes = 2 * HR_BLOCK_TOKENS * 2 * D;
    return walk.pages[block] * hr_unit_bytes(D, 2) + walk.head * page_bytes;
}

/* The key tiles of a tile's blocks, newest first. */
template <int D> struct key_walk {
    static constexpr int keys = tile_shape<D>::keys;
    struct walk blocks;
    int64_t first_lo, first_hi, last_lo, last_hi; /* what the first and last token see */
    int64_t sinks;
    int64_t page;        /* in bytes */
    int32_t block, left; /* key tiles of the block */

    __device__ __forceinline__ void begin(const struct hr_cu_attend &a,
                                          const struct hr_cu_tile &tile,
                                          const struct tile_view &view)
    {
        struct hr_visible first = visible_keys(a, view.n_kv, view.position);
        struct hr_visible last = visible_keys(a, view.n_kv, view.position + tile.tokens - 1);
        blocks.begin(a, tile);
        first_lo = first.lo;
        first_hi = first.hi;
        last_lo = last.lo;
        last_hi = last.hi;
        sinks = last.lo > 0 ? min(a.sinks, last.hi) : 0;
        left = 0;
    }

    __device__ __forceinline__ struct key_tile next(bool softcap)
    {
        for (;;) {
            if (left == 0) {
                block = blocks.next();
                if (block < 0)
                    return {0, -1, 0};
                page = page_place<D>(blocks, block);
                left = HR_BLOCK_TOKENS / keys;
            }
            left--;
            int64_t key = (int64_t)block * HR_BLOCK_TOKENS + left * keys;
            if (key >= last_hi || (key + keys <= first_lo && key >= sinks))
                continue;
            return {page + left * tile_shape<D>::key_bytes, (int32_t)(key / keys),
                    softcap || key < last_lo || key + keys > first_hi};
        }
    }
};

template <int D> struct tile_words {
    struct tile_view view;
    struct key_walk<D> walk;
    struct key_tile ring[4]; /* the one at hand, the next two */
};

/* S = Q K^T of a warp's rows. q and k: the lane's addresses. */
template <int D, class T, int row_tiles, int groups>
HR_DEVICE void multiply_keys(float (&s)[row_tiles][groups][4], uint32_t q, uint32_t k)
{
    using rows = swizzle<2 * D>;
    clear(s);
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t x[row_tiles][4];
#pragma unroll
        for (int i = 0; i < row_tiles; i++)
            load_matrices(x[i], rows::on(q, 2 * step) + i * 16 * 2 * D);
#pragma unroll
        for (int j = 0; j < groups / 2; j++) {
            uint32_t y[4];
            load_matrices(y, rows::on(k, 2 * step) + j * 16 * 2 * D);
#pragma unroll
            for (int i = 0; i < row_tiles; i++) {
                mma(T(), s[i][2 * j], x[i], y[0], y[1]);
                mma(T(), s[i][2 * j + 1], x[i], y[2], y[3]);
            }
        }
    }
}

/* O += P V of a warp's rows; the accumulators of S are laid out as a left operand wants it. */
template <int D, class T, int row_tiles, int groups>
HR_DEVICE void multiply_values(float (&o)[row_tiles][D / 8][4],
                               const float (&p)[row_tiles][groups][4], uint32_t v)
{
    using rows = swizzle<2 * D>;
#pragma unroll
    for (int step = 0; step < groups / 2; step++) {
        uint32_t x[row_tiles][4];
#pragma unroll
        for (int i = 0; i < row_tiles * 4; i++) {
            const float *pair = &p[i / 4][2 * step + i % 4 / 2][i % 2 * 2];
            x[i / 4][i % 4] = T::pack(pair[0], pair[1]);
        }
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            uint32_t y[4];
            load_matrices_transposed(y, rows::on(v, 2 * j) + step * 16 * 2 * D);
#pragma unroll
            for (int i = 0; i < row_tiles; i++) {
                mma(T(), o[i][2 * j], x[i], y[0], y[1]);
                mma(T(), o[i][2 * j + 1], x[i], y[2], y[3]);
            }
        }
    }
}

/* One tile, seen from one thread. */
template <int D, class T> struct tile_run {
    using shape = tile_shape<D>;
    static constexpr int row_tiles = shape::row_tiles, groups = shape::keys / 8;
    const struct hr_cu_attend &a;
    const unsigned char *arena;
    struct tile_words<D> *w;
    uint32_t base;
    float o[row_tiles][D / 8][4];
    struct row_state<row_tiles> rows;

    /* The thread's first row. */
    static __device__ __forceinline__ uint32_t row(void)
    {
        return threadIdx.x / 32 * shape::warp_rows + threadIdx.x % 32 / 4;
    }

    __device__ __forceinline__ void load_keys(const struct key_tile &tile, int stage)
    {
        if (tile.number >= 0)
            load_rows<shape::row_bytes, shape::keys>(base + shape::k + stage * shape::key_bytes,
                                                     arena + tile.from);
        copy_commit();
    }

    __device__ __forceinline__ void load_values(const struct key_tile &tile)
    {
        load_rows<shape::row_bytes, shape::keys>(
            base + shape::v, arena + tile.from + HR_BLOCK_TOKENS * shape::row_bytes);
        copy_commit();
    }

    /* D 256 leaves no registers for lanes' addresses. */
    static __device__ __forceinline__ uint32_t thread_of(void)
    {
        return D == 256 ? recomputed(threadIdx.x) : threadIdx.x;
    }

    /* Lanes' addresses of the first operands. */
    __device__ __forceinline__ uint32_t lane_q(void) const
    {
        uint32_t thread = thread_of(), lane = thread % 32;
        uint32_t row = thread / 32 * shape::warp_rows + lane % 16;
        return base + shape::q + swizzle<shape::row_bytes>::at(row, lane / 16);
    }

    __device__ __forceinline__ uint32_t lane_k(int stage) const
    {
        uint32_t lane = thread_of() % 32;
        return base + shape::k + stage * shape::key_bytes +
               swizzle<shape::row_bytes>::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    }

    __device__ __forceinline__ uint32_t lane_v(void) const
    {
        uint32_t lane = thread_of() % 32;
        return base + shape::v + swizzle<shape::row_bytes>::at(lane % 16, lane / 16);
    }

    /* S to P (rounded where it meets V, which hides that), and all else that O needs before. */
    __device__ __forceinline__ void weigh(float (&s)[row_tiles][groups][4])
    {
        rows.refer(s, a.factor, o);
        rows.weigh(s, a.factor);
#pragma unroll
        for (int r = 0; r < rows.rows; r++)
            rows.l[r] = __fadd_rn(rows.l[r], rows.sum[r]);
    }

    __device__ __forceinline__ void limit(const struct key_tile &tile,
                                          float (&s)[row_tiles][groups][4])
    {
        int64_t key = (int64_t)tile.number * shape::keys + threadIdx.x % 4 * 2;
        limit_scores(a, w->view, recomputed(row()), key, s);
    }

    /* Loads of a later tile go into a buffer as soon as no warp reads it any more: the values' when
     * a round begins, the keys' one round ahead or, with one stage only, under the softmax. */
    __device__ __forceinline__ void run_keys(void)
    {
        for (uint32_t at = 0;; at++) {
            float s[row_tiles][groups][4];
            const struct key_tile &tile = w->ring[at % 4], &next = w->ring[(at + 1) % 4];
            int stage = at % shape::k_stages;
            copy_wait<0>();
            __syncthreads();
            load_values(tile);
            if (shape::k_stages == 2)
                load_keys(next, 1 - stage);
            multiply_keys<D, T>(s, lane_q(), lane_k(stage));
            if (shape::k_stages == 1) {
                copy_wait<0>();
                __syncthreads();
                load_keys(next, 0);
            }
            if (tile.partly)
                limit(tile, s);
            weigh(s);
            if (shape::k_stages == 2) {
                copy_wait<1>();
                __syncthreads();
            }
            if (threadIdx.x == 0 && next.number >= 0)
                w->ring[(at + 2) % 4] = w->walk.next(a.softcap > 0);
            multiply_values<D, T>(o, s, lane_v());
            if (next.number < 0)
                return;
        }
    }

    __device__ __forceinline__ void load_carry(void)
    {
        const float *from = a.state + w->view.carry + threadIdx.x;
#pragma unroll
        for (int r = 0; r < rows.rows; r++) {
            rows.refer_to(r, from[r * THREADS]);
            rows.l[r] = from[(rows.rows + r) * THREADS];
        }
#pragma unroll
        for (int i = 0; i < row_tiles * D / 2; i++)
            o[i / (D / 2)][i / 4 % (D / 8)][i % 4] = from[(2 * rows.rows + i) * THREADS];
    }

    __device__ __forceinline__ void store_carry(void) const
    {
        float *to = a.state + w->view.carry + threadIdx.x;
#pragma unroll
        for (int r = 0; r < rows.rows; r++) {
            to[r * THREADS] = rows.m[r];
            to[(rows.rows + r) * THREADS] = rows.l[r];
        }
#pragma unroll
        for (int i = 0; i < row_tiles * D / 2; i++)
            to[(2 * rows.rows + i) * THREADS] = o[i / (D / 2)][i / 4 % (D / 8)][i % 4];
    }

    __device__ __forceinline__ void store_row(int r) const
    {
        const struct tile_view &view = w->view;
        uint32_t at = row() + 8 * r, token = at / a.group;
        float l = quad_sum(rows.l[r]);
        if (token >= (uint32_t)view.tokens)
            return;
        int64_t head = (int64_t)view.head * a.group + (at - token * a.group);
        struct row_end end(a, rows.m[r], l, head);
        int64_t out = (view.row + token) * a.out_stride_token + head * a.out_stride_head +
                      threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            store_pair(a, out + 8 * j, __fmaf_rn(o[r / 2][j][r % 2 * 2], end.scale, 0.0f),
                       __fmaf_rn(o[r / 2][j][r % 2 * 2 + 1], end.scale, 0.0f));
        if (a.lse && threadIdx.x % 4 == 0)
            a.lse[(view.row + token) * a.lse_stride_token + head * a.lse_stride_head] = end.lse;
    }

    __device__ __forceinline__ void run(const struct hr_cu_tile &tile)
    {
        if (threadIdx.x == 0) {
            w->view.begin(a, tile);
            w->walk.begin(a, tile, w->view);
            w->ring[0] = w->walk.next(a.softcap > 0);
            w->ring[1] = w->walk.next(a.softcap > 0);
        }
        __syncthreads();
        bool none = w->ring[0].number < 0;
        if (!none) {
            load_queries<shape::row_bytes, shape::rows>(a, w->view.row, tile.head, tile.tokens,
                                                        base + shape::q);
            load_keys(w->ring[0], 0);
        }
        if (a.first) {
            rows.begin();
            clear(o);
        } else {
            load_carry();
        }
        if (!none)
            run_keys();
        if (!a.last) {
            store_carry();
            return;
        }
#pragma unroll
        for (int r = 0; r < rows.rows; r++)
            store_row(r);
    }
};

template <int D, class T>
HR_DEVICE void prefill(const struct hr_cu_attend &a, const unsigned char *arena)
{
    extern __shared__ __align__(128) uint8_t memory[];
    using shape = tile_shape<D>;
    using words = struct tile_words<D>;
    static_assert(shape::words + sizeof(words) <= SHARED_MAX, "");
    words *w = reinterpret_cast<words *>(memory + shape::words);
    struct tile_run<D, T> run = {
        a, arena, w, shared_address(memory)
    };
    run.run(a.tiles[blockIdx.x]);
}

/* ---- The split path ---- */

template <int D> struct split_shape {
    static constexpr int keys = D == 256 ? 32 : 64; /* of a key tile */
    static constexpr int groups = keys / 32;        /* of 8 keys, a warp's in a key tile */
    static constexpr int columns = D / 32;          /* groups of 8 columns of O, a warp's */
    static constexpr int parts = HR_BLOCK_TOKENS / keys;
    static constexpr int row_bytes = 2 * D, weight_bytes = 2 * keys; /* of a row */
    static constexpr int piece_bytes = keys * row_bytes;             /* K or V of a key tile */
    static constexpr int64_t page_bytes = (int64_t)2 * HR_BLOCK_TOKENS * row_bytes;
};

enum {
    SPLIT_ROWS_MAX = 64,
    PIECES_MAX = 8, /* at once in shared memory */
};

struct split_words {
    struct tile_view view;
    int64_t page[HR_CU_CHUNK_BLOCKS_MAX]; /* of the visited blocks, newest first, in bytes */
    int32_t block[HR_CU_CHUNK_BLOCKS_MAX];
    int32_t partly[HR_CU_CHUNK_BLOCKS_MAX]; /* not every row sees all its keys */
    int32_t blocks;
    float top[WARPS][SPLIT_ROWS_MAX], sum[WARPS][SPLIT_ROWS_MAX];
};

/* All rows of one KV head over one chunk. Of a key tile each warp takes a quarter of the keys for
 * S = Q K^T and a quarter of the columns for O += P V; maxima, weights and sums meet in shared
 * memory, so that m and l are complete after every key tile and a chunk may be cut between any two
 * blocks. Pieces, K and V of a key tile in turns, pass through a ring. */
template <int D, class T, int row_tiles> struct split_run {
    using shape = split_shape<D>;
    static constexpr int q_bytes = row_tiles * 16 * shape::row_bytes;
    static constexpr int p_bytes = row_tiles * 16 * shape::weight_bytes;
    static constexpr int room = SHARED_MAX - (int)sizeof(struct split_words) - q_bytes - p_bytes;
    static constexpr int stages =
        room / shape::piece_bytes < PIECES_MAX ? room / shape::piece_bytes : PIECES_MAX;
    static_assert(stages >= 3, "");
    static constexpr int p = q_bytes, ring = p + p_bytes;
    static constexpr int words = ring + stages * shape::piece_bytes;

    const struct hr_cu_attend &a;
    const unsigned char *arena;
    struct split_words *w;
    uint32_t base;
    uint32_t lane, warp;
    float o[row_tiles][shape::columns][4];
    struct row_state<row_tiles> rows;

    __device__ __forceinline__ int tiles(void) const { return w->blocks * shape::parts; }

    /* Key tile `at` is the (parts - 1 - at % parts)th of its block: newest first. */
    static __device__ __forceinline__ int part(int at)
    {
        return shape::parts - 1 - at % shape::parts;
    }

    __device__ __forceinline__ void load_piece(int piece)
    {
        int at = piece / 2;
        if (at < tiles())
            load_rows<shape::row_bytes, shape::keys>(
                base + ring + piece % stages * shape::piece_bytes,
                arena + w->page[at / shape::parts] + part(at) * shape::piece_bytes +
                    piece % 2 * (shape::page_bytes / 2));
        copy_commit();
    }

    /* Four matrices side by side: 8 rows by 32 columns of K. */
    __device__ __forceinline__ void multiply_keys(float (&s)[row_tiles][shape::groups][4],
                                                  uint32_t k)
    {
        using rows = swizzle<shape::row_bytes>;
        uint32_t q_lane = base + rows::at(lane % 16, lane / 16);
        uint32_t k_lane = k + rows::at(warp * shape::groups * 8 + lane % 8, lane / 8);
        clear(s);
#pragma unroll
        for (int step = 0; step < D / 32; step++) {
            uint32_t y[shape::groups][4];
#pragma unroll
            for (int j = 0; j < shape::groups; j++)
                load_matrices(y[j], rows::on(k_lane, 4 * step) + j * 8 * shape::row_bytes);
#pragma unroll
            for (int i = 0; i < row_tiles * 2; i++) {
                uint32_t x[4];
                load_matrices(x, rows::on(q_lane, 4 * step + i % 2 * 2) +
                                     i / 2 * 16 * shape::row_bytes);
#pragma unroll
                for (int j = 0; j < shape::groups; j++)
                    mma(T(), s[i / 2][j], x, y[j][i % 2 * 2], y[j][i % 2 * 2 + 1]);
            }
        }
    }

    /* Four matrices one below the other: 32 rows by 8 columns of V. */
    __device__ __forceinline__ void multiply_values(uint32_t v)
    {
        using weights = swizzle<shape::weight_bytes>;
        using rows = swizzle<shape::row_bytes>;
        uint32_t p_lane = base + p + weights::at(lane % 16, lane / 16);
#pragma unroll
        for (int step = 0; step < shape::keys / 32; step++) {
            uint32_t x[row_tiles][2][4];
#pragma unroll
            for (int i = 0; i < row_tiles * 2; i++)
                load_matrices(x[i / 2][i % 2], weights::on(p_lane, 4 * step + i % 2 * 2) +
                                                   i / 2 * 16 * shape::weight_bytes);
#pragma unroll
            for (int j = 0; j < shape::columns; j++) {
                uint32_t y[4];
                load_matrices_transposed(y,
                                         v + rows::at(step * 32 + lane, warp * shape::columns + j));
#pragma unroll
                for (int i = 0; i < row_tiles * 2; i++)
                    mma(T(), o[i / 2][j], x[i / 2][i % 2], y[i % 2 * 2], y[i % 2 * 2 + 1]);
            }
        }
    }

    __device__ __forceinline__ void share_tops(const float (&s)[row_tiles][shape::groups][4])
    {
#pragma unroll
        for (int r = 0; r < rows.rows; r++) {
            float top = quad_max(rows.top(s, r));
            if (lane % 4 == 0)
                w->top[warp][8 * r + lane / 4] = top;
        }
    }

    /* Scores to weights, for all warps to read, and their sums. */
    __device__ __forceinline__ void weigh(float (&s)[row_tiles][shape::groups][4])
    {
#pragma unroll
        for (int r = 0; r < rows.rows; r++) {
            int at = 8 * r + lane / 4;
            float top =
                fmaxf(fmaxf(w->top[0][at], w->top[1][at]), fmaxf(w->top[2][at], w->top[3][at]));
            rows.move(r, fmaxf(rows.m[r], __fmul_rn(top, a.factor)));
        }
        rows.weigh(s, a.factor);
#pragma unroll
        for (int r = 0; r < rows.rows; r++) {
            int at = 8 * r + lane / 4;
            float sum = quad_sum(rows.sum[r]);
            if (lane % 4 == 0)
                w->sum[warp][at] = sum;
#pragma unroll
            for (int j = 0; j < shape::groups; j++)
                store_shared(base + p + lane % 4 * 4 +
                                 swizzle<shape::weight_bytes>::at(at, warp * shape::groups + j),
                             T::pack(s[r / 2][j][r % 2 * 2], s[r / 2][j][r % 2 * 2 + 1]));
        }
    }

    __device__ __forceinline__ void add_up(void)
    {
#pragma unroll
        for (int r = 0; r < rows.rows; r++) {
            int at = 8 * r + lane / 4;
            float sum = __fadd_rn(__fadd_rn(w->sum[0][at], w->sum[1][at]),
                                  __fadd_rn(w->sum[2][at], w->sum[3][at]));
            rows.l[r] = __fmaf_rn(rows.l[r], rows.alpha[r], sum);
        }
        rows.scale_output(o);
    }

    __device__ __forceinline__ void limit(int at, float (&s)[row_tiles][shape::groups][4])
    {
        int64_t key = (int64_t)w->block[at / shape::parts] * HR_BLOCK_TOKENS +
                      part(at) * shape::keys + warp * shape::groups * 8 + lane % 4 * 2;
        limit_scores(a, w->view, recomputed(lane / 4), key, s);
    }

    /* Piece 2 at is K, piece 2 at + 1 V of key tile `at`; a piece is loaded into the room of the
     * one so many `stages` before it once all warps are done with that. */
    __device__ __forceinline__ void run_keys(void)
    {
        for (int at = 0; at < tiles(); at++) {
            float s[row_tiles][shape::groups][4];
            copy_wait<stages - 2>();
            __syncthreads();
            load_piece(2 * at - 1 + stages);
            multiply_keys(s, base + ring + 2 * at % stages * shape::piece_bytes);
            if (w->partly[at / shape::parts])
                limit(at, s);
            share_tops(s);
            __syncthreads();
            load_piece(2 * at + stages);
            weigh(s);
            copy_wait<stages - 1>();
            __syncthreads();
            add_up();
            multiply_values(base + ring + (2 * at + 1) % stages * shape::piece_bytes);
        }
    }

    /* Reads or writes the partial: o[rows][D], m[rows], l[rows]. */
    template <bool load> __device__ __forceinline__ void partial(float *state, uint32_t count)
    {
#pragma unroll
        for (int r = 0; r < rows.rows; r++) {
            uint32_t at = 8 * r + lane / 4;
            if (at >= count)
                continue;
            float *to = state + (int64_t)at * D + warp * (D / 4) + lane % 4 * 2;
            float *m = state + (int64_t)count * D + at, *l = m + count;
#pragma unroll
            for (int j = 0; j < shape::columns; j++) {
                float2 *pair = reinterpret_cast<float2 *>(to + 8 * j);
                float *x = &o[r / 2][j][r % 2 * 2];
                if (load) {
                    x[0] = pair->x;
                    x[1] = pair->y;
                } else {
                    *pair = {x[0], x[1]};
                }
            }
            if (load) {
                rows.m[r] = *m;
                rows.l[r] = *l;
            } else if (warp == 0 && lane % 4 == 0) {
                *m = rows.m[r];
                *l = rows.l[r];
            }
        }
    }

    __device__ __forceinline__ void run(const struct hr_chunk &chunk, bool begun)
    {
        const struct tile_view &view = w->view;
        load_queries<shape::row_bytes, row_tiles * 16>(a, view.row, view.head, view.tokens, base);
        for (int piece = 0; piece < stages - 1; piece++)
            load_piece(piece);
        rows.begin();
        clear(o);
        if (begun)
            partial<true>(a.state + chunk.partial, view.tokens * a.group);
        run_keys();
        partial<false>(a.state + chunk.partial, view.tokens * a.group);
    }
};

/* Lists the chunk's blocks that lie in the wave and that some row sees: one warp. */
template <int D>
HR_DEVICE void list_blocks(const struct hr_cu_attend &a, const struct hr_cu_tile &tile,
                           const struct hr_chunk &chunk, struct split_words *w)
{
    struct walk walk;
    walk.begin(a, tile);
    int32_t lane = threadIdx.x;
    int32_t block = (int32_t)chunk.block + chunk.blocks - 1 - lane;
    bool seen = lane < chunk.blocks && block >= walk.bottom && block < walk.top &&
                (block >= walk.low || block < walk.sinks);
    uint32_t every = __ballot_sync(0xffffffffu, seen);
    if (seen) {
        int at = __popc(every & ((1u << lane) - 1));
        w->page[at] = page_place<D>(walk, block);
        w->block[at] = block;
        w->partly[at] = a.softcap > 0 || !walk.whole(block);
    }
    if (lane == 0) {
        w->view.begin(a, tile);
        w->blocks = __popc(every);
    }
}

template <int D, class T, int row_tiles>
HR_DEVICE void decode_rows(const struct hr_cu_attend &a, const unsigned char *arena,
                           const struct hr_cu_tile &tile, const struct hr_chunk &chunk, bool begun)
{
    extern __shared__ __align__(128) uint8_t memory[];
    using split = struct split_run<D, T, row_tiles>;
    static_assert(split::words + sizeof(struct split_words) <= SHARED_MAX, "");
    struct split_words *w = reinterpret_cast<struct split_words *>(memory + split::words);
    if (threadIdx.x < 32)
        list_blocks<D>(a, tile, chunk, w);
    __syncthreads();
    split run = {a, arena, w, shared_address(memory), threadIdx.x % 32, threadIdx.x / 32};
    run.run(chunk, begun);
}

/* A launch whose wave holds none of the chunk's blocks leaves its partial alone. */
template <int D, class T>
HR_DEVICE void decode(const struct hr_cu_attend &a, const unsigned char *arena)
{
    struct hr_chunk chunk = a.chunks[blockIdx.x];
    const struct hr_cu_seq &seq = a.seqs[chunk.seq];
    int64_t n = hr_blocks_of(seq.n_kv), end = chunk.block + chunk.blocks;
    if (end <= n - a.wave_end || chunk.block >= n - a.wave_begin)
        return;
    bool begun = end > n - a.wave_begin;
    struct hr_cu_tile tile = {chunk.seq, chunk.head, 0, 0, (int32_t)seq.n_q, -1, 0};
    int32_t rows = (int32_t)seq.n_q * a.group;
    if (rows <= 16)
        decode_rows<D, T, 1>(a, arena, tile, chunk, begun);
    else if (rows <= 32)
        decode_rows<D, T, 2>(a, arena, tile, chunk, begun);
    else
        decode_rows<D, T, 4>(a, arena, tile, chunk, begun);
}

#define CHECK_prefill_80(D, thread_count, shared, tile_rows, carry)                                \
    static_assert(THREADS == thread_count && tile_shape<D>::rows == tile_rows &&                   \
                      tile_shape<D>::words + sizeof(struct tile_words<D>) <= shared &&             \
                      THREADS * tile_shape<D>::row_tiles * (D / 2 + 4) == carry,                   \
                  "shapes.h");
#define CHECK_decode_80(D, thread_count, shared, row_count, carry)                                 \
    static_assert(THREADS == thread_count && SPLIT_ROWS_MAX == row_count && SHARED_MAX == shared,  \
                  "shapes.h");
#define CHECK_prefill_90(...)
#define CHECK_decode_90(...)
HR_CU_SHAPES(HR_CU_CHECK)

#define ATTEND(dim, type)                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) hr_prefill_sm80_d##dim##_##type(      \
        const __grid_constant__ struct hr_cu_attend a, const unsigned char *arena)                 \
    {                                                                                              \
        prefill<dim, type>(a, arena);                                                              \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) hr_decode_sm80_d##dim##_##type(       \
        const __grid_constant__ struct hr_cu_attend a, const unsigned char *arena)                 \
    {                                                                                              \
        decode<dim, type>(a, arena);                                                               \
    }

ATTEND(64, bf16)
ATTEND(64, fp16)
ATTEND(96, bf16)
ATTEND(96, fp16)
ATTEND(128, bf16)
ATTEND(128, fp16)
ATTEND(256, bf16)
ATTEND(256, fp16)

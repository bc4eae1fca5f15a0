/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device and the launchers on a GPU: memory, copies, streams, events, attention against
 * float64, and what is left of a device after an error (in a process of its own). Exit status 77:
 * there is no GPU here.
 *
 * usage: test-cuda-gpu [--alive [sm80]]   without errors on purpose and times; without Hopper's
 *                                         kernels: for compute-sanitizer
 *        test-cuda-gpu --bench            gather beside the copy engine: a JSON object a line */
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/launch.h"
#include "src/base/clock.h"
#include "src/dev/driver.h"

#define CHECK(x)                                                                                   \
    ((x) ? (void)0 : (printf("%s:%d: %s\n", __FILE__, __LINE__, #x), fflush(stdout), exit(1)))

enum { EXTENT = 2 << 20, ARENA = 64 << 20, MIB = 1 << 20 };

extern char **environ;
static char why[HR_DEV_TEXT_BYTES];
static struct hr_alloc alloc;
static bool alive; /* nothing that fails on purpose, and nothing that is timed */

static struct hr_dev *open_device(void)
{
    struct hr_dev_cuda_options o = {
        .alloc = &alloc, .arena_bytes = ARENA, .arena_unit = EXTENT, .why = why};
    struct hr_dev *dev;
    enum hr_dev_cuda_fault fault = hr_dev_cuda_open(&o, &dev);
    if (fault == HR_DEV_CUDA_ABSENT) {
        printf("skipped: %s\n", why);
        exit(77);
    }
    if (fault != HR_DEV_CUDA_OK)
        printf("%s\n", why);
    CHECK(fault == HR_DEV_CUDA_OK);
    return dev;
}

static void finish(struct hr_dev *dev)
{
    struct hr_dev_event *event = dev->ops->event_make(dev);
    dev->ops->event_record(dev, event, HR_DEV_WORK);
    if (dev->ops->event_wait(dev, event, hr_clock_ns() + 20000000000) != HR_DEV_DONE)
        printf("%s\n", dev->ops->error(dev) ? dev->ops->error(dev) : "20 seconds have passed");
    CHECK(!dev->ops->error(dev));
    dev->ops->event_free(dev, event);
}

/* ---- Memory, copies, streams ---- */

static void test_copies(struct hr_dev *dev)
{
    enum { PIECES = 700, BYTES = 4096 };
    static struct hr_dev_copy copies[PIECES];
    unsigned char *pinned = dev->ops->pinned_get(dev, 2 * PIECES * BYTES);
    unsigned char *memory = dev->ops->memory_get(dev, PIECES * BYTES), *back;
    const struct hr_cu_driver *cu = hr_dev_cuda_driver(dev);
    struct hr_dev_event *event = dev->ops->event_make(dev);
    CUstream theirs;
    CUcontext none;
    CHECK(pinned && memory && event);
    back = pinned + PIECES * BYTES;
    for (int i = 0; i < PIECES * BYTES; i++)
        pinned[i] = (unsigned char)(i * 2654435761u >> 13);
    CHECK(hr_dev_cuda_enter(dev));
    CHECK(cu->cuStreamCreate(&theirs, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    hr_dev_cuda_leave(dev);
    if (!alive) /* it fails: the caller had none, and has none */
        CHECK(cu->cuCtxPopCurrent(&none) != CUDA_SUCCESS);
    for (int turn = 0; turn < 3; turn++) {
        dev->ops->set_stream(dev, turn == 0 ? NULL : turn == 1 ? theirs : CU_STREAM_LEGACY);
        memset(back, 0, PIECES * BYTES);
        dev->ops->zero(dev, memory, PIECES * BYTES);
        dev->ops->event_record(dev, event, HR_DEV_WORK);
        dev->ops->event_await(dev, event, HR_DEV_COPY_IN);
        for (int i = 0; i < PIECES; i++)
            copies[i] = (struct hr_dev_copy){memory + (PIECES - 1 - i) * BYTES, pinned + i * BYTES,
                                             i == 5 ? 0 : BYTES};
        dev->ops->copy_batch(dev, turn == 2 ? HR_DEV_WORK : HR_DEV_COPY_IN, copies, PIECES);
        dev->ops->event_record(dev, event, turn == 2 ? HR_DEV_WORK : HR_DEV_COPY_IN);
        dev->ops->event_await(dev, event, HR_DEV_WORK);
        dev->ops->download(dev, HR_DEV_WORK, back, memory, PIECES * BYTES);
        finish(dev);
        for (int i = 0; i < PIECES; i++)
            CHECK(i == 5 ||
                  memcmp(back + (PIECES - 1 - i) * BYTES, pinned + i * BYTES, BYTES) == 0);
        CHECK(back[(PIECES - 6) * BYTES] == 0);
    }
    dev->ops->set_stream(dev, NULL);
    CHECK(hr_dev_cuda_enter(dev));
    CHECK(cu->cuStreamDestroy(theirs) == CUDA_SUCCESS);
    hr_dev_cuda_leave(dev);
    CHECK(!dev->ops->error(dev));
    dev->ops->event_free(dev, event);
    dev->ops->pinned_put(dev, pinned, 2 * PIECES * BYTES);
    dev->ops->memory_put(dev, memory, PIECES * BYTES);
    printf("copies and streams: good (batches by the driver: %s)\n",
           hr_dev_cuda_info(dev)->batches ? "yes" : "no");
}

/* ---- Attention of one sequence ---- */

enum { KV_HEADS = 2, GROUP = 4, HEADS = KV_HEADS * GROUP, KEYS = 300, QUERIES = 100, BLOCKS = 3 };

/* What a case has on the device, and q, k and v on the host. */
struct attention {
    struct hr_geom geom;
    struct hr_cu_seq seqs[2]; /* all queries; the last one alone */
    struct hr_cu_tile tiles[KV_HEADS * QUERIES];
    struct hr_chunk chunks[2 * KV_HEADS];
    struct hr_fold folds[KV_HEADS];
    uint32_t pages[BLOCKS], copy_from[2];
    int64_t first_item[2];
    int32_t n_tiles;
    _Alignas(16) uint16_t q[QUERIES * HEADS * HR_DIM_MAX]; /* read in such pieces */
    uint16_t k[KEYS * KV_HEADS * HR_DIM_MAX], v[KEYS * KV_HEADS * HR_DIM_MAX];
    float out[QUERIES * HEADS * HR_DIM_MAX], lse[QUERIES * HEADS];
    float state[4 * HEADS * (HR_DIM_MAX + 2)];
};

static void fill(uint16_t *to, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        float x = (float)((uint32_t)(i + seed) * 2654435761u >> 8) / 8388608.0f - 1.0f;
        uint32_t bits;
        memcpy(&bits, &x, 4);
        to[i] = (uint16_t)(bits >> 16);
    }
}

static double value(const uint16_t *from, int64_t i)
{
    uint32_t bits = (uint32_t)from[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void plan(struct attention *a, int32_t tile_tokens)
{
    int64_t partial = GROUP * (a->geom.dim + 2);
    static const uint32_t order[BLOCKS] = {5, 0, 3};
    for (int i = 0; i < 2; i++)
        a->seqs[i] = (struct hr_cu_seq){
            .n_kv = KEYS, .n_q = i ? 1 : QUERIES, .q_row = i ? QUERIES - 1 : 0, .n_new = KEYS};
    for (int i = 0; i < BLOCKS; i++)
        a->pages[i] = order[i] * KV_HEADS;
    a->copy_from[0] = a->copy_from[1] = UINT32_MAX;
    a->first_item[1] = BLOCKS;
    for (int32_t head = 0; head < KV_HEADS; head++) {
        for (int32_t token = 0; token < QUERIES; token += tile_tokens)
            a->tiles[a->n_tiles++] = (struct hr_cu_tile){
                .head = head,
                .token = token,
                .tokens = QUERIES - token < tile_tokens ? QUERIES - token : tile_tokens,
                .list_count = -1};
        a->folds[head] = (struct hr_fold){1, head, 2 * head, 2};
        for (int32_t i = 0; i < 2; i++)
            a->chunks[2 * head + i] =
                (struct hr_chunk){1, head, 2 * i, (2 * head + i) * partial, i ? 1 : 2};
    }
}

/* float64, causal: the largest difference of a row and its lse. */
static double difference(const struct attention *a, int64_t row, int32_t head)
{
    int32_t d = a->geom.dim, kv = head / GROUP;
    int64_t seen = KEYS - QUERIES + row + 1;
    double p[KEYS], sum = 0, worst = 0;
    for (int64_t j = 0; j < seen; j++) {
        double s = 0;
        for (int32_t i = 0; i < d; i++)
            s += value(a->q, (row * HEADS + head) * d + i) *
                 value(a->k, (j * KV_HEADS + kv) * d + i);
        sum += p[j] = exp(s / sqrt(d));
    }
    for (int32_t i = 0; i < d; i++) {
        double o = 0;
        for (int64_t j = 0; j < seen; j++)
            o += p[j] / sum * value(a->v, (j * KV_HEADS + kv) * d + i);
        worst = fmax(worst, fabs(o - a->out[(row * HEADS + head) * d + i]));
    }
    return fmax(worst, fabs(log(sum) - a->lse[row * HEADS + head]));
}

static double worst_of(const struct attention *a, int64_t first)
{
    double worst = 0;
    for (int64_t row = first; row < QUERIES; row += 11)
        for (int32_t head = 0; head < HEADS; head++) {
            double x = difference(a, row, head);
            worst = x <= worst ? worst : x; /* a NaN too */
        }
    return worst;
}

static struct hr_cu_attend arguments(struct attention *on, const struct attention *a)
{
    int32_t d = a->geom.dim;
    return (struct hr_cu_attend){
        .seqs = on->seqs,
        .tiles = on->tiles,
        .pages = on->pages,
        .lists = on->pages,
        .chunks = on->chunks,
        .folds = on->folds,
        .state = on->state,
        .q = on->q,
        .out = on->out,
        .lse = on->lse,
        .q_stride_token = HEADS * d,
        .q_stride_head = d,
        .out_stride_token = HEADS * d,
        .out_stride_head = d,
        .lse_stride_token = HEADS,
        .lse_stride_head = 1,
        .wave_end = 1ll << 40,
        .n_tiles = a->n_tiles,
        .n_chunks = 2 * KV_HEADS,
        .n_folds = KV_HEADS,
        .group = GROUP,
        .causal = 1,
        .first = 1,
        .last = 1,
        .out_type = HR_FP32,
        .factor = (float)(1.4426950408889634 / sqrt(d)),
    };
}

/* Appends, attends by tiles and then, the last query, by chunks. */
static void test_attention(struct hr_dev *dev, const char *level, int32_t dim)
{
    struct attention *a = calloc(1, sizeof(*a)), *on = dev->ops->memory_get(dev, sizeof(*a));
    struct hr_cu_kernels *k = hr_cu_kernels_load(dev, &alloc, level, why);
    struct hr_cu_class class;
    if (!k || !hr_cu_class_make(k, &(struct hr_geom){KV_HEADS, GROUP, dim, HR_BF16, 0, 0}, EXTENT,
                                &class, why))
        printf("%s\n", why);
    CHECK(a && on && k && class.prefill);
    a->geom = class.geom;
    plan(a, hr_cu_tile_tokens(&class));
    fill(a->q, QUERIES * HEADS * (size_t)dim, 1);
    fill(a->k, KEYS * KV_HEADS * (size_t)dim, 77);
    fill(a->v, KEYS * KV_HEADS * (size_t)dim, 7777);
    struct hr_cu_attend attend = arguments(on, a);
    struct hr_cu_append append = {
        on->seqs, on->pages,      on->copy_from, on->first_item, dev->arena, on->k,
        on->v,    KV_HEADS * dim, dim,           KV_HEADS * dim, dim,        BLOCKS,
        1,        KV_HEADS,       dim,           HR_BF16,        HR_BF16};
    attend.tile_tokens = hr_cu_tile_tokens(&class);
    dev->ops->upload(dev, HR_DEV_WORK, on, a, sizeof(*a));
    hr_cu_append(k, &append);
    hr_cu_prefill(k, &class, &attend, QUERIES);
    dev->ops->download(dev, HR_DEV_WORK, a, on, sizeof(*a));
    finish(dev);
    double tiles = worst_of(a, 0);
    hr_cu_decode(k, &class, &attend, QUERIES);
    hr_cu_fold(k, &class, &attend);
    dev->ops->zero(dev, on->state, sizeof(on->state));
    dev->ops->download(dev, HR_DEV_WORK, a, on, sizeof(*a));
    finish(dev);
    double last = worst_of(a, QUERIES - 1);
    printf("%s, %s, dim %d: largest difference %.1e, %.1e\n", class.prefill->name,
           class.decode->name, dim, tiles, last);
    CHECK(tiles < 0.02 && last < 0.02);
    int64_t begin_ns = hr_clock_ns();
    for (int i = 0; i < 200 && !alive; i++) {
        hr_cu_append(k, &append);
        hr_cu_decode(k, &class, &attend, QUERIES);
        hr_cu_fold(k, &class, &attend);
    }
    if (!alive)
        printf("    to enqueue append, decode and fold: %.1f us\n",
               (double)(hr_clock_ns() - begin_ns) / 200e3);
    finish(dev);
    hr_cu_kernels_free(k);
    dev->ops->memory_put(dev, on, sizeof(*a));
    free(a);
}

/* ---- Rows and pieces ---- */

static void test_rows(struct hr_dev *dev)
{
    enum { DIM = 64, ROW = DIM * 2, HALF = HR_BLOCK_TOKENS * ROW };
    struct hr_cu_kernels *k = hr_cu_kernels_load(dev, &alloc, NULL, why);
    unsigned char *pinned = dev->ops->pinned_get(dev, MIB);
    CHECK(k && pinned);
    memset(pinned, 0x55, MIB);
    struct hr_cu_piece pieces[2] = {{pinned + HALF, dev->arena, 4 * HALF},
                                    {pinned + 8 * HALF, dev->arena + 4 * HALF, 48}};
    struct hr_cu_rows rows = {0, 3, 7};
    unsigned char *list = dev->ops->memory_get(dev, sizeof(pieces) + sizeof(rows));
    CHECK(list);
    dev->ops->zero(dev, dev->arena, 5 * HALF);
    dev->ops->upload(dev, HR_DEV_WORK, list, pieces, sizeof(pieces));
    dev->ops->upload(dev, HR_DEV_WORK, list + sizeof(pieces), &rows, sizeof(rows));
    hr_cu_gather(k, &(struct hr_cu_gather){(void *)list, 2}, HR_DEV_WORK);
    hr_cu_zero_rows(k, &(struct hr_cu_zero_rows){(void *)(list + sizeof(pieces)), dev->arena, 1, 2,
                                                 DIM, HR_BF16});
    hr_cu_stage(k, &(struct hr_cu_stage){dev->arena, dev->arena + MIB, 2 * DIM, DIM, 8, 2, DIM,
                                         HR_BF16, HR_BF16, 1});
    dev->ops->download(dev, HR_DEV_WORK, pinned, dev->arena, 5 * HALF);
    dev->ops->download(dev, HR_DEV_WORK, pinned + 5 * HALF, dev->arena + MIB, 8 * 2 * ROW);
    finish(dev);
    for (int i = 0; i < 4 * HALF; i++) {
        bool zeroed = i / HALF % 2 == 1 && i % HALF >= 3 * ROW && i % HALF < 7 * ROW;
        CHECK(pinned[i] == (zeroed ? 0 : 0x55));
    }
    CHECK(pinned[4 * HALF + 47] == 0x55 && pinned[4 * HALF + 48] == 0);
    for (int i = 0; i < 8 * 2 * ROW; i += 2)
        CHECK(pinned[5 * HALF + i] == 0x55 && pinned[5 * HALF + i + 1] == 0xd5);
    dev->ops->memory_put(dev, list, sizeof(pieces) + sizeof(rows));
    dev->ops->pinned_put(dev, pinned, MIB);
    hr_cu_kernels_free(k);
    printf("gather, zero_rows, stage: good\n");
}

/* ---- What gather reaches ---- */

/* GB/s from pinned memory to the arena, all of it: by a list of pieces, or by the copy engine. */
static double rate(struct hr_dev *dev, struct hr_cu_kernels *k, const struct hr_cu_gather *list,
                   const unsigned char *pinned)
{
    enum { TURNS = 16 };
    int64_t begin_ns = 0;
    for (int i = -1; i < TURNS; i++) {
        if (list)
            hr_cu_gather(k, list, HR_DEV_WORK);
        else
            dev->ops->upload(dev, HR_DEV_WORK, dev->arena, pinned, ARENA);
        if (i < 0) {
            finish(dev);
            begin_ns = hr_clock_ns();
        }
    }
    finish(dev);
    return (double)ARENA * TURNS / (double)(hr_clock_ns() - begin_ns);
}

static int bench(void)
{
    enum { SMALLEST = 16 << 10, PIECES = ARENA / SMALLEST, STRIDE = 1597 };
    static struct hr_cu_piece pieces[PIECES];
    struct hr_dev *dev = open_device();
    struct hr_cu_kernels *k = hr_cu_kernels_load(dev, &alloc, NULL, why);
    unsigned char *pinned = dev->ops->pinned_get(dev, ARENA);
    struct hr_cu_piece *list = dev->ops->memory_get(dev, sizeof(pieces));
    CHECK(k && pinned && list);
    memset(pinned, 0x55, ARENA);
    for (int64_t bytes = SMALLEST; bytes <= MIB; bytes *= 4) {
        int64_t n = ARENA / bytes;
        for (int64_t i = 0; i < n; i++)
            pieces[i] = (struct hr_cu_piece){pinned + i * STRIDE % n * bytes,
                                             dev->arena + i * bytes, bytes};
        dev->ops->upload(dev, HR_DEV_WORK, list, pieces, sizeof(pieces));
        double engine = rate(dev, k, NULL, pinned);
        double ours = rate(dev, k, &(struct hr_cu_gather){list, n}, pinned);
        printf("{\"goal\": \"gather\", \"case\": \"pinned memory in shuffled pieces of %d KiB\", "
               "\"value\": %.2f, \"unit\": \"GB/s\", \"peer\": \"copy engine\", "
               "\"peer_value\": %.2f, \"ratio\": %.3f}\n",
               (int)(bytes >> 10), ours, engine, ours / engine);
    }
    dev->ops->memory_put(dev, list, sizeof(pieces));
    dev->ops->pinned_put(dev, pinned, ARENA);
    hr_cu_kernels_free(k);
    dev->ops->close(dev);
    return 0;
}

/* ---- A dead device ---- */

static int die(void)
{
    struct hr_dev *dev = open_device();
    struct hr_cu_kernels *k = hr_cu_kernels_load(dev, &alloc, NULL, why);
    struct hr_dev_event *event = dev->ops->event_make(dev);
    CHECK(k && event);
    /* a list at an address that nobody has */
    hr_cu_gather(k, &(struct hr_cu_gather){(void *)0x100, 1}, HR_DEV_WORK);
    dev->ops->event_record(dev, event, HR_DEV_WORK);
    CHECK(dev->ops->event_wait(dev, event, hr_clock_ns() + 20000000000) == HR_DEV_DEAD);
    printf("dead: %s\n", dev->ops->error(dev));
    CHECK(strstr(dev->ops->error(dev), "CUDA_ERROR_ILLEGAL_ADDRESS"));
    CHECK(!dev->ops->memory_get(dev, 1));
    CHECK(dev->ops->event_wait(dev, event, INT64_MAX) == HR_DEV_DEAD);
    dev->ops->event_free(dev, event);
    hr_cu_kernels_free(k);
    dev->ops->close(dev);
    CHECK(alloc.bytes_used == 0);
    return 0;
}

static void test_dead(char *program)
{
    pid_t child;
    int status = -1;
    char *arguments[] = {program, (char[]){"--die"}, NULL};
    fflush(stdout);
    CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    static const int32_t dims[] = {64, 128, 256};
    setvbuf(stdout, NULL, _IOLBF, 0);
    hr_alloc_init(&alloc, NULL);
    if (argc > 1 && strcmp(argv[1], "--die") == 0)
        return die();
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return bench();
    alive = argc > 1; /* --alive */
    struct hr_dev *dev = open_device();
    const struct hr_dev_cuda_info *info = hr_dev_cuda_info(dev);
    printf("%s, compute capability %d.%d, driver of CUDA %d.%d\n", info->name, info->major,
           info->minor, info->driver_version / 1000, info->driver_version % 1000 / 10);
    test_copies(dev);
    test_rows(dev);
    for (int i = 0; i < 3; i++)
        test_attention(dev, "sm80", dims[i]);
    for (int i = 0; i < 2 && info->major == 9 && argc < 3; i++)
        test_attention(dev, "sm90", dims[i]);
    dev->ops->close(dev);
    CHECK(alloc.bytes_used == 0);
    if (!alive)
        test_dead(argv[0]);
    printf("all good\n");
    return 0;
}

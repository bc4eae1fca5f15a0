/* SPDX-License-Identifier: Apache-2.0 */
/* K/V far from the start of everything: behind 2^31 and 2^32 bytes of the arena and of a sparse
 * file, in slots and blocks of high numbers. The bits are those of a small resident cache. */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tests/engine/files.h"
#include "tests/engine/setup.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 }; /* shadows are real memory, also those of untouched tables */
#else
enum { SANITIZED = 0 };
#endif

enum {
    LAYERS = 2,
    ROWS = 8,
    WIDTH_MOST = 512,
    RESULTS = 32,
    RESULT = ROWS * WIDTH_MOST,
    DEVICE = 6144, /* extents: 12 GiB */
    FILE_MOST = SANITIZED ? 2 * DEVICE : 8 * DEVICE,
    RING = 32, /* those of the ring: 64 MiB */
};

struct far {
    const char *name;
    hr_layer_options layer;
    int64_t first[2];  /* extents that are free, of the arena and of the file */
    int64_t passed;    /* one that both reach past */
    int64_t resident;  /* extents for blocks beside the ring */
    int64_t file;      /* extents */
    int64_t chunk;     /* tokens of a step */
    bool buffered;     /* or O_DIRECT, where there is such a thing */
    bool high_slots;   /* the highest numbers that slots of such a size can have */
    bool high_numbers; /* and blocks */
};

#define LARGE                                                                                      \
    {                                                                                              \
        .q_heads = 4, .kv_heads = 4, .dim_k = 128, .dtype = HR_FP32                                \
    } /* 512 KiB a block */
#define MIDDLE                                                                                     \
    {                                                                                              \
        .q_heads = 2, .kv_heads = 1, .dim_k = 256, .dtype = HR_BF16                                \
    } /* 128 */
#define SMALL                                                                                      \
    {                                                                                              \
        .q_heads = 4, .kv_heads = 1, .dim_k = 8, .dtype = HR_BF16                                  \
    } /* 4 */

static const struct far cases[] = {
    {"around 2^31", LARGE, {1024 - RING - 4, 1020}, 1024, 8, DEVICE, 800, false, false, false},
    {"around 2^32", LARGE, {2048 - RING - 4, 2044}, 2048, 8, DEVICE, 800, true, false, false},
    {"behind 11 GiB", LARGE, {5700, 5800}, 5700, 8, DEVICE, 800, false, false, false},
    {"high slots", MIDDLE, {5700, 5800}, 5700, 2, DEVICE, 800, true, true, false},
    {"high, small", SMALL, {5700, 5800}, 5700, 1, DEVICE, 9000, false, true, false},
    {"high numbers", SMALL, {5700, 5800}, 5700, 1, FILE_MOST, 9000, true, true, true},
};

static float *numbers, *results[2];

/* Linked before the C library's, so that the library calls this one: a sparse file needs no room.
 */
int statvfs(const char *path, struct statvfs *v)
{
    *v = (struct statvfs){.f_frsize = 1, .f_bavail = INT64_MAX};
    return 0;
}

/* ---- A life ---- */

struct life {
    struct setup s;
    hr_seq *fork;
    int64_t at, chunk;
    float *to;
};

/* n tokens of the sequence, and of its fork if there is one; the last rows of each attend. */
static void forward(struct life *x, int64_t n, int64_t rows)
{
    hr_seq *seqs[2] = {x->s.seq, x->fork};
    int64_t n_new[2] = {n, 1}, n_query[2] = {rows, 1};
    hr_batch batch = {sizeof(batch), x->fork ? 2 : 1, seqs, n_new, n_query, NULL};
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
    hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
    if (hr_step_begin(x->s.step, &batch) != HR_OK)
        fail_msg("%s", hr_error_text(x->s.c));
    for (int l = 0; l < LAYERS; l++) {
        new.k = numbers + x->at + l, new.v = numbers + x->at + 3 * l + 1;
        ask.q = numbers + x->at + 7 * l, ask.out = x->to;
        if (hr_step_append(x->s.step, l, &new) != HR_OK ||
            hr_step_attend(x->s.step, l, &ask) != HR_OK)
            fail_msg("%s", hr_error_text(x->s.c));
        x->to += RESULT;
    }
    assert_int_equal(hr_step_commit(x->s.step, NULL), HR_OK);
    x->at += 4321;
}

static void live(struct life *x)
{
    for (int i = 0; i < 7; i++)
        forward(x, x->chunk, i % 3);
    assert_int_equal(hr_seq_fork(x->s.seq, 3 * x->chunk - 11, &x->fork), HR_OK);
    forward(x, 30, 6);
    assert_int_equal(hr_seq_truncate(x->s.seq, 5 * x->chunk + 7), HR_OK);
    forward(x, x->chunk, 3);
    assert_int_equal(hr_seq_advise(x->s.seq, HR_ADVISE_PARK), HR_OK);
    setup_settle(x->s.c);
    forward(x, 1, 1);
}

/* ---- Far away ---- */

/* All slots have high numbers from now on. Nothing is in use. */
static void lift(struct hr_slab *s, int64_t room)
{
    assert_int_equal(s->slots_used, 0);
    s->parts = s->extents_max - (uint32_t)room;
    s->first_open = s->first_empty = HR_BLOCK_NONE;
    for (uint32_t part = 0; part < s->parts; part++)
        s->extents[part] = HR_BLOCK_NONE;
}

static void make_far(struct setup *s, const struct far *far)
{
    struct hr_tiered *t = &s->cache->tiered[0];
    struct hr_blocks *pool = t->lower.blocks;
    struct hr_slab *slots = &pool->slots;
    if (far->high_slots) {
        for (uint32_t i = 0; i < t->ring.size; i++)
            hr_slab_give(slots, t->ring.slots[i]);
        lift(slots, RING + far->resident);
        lift(&t->lower.slots, 200);
        assert_int_equal(hr_slab_take(slots, t->ring.slots, t->ring.size), t->ring.size);
    }
    if (far->high_numbers)
        pool->high = pool->max - 8000;
    slots->parts_limit = (uint32_t)(RING + far->resident);
    t->slots = (int64_t)slots->parts_limit * slots->view.blocks_per_extent;
}

/* The low extents are somebody else's. */
static void take_low(void *user, hr_context *c)
{
    const struct far *far = user;
    assert_int_equal(hr_extents_take(&c->extents, far->first[0]), 0);
}

/* Copies of the sequences' blocks, and how far the farthest is from the start. */
struct reach {
    int64_t above, below;
    uint64_t arena, file, slot, block; /* slots and numbers times bytes of a block */
};

static void note(uint64_t *most, uint64_t x)
{
    *most = *most < x ? x : *most;
}

static struct reach reach_of(const struct setup *s, const struct far *far)
{
    const struct hr_lower *l = &s->cache->tiered[0].lower;
    const struct hr_pool_view *view = &l->blocks->slots.view;
    struct reach r = {0};
    for (int layer = 0; layer < LAYERS; layer++)
        for (int64_t b = 0; b < hr_blocks_of(hr_seq_length(s->seq)); b++) {
            uint32_t block = hr_seq_blocks(s->seq, layer)[b];
            const struct hr_block *x = &l->blocks->all[block];
            note(&r.block, block);
            if (x->slot != HR_BLOCK_NONE) {
                uint64_t at = (uint64_t)(hr_block_addr(view, x->slot) - view->base);
                assert_true(at >= (uint64_t)far->first[0] << 21);
                note(&r.arena, at);
                note(&r.slot, x->slot * view->block_bytes);
                r.above++;
            }
            if (x->lower != HR_BLOCK_NONE) {
                struct hr_store_place place = hr_lower_place(l, x->lower);
                assert_true(place.offset >= (uint64_t)far->first[1] << 21);
                note(&r.file, place.offset);
                note(&r.slot, x->lower * view->block_bytes);
                r.below++;
            }
        }
    return r;
}

static void expect_reach(const struct setup *s, const struct far *far)
{
    struct reach r = reach_of(s, far);
    assert_true(r.above > 0 && r.below > r.above);
    assert_true(r.arena >= (uint64_t)far->passed << 21 && r.file >= (uint64_t)far->passed << 21);
    assert_true(!far->high_slots || r.slot > 11ull << 30);
    assert_true(!far->high_numbers || r.block > (SANITIZED ? 1u << 23 : 1u << 24));
    print_message("%-14s %lld blocks above, up to %.2f GiB, %lld below, up to %.2f GiB; "
                  "slots up to %.2f GiB, blocks to %llu\n",
                  far->name, (long long)r.above, (double)r.arena * 0x1p-30, (long long)r.below,
                  (double)r.file * 0x1p-30, (double)r.slot * 0x1p-30, (unsigned long long)r.block);
}

/* Nothing was written near the start, and real memory and disk stay small. */
static void expect_little(const struct setup *s, const struct far *far)
{
    struct rusage usage;
    struct stat file;
    int fd = s->c->tier->store.files[0].fd;
    size_t low = (size_t)(far->first[0] - 1) << 21, pages = low / 4096; /* but for a huge page */
    unsigned char *resident = malloc(pages);
    assert_int_equal(mincore(s->c->dev->arena, low, resident), 0);
    assert_null(memchr(resident, 1, pages));
    free(resident);
    off_t begin = lseek(fd, 0, SEEK_DATA); /* 0: the file system does not know */
    assert_true(begin == 0 || begin >= far->first[1] << 21);
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    assert_int_equal(fstat(fd, &file), 0);
    assert_true(SANITIZED || usage.ru_maxrss < 350 << 10);
    assert_true((uint64_t)file.st_blocks * 512 < 300u << 20);
}

static void open_life(struct life *x, const struct far *far, const struct hr_hooks *hooks)
{
    const hr_layer_options layers[LAYERS] = {far->layer, far->layer};
    struct setup_options o = {
        .device_extents = hooks ? DEVICE : 64,
        .disk_extents = hooks ? (uint64_t)far->file : 0,
        .layers = layers,
        .n_layers = LAYERS,
        .limits = {sizeof(o.limits), 2, 2 * far->chunk, ROWS},
        .io = hooks ? "threads" : NULL,
        .hooks = hooks,
    };
    setup_open(&x->s, &o);
    x->chunk = far->chunk;
}

static void close_life(struct life *x, const struct far *far)
{
    assert_int_equal(hr_seq_destroy(&x->fork), HR_OK);
    if (x->s.c->tier) {
        hr_extents_give(&x->s.c->extents, 0, far->first[0]);
        hr_extents_give(&x->s.c->tier->extents, 0, far->first[1]);
    }
    setup_close(&x->s);
}

static void test_far(void **state)
{
    const struct far *far = *state;
    struct files files = FILES_WELL;
    files.sparse = true;
    files.buffered = far->buffered;
    struct hr_io_calls calls = files_calls(&files);
    struct hr_hooks hooks = {
        .calls = &calls, .device_opened = take_low, .user = (void *)(uintptr_t)far};
    for (int i = 0; i < 2; i++) {
        struct life x = {.to = results[i]};
        memset(results[i], 0, sizeof(float) * RESULTS * RESULT);
        open_life(&x, far, i ? &hooks : NULL);
        if (i == 1) {
            assert_int_equal(hr_extents_take(&x.s.c->tier->extents, far->first[1]), 0);
            make_far(&x.s, far);
        }
        live(&x);
        if (i == 1) {
            setup_settle(x.s.c);
            expect_reach(&x.s, far);
            expect_little(&x.s, far);
        }
        close_life(&x, far);
    }
    assert_memory_equal(results[0], results[1], sizeof(float) * RESULTS * RESULT);
}

int main(void)
{
    enum {
        NUMBERS = 9000 * 32 + 800 * WIDTH_MOST + 16 * 4321,
        CASES = sizeof(cases) / sizeof(cases[0])
    };
    struct CMUnitTest tests[CASES];
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < (uint64_t)FILE_MOST << 21)
        return 77; /* files may not be as long */
    numbers = malloc(NUMBERS * sizeof(float));
    for (int64_t i = 0; i < NUMBERS; i++)
        numbers[i] = (float)(i * 2654435761u >> 7 & 0xfff) / 2048.0f - 1.0f;
    for (int i = 0; i < 2; i++)
        results[i] = malloc(sizeof(float) * RESULTS * RESULT);
    for (int i = 0; i < CASES; i++)
        tests[i] = (struct CMUnitTest){.name = cases[i].name,
                                       .test_func = test_far,
                                       .initial_state = (void *)(uintptr_t)&cases[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

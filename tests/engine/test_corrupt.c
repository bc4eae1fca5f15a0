/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged files, through the engine: what is wrong in a block that a step reads is found before a
 * kernel sees it, under its right name; what no block covers does not matter. Each sequence lives
 * twice, in a capped context and in a resident one that says what is right. */
#include <stdio.h>
#include <sys/mman.h>

#include "tests/engine/files.h"
#include "tests/engine/setup.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TRIALS = 1500, STRAY = 150, NEIGHBOURS = 100 };
#else
enum { TRIALS = 24000, STRAY = 2000, NEIGHBOURS = 1000 };
#endif

enum {
    LAYERS = 4,
    SEQS = 24,
    BATCH = 3,
    BLOCKS = 9,         /* most of a sequence */
    BLOCK_MOST = 12288, /* bytes */
    WIDTH = 48,         /* most numbers of a row */
    ROWS = 2 * BATCH,
    FOLDERS = 2,
    EXTENTS = 8, /* of each folder */
    NUMBERS = 1 << 16,
};

/* Two pools, 12 and 8 KiB a block; in the second one a layer has two heads, the other one. */
static const hr_layer_options layers[LAYERS] = {
    {.q_heads = 3, .kv_heads = 3, .dim_k = 8, .dtype = HR_BF16},
    {.q_heads = 4, .kv_heads = 2, .dim_k = 8, .dtype = HR_BF16},
    {.q_heads = 6, .kv_heads = 3, .dim_k = 8, .dtype = HR_BF16},
    {.q_heads = 1, .kv_heads = 1, .dim_k = 16, .dtype = HR_BF16},
};

static struct twin {
    struct setup s;
    hr_seq *seqs[SEQS];
} capped, resident;

static float numbers[NUMBERS + (BLOCKS + 1) * 128 * WIDTH], outs[2][LAYERS][ROWS * WIDTH];
static unsigned char *maps[FOLDERS];

static uint64_t random_state = 88172645463325252;

static uint64_t below(uint64_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return (random_state ^= random_state << 17) % bound;
}

/* One step's batch; K, V and q are `numbers` from `at` on. */
struct job {
    int32_t n;
    int which[BATCH];
    int64_t n_new[BATCH], n_query[BATCH];
    size_t at;
};

/* All layers; returns the first status that is not HR_OK, with the step open. */
static hr_status run(struct twin *t, const struct job *j, float to[LAYERS][ROWS * WIDTH])
{
    hr_seq *seqs[BATCH];
    hr_batch batch = {sizeof(batch), j->n, seqs, j->n_new, j->n_query, NULL};
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32};
    hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
    hr_status status = HR_OK;
    int64_t added = 0;
    for (int i = 0; i < j->n; i++) {
        seqs[i] = t->seqs[j->which[i]];
        added += j->n_new[i];
    }
    if (hr_step_begin(t->s.step, &batch) != HR_OK)
        fail_msg("%s", hr_error_text(t->s.c));
    for (int l = 0; status == HR_OK && l < LAYERS; l++) {
        new.k = numbers + j->at + l, new.v = numbers + j->at + 5 * l + 1;
        ask.q = numbers + j->at + 3 * l + 2, ask.out = to[l];
        if (added > 0)
            status = hr_step_append(t->s.step, l, &new);
        if (status == HR_OK)
            status = hr_step_attend(t->s.step, l, &ask);
    }
    return status;
}

/* Both twins of a sequence get n tokens. */
static void grow(int which, int64_t n)
{
    struct job j = {1, {which}, {n}, {0}, below(NUMBERS)};
    for (int i = 0; i < 2; i++) {
        struct twin *t = i ? &resident : &capped;
        if (run(t, &j, outs[i]) != HR_OK)
            fail_msg("%s", hr_error_text(t->s.c));
        assert_int_equal(hr_step_commit(t->s.step, NULL), HR_OK);
    }
}

static void truncate_both(int which, int64_t length)
{
    assert_int_equal(hr_seq_truncate(capped.seqs[which], length), HR_OK);
    assert_int_equal(hr_seq_truncate(resident.seqs[which], length), HR_OK);
}

/* Its last block may then hold rows of others, also where it lies below. */
static void vary(int which)
{
    int64_t length = hr_seq_length(capped.seqs[which]);
    if (length > 200)
        truncate_both(which, length - 1 - (int64_t)below(130));
    else
        grow(which, 100);
}

static void park(int which)
{
    assert_int_equal(hr_seq_advise(capped.seqs[which], HR_ADVISE_PARK), HR_OK);
    setup_settle(capped.s.c);
}

/* The step gives what it gives where all is resident. */
static void expect_right(const struct job *j)
{
    memset(outs, 0, sizeof(outs));
    if (run(&capped, j, outs[0]) != HR_OK)
        fail_msg("%s", hr_error_text(capped.s.c));
    assert_int_equal(run(&resident, j, outs[1]), HR_OK);
    assert_int_equal(hr_step_abort(capped.s.step), HR_OK);
    assert_int_equal(hr_step_abort(resident.s.step), HR_OK);
    assert_memory_equal(outs[0], outs[1], sizeof(outs[0]));
}

/* ---- The files ---- */

static struct files files = FILES_WELL;

/* Where a slot below lies. */
static unsigned char *place_of(const struct hr_lower *l, uint32_t slot)
{
    struct hr_store_place place = hr_lower_place(l, slot);
    const struct hr_store *store = &capped.s.c->tier->store;
    for (int i = 0; i < FOLDERS; i++)
        if (store->files[i].fd == place.fd)
            return maps[i] + place.offset;
    fail_msg("slot %u lies nowhere", slot);
    return NULL;
}

static void map_files(bool map)
{
    const struct hr_store *store = &capped.s.c->tier->store;
    for (int i = 0; i < FOLDERS; i++) {
        if (!map) {
            assert_int_equal(munmap(maps[i], (size_t)EXTENTS << 21), 0);
            continue;
        }
        maps[i] = mmap(NULL, (size_t)EXTENTS << 21, PROT_READ | PROT_WRITE, MAP_SHARED,
                       store->files[i].fd, 0);
        assert_true(maps[i] != MAP_FAILED);
    }
}

static void open_twins(void)
{
    static struct hr_io_calls calls;
    static struct hr_io_sim_options sim = {.seed = 11};
    static struct hr_hooks hooks = {.calls = &calls, .sim = &sim};
    struct setup_options o = {
        .device_extents = 3,
        .disk_extents = EXTENTS,
        .folders = FOLDERS,
        .layers = layers,
        .n_layers = LAYERS,
        .threads = 1,
        .limits = {sizeof(o.limits), BATCH, BLOCKS * 128, ROWS},
        .hooks = &hooks,
    };
    files.buffered = true; /* the same bytes by a map as by calls */
    calls = files_calls(&files);
    setup_open(&capped.s, &o);
    o.device_extents = 16;
    o.disk_extents = 0;
    o.hooks = NULL;
    setup_open(&resident.s, &o);
    capped.seqs[0] = capped.s.seq;
    resident.seqs[0] = resident.s.seq;
    map_files(true);
}

/* Sequences of 1 to 8 blocks; every fifth begins as a fork, every tenth stays one. */
static void fill_twins(void)
{
    open_twins();
    for (int i = 0; i < SEQS; i++) {
        int64_t length = 0;
        if (i % 5 == 4) {
            length = 1 + (int64_t)below((uint64_t)hr_seq_length(capped.seqs[i - 1]));
            assert_int_equal(hr_seq_fork(capped.seqs[i - 1], length, &capped.seqs[i]), HR_OK);
            assert_int_equal(hr_seq_fork(resident.seqs[i - 1], length, &resident.seqs[i]), HR_OK);
        } else if (i > 0) {
            assert_int_equal(hr_seq_create(capped.s.cache, &capped.seqs[i]), HR_OK);
            assert_int_equal(hr_seq_create(resident.s.cache, &resident.seqs[i]), HR_OK);
        }
        for (int64_t most = (int64_t)below(7 * 128) + 130; length < most && i % 10 != 9;) {
            int64_t n = 1 + (int64_t)below(200);
            n = n < most - length ? n : most - length;
            grow(i, n);
            length += n;
        }
    }
    setup_settle(capped.s.c);
    setup_audit(capped.s.cache);
}

static void close_twins(void)
{
    map_files(false);
    for (int i = 1; i < SEQS; i++) {
        assert_int_equal(hr_seq_destroy(&capped.seqs[i]), HR_OK);
        assert_int_equal(hr_seq_destroy(&resident.seqs[i]), HR_OK);
    }
    setup_close(&capped.s);
    setup_close(&resident.s);
    assert_int_equal(files.open, 0);
}

/* ---- Damage ---- */

enum kind { FLIP, TWO_FLIPS, SWAP, FOREIGN_PAGE, STALE_BLOCK, STALE_PAGE, TORN, KINDS };

static const char *const kind_names[KINDS] = {"one bit",
                                              "a bit in each of two neighbours",
                                              "two blocks swapped",
                                              "a foreign page",
                                              "an older write",
                                              "a page of an older write",
                                              "the end of an older write"};

/* A block that lies below, of sequence `which`. */
struct victim {
    int which, layer;
    int64_t index;
    uint32_t block;
    unsigned char *bytes;
    unsigned char right[BLOCK_MOST];
};

static struct trial {
    struct job job;
    struct victim victims[2];
    int damaged;
    unsigned char old[BLOCK_MOST]; /* what lay there before the last write */
} trial;

static uint64_t page_bytes(int layer)
{
    return hr_page_bytes(hr_cache_geom(capped.s.cache, layer));
}

static uint64_t block_bytes(int layer)
{
    return page_bytes(layer) * (uint64_t)layers[layer].kv_heads;
}

/* False: the block is resident, too. */
static bool take_victim(struct victim *v, int which, int layer, int64_t index)
{
    const struct hr_lower *l = &hr_cache_tiered(capped.s.cache, layer)->lower;
    v->which = which;
    v->layer = layer;
    v->index = index;
    v->block = hr_seq_blocks(capped.seqs[which], layer)[index];
    const struct hr_block *x = &l->blocks->all[v->block];
    if (x->life.lower != HR_LIFE_THERE || x->life.device != HR_LIFE_NONE)
        return false;
    v->bytes = place_of(l, x->lower);
    memcpy(v->right, v->bytes, block_bytes(layer));
    return true;
}

static bool pick_victim(struct victim *v, int which)
{
    int64_t blocks = hr_blocks_of(hr_seq_length(capped.seqs[which]));
    return take_victim(v, which, (int)below(LAYERS), (int64_t)below((uint64_t)blocks));
}

/* A batch of different sequences. */
static void draw_job(struct job *j)
{
    *j = (struct job){.n = 1 + (int32_t)below(BATCH), .at = below(NUMBERS)};
    for (int i = 0; i < j->n; i++) {
        j->which[i] = (int)((below(SEQS / BATCH)) * BATCH + (uint64_t)i);
        j->n_new[i] = (int64_t)below(3);
        j->n_query[i] = 1 + (int64_t)below(2);
    }
}

static void flip_bit(struct victim *v)
{
    v->bytes[below(block_bytes(v->layer))] ^= (unsigned char)(1 << below(8));
}

/* What is read along with a bad block is not taken for good. */
static bool take_neighbour(struct trial *t)
{
    const struct victim *v = &t->victims[0];
    int64_t blocks = hr_blocks_of(hr_seq_length(capped.seqs[v->which]));
    t->damaged = 2;
    return v->index + 1 < blocks && take_victim(&t->victims[1], v->which, v->layer, v->index + 1);
}

/* With any block of the same size. */
static bool swap_blocks(struct trial *t)
{
    struct victim *a = &t->victims[0], *b = &t->victims[1];
    if (!pick_victim(b, (int)below(SEQS)) || b->block == a->block ||
        hr_cache_pool_of(capped.s.cache, a->layer) != hr_cache_pool_of(capped.s.cache, b->layer))
        return false;
    memcpy(a->bytes, b->right, block_bytes(a->layer));
    memcpy(b->bytes, a->right, block_bytes(a->layer));
    t->damaged = 2;
    return true;
}

/* Of another head, layer, block or sequence. */
static bool put_page(struct trial *t)
{
    struct victim *v = &t->victims[0], *from = &t->victims[1];
    uint64_t bytes = page_bytes(v->layer);
    if (!pick_victim(from, below(3) ? (int)below(SEQS) : v->which))
        return false;
    uint64_t head = below((uint64_t)layers[v->layer].kv_heads);
    uint64_t at = below(block_bytes(from->layer) / bytes) * bytes;
    memcpy(v->bytes + head * bytes, from->right + at, bytes);
    return memcmp(v->bytes, v->right, block_bytes(v->layer)) != 0;
}

/* The last block of a sequence is written twice, and `old` is what was written first. */
static bool make_old(struct trial *t)
{
    int which = t->job.which[below((uint64_t)t->job.n)], layer = (int)below(LAYERS);
    int64_t length = hr_seq_length(capped.seqs[which]), index = length / 128;
    if (length % 128 >= 120)
        truncate_both(which, index * 128 + 1);
    else if (length % 128 == 0)
        grow(which, 1);
    index = hr_seq_length(capped.seqs[which]) / 128;
    park(which);
    if (index >= BLOCKS || !take_victim(&t->victims[0], which, layer, index))
        return false;
    uint32_t block = t->victims[0].block;
    const struct hr_birth *birth = &hr_cache_tiered(capped.s.cache, layer)->lower.births[block];
    uint64_t generation = birth->generation;
    memcpy(t->old, t->victims[0].right, BLOCK_MOST);
    grow(which, 1 + (int64_t)below(3));
    park(which);
    hr_seq_advise(capped.seqs[which], below(2) ? HR_ADVISE_NORMAL : HR_ADVISE_PARK);
    return take_victim(&t->victims[0], which, layer, index) && t->victims[0].block == block &&
           birth->generation > generation;
}

static void put_old(struct trial *t, enum kind kind)
{
    struct victim *v = &t->victims[0];
    uint64_t page = page_bytes(v->layer), from = 0, bytes = block_bytes(v->layer);
    if (kind == STALE_PAGE) {
        from = below((uint64_t)layers[v->layer].kv_heads) * page;
        bytes = page;
    } else if (kind == TORN) { /* sectors that the second write did not reach */
        from = (1 + below(bytes / 512 - 1)) * 512;
        bytes -= from;
    }
    memcpy(v->bytes + from, t->old + from, bytes);
}

/* False: nothing was changed. */
static bool damage(struct trial *t, enum kind kind)
{
    t->damaged = 1;
    draw_job(&t->job);
    if (kind >= STALE_BLOCK) {
        if (!make_old(t))
            return false;
        put_old(t, kind);
        return memcmp(t->victims[0].bytes, t->victims[0].right, block_bytes(t->victims[0].layer)) !=
               0;
    }
    int which = t->job.which[below((uint64_t)t->job.n)];
    if (below(kind == TWO_FLIPS ? 2 : 16) == 0)
        park(which);
    if (!pick_victim(&t->victims[0], which))
        return false;
    if (kind == SWAP)
        return swap_blocks(t);
    if (kind == FOREIGN_PAGE)
        return put_page(t);
    if (kind == TWO_FLIPS && !take_neighbour(t))
        return false;
    for (int i = 0; i < t->damaged; i++)
        flip_bit(&t->victims[i]);
    return true;
}

static void repair(struct trial *t)
{
    for (int i = 0; i < t->damaged; i++) {
        struct victim *v = &t->victims[i];
        memcpy(v->bytes, v->right, block_bytes(v->layer));
    }
}

/* The first page that is other than was written; heads: all are as they were. */
static int bad_head(const struct victim *v)
{
    uint64_t bytes = page_bytes(v->layer);
    int head = 0;
    while (head < layers[v->layer].kv_heads &&
           memcmp(v->bytes + (uint64_t)head * bytes, v->right + (uint64_t)head * bytes, bytes) == 0)
        head++;
    return head;
}

/* Whether the sentence names this block. */
static bool is_named(const struct trial *t, const struct victim *v)
{
    int at, layer, head;
    unsigned long long uid, index;
    const char *text = hr_error_text(capped.s.c);
    if (sscanf(text, "sequence %d of the batch (%llu), layer %d, block %llu, head %d", &at, &uid,
               &layer, &index, &head) != 5)
        fail_msg("\"%s\" names no page", text);
    if (at < 0 || at >= t->job.n || layer != v->layer || (int64_t)index != v->index ||
        head != bad_head(v))
        return false;
    const hr_seq *seq = capped.seqs[t->job.which[at]];
    return seq->uid == uid && v->index < hr_blocks_of(hr_seq_length(seq)) &&
           hr_seq_blocks(seq, layer)[index] == v->block;
}

/* ---- Trials ---- */

static int64_t counts[KINDS], undetected[KINDS];

static uint64_t lengths(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < SEQS; i++)
        sum = sum * 31 + (uint64_t)hr_seq_length(capped.seqs[i]);
    return sum;
}

static void try_once(struct trial *t, enum kind kind)
{
    bool damaged = damage(t, kind);
    if (damaged) {
        uint64_t used = capped.s.c->kv_bytes_used;
        uint64_t before = lengths();
        hr_status status = run(&capped, &t->job, outs[0]);
        assert_int_equal(hr_step_abort(capped.s.step), HR_OK);
        counts[kind]++;
        undetected[kind] += status == HR_OK;
        if (status != HR_OK &&
            (status != HR_E_CORRUPT ||
             !(is_named(t, &t->victims[0]) || (t->damaged == 2 && is_named(t, &t->victims[1])))))
            fail_msg("%s: layer %d, block %lld, head %d was damaged; %s", kind_names[kind],
                     t->victims[0].layer, (long long)t->victims[0].index, bad_head(t->victims),
                     hr_error_text(capped.s.c));
        assert_int_equal(capped.s.c->kv_bytes_used, used);
        assert_true(lengths() == before);
    }
    if (damaged)
        repair(t);
    if (damaged && (kind == TWO_FLIPS || below(4) == 0))
        expect_right(&t->job);
}

static void test_corruptions(void **state)
{
    static const int shares[KINDS] = {9, 2, 3, 3, 1, 1, 1};
    int64_t sum = 0, missed = 0;
    fill_twins();
    for (int64_t i = 0; sum < TRIALS; i++) {
        int draw = (int)below(20);
        enum kind kind = FLIP;
        while (draw >= shares[kind])
            draw -= shares[kind++];
        int64_t before = counts[kind];
        try_once(&trial, kind);
        sum += counts[kind] - before;
        if (below(20) == 0)
            vary((int)below(SEQS));
        if (i % 100 == 0) {
            setup_settle(capped.s.c);
            setup_audit(capped.s.cache);
        }
    }
    for (int k = 0; k < KINDS; k++) {
        print_message("%s: %lld of %lld not found\n", kind_names[k], (long long)undetected[k],
                      (long long)counts[k]);
        missed += undetected[k];
    }
    assert_int_equal(missed, 0);
    close_twins();
}

/* A sequence that comes back as a whole, neighbours in one read: what lies behind a bad page was
 * not compared, and must not stay. */
static void test_neighbours(void **state)
{
    struct trial *t = &trial;
    open_twins();
    grow(0, 800);
    for (int i = 0; i < NEIGHBOURS; i++) {
        int layer = (int)below(LAYERS);
        int64_t index = (int64_t)below(6);
        t->job = (struct job){1, {0}, {0}, {1}, below(NUMBERS)};
        park(0);
        for (int k = 0; k < 2; k++) {
            assert_true(take_victim(&t->victims[k], 0, layer, index + k));
            flip_bit(&t->victims[k]);
        }
        t->damaged = 2;
        assert_int_equal(run(&capped, &t->job, outs[0]), HR_E_CORRUPT);
        assert_true(is_named(t, &t->victims[0]) || is_named(t, &t->victims[1]));
        assert_int_equal(hr_step_abort(capped.s.step), HR_OK);
        repair(t);
        expect_right(&t->job);
    }
    close_twins();
}

/* Whether a byte of a file belongs to a block that has a copy there. */
static bool is_covered(const unsigned char *byte)
{
    for (int32_t p = 0; p < capped.s.cache->n_pools; p++) {
        const struct hr_lower *l = &capped.s.cache->tiered[p].lower;
        for (uint32_t b = 0; b < l->blocks->high; b++) {
            const struct hr_block *x = &l->blocks->all[b];
            if (x->life.phase == HR_LIFE_FREE || x->life.lower == HR_LIFE_NONE)
                continue;
            const unsigned char *first = place_of(l, x->lower);
            if (byte >= first && byte < first + hr_blocks_bytes(l->blocks))
                return true;
        }
    }
    return false;
}

/* Half of them among blocks, in slots that are free or behind the last one of an extent. */
static void test_stray_bits(void **state)
{
    uint64_t near = 0;
    fill_twins();
    for (int i = 0; i < STRAY; i++) {
        struct job *j = &trial.job;
        uint64_t rows = (uint64_t)(capped.s.c->tier->extents.used_count + FOLDERS - 1) / FOLDERS;
        uint64_t bytes = (i % 2 ? rows : EXTENTS) << 21;
        unsigned char *byte;
        do
            byte = maps[below(FOLDERS)] + below(bytes);
        while (is_covered(byte));
        near += i % 2;
        *byte ^= (unsigned char)(1 << below(8));
        draw_job(j);
        expect_right(j);
        if (below(8) == 0)
            park(j->which[0]);
    }
    print_message("%d bits outside blocks, %llu of them near\n", STRAY, (unsigned long long)near);
    close_twins();
}

int main(void)
{
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        numbers[i] = (float)(i * 2654435761u >> 7 & 0xfff) / 2048.0f - 1.0f;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corruptions),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_stray_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

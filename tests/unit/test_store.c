/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the disk tier: on real disks, and on simulated ones of any size and any error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "offload/store.h"
#include "tests/failing_alloc.h"
#include "tests/unit/fake_files.h"

#define SEED 0x9e3779b97f4a7c15ull

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Directories to open stores in; every test leaves them empty. */
enum { DIRS = 3 };
static char paths[DIRS][300];

static int reset(void **state)
{
    memset(&machine, 0, sizeof(machine));
    return 0;
}

static int make_dirs(void **state)
{
    const char *temp = getenv("TMPDIR");
    char base[200];
    snprintf(base, sizeof(base), "%s/headrace-store-XXXXXX", temp ? temp : "/tmp");
    if (!mkdtemp(base) || chmod(base, 0755) != 0)
        return -1;
    for (int i = 0; i < DIRS; i++) {
        snprintf(paths[i], sizeof(paths[i]), "%s/%c", base, 'a' + i);
        if (mkdir(paths[i], 0755) != 0)
            return -1;
    }
    return 0;
}

static int remove_dirs(void **state)
{
    for (int i = 0; i < DIRS; i++)
        if (rmdir(paths[i]) != 0)
            return -1;
    *strrchr(paths[0], '/') = 0;
    return rmdir(paths[0]);
}

static int entries(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* A store over the directories, with what it needs. */
struct bench {
    struct hr_alloc alloc;
    struct hr_error error;
    struct hr_io_calls calls;
    struct hr_store_dir dirs[DIRS];
    struct hr_store_options options;
    struct hr_store store;
};

static void prepare(struct bench *b, struct sim *sim, int32_t n_dirs, const int64_t *extents)
{
    *b = (struct bench){0};
    hr_alloc_init(&b->alloc, NULL);
    for (int i = 0; i < n_dirs; i++)
        b->dirs[i] = (struct hr_store_dir){paths[i], (uint64_t)extents[i] * HR_EXTENT_BYTES + 77};
    b->options = (struct hr_store_options){.alloc = &b->alloc, .dirs = b->dirs, .n_dirs = n_dirs};
    if (sim) {
        b->calls = calls_of(sim);
        b->options.calls = &b->calls;
    }
}

static hr_status open_store(struct bench *b)
{
    return hr_store_open(&b->store, &b->options, &b->error);
}

static void expect_nothing_left(const struct bench *b)
{
    assert_null(b->store.files);
    assert_int_equal(b->store.n_files, 0);
    assert_int_equal(b->store.extents, 0);
    assert_int_equal(b->alloc.bytes_used, 0);
    for (int i = 0; i < b->options.n_dirs; i++)
        if (b->dirs[i].path == paths[i])
            assert_int_equal(entries(paths[i]), 2);
}

static void close_store(struct bench *b)
{
    hr_store_close(&b->store);
    expect_nothing_left(b);
}

/* The store does not open, and the sentence has these words. */
static void expect_refused(struct bench *b, hr_status status, const char *const *words)
{
    assert_int_equal(open_store(b), status);
    for (; *words; words++)
        if (!strstr(b->error.text, *words))
            fail_msg("no \"%s\" in: %s", *words, b->error.text);
    expect_nothing_left(b);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static const int64_t two_each[] = {2, 2, 2};

/* Real files: every extent keeps its own bytes, no name is left, nothing leaks. */
static void use_store(struct bench *b)
{
    static _Alignas(PAGE) unsigned char page[PAGE];
    for (int64_t i = 0; i < b->store.extents * 4; i++) {
        int64_t e = i % (b->store.extents * 2);
        struct hr_store_place at = hr_store_place(&b->store, e / 2);
        off_t offset = (off_t)at.offset + (e % 2 ? HR_EXTENT_BYTES - PAGE : 0);
        if (i == e) {
            memset(page, (int)e + 1, PAGE);
            assert_int_equal(pwrite(at.fd, page, PAGE, offset), PAGE);
            continue;
        }
        assert_int_equal(pread(at.fd, page, PAGE, offset), PAGE);
        for (int k = 0; k < PAGE; k++)
            assert_int_equal(page[k], (unsigned char)(e + 1));
    }
}

static int refuse_tmpfile(void *user, const char *path, int flags, int mode)
{
    if ((flags & O_TMPFILE) == O_TMPFILE)
        return -EOPNOTSUPP;
    return hr_io_calls_system.open(NULL, path, flags, mode);
}

static void test_real_files(void **state)
{
    static const int64_t extents[] = {3, 1, 5};
    int fds = entries("/proc/self/fd");
    for (int way = 0; way < 4; way++) {
        struct bench b;
        char text[1024];
        prepare(&b, NULL, DIRS, extents);
        b.options.buffered = way & 1;
        b.calls = hr_io_calls_system;
        b.calls.open = refuse_tmpfile;
        b.options.calls = way & 2 ? &b.calls : NULL;
        assert_int_equal(open_store(&b), HR_OK);
        assert_int_equal(b.store.extents, 9);
        for (int i = 0; i < DIRS; i++) {
            struct stat st;
            assert_int_equal(entries(paths[i]), 2);
            assert_int_equal(fstat(b.store.files[i].fd, &st), 0);
            assert_int_equal(st.st_size, extents[i] * HR_EXTENT_BYTES);
            assert_true(st.st_blocks * 512 >= st.st_size);
            assert_int_equal(st.st_nlink, 0);
        }
        use_store(&b);
        hr_store_text(&b.store, text, sizeof(text));
        print_message("%s\n", text);
        close_store(&b);
        assert_int_equal(entries("/proc/self/fd"), fds);
    }
}

/* What a file system refuses, and what the store then does and says. */
static void expect_way(struct sim *sim, enum hr_store_cache cache, const char *why)
{
    struct bench b;
    char text[512];
    sim->fail_at = -1;
    prepare(&b, sim, 2, two_each);
    assert_int_equal(open_store(&b), HR_OK);
    hr_store_text(&b.store, text, sizeof(text));
    for (int i = 0; i < 2; i++) {
        const struct hr_store_file *f = &b.store.files[i];
        assert_int_equal(f->cache, cache);
        assert_string_equal(f->path, paths[i]);
        assert_int_equal(file_of(sim, f->fd)->direct, cache == HR_STORE_DIRECT);
        assert_int_equal(file_of(sim, f->fd)->bytes, 2 * HR_EXTENT_BYTES);
        assert_int_equal(file_of(sim, f->fd)->offset, 2 * HR_EXTENT_BYTES - PAGE);
        assert_non_null(strstr(text, f->path));
        if (cache == HR_STORE_BUFFERED)
            assert_int_equal(f->memory_align, 1);
    }
    if (!strstr(text, why))
        fail_msg("no \"%s\" in: %s", why, text);
    assert_int_equal(strstr(text, "page cache") != NULL, cache == HR_STORE_BUFFERED);
    assert_int_equal(sim->names, 0);
    close_store(&b);
    assert_int_equal(sim->open, 0);
}

static void test_fallback(void **state)
{
    expect_way(&(struct sim){0}, HR_STORE_DIRECT, "4 MiB, O_DIRECT (memory aligned to 4096");
    expect_way(&(struct sim){.no_tmpfile = true}, HR_STORE_DIRECT, "O_DIRECT (");
    expect_way(&(struct sim){.no_direct_open = true}, HR_STORE_BUFFERED,
               "buffered (open(O_DIRECT): Invalid argument (errno 22))");
    expect_way(&(struct sim){.no_tmpfile = true, .no_direct_open = true, .leaves_name = true},
               HR_STORE_BUFFERED, "open(O_DIRECT)");
    expect_way(&(struct sim){.no_direct_write = true}, HR_STORE_BUFFERED,
               "pwrite of 4096 bytes at 4190208: Invalid argument");
    expect_way(&(struct sim){.no_direct_allocate = true}, HR_STORE_BUFFERED, "posix_fallocate");
    expect_way(&(struct sim){.no_direct_write = true, .refusal = EOPNOTSUPP}, HR_STORE_BUFFERED,
               "Operation not supported (errno 95)");
    expect_way(&(struct sim){.short_direct = true}, HR_STORE_BUFFERED, "512 moved");
}

static void test_alignment(void **state)
{
    machine.fake_align = true;
    machine.silent = true;
    expect_way(&(struct sim){0}, HR_STORE_DIRECT, "memory aligned to 4096, offsets to 4096");
    machine.silent = false;
#ifdef STATX_DIOALIGN
    machine.memory_align = 4;
    machine.offset_align = 512;
    expect_way(&(struct sim){0}, HR_STORE_DIRECT, "memory aligned to 4, offsets to 512");
    machine.memory_align = 8192;
    expect_way(&(struct sim){0}, HR_STORE_BUFFERED, "statx: alignment 8192 of memory, 512 of off");
    machine.memory_align = 4;
    machine.offset_align = 65536;
    expect_way(&(struct sim){0}, HR_STORE_BUFFERED, "65536 of offsets, at most 4096");
    machine.offset_align = 0;
    expect_way(&(struct sim){0}, HR_STORE_BUFFERED, "statx");
    machine.offset_align = 3000;
    expect_way(&(struct sim){0}, HR_STORE_BUFFERED, "statx");
#endif
}

/* A disk that does not give back what was written is not used, buffered or not. */
static void test_lost_bytes(void **state)
{
    struct sim sim = {.loses_direct = true, .fail_at = -1};
    struct bench b;
    prepare(&b, &sim, 2, two_each);
    expect_refused(&b, HR_E_SYSTEM, WORDS(paths[0], "pread at 4190208: not what was written"));
    assert_int_equal(sim.open, 0);
}

static void test_text_is_cut(void **state)
{
    struct sim sim = {.fail_at = -1};
    struct bench b;
    char text[512], cut[512];
    prepare(&b, &sim, 2, two_each);
    assert_int_equal(open_store(&b), HR_OK);
    int length = hr_store_text(&b.store, text, sizeof(text));
    assert_int_equal(strlen(text), length);
    assert_int_equal(hr_store_text(&b.store, NULL, 0), length);
    for (int size = 1; size <= length; size++) {
        memset(cut, 'x', sizeof(cut));
        assert_int_equal(hr_store_text(&b.store, cut, (size_t)size), length);
        assert_int_equal(strlen(cut), size - 1);
        assert_memory_equal(cut, text, size - 1);
        assert_int_equal(cut[size], 'x');
    }
    close_store(&b);
}

/* Arguments and directories that are refused before the first call that makes a file. */
static void test_checks(void **state)
{
    struct sim sim = {.fail_at = -1};
    struct bench b;
    char file[320], gone[320];
    prepare(&b, &sim, 0, NULL);
    expect_refused(&b, HR_E_INVALID, WORDS("0 disk directories; 1 to 64"));
    b.options.n_dirs = HR_STORE_DIRS_MAX + 1;
    assert_int_equal(open_store(&b), HR_E_INVALID);
    prepare(&b, &sim, 2, two_each);
    b.dirs[1].path = NULL;
    expect_refused(&b, HR_E_INVALID, WORDS("directory 1", "NULL"));
    prepare(&b, &sim, 2, two_each);
    b.dirs[1].bytes = HR_EXTENT_BYTES - 1;
    expect_refused(&b, HR_E_INVALID, WORDS(paths[1], "2097151 bytes", "2097152 are needed"));
    b.dirs[1].bytes = 1ull << 63;
    expect_refused(&b, HR_E_INVALID, WORDS(paths[1], "9223372036854775808 bytes"));
    prepare(&b, &sim, 2, two_each);
    snprintf(gone, sizeof(gone), "%s/gone", paths[1]);
    b.dirs[1].path = gone;
    expect_refused(&b, HR_E_SYSTEM, WORDS(gone, "stat: No such file", "errno 2"));
    snprintf(file, sizeof(file), "%s/file", paths[2]);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    b.dirs[1].path = file;
    assert_int_equal(open_store(&b), HR_E_INVALID);
    assert_non_null(strstr(b.error.text, "not a directory"));
    unlink(file);
    expect_refused(&b, HR_E_SYSTEM, WORDS(file, "No such file"));
    assert_int_equal(sim.calls, 0);
}

static void test_not_writable(void **state)
{
    struct sim sim = {.fail_at = -1};
    struct bench b;
    prepare(&b, &sim, 2, two_each);
    bool root = geteuid() == 0;
    assert_int_equal(chmod(paths[1], 0555), 0);
    if (root)
        assert_int_equal(seteuid(65534), 0);
    hr_status one = open_store(&b);
    b.dirs[0].path = paths[1];
    if (root)
        assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(paths[1], 0755), 0);
    assert_int_equal(one, HR_E_SYSTEM);
    assert_non_null(strstr(b.error.text, "Permission denied (errno 13)"));
    expect_nothing_left(&b);
    assert_int_equal(sim.calls, 0);
}

static void test_file_size_limit(void **state)
{
    struct sim sim = {.fail_at = -1};
    struct bench b;
    struct rlimit old, low;
    prepare(&b, &sim, 2, two_each);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = (struct rlimit){3 << 20, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    expect_refused(&b, HR_E_SYSTEM, WORDS(paths[0], "3145728", "ulimit -f"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(sim.calls, 0);
}

/* Files of one file system are summed against its room, to the byte. */
static void test_room(void **state)
{
    static const int64_t extents[] = {3, 4, 1};
    struct sim sim = {.fail_at = -1};
    struct bench b;
    struct stat st, shm;
    prepare(&b, &sim, DIRS, extents);
    machine.fake_room = true;
    machine.room = 8 * HR_EXTENT_BYTES - 1;
    expect_refused(&b, HR_E_SYSTEM, WORDS(paths[0], "16 MiB asked", "files: 3", "15 MiB free"));
    b.options.n_dirs = 1;
    machine.room = 0;
    expect_refused(&b, HR_E_SYSTEM, WORDS(paths[0], "6 MiB asked", "files: 1", "0 MiB free"));
    machine.room_error = EIO;
    expect_refused(&b, HR_E_SYSTEM, WORDS(paths[0], "statvfs", "errno 5"));
    machine.room_error = 0;
    assert_int_equal(sim.calls, 0);
    machine.room = 8 * HR_EXTENT_BYTES;
    b.options.n_dirs = DIRS;
    assert_int_equal(open_store(&b), HR_OK);
    close_store(&b);
    if (stat("/dev/shm", &shm) != 0 || stat(paths[0], &st) != 0 || st.st_dev == shm.st_dev)
        skip(); /* the rest needs a second file system */
    machine.room = 4 * HR_EXTENT_BYTES;
    b.options.n_dirs = 2;
    expect_refused(&b, HR_E_SYSTEM, WORDS("14 MiB asked"));
    b.dirs[1].path = "/dev/shm";
    assert_int_equal(open_store(&b), HR_OK);
    assert_true(b.store.files[1].in_memory);
    close_store(&b);
}

/* What a failed open must leave, whatever the call that failed: nothing, and a sentence about it.
 */
static void check_failure(const struct bench *b, const struct sim *sim)
{
    char number[32];
    snprintf(number, sizeof(number), "(errno %d)", sim->error);
    bool unlinking = sim->failed_call == CALL_UNLINK; /* of a name that another error left */
    if (!strstr(b->error.text, "disk directory \"/") || !strstr(b->error.text, number) ||
        !(strstr(b->error.text, call_names[sim->failed_call]) ||
          (unlinking && strstr(b->error.text, "open"))))
        fail_msg("call %s, %s: %s", call_names[sim->failed_call], number, b->error.text);
    expect_nothing_left(b);
}

/* One scenario with the call `at` failing `fails` times. False: there is no such call. */
static bool inject(const struct sim *kind, bool buffered, int at, int fails, int error, int *failed)
{
    struct sim sim = *kind;
    struct bench b;
    sim.fail_at = at;
    sim.fails = fails;
    sim.error = error;
    prepare(&b, &sim, DIRS, two_each);
    b.options.buffered = buffered;
    hr_status status = open_store(&b);
    if (error == EINTR && fails == 1 && sim.failed_call <= CALL_ALLOCATE)
        assert_int_equal(status, HR_OK);
    if (status) {
        assert_int_equal(status, HR_E_SYSTEM);
        check_failure(&b, &sim);
        (*failed)++;
    } else {
        for (int i = 0; i < DIRS; i++)
            assert_int_equal(file_of(&sim, b.store.files[i].fd)->bytes, 2 * HR_EXTENT_BYTES);
        assert_int_equal(sim.open, DIRS);
        close_store(&b);
    }
    assert_int_equal(sim.open, 0);
    assert_int_equal(sim.names, sim.names_stuck);
    return sim.calls > at;
}

/* Every call of every kind of file system fails, once or from then on, in each of these ways. */
static void test_failures(void **state)
{
    static const int errors[] = {EIO, EINVAL, ENOSPC, EACCES, EINTR, EOPNOTSUPP, EMFILE, EDQUOT};
    static const struct sim kinds[] = {
        {0},
        {.no_tmpfile = true},
        {.no_direct_open = true},
        {.no_direct_open = true, .no_tmpfile = true},
        {.no_direct_open = true, .no_tmpfile = true, .leaves_name = true},
        {.no_direct_write = true},
        {.no_direct_allocate = true},
        {.no_direct_allocate = true, .no_tmpfile = true},
        {.short_direct = true},
    };
    int runs = 0, failed = 0;
    for (size_t k = 0; k < 2 * sizeof(kinds) / sizeof(kinds[0]); k++)
        for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++)
            for (int fails = 1; fails > 0; fails = fails == 1 ? ALWAYS : 0)
                for (int at = 0; inject(&kinds[k / 2], k % 2, at, fails, errors[e], &failed); at++)
                    runs++;
    print_message("%d runs with an injected error: %d errors, the others found another way\n", runs,
                  failed);
    assert_true(failed > 1000 && runs - failed > 1000);
}

/* Files with a name for a moment. One that exists is somebody else's: another name is taken, and
 * nothing unlinked. One that cannot be unlinked is no file of a store. */
static void test_names(void **state)
{
    struct sim sim = {.no_tmpfile = true, .fail_at = 1, .fails = 3, .error = EEXIST};
    struct bench b;
    prepare(&b, &sim, 1, two_each);
    assert_int_equal(open_store(&b), HR_OK);
    close_store(&b);
    sim.calls = 0;
    sim.fails = ALWAYS;
    sim.names = 1; /* the other's */
    b.options.buffered = true;
    expect_refused(&b, HR_E_SYSTEM, WORDS(paths[0], "open", "File exists"));
    assert_int_equal(sim.names, 1);
    sim = (struct sim){.no_tmpfile = true, .fail_at = 2, .fails = 1, .error = EACCES};
    expect_refused(&b, HR_E_SYSTEM, WORDS(paths[0], "unlink of .headrace-", "errno 13"));
    assert_int_equal(sim.open, 0);
}

static void test_no_memory(void **state)
{
    hr_status status = HR_E_NO_MEMORY;
    int64_t at = 0;
    for (; status != HR_OK; at++) {
        struct failing f = {.fail_at = at};
        hr_allocator allocator = {failing_alloc, failing_free, &f};
        struct sim sim = {.fail_at = -1};
        struct bench b;
        prepare(&b, &sim, DIRS, two_each);
        hr_alloc_init(&b.alloc, &allocator);
        status = open_store(&b);
        assert_true(status == HR_OK || status == HR_E_NO_MEMORY);
        if (status)
            assert_non_null(strstr(b.error.text, "no memory"));
        close_store(&b);
        assert_int_equal(f.held, 0);
        assert_int_equal(sim.open, 0);
    }
    assert_int_equal(at, DIRS + 2); /* the files, each path, then none failed */
}

static uint64_t between(uint64_t *random, uint64_t low, uint64_t high)
{
    return low + next_random(random) % (high - low + 1);
}

/* A store that was never opened: to find places it needs the sizes alone. */
static struct hr_store stripe(struct hr_store_file *files, int32_t n, uint64_t *random,
                              uint64_t most)
{
    struct hr_store store = {.files = files, .n_files = n};
    for (int32_t i = 0; i < n; i++) {
        files[i] = (struct hr_store_file){.fd = i, .extents = (int64_t)between(random, 1, most)};
        if (i > 0 && next_random(random) % 3 == 0)
            files[i].extents = files[0].extents;
        store.extents += files[i].extents;
    }
    return store;
}

/* Against the rule itself: the files take turns, those that are full are passed over. So each
 * extent has a place of its own, and every place of every file is used. */
static void test_stripes(void **state)
{
    struct hr_store_file files[8];
    uint64_t random = SEED;
    for (int round = 0; round < 500; round++) {
        int64_t used[8] = {0};
        int32_t n = (int32_t)between(&random, 1, 8), turn = 0;
        struct hr_store store = stripe(files, n, &random, round % 2 ? 5 : 200);
        for (int64_t e = 0; e < store.extents; e++) {
            struct hr_store_place at = hr_store_place(&store, e);
            while (used[turn] == files[turn].extents)
                turn = (turn + 1) % n;
            assert_int_equal(at.fd, turn);
            assert_int_equal(at.offset, used[turn]++ * HR_EXTENT_BYTES);
            turn = (turn + 1) % n;
        }
        assert_int_equal(hr_store_place(&store, store.extents).fd, -1);
        assert_int_equal(hr_store_place(&store, -1).fd, -1);
    }
}

/* Files up to 2^44 bytes and beyond: the extent is found again from its place by counting, in every
 * file, the rows before it. */
static void test_stripes_far(void **state)
{
    struct hr_store_file files[8];
    uint64_t random = SEED, past_31 = 0, past_43 = 0;
    for (int round = 0; round < 1000; round++) {
        int32_t n = (int32_t)between(&random, 1, 8);
        struct hr_store store = stripe(files, n, &random, 1ll << (round % 2 ? 24 : 42));
        for (int i = 0; i < 100; i++) {
            int64_t e = (int64_t)between(&random, 0, (uint64_t)store.extents - 1), before = 0;
            struct hr_store_place at = hr_store_place(&store, e);
            int64_t row = (int64_t)(at.offset / HR_EXTENT_BYTES);
            assert_int_equal(at.offset % HR_EXTENT_BYTES, 0);
            assert_true(row < files[at.fd].extents);
            for (int32_t k = 0; k < n; k++) {
                int64_t rows = row + (k < at.fd);
                before += rows < files[k].extents ? rows : files[k].extents;
            }
            assert_int_equal(before, e);
            past_31 += at.offset >> 31 > 0;
            past_43 += at.offset >> 43 > 0;
        }
    }
    assert_true(past_31 > 50000 && past_43 > 50000);
}

/* A simulated disk of 2^53 bytes: what the calls are given is right far past 2^43. */
static void test_huge_files(void **state)
{
    const int64_t extents[] = {(1ll << 43) / HR_EXTENT_BYTES, (1ll << 44) / HR_EXTENT_BYTES + 1};
    struct sim sim = {.fail_at = -1};
    struct bench b;
    prepare(&b, &sim, 2, extents);
    machine.fake_room = true;
    machine.room = 1ull << 53;
    assert_int_equal(open_store(&b), HR_OK);
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = (uint64_t)extents[i] * HR_EXTENT_BYTES;
        assert_int_equal(file_of(&sim, b.store.files[i].fd)->bytes, bytes);
        assert_int_equal(file_of(&sim, b.store.files[i].fd)->offset, bytes - PAGE);
    }
    struct hr_store_place last = hr_store_place(&b.store, b.store.extents - 1);
    assert_int_equal(last.fd, b.store.files[1].fd);
    assert_int_equal(last.offset, 1ull << 44);
    close_store(&b);
}

#define TEST(name) cmocka_unit_test_setup(name, reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_real_files),   TEST(test_fallback),    TEST(test_alignment),
        TEST(test_lost_bytes),   TEST(test_text_is_cut), TEST(test_checks),
        TEST(test_not_writable), TEST(test_room),        TEST(test_file_size_limit),
        TEST(test_failures),     TEST(test_names),       TEST(test_no_memory),
        TEST(test_stripes),      TEST(test_stripes_far), TEST(test_huge_files),
    };
    print_message("seed %llx\n", SEED);
    return cmocka_run_group_tests(tests, make_dirs, remove_dirs);
}

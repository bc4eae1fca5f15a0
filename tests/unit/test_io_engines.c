/* SPDX-License-Identifier: Apache-2.0 */
/* The I/O engines themselves: deadlines, wakes, threads that take turns, memory that runs out, a
 * system that refuses, and what the simulated disk promises. */
#include "tests/unit/io_bed.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

static void test_system_calls(void **state)
{
    const struct hr_io_calls *c = &hr_io_calls_system;
    char path[64], byte = 'x';
    snprintf(path, sizeof(path), "/tmp/headrace-calls-%d", (int)getpid());
    assert_int_equal(c->open(NULL, path, O_RDWR, 0), -ENOENT);
    int fd = c->open(NULL, path, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(c->unlink(NULL, path), 0);
    assert_int_equal(c->unlink(NULL, path), -ENOENT);
    assert_int_equal(c->allocate(NULL, fd, 3 * PAGE), 0);
    assert_int_equal(lseek(fd, 0, SEEK_END), 3 * PAGE);
    assert_int_equal(c->pwrite(NULL, fd, &byte, 1, PAGE), 1);
    byte = 0;
    assert_int_equal(c->pread(NULL, fd, &byte, 1, PAGE), 1);
    assert_int_equal(byte, 'x');
    assert_int_equal(c->sync(NULL, fd), 0);
    assert_int_equal(c->close(NULL, fd), 0);
    assert_int_equal(c->close(NULL, -1), -EBADF);
    assert_int_equal(c->allocate(NULL, -1, PAGE), -EBADF);
    assert_int_equal(c->sync(NULL, -1), -EBADF);
    assert_int_equal(c->pread(NULL, -1, &byte, 1, 0), -EBADF);
    assert_int_equal(c->pwrite(NULL, -1, &byte, 1, 0), -EBADF);
}

/* --- Deadlines and wakes ------------------------------------------------------------------- */

/* Reads wait until the pipe has bytes. */
static int64_t pipe_pread(void *user, int fd, void *memory, size_t bytes, uint64_t offset)
{
    ssize_t n = read(fd, memory, bytes);
    return n < 0 ? -errno : n;
}

static void finish_nothing(struct hr_transfers *t, int64_t wait_ns)
{
    int64_t begin = hr_clock_ns();
    assert_null(hr_transfers_finish(t, begin + wait_ns));
    assert_in_range(hr_clock_ns() - begin, wait_ns, wait_ns + 5000 * MS);
}

static void *wake_later(void *t)
{
    struct timespec pause = {0, 20 * MS};
    nanosleep(&pause, NULL);
    hr_transfers_wake(t);
    return NULL;
}

static void finish_woken(struct hr_transfers *t)
{
    pthread_t thread;
    int64_t begin = hr_clock_ns();
    assert_int_equal(pthread_create(&thread, NULL, wake_later, t), 0);
    assert_null(hr_transfers_finish(t, begin + 30000 * MS));
    assert_in_range(hr_clock_ns() - begin, 20 * MS, 15000 * MS);
    pthread_join(thread, NULL);
}

static void check_waits(struct hr_transfers *t)
{
    finish_woken(t);
    finish_nothing(t, 30 * MS);
    hr_transfers_wake(t); /* before there is a wait: not lost, and not seen by a look */
    assert_null(hr_transfers_finish(t, 0));
    int64_t begin = hr_clock_ns();
    assert_null(hr_transfers_finish(t, begin + 30000 * MS));
    assert_true(hr_clock_ns() - begin < 15000 * MS);
    finish_nothing(t, 30 * MS);
}

struct turn {
    struct hr_transfers *t;
    struct hr_transfer *x;
    int count;
    int64_t wait_ns;
    struct hr_transfer *ended; /* out */
};

static void *take_turn(void *arg)
{
    struct turn *turn = arg;
    for (int i = 0; i < turn->count; i++)
        hr_transfers_start(turn->t, &turn->x[i]);
    turn->ended = hr_transfers_finish(turn->t, hr_clock_ns() + turn->wait_ns);
    return NULL;
}

/* Starts transfers and waits for one in a thread that then ends. */
static struct hr_transfer *let_take_turn(struct turn turn)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, take_turn, &turn), 0);
    pthread_join(thread, NULL);
    return turn.ended;
}

/* While nothing runs, and while a request does that takes its time; the thread that started it has
 * ended: the ring's requests are cancelled then, and begun again. */
static void test_waits(void **state)
{
    const struct hr_io_calls calls = {.pread = pipe_pread};
    const struct hr_io_sim_options slow = {.seed = SEED, .latency_ns = 2000 * MS};
    for (int kind = 0; kind < KINDS; kind++) {
        struct bed b;
        int pipes[2];
        char bytes[8], sent[8] = "headrac";
        struct hr_transfer x = {.bytes = 8, .memory = (unsigned char *)bytes};
        if (!open_bed(&b, kind, (struct hr_io_options){.calls = &calls, .depth = 2}, &slow))
            continue;
        check_waits(b.t);
        assert_int_equal(pipe(pipes), 0);
        x.fd = pipes[0];
        assert_null(let_take_turn((struct turn){b.t, &x, 1, 20 * MS, NULL}));
        check_waits(b.t);
        assert_int_equal(hr_transfers_running(b.t), 1);
        assert_int_equal(write(pipes[1], sent, 8), 8);
        assert_ptr_equal(wait_any(b.t), &x);
        assert_int_equal(x.error, 0);
        assert_memory_equal(bytes, sent, 8);
        close_bed(&b);
        close(pipes[0]);
        close(pipes[1]);
    }
}

/* --- Threads that take turns --------------------------------------------------------------- */

/* A thread leaves requests running, and another one goes on; close ends what nobody waited for. */
static void test_turns(void **state)
{
    enum { COUNT = 12, SIZE = 2 * MIB };
    size_t all = (size_t)COUNT * SIZE;
    unsigned char *bytes = map(all), *memory = map(all);
    uint64_t seed = SEED;
    int fd = new_file(0);
    fill(bytes, all, &seed);
    put(fd, bytes, all, 0);
    for (int kind = 0; kind < KINDS; kind++) {
        struct hr_transfer x[COUNT];
        struct bed b;
        memset(memory, 0, all);
        for (int i = 0; i < COUNT; i++)
            x[i] = (struct hr_transfer){.fd = fd,
                                        .offset = (uint64_t)i * SIZE,
                                        .bytes = SIZE,
                                        .memory = memory + (size_t)i * SIZE};
        if (!open_bed(&b, kind, (struct hr_io_options){.depth = 5}, NULL))
            continue;
        struct hr_transfer *ended = let_take_turn((struct turn){b.t, x, COUNT, 20000 * MS, NULL});
        assert_true(ended && !ended->error);
        assert_int_equal(wait_any(b.t)->error, 0);
        close_bed(&b);
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(x[i].error, 0);
        assert_memory_equal(memory, bytes, all);
    }
    close(fd);
    munmap(bytes, all);
    munmap(memory, all);
}

/* --- No memory ----------------------------------------------------------------------------- */

static void *meagre_alloc(void *user, size_t bytes, size_t align)
{
    int *left = user;
    return (*left)-- > 0 ? aligned_alloc(align, (bytes + align - 1) / align * align) : NULL;
}

static void meagre_free(void *user, void *memory, size_t bytes, size_t align)
{
    free(memory);
}

static void test_no_memory(void **state)
{
    struct hr_io_sim_options disk = {.seed = SEED};
    for (int kind = 0; kind < KINDS; kind++) {
        bool opened = false;
        for (int most = 0; most < 8; most++) {
            int left = most;
            char why[192] = "";
            struct hr_alloc alloc;
            hr_alloc_init(&alloc, &(hr_allocator){meagre_alloc, meagre_free, &left});
            struct hr_io_options o = {.alloc = &alloc};
            struct hr_io *io = kind == THREADS ? hr_io_threads_open(&o, why)
                               : kind == URING ? hr_io_uring_open(&o, why)
                                               : hr_io_sim_open(&o, &disk, why);
            assert_true((io != NULL) == (why[0] == '\0'));
            struct hr_transfers *t = io ? hr_transfers_open(&alloc, io) : NULL;
            assert_true(!opened || t || kind == URING);
            opened = t != NULL;
            hr_transfers_close(t);
            assert_int_equal(alloc.bytes_used, 0);
        }
        assert_true(opened || kind == URING);
    }
}

/* --- A system that refuses io_uring -------------------------------------------------------- */

/* Makes a system call fail for the calling thread, for good. */
static bool forbid(int number, int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

struct refusal {
    int number, error;
    bool skipped;      /* out: there is no io_uring, or no filters */
    char why[192];     /* out: of a ring that could not be opened */
    int ended, errors; /* out: transfers, those with the right error */
    int64_t wait_ns;   /* out */
};

/* Assertions jump, which a thread must not: it only notes. */
static void *be_refused(void *arg)
{
    struct refusal *r = arg;
    static unsigned char memory[4][PAGE];
    struct hr_transfer x[4];
    struct hr_alloc alloc;
    hr_alloc_init(&alloc, NULL);
    struct hr_io_options o = {.alloc = &alloc, .depth = 3};
    bool at_setup = r->number == SYS_io_uring_setup;
    struct hr_io *io = at_setup ? NULL : hr_io_uring_open(&o, r->why);
    r->skipped = (!at_setup && !io) || !forbid(r->number, r->error);
    if (at_setup && !r->skipped)
        io = hr_io_uring_open(&o, r->why);
    struct hr_transfers *t = io ? hr_transfers_open(&alloc, io) : NULL;
    int64_t begin = hr_clock_ns();
    for (int i = 0; t && !r->skipped && i < 4; i++) {
        x[i] = (struct hr_transfer){.bytes = PAGE, .memory = memory[i], .write = i % 2};
        hr_transfers_start(t, &x[i]);
    }
    while (t && hr_transfers_running(t) > 0) {
        struct hr_transfer *ended = hr_transfers_finish(t, hr_clock_ns() + 1000 * MS);
        r->ended += ended != NULL;
        r->errors += ended && ended->error == r->error;
    }
    r->wait_ns = hr_clock_ns() - begin;
    hr_transfers_close(t);
    return NULL;
}

static void test_uring_refused(void **state)
{
    struct refusal refusals[] = {{.number = SYS_io_uring_setup, .error = EPERM},
                                 {.number = SYS_io_uring_enter, .error = EPERM},
                                 {.number = SYS_io_uring_enter, .error = EAGAIN},
                                 {.number = SYS_io_uring_enter, .error = EBUSY}};
    for (int i = 0; i < 4; i++) {
        struct refusal *r = &refusals[i];
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, be_refused, r), 0);
        pthread_join(thread, NULL);
        print_message("call %d, errno %d: \"%s\", %d of %d, %lld ms%s\n", r->number, r->error,
                      r->why, r->errors, r->ended, (long long)(r->wait_ns / MS),
                      r->skipped ? ", skipped" : "");
        if (r->skipped)
            continue;
        assert_int_equal(r->why[0] != '\0', i == 0);
        assert_int_equal(r->ended, i == 0 ? 0 : 4);
        assert_int_equal(r->errors, r->ended);
        assert_true(r->wait_ns < 20000 * MS);
    }
}

/* Gives up the right to lock pages beyond the limit, for the calling thread. */
static void *open_unprivileged(void *arg)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    char why[192] = "capset";
    void *io = syscall(SYS_capset, &head, none) == 0 ? hr_io_uring_open(arg, why) : NULL;
    if (!io)
        print_message("skipped: %s\n", why);
    return io;
}

static void test_uring_memlock(void **state)
{
    struct rlimit old, low;
    struct hr_alloc alloc;
    hr_alloc_init(&alloc, NULL);
    unsigned char *memory = map(32 * MIB);
    struct hr_io_options o = {.alloc = &alloc, .depth = 4, .memory = memory, .bytes = 32 * MIB};
    void *opened = NULL;
    pthread_t thread;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &old), 0);
    low = old;
    low.rlim_cur = old.rlim_max < 64 * KIB ? old.rlim_max : 64 * KIB;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    assert_int_equal(pthread_create(&thread, NULL, open_unprivileged, &o), 0);
    pthread_join(thread, &opened);
    setrlimit(RLIMIT_MEMLOCK, &old);
    if (opened) {
        struct hr_transfers *t = hr_transfers_open(&alloc, opened);
        struct hr_transfer x = {.fd = open("/dev/zero", O_RDONLY), .bytes = PAGE, .memory = memory};
        print_message("%s\n", hr_transfers_io(t)->text);
        assert_non_null(strstr(hr_transfers_io(t)->text, "none: "));
        memset(memory, 1, PAGE);
        hr_transfers_start(t, &x);
        assert_int_equal(wait_any(t)->error, 0);
        assert_int_equal(memory[0] | memory[PAGE - 1], 0);
        hr_transfers_close(t);
        close(x.fd);
    }
    assert_int_equal(alloc.bytes_used, 0);
    munmap(memory, 32 * MIB);
}

/* More memory than one registered buffer may have: the same 2 MiB, mapped again and again. */
static void test_uring_buffers(void **state)
{
    enum { STEP = 2 * MIB };
    const size_t bytes = ((size_t)1 << 30) + 2 * STEP, edge = (size_t)1 << 30;
    const size_t at[] = {0, edge - 10000, edge, edge - 10000 + 2, bytes - 10000};
    int same = memfd_create("headrace", MFD_CLOEXEC), fd = new_file(0);
    unsigned char *memory = map(bytes), content[10000];
    uint64_t seed = SEED;
    struct bed b;
    fill(content, sizeof(content), &seed);
    assert_int_equal(ftruncate(same, STEP), 0);
    for (size_t i = 0; i < bytes; i += STEP)
        assert_true(mmap(memory + i, STEP, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, same,
                         0) != MAP_FAILED);
    struct hr_io_options o = {.depth = 2, .memory = memory, .bytes = bytes};
    if (open_bed(&b, URING, o, NULL)) {
        print_message("%s\n", hr_transfers_io(b.t)->text);
        for (int i = 0; i < 10; i++) {
            struct hr_transfer x = {.fd = fd,
                                    .write = i % 2 == 0,
                                    .bytes = sizeof(content),
                                    .memory = memory + at[i / 2]};
            content[0] = (unsigned char)(i / 2);
            memcpy(x.memory, content, sizeof(content));
            if (i % 2)
                memset(x.memory, 0, sizeof(content));
            hr_transfers_start(b.t, &x);
            assert_int_equal(wait_any(b.t)->error, 0);
            assert_memory_equal(x.memory, content, sizeof(content));
        }
        close_bed(&b);
    }
    close(fd);
    close(same);
    munmap(memory, bytes);
}

/* --- The simulated disk -------------------------------------------------------------------- */

enum { CELLS = 64, CELL = 512 };

struct cells {
    struct hr_alloc alloc;
    struct hr_io *io;
    int fd;
    unsigned char memory[CELLS][CELL];
};

/* Submits a request for each cell of a new file; the memory holds `first`, the file 'f'. */
static void open_cells(struct cells *c, const struct hr_io_sim_options *sim, bool write, int first)
{
    static unsigned char file[CELLS * CELL];
    char why[192];
    hr_alloc_init(&c->alloc, NULL);
    struct hr_io_options o = {.alloc = &c->alloc, .depth = CELLS};
    c->io = hr_io_sim_open(&o, sim, why);
    assert_non_null(c->io);
    c->fd = new_file(0);
    memset(file, 'f', sizeof(file));
    put(c->fd, file, sizeof(file), 0);
    memset(c->memory, first, sizeof(c->memory));
    for (int i = 0; i < CELLS; i++) {
        struct hr_io_request r = {.fd = c->fd,
                                  .write = write,
                                  .offset = (uint64_t)i * CELL,
                                  .bytes = CELL,
                                  .memory = c->memory[i],
                                  .tag = (uint64_t)i};
        assert_int_equal(c->io->ops->submit(c->io, &r, 1), 1);
    }
    struct hr_io_request more = {.fd = c->fd, .bytes = CELL, .memory = c->memory[0]};
    assert_int_equal(c->io->ops->submit(c->io, &more, 1), 0);
}

/* Reaps all and notes the order. */
static void close_cells(struct cells *c, int *order)
{
    struct hr_io_done done[CELLS];
    for (int n = 0; n < CELLS;) {
        int got = c->io->ops->reap(c->io, done, 1 + n % 7, hr_clock_ns() + 20000 * MS);
        assert_in_range(got, 1, 1 + n % 7);
        for (int i = 0; i < got; i++, n++) {
            assert_int_equal(done[i].result, CELL);
            order[n] = (int)done[i].tag;
        }
    }
    assert_int_equal(c->io->ops->reap(c->io, done, CELLS, 0), 0);
    c->io->ops->close(c->io);
    assert_int_equal(c->alloc.bytes_used, 0);
    close(c->fd);
}

static void test_sim_order(void **state)
{
    static struct cells c;
    static const struct hr_io_sim_options disks[] = {
        {.seed = 5}, {.seed = 5}, {.seed = 6}, {.seed = 5, .ordered = true}};
    int order[4][CELLS], in_order[CELLS];
    for (int i = 0; i < 4; i++) {
        open_cells(&c, &disks[i], false, 'm');
        close_cells(&c, order[i]);
    }
    for (int i = 0; i < CELLS; i++)
        in_order[i] = i;
    assert_memory_equal(order[0], order[1], sizeof(in_order));
    assert_memory_not_equal(order[0], order[2], sizeof(in_order));
    assert_memory_not_equal(order[0], in_order, sizeof(in_order));
    assert_memory_equal(order[3], in_order, sizeof(in_order));
}

/* Reads arrive when they complete; half of the writes take their bytes that late too. */
static void test_sim_memory(void **state)
{
    static struct cells c;
    static unsigned char old[CELLS * CELL], seen[CELLS * CELL];
    int order[CELLS], late = 0;
    memset(old, 'm', sizeof(old));
    open_cells(&c, &(struct hr_io_sim_options){.seed = SEED}, false, 'm');
    assert_memory_equal(c.memory, old, sizeof(old));
    close_cells(&c, order);
    assert_int_equal(c.memory[CELLS - 1][CELL - 1], 'f');

    open_cells(&c, &(struct hr_io_sim_options){.seed = SEED}, true, 'e');
    int fd = dup(c.fd);
    memset(c.memory, 'l', sizeof(c.memory));
    close_cells(&c, order);
    assert_int_equal(pread(fd, seen, sizeof(seen), 0), sizeof(seen));
    for (int i = 0; i < CELLS; i++) {
        assert_true(seen[i * CELL] == 'e' || seen[i * CELL] == 'l');
        late += seen[i * CELL] == 'l';
    }
    assert_in_range(late, CELLS / 4, CELLS * 3 / 4);
    close(fd);
}

static void test_sim_time(void **state)
{
    static struct cells c;
    int order[CELLS];
    int64_t begin = hr_clock_ns();
    open_cells(&c, &(struct hr_io_sim_options){.seed = 1, .bytes_per_s = CELLS * CELL * 10}, false,
               'm');
    close_cells(&c, order);
    assert_in_range(hr_clock_ns() - begin, 99 * MS, 10000 * MS);
    begin = hr_clock_ns();
    open_cells(&c, &(struct hr_io_sim_options){.seed = 1, .latency_ns = 50 * MS}, false, 'm');
    close_cells(&c, order);
    assert_in_range(hr_clock_ns() - begin, 50 * MS, 10000 * MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_system_calls),  cmocka_unit_test(test_waits),
        cmocka_unit_test(test_turns),         cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_uring_refused), cmocka_unit_test(test_uring_memlock),
        cmocka_unit_test(test_uring_buffers), cmocka_unit_test(test_sim_order),
        cmocka_unit_test(test_sim_memory),    cmocka_unit_test(test_sim_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

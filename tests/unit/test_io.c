/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers over every I/O engine: random ones against a flat model, a fault at each call, errors
 * of the system. */
#include "tests/unit/io_bed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>

/* --- Random transfers against a flat model ------------------------------------------------- */

enum { FILES = 3, FILE_BYTES = 6 * MIB, OPS = 24, OP_BYTES = 3 * MIB, GUARD = PAGE };

struct op {
    struct hr_transfer x; /* first: transfers are found as ops */
    unsigned char *room;  /* guards around OP_BYTES */
    int file;
    bool busy;
};

struct model {
    uint64_t state, align;
    int fd[FILES];
    unsigned char *bytes[FILES];
    struct op ops[OPS];
    int64_t errors;
};

static bool overlaps(const struct model *m, const struct op *op)
{
    for (int i = 0; i < OPS; i++) {
        const struct op *o = &m->ops[i];
        if (o != op && o->busy && o->file == op->file && (o->x.write || op->x.write) &&
            o->x.offset < op->x.offset + op->x.bytes && op->x.offset < o->x.offset + o->x.bytes)
            return true;
    }
    return false;
}

/* Draws a transfer that may run beside the others. Its memory holds other bytes than the file. */
static void draw_op(struct model *m, struct op *op)
{
    static const uint64_t sizes[] = {2, 512, 512, 5000, 5000, 5000, 256 * KIB, OP_BYTES + 1};
    do {
        uint64_t bytes = below(&m->state, sizes[below(&m->state, 8)]);
        if (m->align > 1)
            bytes = bytes * 16 < OP_BYTES ? bytes * 16 / m->align * m->align : OP_BYTES;
        op->file = (int)below(&m->state, FILES);
        op->x = (struct hr_transfer){
            .fd = m->fd[op->file],
            .write = below(&m->state, 2),
            .offset = below(&m->state, FILE_BYTES - bytes + 1) / m->align * m->align,
            .bytes = bytes,
            .memory = op->room + GUARD,
        };
    } while (overlaps(m, op));
    op->busy = true;
    memset(op->room, 0xa5, GUARD);
    memset(op->x.memory + op->x.bytes, 0xa5, GUARD);
    if (op->x.write)
        fill(op->x.memory, op->x.bytes, &m->state);
    else
        memset(op->x.memory, 0x5a, op->x.bytes);
}

static void check_op(struct model *m, struct op *op)
{
    unsigned char guard[GUARD], *at = m->bytes[op->file] + op->x.offset;
    memset(guard, 0xa5, GUARD);
    assert_memory_equal(op->room, guard, GUARD);
    assert_memory_equal(op->x.memory + op->x.bytes, guard, GUARD);
    if (op->x.write)
        memcpy(at, op->x.memory, op->x.bytes);
    else
        assert_memory_equal(op->x.memory, at, op->x.bytes);
    memset(op->x.memory, 0x77, op->x.bytes); /* its owner uses it again */
    op->busy = false;
}

static void run_model(struct model *m, struct hr_transfers *t, int64_t count)
{
    int64_t begun = 0, ended = 0;
    while (ended < count) {
        for (int i = 0; i < OPS && begun < count; i++) {
            if (m->ops[i].busy || below(&m->state, 3) == 0)
                continue;
            draw_op(m, &m->ops[i]);
            hr_transfers_start(t, &m->ops[i].x);
            begun++;
        }
        assert_int_equal(hr_transfers_running(t), begun - ended);
        bool look = begun > ended && below(&m->state, 2);
        int64_t deadline = look ? 0 : hr_clock_ns() + (begun > ended ? 20000 * MS : 1);
        struct hr_transfer *x = hr_transfers_finish(t, deadline);
        assert_true(x || look || begun == ended);
        if (x && x->error) { /* an unknown part was moved: do it again */
            assert_int_equal(x->error, EIO);
            m->errors++;
            hr_transfers_start(t, x);
        } else if (x) {
            check_op(m, (struct op *)x);
            ended++;
        }
    }
}

/* False: no such files here. */
static bool open_files(struct model *m, int flags)
{
    for (int i = 0; i < FILES; i++) {
        m->fd[i] = new_file(flags);
        if (m->fd[i] < 0)
            return false;
        m->bytes[i] = map(FILE_BYTES);
        fill(m->bytes[i], FILE_BYTES, &m->state);
        put(m->fd[i], m->bytes[i], FILE_BYTES, 0);
    }
    return true;
}

static void check_files(struct model *m)
{
    for (int i = 0; i < FILES; i++) {
        unsigned char *seen = map(FILE_BYTES);
        assert_int_equal(pread(m->fd[i], seen, FILE_BYTES, 0), FILE_BYTES);
        assert_memory_equal(seen, m->bytes[i], FILE_BYTES);
        munmap(seen, FILE_BYTES);
        munmap(m->bytes[i], FILE_BYTES);
        close(m->fd[i]);
    }
}

/* Half of the ops' memory is given to the engine to register. */
static void check_model(enum kind kind, const struct hr_io_sim_options *sim, int depth, int flags)
{
    enum { ROOM = OP_BYTES + 2 * GUARD };
    struct model m = {.state = SEED + (uint64_t)depth, .align = flags & O_DIRECT ? PAGE : 1};
    struct bed b;
    unsigned char *memory = map((size_t)OPS * ROOM);
    struct hr_io_options options = {
        .depth = depth, .memory = memory, .bytes = (size_t)OPS / 2 * ROOM};
    for (int i = 0; i < OPS; i++)
        m.ops[i].room = memory + (size_t)i * ROOM;
    if (!open_files(&m, flags)) {
        print_message("direct I/O left out: the file system of /tmp has none\n");
    } else if (open_bed(&b, kind, options, sim)) {
        run_model(&m, b.t, 2500);
        struct hr_transfer_counts c = hr_transfers_counts(b.t);
        print_message("%s: again %llu, errors %lld\n", hr_transfers_io(b.t)->text,
                      (unsigned long long)c.again, (long long)m.errors);
        assert_true(c.read_requests > 500 && c.write_requests > 500);
        assert_true(c.read_bytes > 10 * MIB && c.write_bytes > 10 * MIB);
        bool faults = sim && sim->error_rate > 0;
        assert_int_equal(m.errors > 0 && c.again > 0, faults);
        close_bed(&b);
        check_files(&m);
    }
    munmap(memory, (size_t)OPS * ROOM);
}

static void test_model(void **state)
{
    print_message("seed %d\n", SEED);
    for (int kind = 0; kind < KINDS; kind++) {
        check_model(kind, NULL, 8, 0);
        check_model(kind, NULL, 1, 0);
        check_model(kind, NULL, 0, O_DIRECT);
    }
}

static void test_model_simulated(void **state)
{
    static const struct hr_io_sim_options disks[] = {
        {.seed = 1, .ordered = true},
        {.seed = 2, .short_rate = 0.2, .eintr_rate = 0.2, .error_rate = 0.05},
        {.seed = 3, .bytes_per_s = 4e9, .latency_ns = 50000},
        {.seed = 4, .bytes_per_s = 4e9, .short_rate = 0.5, .error_rate = 0.01, .ordered = true},
    };
    for (int i = 0; i < 4; i++)
        check_model(SIM, &disks[i], 3 + i, 0);
    check_model(SIM, &disks[1], 16, O_DIRECT);
}

/* --- A fault at every call ----------------------------------------------------------------- */

enum { SHORT = -1 }; /* beside errno values */

struct faulty {
    struct hr_io_calls calls;
    _Atomic int count;
    int at, fault; /* the at-th call fails */
    bool lasting;  /* and all that follow */
};

static bool fails(struct faulty *f)
{
    int n = atomic_fetch_add(&f->count, 1) + 1;
    return f->lasting ? n >= f->at : n == f->at;
}

/* A call that fails has moved half of its bytes nevertheless, as far as its error lets it. */
static int64_t faulty_pread(void *user, int fd, void *memory, size_t bytes, uint64_t offset)
{
    struct faulty *f = user;
    if (!fails(f))
        return hr_io_calls_system.pread(NULL, fd, memory, bytes, offset);
    int64_t n = hr_io_calls_system.pread(NULL, fd, memory, bytes / 2, offset);
    return f->fault == SHORT ? n : -f->fault;
}

static int64_t faulty_pwrite(void *user, int fd, const void *memory, size_t bytes, uint64_t offset)
{
    struct faulty *f = user;
    if (!fails(f))
        return hr_io_calls_system.pwrite(NULL, fd, memory, bytes, offset);
    int64_t n = hr_io_calls_system.pwrite(NULL, fd, memory, bytes / 2, offset);
    return f->fault == SHORT ? n : -f->fault;
}

struct scenario {
    const char *name;
    int count, files, depth;
    uint64_t bytes[2]; /* of even and odd transfers */
    unsigned writes;   /* bit i: transfer i writes */
};

static const struct scenario scenarios[] = {
    {"a small read", 1, 1, 4, {PAGE, 0}, 0},
    {"a small write", 1, 1, 4, {PAGE, 0}, ~0u},
    {"a large read", 1, 1, 4, {2 * MIB + 5, 0}, 0},
    {"a large write", 1, 1, 4, {2 * MIB + 5, 0}, ~0u},
    {"small reads", 6, 3, 4, {3 * PAGE, 777}, 0},
    {"small writes", 6, 3, 4, {3 * PAGE, 777}, ~0u},
    {"small of both", 6, 2, 4, {PAGE, 2 * PAGE}, 0x15},
    {"large of both", 3, 2, 4, {MIB + 3, MIB + MIB / 2}, 0x3},
    {"small among large", 4, 1, 3, {777, MIB + 2}, 0x6},
    {"one at a time", 5, 2, 1, {5000, 2}, 0x19},
    {"more than the depth", 10, 3, 2, {5000, 100}, 0x2aa},
};

enum { SCENARIOS = sizeof(scenarios) / sizeof(scenarios[0]), MOST = 10, STRIDE = 3 * MIB };

struct faults {
    int fd[FILES];
    unsigned char *old, *new, *memory, *seen; /* [MOST * STRIDE]: the file, what is written, ... */
};

/* A transfer either has the right bytes or says what went wrong. Returns the errors. */
static int check_outcome(struct faults *s, const struct hr_transfer *x, uint64_t at, int wanted)
{
    if (x->error) {
        assert_int_equal(x->error, wanted);
        return 1;
    }
    assert_int_equal(x->ended, x->bytes);
    if (x->write) {
        assert_int_equal(pread(x->fd, s->seen, x->bytes, (off_t)x->offset), x->bytes);
        assert_memory_equal(s->seen, s->new + at, x->bytes);
    } else {
        assert_memory_equal(x->memory, s->old + at, x->bytes);
    }
    return 0;
}

/* Runs a scenario; returns how many calls it made. */
static int run_scenario(struct faults *s, enum kind kind, const struct scenario *c,
                        struct faulty *f)
{
    struct hr_transfer x[MOST];
    struct bed b;
    int errors = 0, pieces = 0, wanted = f->fault == SHORT ? EIO : f->fault;
    bool passes = f->fault == SHORT || f->fault == EINTR || f->fault == EAGAIN;
    f->calls = (struct hr_io_calls){.user = f, .pread = faulty_pread, .pwrite = faulty_pwrite};
    atomic_store(&f->count, 0);
    open_bed(&b, kind, (struct hr_io_options){.calls = &f->calls, .depth = c->depth}, NULL);
    for (int i = 0; i < c->count; i++) {
        uint64_t at = (uint64_t)i * STRIDE, bytes = c->bytes[i % 2];
        bool write = c->writes >> i & 1;
        x[i] = (struct hr_transfer){.fd = s->fd[i % c->files],
                                    .write = write,
                                    .offset = at,
                                    .bytes = bytes,
                                    .memory = s->memory + at};
        put(x[i].fd, s->old + at, bytes, at);
        memcpy(x[i].memory, s->new + at, bytes);
        pieces += (int)((bytes + MIB - 1) / MIB);
        hr_transfers_start(b.t, &x[i]);
    }
    for (int i = 0; i < c->count; i++) {
        struct hr_transfer *ended = wait_any(b.t);
        errors += check_outcome(s, ended, ended->offset, wanted);
        memset(ended->memory, 0x33, ended->bytes); /* still so at the end: see below */
    }
    int again = (int)hr_transfers_counts(b.t).again, count = atomic_load(&f->count);
    assert_null(hr_transfers_finish(b.t, 0));
    close_bed(&b);
    for (int i = 0; i < c->count; i++)
        for (uint64_t j = 0; j < x[i].bytes; j += 97)
            assert_int_equal(x[i].memory[j], 0x33);
    if (f->at && f->lasting)
        assert_in_range(errors, 1, c->count);
    else
        assert_int_equal(errors, f->at && !passes);
    if (!f->lasting)
        assert_int_equal(again, f->at && passes);
    assert_true(again <= pieces * (HR_TRANSFER_TRIES - 1) && count <= pieces + again);
    return count;
}

static void test_every_fault(void **state)
{
    static const int all[] = {EIO, ENOSPC, SHORT, EINTR, EAGAIN};
    size_t bytes = (size_t)MOST * STRIDE;
    uint64_t seed = SEED;
    struct faults s = {
        .old = map(bytes), .new = map(bytes), .memory = map(bytes), .seen = map(STRIDE)};
    int runs = 0;
    fill(s.old, bytes, &seed);
    fill(s.new, bytes, &seed);
    for (int i = 0; i < FILES; i++)
        s.fd[i] = new_file(0);
    for (int i = 0; i < SCENARIOS * 2; i++) {
        enum kind kind = i % 2 ? SIM : THREADS;
        const struct scenario *c = &scenarios[i / 2];
        struct faulty none = {.at = 0};
        int calls = run_scenario(&s, kind, c, &none);
        assert_true(calls >= c->count);
        for (int k = 0; k < calls * 10; k++, runs++) {
            struct faulty f = {.at = k / 10 + 1, .fault = all[k % 5], .lasting = k / 5 % 2};
            run_scenario(&s, kind, c, &f);
        }
    }
    print_message("%d scenarios, %d runs\n", SCENARIOS, runs);
    for (int i = 0; i < FILES; i++)
        close(s.fd[i]);
    munmap(s.old, bytes);
    munmap(s.new, bytes);
    munmap(s.memory, bytes);
    munmap(s.seen, STRIDE);
}

/* The first piece may pass, the second fails for good. */
static int64_t mixed_pread(void *user, int fd, void *memory, size_t bytes, uint64_t offset)
{
    return offset == 0 ? -EINTR : -EIO;
}

/* Close comes to an end where a piece waits to be tried again while its transfer fails. */
static void test_close_after_errors(void **state)
{
    const struct hr_io_calls calls = {.pread = mixed_pread};
    const struct hr_io_sim_options disk = {.seed = SEED, .ordered = true};
    struct hr_transfer x = {.bytes = 2 * MIB, .memory = map(2 * MIB)};
    struct bed b;
    open_bed(&b, SIM, (struct hr_io_options){.calls = &calls, .depth = 2}, &disk);
    hr_transfers_start(b.t, &x);
    alarm(20);
    close_bed(&b);
    alarm(0);
    assert_int_equal(x.error, EIO);
    munmap(x.memory, 2 * MIB);
}

/* Errors that the system itself can be brought to, beside a transfer that succeeds. */
static void test_system_errors(void **state)
{
    enum { PAGES = 6 };
    static unsigned char memory[PAGES * PAGE], bytes[2 * PAGE];
    int fd = new_file(0), full = open("/dev/full", O_WRONLY), reader = open("/dev/null", O_RDONLY);
    uint64_t seed = SEED;
    fill(bytes, sizeof(bytes), &seed);
    put(fd, bytes, sizeof(bytes), 0);
    for (int kind = 0; kind < KINDS; kind++) {
        struct bed b;
        struct hr_transfer x[] = {
            {.fd = fd, .offset = PAGE, .bytes = PAGE, .error = 0},
            {.fd = fd, .offset = PAGE, .bytes = 2 * PAGE, .error = EIO}, /* past the end */
            {.fd = -1, .bytes = PAGE, .error = EBADF},
            {.fd = full, .write = true, .bytes = PAGE, .error = ENOSPC},
            {.fd = reader, .write = true, .bytes = PAGE, .error = EBADF},
        };
        enum { N = sizeof(x) / sizeof(x[0]) };
        int wanted[N];
        if (!open_bed(&b, kind, (struct hr_io_options){.depth = 2}, NULL))
            continue;
        for (int i = 0; i < N; i++) {
            wanted[i] = x[i].error;
            x[i].memory = memory + (i > 1 ? i + 1 : i) * PAGE;
            hr_transfers_start(b.t, &x[i]);
        }
        for (int i = 0; i < N; i++) {
            struct hr_transfer *ended = wait_any(b.t);
            assert_int_equal(ended->error, wanted[ended - x]);
        }
        assert_memory_equal(memory, bytes + PAGE, PAGE);
        assert_int_equal(hr_transfers_counts(b.t).again, HR_TRANSFER_TRIES - 1);
        close_bed(&b);
    }
    close(fd);
    close(full);
    close(reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),         cmocka_unit_test(test_model_simulated),
        cmocka_unit_test(test_every_fault),   cmocka_unit_test(test_close_after_errors),
        cmocka_unit_test(test_system_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

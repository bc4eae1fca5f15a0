/* SPDX-License-Identifier: Apache-2.0 */
/* How transfers are cut, queued and ended, seen through an engine that does what a test says. */
#include "tests/unit/io_bed.h"

#include <errno.h>

enum { ROOM = 64 };

struct fake {
    struct hr_io io;
    int takes; /* requests of one submission, at most */
    struct hr_io_request runs[ROOM];
    int n_runs;
    struct hr_io_done done[ROOM];
    int n_done;
    bool closed;
};

static int fake_submit(struct hr_io *io, const struct hr_io_request *requests, int count)
{
    struct fake *f = (struct fake *)io;
    assert_in_range(count, 1, io->depth - f->n_runs);
    int n = count < f->takes ? count : f->takes;
    memcpy(f->runs + f->n_runs, requests, (size_t)n * sizeof(*requests));
    f->n_runs += n;
    return n;
}

static int fake_reap(struct hr_io *io, struct hr_io_done *done, int most, int64_t deadline_ns)
{
    struct fake *f = (struct fake *)io;
    int n = f->n_done < most ? f->n_done : most;
    memcpy(done, f->done, (size_t)n * sizeof(*done));
    memmove(f->done, f->done + n, (size_t)(f->n_done - n) * sizeof(*done));
    f->n_done -= n;
    return n;
}

static void fake_wake(struct hr_io *io) {}

static void fake_close(struct hr_io *io)
{
    ((struct fake *)io)->closed = true;
}

static const struct hr_io_ops fake_ops = {.name = "fake",
                                          .submit = fake_submit,
                                          .reap = fake_reap,
                                          .wake = fake_wake,
                                          .close = fake_close};

static struct hr_transfers *open_fake(struct fake *f, struct hr_alloc *alloc, int depth)
{
    hr_alloc_init(alloc, NULL);
    *f = (struct fake){.io = {.ops = &fake_ops, .depth = depth}, .takes = ROOM};
    struct hr_transfers *t = hr_transfers_open(alloc, &f->io);
    assert_non_null(t);
    return t;
}

static void close_fake(struct fake *f, struct hr_transfers *t, const struct hr_alloc *alloc)
{
    assert_int_equal(f->n_runs, 0);
    assert_int_equal(hr_transfers_running(t), 0);
    hr_transfers_close(t);
    assert_true(f->closed);
    assert_int_equal(alloc->bytes_used, 0);
}

static void say(struct fake *f, uint64_t tag, int64_t result)
{
    f->done[f->n_done++] = (struct hr_io_done){tag, result};
}

/* Ends the i-th running request. */
static void end(struct fake *f, int i, int64_t result)
{
    say(f, f->runs[i].tag, result);
    memmove(f->runs + i, f->runs + i + 1, (size_t)(--f->n_runs - i) * sizeof(f->runs[0]));
}

static int running(const struct fake *f, bool write)
{
    int n = 0;
    for (int i = 0; i < f->n_runs; i++)
        n += f->runs[i].write == write;
    return n;
}

/* Ends `count` running requests of one direction in full and lets the next ones start. */
static struct hr_transfer *end_some(struct fake *f, struct hr_transfers *t, bool write, int count)
{
    for (int i = 0; i < f->n_runs && count > 0;) {
        if (f->runs[i].write != write) {
            i++;
            continue;
        }
        end(f, i, f->runs[i].bytes);
        count--;
    }
    assert_int_equal(count, 0);
    return hr_transfers_finish(t, 0);
}

static void test_pieces(void **state)
{
    static unsigned char memory[1];
    struct fake f;
    struct hr_alloc alloc;
    struct hr_transfers *t = open_fake(&f, &alloc, 8);
    struct hr_transfer x = {
        .fd = 7, .offset = 12345, .bytes = 2 * MIB + 1, .memory = memory, .write = true};
    struct hr_transfer none = {.fd = 7, .memory = memory, .error = 1};
    hr_transfers_start(t, &x);
    assert_int_equal(f.n_runs, 0);
    assert_null(hr_transfers_finish(t, 0));
    assert_int_equal(f.n_runs, 3);
    for (int i = 0; i < 3; i++) {
        const struct hr_io_request *r = &f.runs[i];
        assert_int_equal(r->fd, 7);
        assert_true(r->write);
        assert_int_equal(r->bytes, i < 2 ? MIB : 1);
        assert_int_equal(r->offset, 12345 + i * MIB);
        assert_ptr_equal(r->memory, memory + i * MIB);
    }
    assert_null(end_some(&f, t, true, 2));
    assert_ptr_equal(end_some(&f, t, true, 1), &x);
    struct hr_transfer_counts c = hr_transfers_counts(t);
    assert_int_equal(c.write_bytes, 2 * MIB + 1);
    assert_int_equal(c.write_requests, 3);
    assert_int_equal(c.read_bytes + c.read_requests + c.again, 0);

    hr_transfers_start(t, &none); /* of no bytes */
    assert_ptr_equal(hr_transfers_finish(t, 0), &none);
    assert_int_equal(none.error, 0);
    close_fake(&f, t, &alloc);
}

static void test_reads_first(void **state)
{
    static unsigned char memory[1];
    struct fake f;
    struct hr_alloc alloc;
    struct hr_transfers *t = open_fake(&f, &alloc, 8);
    struct hr_transfer write = {.bytes = 40 * MIB, .memory = memory, .write = true};
    struct hr_transfer read = {.bytes = 20 * MIB, .memory = memory};
    hr_transfers_start(t, &write);
    assert_null(hr_transfers_finish(t, 0));
    assert_int_equal(running(&f, true), 8); /* alone: all of the depth */
    hr_transfers_start(t, &read);
    assert_null(end_some(&f, t, true, 2));
    assert_int_equal(running(&f, true), 6);
    assert_int_equal(running(&f, false), 2);
    assert_null(end_some(&f, t, true, 6));
    assert_int_equal(running(&f, false), 8); /* none for writes while reads wait */
    assert_null(end_some(&f, t, false, 8));
    assert_null(end_some(&f, t, false, 6)); /* the last reads leave room */
    assert_int_equal(running(&f, false), 6);
    assert_int_equal(running(&f, true), 2);
    assert_null(end_some(&f, t, false, 5));
    assert_int_equal(running(&f, false), 1);
    assert_int_equal(running(&f, true), 4); /* half of the depth while a read runs */
    assert_ptr_equal(end_some(&f, t, false, 1), &read);
    assert_int_equal(running(&f, true), 8);
    for (int i = 0; i < 3; i++)
        assert_null(end_some(&f, t, true, 8));
    assert_ptr_equal(end_some(&f, t, true, 8), &write);
    close_fake(&f, t, &alloc);
}

/* Completions that are stale, twice, or of tags that never were. */
static void test_stale(void **state)
{
    static unsigned char memory[1];
    struct fake f;
    struct hr_alloc alloc;
    struct hr_transfers *t = open_fake(&f, &alloc, 2);
    struct hr_transfer x = {.bytes = 3 * MIB, .memory = memory};
    hr_transfers_start(t, &x);
    assert_null(hr_transfers_finish(t, 0));
    uint64_t first = f.runs[0].tag;
    say(&f, UINT64_MAX, MIB);
    say(&f, first + ((uint64_t)1 << 32), MIB);
    say(&f, 2, MIB);
    end(&f, 0, MIB);
    say(&f, first, MIB);
    for (int i = 0; i < 4; i++)
        assert_null(hr_transfers_finish(t, 0));
    assert_int_equal(f.n_runs, 2); /* the third piece took the first one's place */
    assert_int_equal(x.ended, MIB);
    say(&f, first, -EIO);
    assert_null(hr_transfers_finish(t, 0));
    assert_ptr_equal(end_some(&f, t, false, 2), &x);
    assert_int_equal(x.error, 0);

    hr_transfers_start(t, &x);
    assert_null(hr_transfers_finish(t, 0));
    end(&f, 0, MIB + 1); /* more than was asked for */
    assert_null(hr_transfers_finish(t, 0));
    assert_ptr_equal(end_some(&f, t, false, 1), &x);
    assert_int_equal(x.error, EIO);
    assert_int_equal(hr_transfers_counts(t).again, 0);
    close_fake(&f, t, &alloc);
}

/* A transfer that fails starts nothing more, comes back when its last request has, and the next one
 * goes on. */
static void test_errors(void **state)
{
    static unsigned char memory[1];
    struct fake f;
    struct hr_alloc alloc;
    struct hr_transfers *t = open_fake(&f, &alloc, 4);
    struct hr_transfer x = {.bytes = 9 * MIB, .memory = memory, .write = true};
    struct hr_transfer next = {.bytes = MIB, .memory = memory, .write = true};
    hr_transfers_start(t, &x);
    hr_transfers_start(t, &next);
    assert_null(hr_transfers_finish(t, 0));
    end(&f, 3, -ENOSPC);
    assert_null(hr_transfers_finish(t, 0));
    assert_int_equal(f.n_runs, 4);
    end(&f, 1, -EINTR); /* not tried again any more */
    end(&f, 0, -EIO);   /* not the first error */
    assert_null(hr_transfers_finish(t, 0));
    assert_int_equal(f.n_runs, 2);
    end(&f, 1, MIB); /* of the next one */
    assert_ptr_equal(hr_transfers_finish(t, 0), &next);
    assert_int_equal(next.error, 0);
    assert_null(hr_transfers_finish(t, 0));
    end(&f, 0, 0);
    assert_ptr_equal(hr_transfers_finish(t, 0), &x);
    assert_int_equal(x.error, ENOSPC);
    assert_int_equal(hr_transfers_counts(t).again, 0);

    hr_transfers_start(t, &next); /* no progress: no room, at once */
    assert_null(hr_transfers_finish(t, 0));
    end(&f, 0, 0);
    assert_ptr_equal(hr_transfers_finish(t, 0), &next);
    assert_int_equal(next.error, ENOSPC);
    close_fake(&f, t, &alloc);
}

/* Every failure that may pass, until it is tried no more; a piece that waits to be tried again ends
 * with its transfer. */
static void test_again(void **state)
{
    static unsigned char memory[1];
    static const int64_t results[] = {-EINTR, -EAGAIN, MIB - 1, 1, 0};
    static const int errors[] = {EINTR, EAGAIN, EIO, EIO, EIO};
    struct fake f;
    struct hr_alloc alloc;
    struct hr_transfers *t = open_fake(&f, &alloc, 2);
    for (int i = 0; i < 5; i++) {
        for (int failures = HR_TRANSFER_TRIES - 1; failures <= HR_TRANSFER_TRIES; failures++) {
            struct hr_transfer x = {.offset = 5, .bytes = MIB, .memory = memory};
            hr_transfers_start(t, &x);
            for (int n = 0; n < failures; n++) {
                assert_null(hr_transfers_finish(t, 0));
                assert_int_equal(f.n_runs, 1);
                assert_int_equal(f.runs[0].bytes, MIB); /* as a whole */
                assert_int_equal(f.runs[0].offset, 5);
                end(&f, 0, results[i]);
            }
            struct hr_transfer *ended = hr_transfers_finish(t, 0);
            if (failures < HR_TRANSFER_TRIES)
                ended = end_some(&f, t, false, 1);
            assert_ptr_equal(ended, &x);
            assert_int_equal(x.error, failures < HR_TRANSFER_TRIES ? 0 : errors[i]);
        }
    }
    struct hr_transfer x = {.bytes = 2 * MIB, .memory = memory};
    hr_transfers_start(t, &x);
    assert_null(hr_transfers_finish(t, 0));
    f.takes = 0; /* so that it waits */
    end(&f, 0, 1);
    assert_null(hr_transfers_finish(t, 0));
    end(&f, 0, -EBADF);
    assert_ptr_equal(hr_transfers_finish(t, 0), &x);
    assert_int_equal(x.error, EBADF);
    close_fake(&f, t, &alloc);
}

/* An engine that takes less than it is offered. */
static void test_full_engine(void **state)
{
    static unsigned char memory[1];
    struct fake f;
    struct hr_alloc alloc;
    struct hr_transfers *t = open_fake(&f, &alloc, 8);
    struct hr_transfer x = {.bytes = 5 * MIB, .memory = memory};
    hr_transfers_start(t, &x);
    for (int i = 0; i < 5; i++) {
        f.takes = 0;
        assert_null(hr_transfers_finish(t, 0));
        assert_int_equal(f.n_runs, i);
        f.takes = 1;
        assert_null(hr_transfers_finish(t, 0));
        assert_int_equal(f.n_runs, i + 1);
        assert_int_equal(f.runs[i].offset, i * MIB);
    }
    f.takes = ROOM;
    assert_ptr_equal(end_some(&f, t, false, 5), &x);
    close_fake(&f, t, &alloc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces), cmocka_unit_test(test_reads_first),
        cmocka_unit_test(test_stale),  cmocka_unit_test(test_errors),
        cmocka_unit_test(test_again),  cmocka_unit_test(test_full_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

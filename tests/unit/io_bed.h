/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of I/O share: random bytes, files, an engine with transfers above it. */
#ifndef HR_TESTS_UNIT_IO_BED_H
#define HR_TESTS_UNIT_IO_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/mman.h>
#include <unistd.h>

#include "offload/transfer.h"
#include "src/base/clock.h"

enum { SEED = 20240607, KIB = 1 << 10, MIB = 1 << 20, PAGE = 4096 };

#define MS INT64_C(1000000)

enum kind { THREADS, URING, SIM, KINDS };

static const char *const kind_names[KINDS] = {"threads", "uring", "simulated"};

static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static inline uint64_t below(uint64_t *state, uint64_t bound)
{
    return next_random(state) % bound;
}

static inline void fill(unsigned char *memory, size_t bytes, uint64_t *state)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t x = next_random(state);
        memcpy(memory + i, &x, bytes - i < 8 ? bytes - i : 8);
    }
}

static inline unsigned char *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static inline int new_file(int flags)
{
    char path[] = "/tmp/headrace-io-XXXXXX";
    int fd = mkostemp(path, flags);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static inline void put(int fd, const unsigned char *bytes, size_t count, uint64_t offset)
{
    for (size_t n = 0; n < count;) {
        ssize_t moved = pwrite(fd, bytes + n, count - n, (off_t)(offset + n));
        assert_true(moved > 0);
        n += (size_t)moved;
    }
}

/* An engine with transfers, and their allocator. */
struct bed {
    struct hr_alloc alloc;
    struct hr_transfers *t;
    uint64_t calls;
};

static inline struct hr_io *open_engine(enum kind kind, const struct hr_io_options *options,
                                        const struct hr_io_sim_options *sim)
{
    char why[192] = "";
    struct hr_io_sim_options plain = {.seed = SEED};
    struct hr_io *io = kind == THREADS ? hr_io_threads_open(options, why)
                       : kind == URING ? hr_io_uring_open(options, why)
                                       : hr_io_sim_open(options, sim ? sim : &plain, why);
    if (io)
        assert_string_equal(io->ops->name, kind_names[kind]);
    else
        print_message("%s: %s\n", kind_names[kind], why);
    return io;
}

/* False: no io_uring here; then there is nothing to test. */
static inline bool open_bed(struct bed *b, enum kind kind, struct hr_io_options options,
                            const struct hr_io_sim_options *sim)
{
    hr_alloc_init(&b->alloc, NULL);
    options.alloc = &b->alloc;
    struct hr_io *io = open_engine(kind, &options, sim);
    assert_true(io || kind == URING);
    if (!io)
        return false;
    assert_true(io->text[0] != '\0');
    b->t = hr_transfers_open(&b->alloc, io);
    assert_non_null(b->t);
    assert_ptr_equal(hr_transfers_io(b->t), io);
    b->calls = b->alloc.calls;
    return true;
}

static inline void close_bed(struct bed *b)
{
    assert_int_equal(b->alloc.calls, b->calls); /* nothing was allocated on the way */
    hr_transfers_close(b->t);
    assert_int_equal(b->alloc.bytes_used, 0);
}

static inline struct hr_transfer *wait_any(struct hr_transfers *t)
{
    struct hr_transfer *x = hr_transfers_finish(t, hr_clock_ns() + 20000 * MS);
    assert_non_null(x);
    return x;
}

#endif

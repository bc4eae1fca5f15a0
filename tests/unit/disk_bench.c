/* SPDX-License-Identifier: Apache-2.0 */
/* Reads or writes a file once, in transfers of random order, past the page cache:
 *
 *     disk-bench FILE BYTES DEPTH SIZE ENGINE [--write] [--huge]
 *
 * ENGINE is uring or threads; SIZE is that of a transfer; --huge asks for huge pages as memory:
 * where a disk takes few segments at a time, scattered pages hold it up. A file that is missing or
 * short is made with random data first. Prints one line of JSON. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/transfer.h"
#include "src/base/clock.h"

struct bench {
    int fd;
    bool write;
    uint64_t transfer_bytes;
    int64_t count; /* transfers that make up the file */
    int64_t *order;
    unsigned char *memory; /* of `slots` transfers */
    int64_t slots;
    struct hr_transfer *transfers;
};

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "disk-bench: %s: %s\n", what, why);
    exit(1);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static void fill(unsigned char *memory, uint64_t bytes, uint64_t *state)
{
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t x = next_random(state);
        memcpy(memory + i, &x, 8);
    }
}

static void make_file(const struct bench *b, uint64_t bytes, uint64_t *state)
{
    struct stat info;
    if (fstat(b->fd, &info) == 0 && (uint64_t)info.st_size >= bytes)
        return;
    for (uint64_t at = 0; at < bytes; at += b->transfer_bytes) {
        fill(b->memory, b->transfer_bytes, state);
        for (uint64_t n = 0; n < b->transfer_bytes;) {
            ssize_t moved = pwrite(b->fd, b->memory + n, b->transfer_bytes - n, (off_t)(at + n));
            if (moved <= 0)
                die("write", strerror(errno));
            n += (uint64_t)moved;
        }
    }
    if (fsync(b->fd) != 0)
        die("fsync", strerror(errno));
}

static void shuffle(int64_t *order, int64_t count, uint64_t *state)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t j = (int64_t)(next_random(state) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
}

static void start(struct bench *b, struct hr_transfers *t, struct hr_transfer *x, int64_t index)
{
    int64_t slot = x - b->transfers;
    *x = (struct hr_transfer){
        .fd = b->fd,
        .write = b->write,
        .offset = (uint64_t)b->order[index] * b->transfer_bytes,
        .bytes = b->transfer_bytes,
        .memory = b->memory + (uint64_t)slot * b->transfer_bytes,
    };
    hr_transfers_start(t, x);
}

/* Seconds from the first start to the last end. */
static double run(struct bench *b, struct hr_transfers *t)
{
    int64_t next = 0, begin = hr_clock_ns();
    for (; next < b->slots && next < b->count; next++)
        start(b, t, &b->transfers[next], next);
    while (hr_transfers_running(t) > 0) {
        struct hr_transfer *x = hr_transfers_finish(t, INT64_MAX);
        if (x && x->error)
            die(b->write ? "write" : "read", strerror(x->error));
        if (x && next < b->count)
            start(b, t, x, next++);
    }
    return (double)(hr_clock_ns() - begin) * 1e-9;
}

static struct hr_io *open_engine(const char *name, const struct hr_io_options *options)
{
    char why[192] = "no such engine";
    struct hr_io *io = NULL;
    if (strcmp(name, "uring") == 0)
        io = hr_io_uring_open(options, why);
    else if (strcmp(name, "threads") == 0)
        io = hr_io_threads_open(options, why);
    if (!io)
        die(name, why);
    return io;
}

static unsigned char *map(size_t bytes, bool huge)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || (huge && madvise(memory, bytes, MADV_HUGEPAGE) != 0))
        die("memory", strerror(errno));
    return memory;
}

int main(int argc, char **argv)
{
    uint64_t state = 0x9e3779b97f4a7c15 ^ (uint64_t)hr_clock_ns();
    struct bench b = {.write = false};
    bool huge = false, known = argc >= 6;
    for (int i = 6; i < argc; i++) {
        b.write |= strcmp(argv[i], "--write") == 0;
        huge |= strcmp(argv[i], "--huge") == 0;
        known &= strcmp(argv[i], "--write") == 0 || strcmp(argv[i], "--huge") == 0;
    }
    if (!known)
        die("usage", "disk-bench FILE BYTES DEPTH SIZE ENGINE [--write] [--huge]");
    b.transfer_bytes = strtoull(argv[4], NULL, 0);
    int depth = atoi(argv[3]);
    if (b.transfer_bytes == 0 || b.transfer_bytes % 4096 || depth < 1)
        die("usage", "SIZE is a multiple of 4096, DEPTH at least 1");
    b.count = (int64_t)(strtoull(argv[2], NULL, 0) / b.transfer_bytes);
    b.slots = depth;
    uint64_t bytes = (uint64_t)b.count * b.transfer_bytes;
    size_t memory_bytes = (size_t)b.slots * b.transfer_bytes;
    b.fd = open(argv[1], O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (b.fd < 0)
        die(argv[1], strerror(errno));
    b.memory = map(memory_bytes, huge);
    b.order = calloc((size_t)b.count + 1, sizeof(*b.order));
    b.transfers = calloc((size_t)b.slots, sizeof(*b.transfers));
    if (!b.order || !b.transfers)
        die("memory", strerror(errno));
    make_file(&b, bytes, &state);
    fill(b.memory, memory_bytes, &state);
    shuffle(b.order, b.count, &state);

    struct hr_alloc alloc;
    hr_alloc_init(&alloc, NULL);
    struct hr_io_options options = {
        .alloc = &alloc, .depth = depth, .memory = b.memory, .bytes = memory_bytes};
    struct hr_transfers *t = hr_transfers_open(&alloc, open_engine(argv[5], &options));
    if (!t)
        die("hr_transfers_open", "no memory");
    double seconds = run(&b, t);
    printf("{\"engine\": \"%s\", \"text\": \"%s\", \"bytes\": %llu, \"seconds\": %.6f, "
           "\"bytes_per_s\": %.0f}\n",
           argv[5], hr_transfers_io(t)->text, (unsigned long long)bytes, seconds,
           (double)bytes / seconds);
    hr_transfers_close(t);
    return 0;
}

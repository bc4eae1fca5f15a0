/* SPDX-License-Identifier: Apache-2.0 */
/* Requests in a ring shared with the kernel. What the kernel gets as user data is a slot with its
 * turn, so that a completion nobody waits for any more is seen as such. One more entry of the ring
 * reads an eventfd: whoever writes to it wakes the reap that waits for completions. */
#include "offload/io.h"

#include <stdio.h>

enum { WHY_BYTES = 192 };

#ifndef HR_HAVE_URING

struct hr_io *hr_io_uring_open(const struct hr_io_options *options, char *why)
{
    snprintf(why, WHY_BYTES, "this build has no liburing");
    return NULL;
}

#else

#include "src/base/clock.h"
#include "src/base/topo.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <liburing.h>

enum {
    REGISTERED_BYTES = 1 << 30, /* the kernel's limit for one buffer */
    RETRY_NS = 1000000,         /* between tries to hand over what the kernel refused */
    PATIENCE_NS = 100000000,    /* it may refuse for so long */
};

/* User data of the eventfd's read; liburing keeps UINT64_MAX for itself. */
#define WAKE (UINT64_MAX - 1)

struct slot {
    uint64_t tag;
    uint32_t turn;
    bool runs;
    int error; /* of a request that the kernel never took */
};

struct uring {
    struct hr_io io;
    struct hr_alloc *alloc;
    struct io_uring ring;
    int event; /* eventfd, -1: not open */
    uint64_t event_value;
    bool armed, woken;
    int running, failed;   /* slots; failed ones run too */
    int64_t refused_ns;    /* when the kernel began to refuse, 0: it does not */
    const char *way;       /* of completions */
    bool fixed;            /* the kernel has requests for registered memory */
    unsigned char *memory; /* to register, and how much of it is */
    size_t bytes;
    struct slot slots[];
};

static size_t uring_bytes(int depth)
{
    return sizeof(struct uring) + (size_t)depth * sizeof(struct slot);
}

/* The registered buffer that holds all of a request, or -1. */
static int buffer_of(const struct uring *u, const struct hr_io_request *r)
{
    uintptr_t from = (uintptr_t)r->memory - (uintptr_t)u->memory;
    if (from >= u->bytes || r->bytes > u->bytes - from)
        return -1;
    uintptr_t first = from / REGISTERED_BYTES, last = (from + r->bytes - 1) / REGISTERED_BYTES;
    return first == last ? (int)first : -1;
}

static void prepare(const struct uring *u, struct io_uring_sqe *sqe, const struct hr_io_request *r)
{
    int buffer = buffer_of(u, r);
    if (buffer >= 0 && r->write)
        io_uring_prep_write_fixed(sqe, r->fd, r->memory, r->bytes, r->offset, buffer);
    else if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, r->fd, r->memory, r->bytes, r->offset, buffer);
    else if (r->write)
        io_uring_prep_write(sqe, r->fd, r->memory, r->bytes, r->offset);
    else
        io_uring_prep_read(sqe, r->fd, r->memory, r->bytes, r->offset);
}

/* Takes back what the kernel has not taken over: these requests end with the error. Without a
 * polling kernel thread the kernel looks at the queue in io_uring_submit only. */
static void take_back(struct uring *u, int error)
{
    struct io_uring_sq *sq = &u->ring.sq;
    unsigned head = *sq->khead;
    for (unsigned i = head; i != sq->sqe_tail; i++) {
        uint64_t data = sq->sqes[i & sq->ring_mask].user_data;
        if (data == WAKE) {
            u->armed = false;
        } else {
            u->slots[(uint32_t)data].error = error;
            u->failed++;
        }
    }
    sq->sqe_head = sq->sqe_tail = *sq->ktail = head;
}

/* Hands the queue to the kernel. What it refuses for now stays and is tried again at the next look,
 * but not for ever. */
static void flush(struct uring *u)
{
    int n = 1;
    while (n > 0 && io_uring_sq_ready(&u->ring) > 0)
        n = io_uring_submit(&u->ring);
    if (n > 0) {
        u->refused_ns = 0;
        return;
    }
    int64_t now = hr_clock_ns();
    if (u->refused_ns == 0)
        u->refused_ns = now;
    bool passes = n == 0 || n == -EAGAIN || n == -EBUSY || n == -EINTR;
    if (passes && now - u->refused_ns < PATIENCE_NS)
        return;
    take_back(u, n ? -n : EAGAIN);
    u->refused_ns = 0;
}

static void arm(struct uring *u)
{
    struct io_uring_sqe *sqe = u->armed ? NULL : io_uring_get_sqe(&u->ring);
    if (!sqe)
        return;
    io_uring_prep_read(sqe, u->event, &u->event_value, sizeof(u->event_value), 0);
    sqe->user_data = WAKE;
    u->armed = true;
}

static int uring_submit(struct hr_io *io, const struct hr_io_request *requests, int count)
{
    struct uring *u = (struct uring *)io;
    int n = 0;
    for (int i = 0; i < io->depth && n < count; i++) {
        struct slot *slot = &u->slots[i];
        struct io_uring_sqe *sqe = slot->runs ? NULL : io_uring_get_sqe(&u->ring);
        if (!sqe)
            continue;
        *slot = (struct slot){.tag = requests[n].tag, .turn = slot->turn + 1, .runs = true};
        prepare(u, sqe, &requests[n++]);
        sqe->user_data = (uint64_t)slot->turn << 32 | (uint32_t)i;
    }
    u->running += n;
    flush(u);
    return n;
}

static struct hr_io_done end_slot(struct uring *u, struct slot *slot, int64_t result)
{
    slot->runs = false;
    u->running--;
    return (struct hr_io_done){slot->tag, result};
}

/* True: the completion of a request. */
static bool take_completion(struct uring *u, const struct io_uring_cqe *cqe,
                            struct hr_io_done *done)
{
    uint32_t i = (uint32_t)cqe->user_data, turn = (uint32_t)(cqe->user_data >> 32);
    if (cqe->user_data == WAKE) {
        u->armed = false;
        u->woken = true; /* also by the end of the thread that armed it: one look too many */
        return false;
    }
    if (i >= (uint32_t)u->io.depth || !u->slots[i].runs || u->slots[i].turn != turn)
        return false; /* stale */
    /* Nothing here cancels: the kernel does it to a thread that ends, and it can be done again. */
    *done = end_slot(u, &u->slots[i], cqe->res == -ECANCELED ? -EINTR : cqe->res);
    return true;
}

static int take_failed(struct uring *u, struct hr_io_done *done, int most)
{
    int n = 0;
    for (int i = 0; i < u->io.depth && n < most && u->failed > 0; i++) {
        struct slot *slot = &u->slots[i];
        if (!slot->runs || slot->error == 0)
            continue;
        done[n++] = end_slot(u, slot, -slot->error);
        u->failed--;
    }
    return n;
}

static int look(struct uring *u, struct hr_io_done *done, int most)
{
    struct io_uring_cqe *cqe;
    flush(u);
    int n = take_failed(u, done, most);
    while (n < most && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        n += take_completion(u, cqe, &done[n]);
        io_uring_cqe_seen(&u->ring, cqe);
    }
    return n;
}

/* Until a completion, for wait_ns at most; shortly while the kernel refuses requests. */
static void wait_for_completion(struct uring *u, int64_t wait_ns)
{
    struct io_uring_cqe *cqe;
    if (io_uring_sq_ready(&u->ring) > 0 && wait_ns > RETRY_NS)
        wait_ns = RETRY_NS;
    struct __kernel_timespec most = {wait_ns / 1000000000, wait_ns % 1000000000};
    int error = io_uring_wait_cqe_timeout(&u->ring, &cqe, &most);
    if (error && error != -ETIME && error != -EINTR) {
        struct timespec pause = {0, RETRY_NS};
        nanosleep(&pause, NULL);
    }
}

static int uring_reap(struct hr_io *io, struct hr_io_done *done, int most, int64_t deadline_ns)
{
    struct uring *u = (struct uring *)io;
    for (;;) {
        int n = look(u, done, most);
        if (n > 0 || deadline_ns == 0)
            return n;
        int64_t wait_ns = deadline_ns - hr_clock_ns();
        if (u->woken || wait_ns <= 0) {
            u->woken = false;
            return 0;
        }
        arm(u);
        flush(u);
        if (u->failed == 0)
            wait_for_completion(u, wait_ns);
    }
}

static void uring_wake(struct hr_io *io)
{
    struct uring *u = (struct uring *)io;
    uint64_t one = 1;
    ssize_t written = write(u->event, &one, sizeof(one));
    (void)written; /* fails only where the eventfd is already readable */
}

static void uring_close(struct hr_io *io)
{
    struct uring *u = (struct uring *)io;
    struct hr_io_done done;
    while (u->running > 0)
        uring_reap(io, &done, 1, INT64_MAX);
    io_uring_queue_exit(&u->ring);
    close(u->event);
    hr_alloc_put(u->alloc, u, uring_bytes(io->depth));
}

/* Not SINGLE_ISSUER with DEFER_TASKRUN: such a ring belongs to the thread that enables it, while
 * this one is opened and closed by another thread than uses it; and with requests of this size
 * there is nothing to gain. Returns 0 or -errno. */
static int open_ring(struct uring *u)
{
    unsigned entries = (unsigned)u->io.depth + 1;
    u->way = "cooperative completions";
    int error = io_uring_queue_init(entries, &u->ring,
                                    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (error != -EINVAL)
        return error;
    u->way = "plain completions";
    return io_uring_queue_init(entries, &u->ring, 0);
}

/* NULL, or what the kernel lacks. */
static const char *lacks(struct uring *u)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
    bool plain = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                 io_uring_opcode_supported(probe, IORING_OP_WRITE);
    u->fixed = plain && io_uring_opcode_supported(probe, IORING_OP_READ_FIXED) &&
               io_uring_opcode_supported(probe, IORING_OP_WRITE_FIXED);
    io_uring_free_probe(probe);
    if (!plain)
        return "the kernel's io_uring has no plain reads and writes (Linux 5.6 has)";
    if (!(u->ring.features & IORING_FEAT_EXT_ARG))
        return "the kernel's io_uring cannot wait with a timeout (Linux 5.11 can)";
    return NULL;
}

/* All of the bytes, of which the first `held` are in memory, or, where their pages may not be
 * locked, nothing. Returns how many buffers they are, or -errno. */
static int register_memory(struct uring *u, size_t held, size_t bytes)
{
    if (!u->memory || bytes == 0)
        return 0;
    if (!u->fixed)
        return -EOPNOTSUPP;
    /* It touches all of them: with more than there is the system would end the process. */
    if (bytes > held && bytes - held > hr_topo_memory_available())
        return -EFBIG;
    size_t count = (bytes + REGISTERED_BYTES - 1) / REGISTERED_BYTES;
    struct iovec *buffers = hr_alloc_get(u->alloc, count * sizeof(*buffers));
    if (!buffers)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        size_t from = i * REGISTERED_BYTES, left = bytes - from;
        buffers[i].iov_base = u->memory + from;
        buffers[i].iov_len = left < REGISTERED_BYTES ? left : REGISTERED_BYTES;
    }
    int error = io_uring_register_buffers(&u->ring, buffers, (unsigned)count);
    hr_alloc_put(u->alloc, buffers, count * sizeof(*buffers));
    if (error)
        return error;
    u->bytes = bytes;
    return (int)count;
}

static void describe(struct uring *u, int registered)
{
    char *text = u->io.text;
    size_t size = sizeof(u->io.text);
    int n = snprintf(text, size, "uring: depth %d, %s, ", u->io.depth, u->way);
    if (registered >= 0)
        snprintf(text + n, size - (size_t)n, "registered buffers: %d", registered);
    else
        snprintf(text + n, size - (size_t)n, "registered buffers: none: %s%s",
                 registered == -EFBIG ? "they are more than the memory there is"
                                      : strerror(-registered),
                 registered == -ENOMEM ? " (see ulimit -l)" : "");
}

static void uring_resize(struct hr_io *io, size_t bytes)
{
    struct uring *u = (struct uring *)io;
    if (u->bytes > 0)
        io_uring_unregister_buffers(&u->ring);
    size_t held = u->bytes;
    u->bytes = 0;
    describe(u, register_memory(u, held, bytes));
}

static const struct hr_io_ops uring_ops = {
    .name = "uring",
    .submit = uring_submit,
    .reap = uring_reap,
    .wake = uring_wake,
    .resize = uring_resize,
    .close = uring_close,
};

static struct hr_io *refuse(struct uring *u, char *why, const char *what, int error)
{
    snprintf(why, WHY_BYTES, "%s%s%s", what, error ? ": " : "", error ? strerror(error) : "");
    if (u->event >= 0)
        close(u->event);
    hr_alloc_put(u->alloc, u, uring_bytes(u->io.depth));
    return NULL;
}

struct hr_io *hr_io_uring_open(const struct hr_io_options *options, char *why)
{
    int depth = options->depth > 0 ? options->depth : 16;
    struct uring *u = hr_alloc_zero(options->alloc, uring_bytes(depth));
    if (!u) {
        snprintf(why, WHY_BYTES, "no memory for %zu bytes", uring_bytes(depth));
        return NULL;
    }
    u->alloc = options->alloc;
    u->io.ops = &uring_ops;
    u->io.depth = depth;
    u->event = eventfd(0, EFD_CLOEXEC); /* blocking: a read of the ring then waits */
    if (u->event < 0)
        return refuse(u, why, "eventfd", errno);
    int error = open_ring(u);
    if (error)
        return refuse(u, why, "io_uring_setup", -error);
    const char *lacking = lacks(u);
    if (lacking) {
        io_uring_queue_exit(&u->ring);
        return refuse(u, why, lacking, 0);
    }
    u->memory = options->memory;
    describe(u, register_memory(u, 0, options->bytes));
    return &u->io;
}

#endif

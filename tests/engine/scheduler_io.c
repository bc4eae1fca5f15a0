/* SPDX-License-Identifier: Apache-2.0 */
/* The disk of scheduler.h: one file in memory, and an engine whose requests move their bytes at one
 * moment between submission and completion. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/scheduler.h"

struct request {
    struct hr_io_request asked;
    bool taken, moved, done;
    int64_t result;
};

static struct {
    struct hr_io io;
    struct request requests[SCHED_DEPTH];
    unsigned char *file; /* file_bytes */
} d;

/* ---- The file ---- */

enum { FD = 1000 };

static int64_t file_read(void *user, int fd, void *memory, size_t bytes, uint64_t offset)
{
    memcpy(memory, d.file + offset, bytes);
    return (int64_t)bytes;
}

static int64_t file_write(void *user, int fd, const void *memory, size_t bytes, uint64_t offset)
{
    memcpy(d.file + offset, memory, bytes);
    return (int64_t)bytes;
}

static int file_open(void *user, const char *path, int flags, int mode)
{
    return FD;
}

static int file_nothing(void *user, int fd)
{
    return 0;
}

static int file_allocate(void *user, int fd, uint64_t bytes)
{
    return bytes <= sched_set.file_bytes ? 0 : -ENOSPC;
}

static int file_unlink(void *user, const char *path)
{
    return 0;
}

const struct hr_io_calls sched_files = {
    .pread = file_read,
    .pwrite = file_write,
    .open = file_open,
    .close = file_nothing,
    .allocate = file_allocate,
    .sync = file_nothing,
    .unlink = file_unlink,
};

/* ---- The engine ---- */

static int io_submit(struct hr_io *io, const struct hr_io_request *requests, int count)
{
    int n = 0;
    for (int i = 0; i < SCHED_DEPTH && n < count; i++) {
        if (d.requests[i].taken)
            continue;
        d.requests[i] = (struct request){.asked = requests[n++], .taken = true};
        sched_begin_request(i);
    }
    sched_idle();
    return n;
}

/* Its bytes, or some of them, or none: what a disk may do. */
static void move(int i)
{
    struct request *r = &d.requests[i];
    const struct hr_io_request *a = &r->asked;
    uint32_t bytes = a->bytes;
    r->moved = true;
    r->result = bytes;
    sched_counted.requests++;
    if (sched_chance(sched_set.error_rate)) {
        sched_counted.errors++;
        r->result = -EIO;
        bytes /= 2;
    } else if (sched_chance(sched_set.again_rate)) {
        r->result = sched_draw(2) ? -EINTR : (int64_t)bytes / 2;
        bytes /= 2;
    }
    sched_use_request(i, a->memory, a->offset, a->bytes, a->write);
    if (a->write)
        file_write(NULL, a->fd, a->memory, bytes, a->offset);
    else
        file_read(NULL, a->fd, a->memory, bytes, a->offset);
}

int sched_io_choices(void)
{
    int n = 0;
    for (int i = 0; i < SCHED_DEPTH; i++)
        n += d.requests[i].taken && !d.requests[i].done;
    return n;
}

void sched_io_turn(int choice)
{
    for (int i = 0; i < SCHED_DEPTH; i++) {
        struct request *r = &d.requests[i];
        if (!r->taken || r->done || choice-- > 0)
            continue;
        if (!r->moved)
            move(i);
        else
            r->done = true;
        return;
    }
}

static int reap_done(struct hr_io_done *done, int most)
{
    int n = 0;
    for (int i = 0; i < SCHED_DEPTH && n < most; i++) {
        struct request *r = &d.requests[i];
        if (!r->done)
            continue;
        sched_see_request(i);
        done[n++] = (struct hr_io_done){r->asked.tag, r->result};
        *r = (struct request){0};
    }
    return n;
}

static int io_reap(struct hr_io *io, struct hr_io_done *done, int most, int64_t deadline_ns)
{
    sched_idle();
    int n = reap_done(done, most);
    while (n == 0 && deadline_ns > 0 && sched_io_choices() > 0) {
        sched_turn();
        n = reap_done(done, most);
    }
    return n;
}

static void io_wake(struct hr_io *io) {}

static void io_close(struct hr_io *io) {}

static const struct hr_io_ops ops = {
    .name = "scheduler", .submit = io_submit, .reap = io_reap, .wake = io_wake, .close = io_close};

struct hr_io *sched_io_open(void *user, const struct hr_io_options *options, char *why)
{
    d.io = (struct hr_io){.ops = &ops, .depth = SCHED_DEPTH};
    return &d.io;
}

void sched_io_reset(void)
{
    static uint64_t bytes;
    memset(d.requests, 0, sizeof(d.requests));
    if (bytes == sched_set.file_bytes)
        return; /* what an earlier seed left in it is as good as anything */
    bytes = sched_set.file_bytes;
    free(d.file);
    d.file = calloc(1, bytes);
}

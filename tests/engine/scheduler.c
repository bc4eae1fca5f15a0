/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks, uses of pages, and the device: see scheduler.h. */
#include "tests/engine/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/exec.h"

struct page {
    uint64_t write;               /* clock of the actor that wrote it last */
    uint64_t reads[SCHED_ACTORS]; /* clock of each actor's last read since then */
    const char *what, *who[SCHED_ACTORS];
    int writer;
};

struct sched_counts sched_counted;
struct sched_options sched_set;

/* Events of the device. */
struct event {
    struct sched_clock clock; /* of work, when the last record was passed */
    uint64_t recorded, passed;
};

struct record {
    struct sched_op op;
    struct event *event;
    uint64_t number;
};

static struct {
    uint64_t state; /* of the generator */
    struct sched_clock clocks[SCHED_ACTORS];
    struct page *memory, *file;
    const unsigned char *arena;
    struct sched_op *first, *last;
    uint64_t calls;
    uint64_t work_weight, idle_most; /* of this seed */
    char race[512];
    const struct hr_dev_ops *host;
    struct hr_dev_ops ops;
} s;

uint64_t sched_draw(uint64_t below)
{
    uint64_t x = s.state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (x ^ x >> 31) % below;
}

bool sched_chance(double share)
{
    return (double)sched_draw(1 << 20) < share * (1 << 20);
}

/* ---- Clocks ---- */

static void learn(struct sched_clock *to, const struct sched_clock *from)
{
    for (int i = 0; i < SCHED_ACTORS; i++)
        to->at[i] = to->at[i] > from->at[i] ? to->at[i] : from->at[i];
}

static const char *actor_name(int actor)
{
    static const char *const names[] = {"the caller", "work", "a request"};
    return names[actor < SCHED_REQUEST ? actor : SCHED_REQUEST];
}

static void note_race(int64_t page, const char *where, int before, const char *what_before, int now,
                      const char *what)
{
    if (s.race[0])
        return;
    snprintf(s.race, sizeof(s.race), "%s page %lld: %s (%s) and %s (%s): nothing orders them",
             where, (long long)page, what_before ? what_before : "?", actor_name(before), what,
             actor_name(now));
}

static void use_page(struct page *p, int64_t number, const char *where, int actor, bool write,
                     const char *what)
{
    const struct sched_clock *clock = &s.clocks[actor];
    sched_counted.uses++;
    if (p->write > clock->at[p->writer])
        note_race(number, where, p->writer, p->what, actor, what);
    for (int i = 0; write && i < SCHED_ACTORS; i++)
        if (p->reads[i] > clock->at[i])
            note_race(number, where, i, p->who[i], actor, what);
    if (!write) {
        p->reads[actor] = clock->at[actor];
        p->who[actor] = what;
        return;
    }
    *p = (struct page){.write = clock->at[actor], .writer = actor, .what = what};
}

static void use(struct page *pages, const char *where, int actor, uint64_t from, uint64_t bytes,
                bool write, const char *what)
{
    for (uint64_t p = from / SCHED_PAGE; p <= (from + bytes - 1) / SCHED_PAGE; p++)
        use_page(&pages[p], (int64_t)p, where, actor, write, what);
}

void sched_use(const void *memory, uint64_t bytes, bool write, const char *what)
{
    uint64_t from = (uint64_t)((const unsigned char *)memory - s.arena);
    use(s.memory, "arena", SCHED_WORK, from, bytes, write, what);
}

void sched_begin_request(int i)
{
    struct sched_clock *clock = &s.clocks[SCHED_REQUEST + i];
    learn(clock, &s.clocks[SCHED_CALLER]);
    clock->at[SCHED_REQUEST + i]++;
}

void sched_use_request(int i, const void *memory, uint64_t offset, uint64_t bytes, bool write)
{
    uint64_t from = (uint64_t)((const unsigned char *)memory - s.arena);
    const char *what = write ? "a write to disk" : "a read from disk";
    use(s.memory, "arena", SCHED_REQUEST + i, from, bytes, !write, what);
    use(s.file, "file", SCHED_REQUEST + i, offset, bytes, write, what);
}

void sched_see_request(int i)
{
    learn(&s.clocks[SCHED_CALLER], &s.clocks[SCHED_REQUEST + i]);
}

/* ---- What happens when ---- */

void sched_enqueue(struct sched_op *op)
{
    op->next = NULL;
    op->known = s.clocks[SCHED_CALLER];
    op->call = s.calls;
    if (s.first)
        s.last->next = op;
    else
        s.first = op;
    s.last = op;
}

static void run_work(void)
{
    struct sched_op *op = s.first;
    s.first = op->next;
    learn(&s.clocks[SCHED_WORK], &op->known);
    s.clocks[SCHED_WORK].at[SCHED_WORK]++;
    sched_counted.late += op->call != s.calls;
    op->run(op);
    free(op);
}

bool sched_turn(void)
{
    uint64_t io = (uint64_t)sched_io_choices(), work = s.first ? s.work_weight : 0;
    if (io + work == 0)
        return false;
    uint64_t choice = sched_draw(io + work);
    if (choice < io)
        sched_io_turn((int)choice);
    else
        run_work();
    return true;
}

void sched_idle(void)
{
    for (uint64_t n = sched_draw(s.idle_most + 1); n > 0; n--)
        sched_turn();
}

void sched_drain(void)
{
    while (s.first)
        sched_turn();
}

/* ---- The device ---- */

static void launch(struct hr_dev *dev, hr_item_fn *fn, const void *args, int64_t items)
{
    s.calls++;
    sched_counted.launches++;
    int64_t first = items > 0 ? (int64_t)sched_draw((uint64_t)items) : 0;
    for (int64_t i = 0; i < items; i++)
        fn(args, (first + i) % items, NULL); /* the kernels that enqueue */
    sched_idle();
}

struct zero {
    struct sched_op op;
    void *memory;
    size_t bytes;
};

static void run_zero(struct sched_op *op)
{
    struct zero *z = (struct zero *)op;
    sched_use(z->memory, z->bytes, true, "zeroing");
    memset(z->memory, 0, z->bytes);
}

static void zero(struct hr_dev *dev, void *memory, size_t bytes)
{
    struct zero *z = malloc(sizeof(*z));
    s.calls++;
    *z = (struct zero){{.run = run_zero}, memory, bytes};
    sched_enqueue(&z->op);
    sched_idle();
}

static void run_release(struct sched_op *op)
{
    struct zero *z = (struct zero *)op;
    sched_use(z->memory, z->bytes, true, "giving back");
    memset(z->memory, 0xff, z->bytes);
}

static void release(struct hr_dev *dev, void *memory, size_t bytes)
{
    struct zero *z = malloc(sizeof(*z));
    s.calls++;
    *z = (struct zero){{.run = run_release}, memory, bytes};
    sched_enqueue(&z->op);
    sched_idle();
}

struct copy {
    struct sched_op op;
    struct hr_dev_copy what;
};

static void run_copy(struct sched_op *op)
{
    const struct hr_dev_copy *c = &((struct copy *)op)->what;
    sched_use(c->from, c->bytes, false, "a copy");
    sched_use(c->to, c->bytes, true, "a copy");
    memcpy(c->to, c->from, c->bytes);
}

static void copy_batch(struct hr_dev *dev, enum hr_dev_queue queue,
                       const struct hr_dev_copy *copies, int64_t count)
{
    s.calls++;
    for (int64_t i = 0; i < count; i++) {
        struct copy *c = malloc(sizeof(*c));
        *c = (struct copy){{.run = run_copy}, copies[i]};
        sched_enqueue(&c->op);
    }
    sched_idle();
}

static void memory_put(struct hr_dev *dev, void *memory, size_t bytes)
{
    sched_drain();
    s.host->memory_put(dev, memory, bytes);
}

static struct hr_dev_event *event_make(struct hr_dev *dev)
{
    return calloc(1, sizeof(struct event));
}

static void event_free(struct hr_dev *dev, struct hr_dev_event *event)
{
    sched_drain();
    free(event);
}

static void run_record(struct sched_op *op)
{
    struct record *r = (struct record *)op;
    r->event->passed = r->number;
    r->event->clock = s.clocks[SCHED_WORK];
}

static void event_record(struct hr_dev *dev, struct hr_dev_event *event, enum hr_dev_queue queue)
{
    struct event *e = (struct event *)event;
    struct record *r = malloc(sizeof(*r));
    s.calls++;
    *r = (struct record){{.run = run_record}, e, ++e->recorded};
    sched_enqueue(&r->op);
}

static enum hr_dev_wait event_wait(struct hr_dev *dev, struct hr_dev_event *event,
                                   int64_t deadline_ns)
{
    struct event *e = (struct event *)event;
    sched_idle();
    while (e->passed != e->recorded && deadline_ns > 0)
        sched_turn();
    if (e->passed != e->recorded)
        return HR_DEV_PENDING;
    learn(&s.clocks[SCHED_CALLER], &e->clock);
    return HR_DEV_DONE;
}

static void close_device(struct hr_dev *dev)
{
    sched_drain();
    s.host->close(dev);
}

static enum hr_dev_wait exec_wait(hr_step *step, int64_t deadline_ns)
{
    sched_drain();
    return HR_DEV_DONE;
}

static void device_opened(void *user, hr_context *c)
{
    static struct hr_exec_ops exec;
    s.host = c->dev->ops;
    s.ops = *s.host;
    s.ops.launch = launch;
    s.ops.zero = zero;
    s.ops.release = release;
    s.ops.copy_batch = copy_batch;
    s.ops.memory_put = memory_put;
    s.ops.event_make = event_make;
    s.ops.event_free = event_free;
    s.ops.event_record = event_record;
    s.ops.event_wait = event_wait;
    s.ops.close = close_device;
    c->dev->ops = &s.ops;
    s.arena = c->dev->arena;
    exec = *c->exec;
    exec.wait = exec_wait;
    c->exec = &exec;
    c->kernels = sched_kernels(c->kernels);
}

const struct hr_hooks sched_hooks = {
    .calls = &sched_files, .open_io = sched_io_open, .device_opened = device_opened};

/* ---- Its life ---- */

void sched_open(const struct sched_options *o)
{
    memset(&s, 0, sizeof(s));
    sched_set = *o;
    s.state = o->seed;
    s.work_weight = 1 + sched_draw(4) * sched_draw(4);
    s.idle_most = sched_draw(5);
    s.memory = calloc(o->arena_bytes / SCHED_PAGE, sizeof(*s.memory));
    s.file = calloc(o->file_bytes / SCHED_PAGE, sizeof(*s.file));
    sched_io_reset();
}

void sched_close(void)
{
    free(s.memory);
    free(s.file);
    sched_io_reset();
}

const char *sched_race(void)
{
    return s.race[0] ? s.race : NULL;
}

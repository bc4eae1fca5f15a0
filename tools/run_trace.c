/* SPDX-License-Identifier: Apache-2.0 */
/* Each event is written when it comes, so the file may be longer than memory. Events of one track
 * must not overlap, but reads do: they get a lane each. Events come in the order of their ends;
 * taking the lane that ended last needs as few lanes as any choice would. */
#include "tools/run_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

/* More than the library has under way at a time. */
enum { LANES_MAX = 256 };
/* Tracks, in the order in which they are shown; lanes count from theirs on. */
enum { COMPUTE = 1, MODEL = 2, WAITS = 3, READS = 100, WRITES = READS + LANES_MAX };

struct lanes {
    const char *name;
    int first; /* its track */
    int used;
    int64_t end_ns[LANES_MAX];
};

struct run_trace {
    FILE *out; /* NULL: ended */
    int64_t start_ns;
    int error; /* errno of the first write that failed */
    struct lanes reads, writes;
};

__attribute__((format(printf, 2, 3))) static void print(struct run_trace *t, const char *format,
                                                        ...)
{
    va_list args;
    if (!t->out || t->error)
        return;
    va_start(args, format);
    if (vfprintf(t->out, format, args) < 0)
        t->error = errno;
    va_end(args);
}

/* The first number is that of a lane, or 0. */
static void name_track(struct run_trace *t, int lane, int track, const char *name)
{
    print(t, ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":",
          track);
    if (lane)
        print(t, "\"%s %d\"}}", name, lane);
    else
        print(t, "\"%s\"}}", name);
    print(t,
          ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_sort_index\","
          "\"args\":{\"sort_index\":%d}}",
          track, track);
}

struct run_trace *run_trace_open(FILE *out, int64_t start_ns)
{
    struct run_trace *t = calloc(1, sizeof(*t));
    if (!t) {
        fclose(out);
        return NULL;
    }
    t->out = out;
    t->start_ns = start_ns;
    t->reads = (struct lanes){.name = "disk read", .first = READS};
    t->writes = (struct lanes){.name = "disk write", .first = WRITES};
    print(t, "{\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\","
             "\"args\":{\"name\":\"headrace\"}}");
    name_track(t, 0, COMPUTE, "compute");
    name_track(t, 0, MODEL, "model");
    name_track(t, 0, WAITS, "waits");
    return t;
}

int run_trace_end(struct run_trace *t)
{
    if (!t || !t->out)
        return 0;
    print(t, "\n]}\n");
    if (fclose(t->out) != 0 && !t->error)
        t->error = errno;
    t->out = NULL;
    return t->error;
}

void run_trace_free(struct run_trace *t)
{
    run_trace_end(t);
    free(t);
}

/* The track of an event's lane. Should all be taken, it begins when the first one is free. */
static int take_lane(struct run_trace *t, struct lanes *l, int64_t *begin_ns, int64_t end_ns)
{
    int best = -1, first_free = 0;
    for (int i = 0; i < l->used; i++) {
        if (l->end_ns[i] <= *begin_ns && (best < 0 || l->end_ns[i] > l->end_ns[best]))
            best = i;
        if (l->end_ns[i] < l->end_ns[first_free])
            first_free = i;
    }
    if (best < 0 && l->used < LANES_MAX) {
        best = l->used++;
        name_track(t, best + 1, l->first + best, l->name);
    } else if (best < 0) {
        best = first_free;
        *begin_ns = l->end_ns[best] < end_ns ? l->end_ns[best] : end_ns;
    }
    l->end_ns[best] = end_ns > l->end_ns[best] ? end_ns : l->end_ns[best];
    return l->first + best;
}

/* A time in microseconds. */
static void print_time(struct run_trace *t, const char *key, int64_t ns)
{
    print(t, ",\"%s\":%" PRId64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

static void print_event(struct run_trace *t, int track, const char *name, int64_t begin_ns,
                        int64_t end_ns)
{
    print(t, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\"", track, name);
    print_time(t, "ts", begin_ns - t->start_ns);
    print_time(t, "dur", end_ns - begin_ns);
}

void run_trace_event(void *trace, const hr_trace_event *event)
{
    struct run_trace *t = trace;
    int64_t begin_ns = event->begin_ns, end_ns = event->end_ns;
    switch (event->kind) {
    case HR_TRACE_READ:
    case HR_TRACE_WRITE: {
        bool write = event->kind == HR_TRACE_WRITE;
        int lane = take_lane(t, write ? &t->writes : &t->reads, &begin_ns, end_ns);
        print_event(t, lane, write ? "write" : "read", begin_ns, end_ns);
        print(t, ",\"args\":{\"layer\":%" PRId32 ",\"bytes\":%" PRIu64 "}}", event->layer,
              event->bytes);
        break;
    }
    case HR_TRACE_WAIT:
        print_event(t, WAITS, "wait", begin_ns, end_ns);
        print(t, "}");
        break;
    case HR_TRACE_APPEND:
    case HR_TRACE_ATTEND:
        print_event(t, COMPUTE, event->kind == HR_TRACE_APPEND ? "append" : "attend", begin_ns,
                    end_ns);
        print(t, ",\"args\":{\"layer\":%" PRId32 "}}", event->layer);
        break;
    }
}

void run_trace_product(void *trace, int64_t begin_ns, int64_t end_ns)
{
    struct run_trace *t = trace;
    print_event(t, MODEL, "product", begin_ns, end_ns);
    print(t, "}");
}

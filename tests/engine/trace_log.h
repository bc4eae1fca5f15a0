/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the events of hr_options.trace. After <cmocka.h>. */
#ifndef HR_TESTS_TRACE_LOG_H
#define HR_TESTS_TRACE_LOG_H

#include <headrace/context.h>

enum { TRACE_EVENTS_MAX = 1 << 16 };

struct trace_log {
    hr_trace_event events[TRACE_EVENTS_MAX];
    int n;
};

/* The hr_trace_fn; `user` is a struct trace_log. */
static inline void trace_note(void *user, const hr_trace_event *event)
{
    struct trace_log *log = user;
    assert_true(log->n < TRACE_EVENTS_MAX);
    log->events[log->n++] = *event;
}

#endif

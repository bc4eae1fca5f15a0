/* SPDX-License-Identifier: Apache-2.0 */
/* The file of `headrace run --trace`: what the context and the model do and when, as JSON that
 * ui.perfetto.dev opens. */
#ifndef HEADRACE_TOOLS_RUN_TRACE_H
#define HEADRACE_TOOLS_RUN_TRACE_H

#include <headrace/headrace.h>

#include <stdio.h>

struct run_trace;

/* Takes over `out`; times are shown from `start_ns` (CLOCK_MONOTONIC) on. NULL: out of memory, and
 * `out` is closed. */
struct run_trace *run_trace_open(FILE *out, int64_t start_ns);
/* Ends the file; events that come later are dropped. 0, or the errno of the first write that
 * failed. NULL is fine. */
int run_trace_end(struct run_trace *trace);
void run_trace_free(struct run_trace *trace); /* NULL is fine */

/* hr_options.trace; `trace` is a struct run_trace. */
void run_trace_event(void *trace, const hr_trace_event *event);
/* A matrix product of the model. */
void run_trace_product(void *trace, int64_t begin_ns, int64_t end_ns);

#endif

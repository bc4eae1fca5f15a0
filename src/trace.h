/* SPDX-License-Identifier: Apache-2.0 */
/* Events for hr_options.trace. Without it each costs a branch. */
#ifndef HR_TRACE_H
#define HR_TRACE_H

#include "src/base/clock.h"
#include "src/context.h"

/* When something begins; 0: nobody wants to know. */
static inline int64_t hr_trace_begin(const hr_context *c)
{
    return c->trace ? hr_clock_ns() : 0;
}

/* It was from begin_ns to end_ns. */
static inline void hr_trace_emit(const hr_context *c, const hr_trace_event *event)
{
    if (c->trace)
        c->trace(c->trace_user, event);
}

/* It ends now. */
static inline void hr_trace_end(const hr_context *c, hr_trace_kind kind, int32_t layer,
                                int64_t begin_ns)
{
    if (c->trace)
        hr_trace_emit(c, &(hr_trace_event){kind, layer, begin_ns, hr_clock_ns(), 0});
}

#endif

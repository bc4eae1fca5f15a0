/* SPDX-License-Identifier: Apache-2.0 */
/* Moves between the tiers go on: what has ended is taken back, what can be started is. On the
 * caller's thread, in every call that works on a step, and while it waits. */
#ifndef HR_PROGRESS_H
#define HR_PROGRESS_H

#include "src/step.h"

/* Does what can be done now. */
void hr_progress(hr_context *context);

/* Waits until `ready(arg)`; `what` says for what. The step's cancellation and the context's
 * patience bound it: HR_E_CANCELLED, HR_E_TIMEOUT; HR_E_IO when it can never be, because writes
 * failed. */
hr_status hr_progress_until(hr_step *step, bool (*ready)(void *arg), void *arg, const char *what);

/* Waits until no read of a cache is under way, or nothing at all; there, false: for `patience_ns`
 * nothing has ended. */
void hr_progress_drain_reads(hr_cache *cache);
bool hr_progress_drain(hr_cache *cache, int64_t patience_ns);

#endif

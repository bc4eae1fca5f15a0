/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks are resident. With a tier below, each sequence keeps the newest blocks of every
 * layer: as many as a common level allows, so that all sequences fit. The level is found in begin;
 * what lies above it is evicted then, and what a step has added is evicted layer by layer when it
 * has attended. */
#ifndef HR_RESIDENCY_H
#define HR_RESIDENCY_H

#include "src/step.h"

/* Finds the level for the step and all other sequences, and evicts what is above it. HR_E_BUDGET:
 * it cannot run; the sentence has what it would need. */
hr_status hr_residency_begin(hr_step *step);
/* Behind begin: whether every block is resident and stays so, as long as the step is open. */
bool hr_residency_fits(const hr_step *step);
/* As hr_progress_until; where slots are what is missing, layers that were appended and have not
 * attended give theirs. */
hr_status hr_residency_await(hr_step *step, int32_t layer, bool (*ready)(void *arg), void *arg,
                             const char *what);
/* Gives the layer's new blocks their slots, and waits until all that append writes to is there. */
hr_status hr_residency_append(hr_step *step, int32_t layer);
/* The layer has attended: what is above the level may go. */
void hr_residency_trim(hr_step *step, int32_t layer);
/* What begin has reserved is free again. */
void hr_residency_end(hr_step *step);

/* Finds the level for all sequences as they are, and evicts what is above it. No step is open.
 * HR_E_BUDGET. */
hr_status hr_residency_settle(hr_cache *cache);

/* Takes the advice, and moves what it moves at once. HR_E_NO_MEMORY. */
hr_status hr_residency_advise(hr_seq *seq, hr_advice advice);
/* Evicts blocks [from, end) of a sequence that no step holds, as far as they can be. False: there
 * is no room below. */
bool hr_residency_evict(hr_seq *seq, int32_t layer, int64_t from, int64_t end);

#endif

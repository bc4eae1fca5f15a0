/* SPDX-License-Identifier: Apache-2.0 */
/* The fetch list of a step: for each layer in order, first what append writes to, then wave by wave
 * what attend reads and the arena lacks, the newest blocks first (offload/ring.h runs it). It is
 * made in begin. A caller who takes the layers in another order, or attends twice, gets a new list
 * from the layer at hand. */
#ifndef HR_FETCH_H
#define HR_FETCH_H

#include "src/step.h"

/* Makes the list from `layer` on. */
hr_status hr_fetch_plan(hr_step *step, int32_t layer);
/* Waits until what the layer's append needs from below is there. */
hr_status hr_fetch_for_append(hr_step *step, int32_t layer);
/* The append is enqueued. */
void hr_fetch_appended(hr_step *step, int32_t layer);
/* Waves of the layer's attend: sets [*first, *end) of its pool's ring. */
hr_status hr_fetch_for_attend(hr_step *step, int32_t layer, uint32_t *first, uint32_t *end);
/* Waits until the wave's blocks are there and notes every block's slot in the step's list. */
hr_status hr_fetch_wave(hr_step *step, int32_t layer, uint32_t wave);
/* Slot of a block that is resident, or that the list has brought. */
uint32_t hr_fetch_slot(const hr_step *step, int32_t layer, uint32_t block);
/* The wave's work is enqueued. */
void hr_fetch_waved(hr_step *step, int32_t layer);
/* Without a step: the blocks that residency gives to a sequence and that are below come up, while
 * calls of the library and hr_poll move things on. HR_E_NO_MEMORY. */
hr_status hr_fetch_warm(const hr_seq *seq);
/* Ends the list that the rings work on, whose ever it is: a step makes it anew when it goes on. */
void hr_fetch_drop(hr_cache *cache);
/* Blocks may go: what hr_fetch_warm has listed and not begun stays below, what is under way comes
 * first. Leaves a step's list alone. */
void hr_fetch_stop(hr_cache *cache);
/* The step is over: nothing of its list is under way any more. */
void hr_fetch_end(hr_step *step);

#endif

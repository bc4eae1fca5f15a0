/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of a step: all of them are reserved in begin, and kept or given back at its end. */
#ifndef HR_RESERVE_H
#define HR_RESERVE_H

#include "src/step.h"

/* Every block that the step writes to, or none. */
hr_status hr_reserve_take(hr_step *step);
/* A layer's new rows are written. */
void hr_reserve_written(hr_step *step, int32_t layer);
/* Sequence i keeps its blocks, new rows and all, or has those of before begin. */
void hr_reserve_keep(hr_step *step, int32_t i);
void hr_reserve_undo(hr_step *step, int32_t i);

#endif

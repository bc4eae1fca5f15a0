/* SPDX-License-Identifier: Apache-2.0 */
/* First station of a step: what the caller passed, checked and normalised. */
#ifndef HR_REQUEST_H
#define HR_REQUEST_H

#include "src/step.h"

/* Checks the batch and fills the step's seqs, shapes, views (without blocks) and totals; each
 * sequence is then held by the step. On error no sequence is. */
hr_status hr_request_take(hr_step *step, const hr_batch *batch);

/* Lets go of the sequences. */
void hr_request_drop(hr_step *step);

/* Check one layer's arguments and fill the strides that were left 0. */
hr_status hr_request_append(const hr_step *step, int32_t layer, const hr_append_args *args,
                            struct hr_rows *k, struct hr_rows *v);
hr_status hr_request_attend(const hr_step *step, int32_t layer, const hr_attend_args *args,
                            struct hr_attend *attend);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Last station: partials of the split path are folded, scaled and cast. (Tiles do that in their
 * last wave.) */
#ifndef HR_OUTPUT_H
#define HR_OUTPUT_H

#include "src/step.h"

void hr_output_fold(hr_step *step, const struct hr_plan *plan, const struct hr_attend *attend);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one layer: append, and attend wave by wave, newest blocks first. */
#ifndef HR_EXEC_H
#define HR_EXEC_H

#include "src/step.h"

void hr_exec_append(hr_step *step, int32_t layer, const struct hr_rows *k, const struct hr_rows *v);

/* `attend` has the request's part; lists, blocks and workspace are added here. */
void hr_exec_attend(hr_step *step, int32_t layer, struct hr_attend *attend);

#endif

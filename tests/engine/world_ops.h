/* SPDX-License-Identifier: Apache-2.0 */
/* Between world.c and world_ops.c. */
#ifndef HR_TESTS_WORLD_OPS_H
#define HR_TESTS_WORLD_OPS_H

#include "tests/engine/world.h"

int32_t world_width(const hr_layer_options *l);
/* Ends the process if the scheduler has found two uses of a page that nothing orders. */
void world_check_races(void);

#endif

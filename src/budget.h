/* SPDX-License-Identifier: Apache-2.0 */
/* The K/V budget of a context, while it is open. */
#ifndef HR_BUDGET_H
#define HR_BUDGET_H

#include "src/context.h"

/* As hr_context_set_device_bytes. */
hr_status hr_budget_set(hr_context *context, uint64_t bytes);

#endif

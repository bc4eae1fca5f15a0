/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_BASE_CLOCK_H
#define HR_BASE_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds. */
int64_t hr_clock_ns(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "src/base/clock.h"

#include <time.h>

int64_t hr_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The rates of a directory as a place for K/V. */
#ifndef HR_MEASURE_H
#define HR_MEASURE_H

#include "src/context.h"

/* hr_disk_measure; `hooks` may be NULL. */
hr_status hr_measure(const hr_disk *disk, const char *io, const struct hr_hooks *hooks,
                     struct hr_error *error, hr_disk_rates *rates);

#endif

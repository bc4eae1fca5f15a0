/* SPDX-License-Identifier: Apache-2.0 */
/* The measured rates of the directories that K/V are striped over, as one disk. */
#ifndef HEADRACE_TOOLS_DISK_RATES_H
#define HEADRACE_TOOLS_DISK_RATES_H

#include <headrace/headrace.h>

enum { DISK_RATES_MAX = 16 };

struct disk_rates {
    hr_disk_rates each[DISK_RATES_MAX];
    double read, write; /* bytes per second of all together */
};

/* Measures each directory with up to `most` bytes (and no more than it is given). False:
 * hr_error_text(NULL) says why. */
bool disk_rates_measure(const hr_disk *disks, int32_t n, const char *io, uint64_t most,
                        struct disk_rates *rates);

/* Seconds that the bytes take. */
double disk_rates_seconds(const struct disk_rates *rates, uint64_t read, uint64_t written);

#endif

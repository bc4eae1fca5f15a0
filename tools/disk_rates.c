/* SPDX-License-Identifier: Apache-2.0 */
/* Each directory has its share of the bytes. Those on one drive take turns: their times add up;
 * drives work at the same time: the slowest one counts. */
#include "tools/disk_rates.h"

#include <sys/stat.h>

static dev_t drive_of(const hr_disk *disk)
{
    struct stat st;
    return stat(disk->path, &st) == 0 ? st.st_dev : 0;
}

/* Seconds for one byte of all. */
static double time_of(const hr_disk *disks, int32_t n, const struct disk_rates *r, bool write)
{
    double total = 0, slowest = 0;
    for (int32_t i = 0; i < n; i++)
        total += (double)disks[i].bytes;
    for (int32_t i = 0; i < n; i++) {
        double busy = 0;
        for (int32_t j = 0; j < n; j++)
            if (drive_of(&disks[j]) == drive_of(&disks[i]))
                busy += (double)disks[j].bytes / total /
                        (write ? r->each[j].write_bytes_per_s : r->each[j].read_bytes_per_s);
        slowest = busy > slowest ? busy : slowest;
    }
    return slowest;
}

bool disk_rates_measure(const hr_disk *disks, int32_t n, const char *io, uint64_t most,
                        struct disk_rates *rates)
{
    *rates = (struct disk_rates){.read = 0};
    for (int32_t i = 0; i < n; i++) {
        hr_disk disk = disks[i];
        disk.bytes = disk.bytes < most ? disk.bytes : most;
        rates->each[i].struct_size = sizeof(rates->each[i]);
        if (hr_disk_measure(&disk, io, &rates->each[i]) != HR_OK)
            return false;
    }
    rates->read = 1 / time_of(disks, n, rates, false);
    rates->write = 1 / time_of(disks, n, rates, true);
    return true;
}

double disk_rates_seconds(const struct disk_rates *rates, uint64_t read, uint64_t written)
{
    return (double)read / rates->read + (double)written / rates->write;
}

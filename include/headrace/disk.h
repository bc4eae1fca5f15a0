/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a directory would be as a place for K/V (hr_options.disks), before it is used. */
#ifndef HEADRACE_DISK_H
#define HEADRACE_DISK_H

#include <headrace/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hr_disk_rates {
    /* sizeof(hr_disk_rates), set by the caller. */
    size_t struct_size;
    bool direct;        /* O_DIRECT: past the page cache */
    bool in_memory;     /* the directory is of a file system in memory (tmpfs): no disk */
    uint32_t alignment; /* bytes, of direct I/O: the larger of memory's and offsets'; else 1 */
    double read_bytes_per_s;
    double write_bytes_per_s;
    char text[320]; /* one line: the I/O engine and the file, as hr_context_disk_text */
} hr_disk_rates;

/* Measures a directory: makes a file of disk->bytes as a context does, writes it with random data
 * and reads it back, both in random order, in the requests, with the engine, the depth and the
 * checksums that K/V move with. `io` as hr_options.io; NULL: io_uring where it works, else threads.
 * Blocks until the file has been moved both ways, or for 5 seconds a way at most: what was moved by
 * then gives the rates. The more bytes the better; 256 MiB are enough. The file has no name and is
 * gone at the end, also on failure.
 *
 * A file that is not direct is brought to the disk within the time of writing and dropped from the
 * page cache before it is read; a run may then read what the page cache still has, and faster.
 *
 * On failure *rates stays as it was and hr_error_text(NULL) says why. Errors: HR_E_INVALID,
 * HR_E_UNSUPPORTED (io), HR_E_NO_MEMORY, HR_E_SYSTEM (the directory, or its room), HR_E_IO,
 * HR_E_CORRUPT (other data came back), HR_E_TIMEOUT (nothing moved for a minute). */
HR_API hr_status hr_disk_measure(const hr_disk *disk, const char *io, hr_disk_rates *rates);

#ifdef __cplusplus
}
#endif

#endif

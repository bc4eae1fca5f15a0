/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options. False: the sentence is said on stderr, as "headrace TOOL: --NAME ...". */
#ifndef HEADRACE_TOOLS_ARGS_H
#define HEADRACE_TOOLS_ARGS_H

#include <headrace/headrace.h>

bool args_number(const char *tool, const char *name, const char *text, int64_t low, int64_t high,
                 int64_t *value);

/* Bytes, as 1048576, 512K, 500M, 2G or 1T (powers of 1024). */
bool args_bytes(const char *tool, const char *name, const char *text, uint64_t *bytes);

/* DIR:BYTES of --kv-disk, as disks[*n]; the path is the caller's to free. */
bool args_disk(const char *tool, const char *text, hr_disk *disks, int32_t most, int32_t *n);

#endif

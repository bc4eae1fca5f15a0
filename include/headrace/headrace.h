/* SPDX-License-Identifier: Apache-2.0 */
/* headrace: exact attention over K/V of any size. Everything is reached through this header.
 *
 *   hr_open -> hr_cache_create -> hr_seq_create, hr_step_create
 *   each forward step: hr_step_begin, per layer hr_step_append + hr_step_attend, hr_step_commit
 *
 * All functions return a negative hr_status on failure (see status.h) and leave errno alone.
 * Options structs start with struct_size; zero-initialise them, set struct_size, set what differs
 * from the defaults. */
#ifndef HEADRACE_HEADRACE_H
#define HEADRACE_HEADRACE_H

#include <headrace/attention.h>
#include <headrace/cache.h>
#include <headrace/context.h>
#include <headrace/disk.h>
#include <headrace/step.h>

/* API number: the soname. Raised by every incompatible change. */
#define HR_API_VERSION 0

#define HR_VERSION_MAJOR 0
#define HR_VERSION_MINOR 1
#define HR_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that runs, for example "0.1.0". Static storage. */
HR_API const char *hr_version(void);

#ifdef __cplusplus
}
#endif

#endif

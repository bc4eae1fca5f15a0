/* SPDX-License-Identifier: Apache-2.0 */
/* Symbol visibility: only what is marked HR_API leaves the library. */
#ifndef HEADRACE_EXPORT_H
#define HEADRACE_EXPORT_H

#if defined(__GNUC__)
#define HR_API __attribute__((visibility("default")))
#else
#define HR_API
#endif

#endif

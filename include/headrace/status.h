/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes: one list gives the code, its text and what to do about it. */
#ifndef HEADRACE_STATUS_H
#define HEADRACE_STATUS_H

#include <headrace/export.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, text, what to do) */
#define HR_STATUS_LIST(X)                                                                          \
    X(HR_OK, 0, "success", "nothing")                                                              \
    X(HR_E_INVALID, -1, "an argument is out of its range",                                         \
      "read hr_error_text(): it names the argument, its value and the range")                      \
    X(HR_E_UNSUPPORTED, -2, "the request is valid but this build cannot do it",                    \
      "read hr_error_text(): it names the field and what is supported")                            \
    X(HR_E_NO_MEMORY, -3, "the host allocator returned no memory",                                 \
      "free memory or make the batch smaller; nothing was changed")                                \
    X(HR_E_BUDGET, -4, "the K/V budget of the context is used up",                                 \
      "raise hr_options.device_bytes, or truncate or destroy sequences; nothing was changed")      \
    X(HR_E_STATE, -5, "the call is not valid in this state",                                       \
      "follow the order begin, append and attend for each layer, then commit or abort")            \
    X(HR_E_BUSY, -6, "the object is in use",                                                       \
      "commit or abort its open step, or destroy what was made from it first")                     \
    X(HR_E_LIMIT, -7, "the batch exceeds the limits that the step was created with",               \
      "create the step with larger hr_step_limits or split the batch")                             \
    X(HR_E_SYSTEM, -8, "the operating system refused a request",                                   \
      "read hr_error_text(): it has the call and its errno; `headrace doctor` may name the fix")   \
    X(HR_E_DEVICE, -9, "the device is not there or reported an error",                             \
      "read hr_error_text(); without a driver or a GPU use the device host, after an error close " \
      "the context and open another one")                                                          \
    X(HR_E_TIMEOUT, -10, "the deadline passed first", "wait again, or abort the step")             \
    X(HR_E_IO, -11, "a file of the disk tier could not be read or written",                        \
      "read hr_error_text(): it has the place and its errno; abort the step, and see to the disk") \
    X(HR_E_CORRUPT, -12, "K/V came back from disk other than they were written",                   \
      "abort the step; hr_error_text() names the block: its sequence cannot be used any more")     \
    X(HR_E_CANCELLED, -13, "the step was cancelled", "abort the step")                             \
    X(HR_E_BUG, -14, "headrace broke one of its own rules",                                        \
      "report hr_error_text(), with the steps before")

typedef enum hr_status {
#define HR_STATUS_ENUM(name, value, text, todo) name = value,
    HR_STATUS_LIST(HR_STATUS_ENUM)
#undef HR_STATUS_ENUM
} hr_status;

/* The text of a code, for example "success"; never NULL. Static storage; any thread. */
HR_API const char *hr_status_text(hr_status status);

/* What to do about a code, for example "follow the order begin, append ..."; never NULL. Static
 * storage; any thread. */
HR_API const char *hr_status_todo(hr_status status);

#ifdef __cplusplus
}
#endif

#endif

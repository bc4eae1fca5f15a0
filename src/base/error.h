/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: a status plus one sentence with the numbers in it, made where the error arises. */
#ifndef HR_BASE_ERROR_H
#define HR_BASE_ERROR_H

#include <headrace/context.h>

struct hr_error {
    char text[512];
    hr_log_fn *log;
    void *log_user;
};

/* Stores the sentence, logs it at HR_LOG_ERROR and returns `status`. */
hr_status hr_fail(struct hr_error *error, hr_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Logs one line, if a log callback is set. */
void hr_log(struct hr_error *error, hr_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "src/base/error.h"

#include <stdarg.h>
#include <stdio.h>

hr_status hr_fail(struct hr_error *error, hr_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    for (char *c = error->text; *c; c++) /* what the caller passed may hold anything */
        *c = *c == '\n' || *c == '\r' ? ' ' : *c;
    if (error->log)
        error->log(error->log_user, HR_LOG_ERROR, error->text);
    return status;
}

void hr_log(struct hr_error *error, hr_log_level level, const char *format, ...)
{
    char line[512];
    va_list args;
    if (!error->log)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    error->log(error->log_user, level, line);
}

static const struct {
    hr_status status;
    const char *text, *todo;
} statuses[] = {
#define ENTRY(name, value, text, todo) {name, text, todo},
    HR_STATUS_LIST(ENTRY)
#undef ENTRY
};

enum { STATUSES = sizeof(statuses) / sizeof(statuses[0]) };

const char *hr_status_text(hr_status status)
{
    for (int i = 0; i < STATUSES; i++)
        if (statuses[i].status == status)
            return statuses[i].text;
    return "unknown status";
}

const char *hr_status_todo(hr_status status)
{
    for (int i = 0; i < STATUSES; i++)
        if (statuses[i].status == status)
            return statuses[i].todo;
    return "compare the header's version with hr_version()";
}

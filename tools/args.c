/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/args.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool args_number(const char *tool, const char *name, const char *text, int64_t low, int64_t high,
                 int64_t *value)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    *value = v;
    if (*text != '\0' && *end == '\0' && errno == 0 && v >= low && v <= high)
        return true;
    fprintf(stderr, "headrace %s: --%s is \"%.80s\"; a number from %lld to %lld is wanted\n", tool,
            name, text, (long long)low, (long long)high);
    return false;
}

bool args_bytes(const char *tool, const char *name, const char *text, uint64_t *bytes)
{
    static const char suffixes[] = "KMGT";
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    const char *suffix = *end ? strchr(suffixes, *end) : NULL;
    int shift = suffix ? 10 * (int)(suffix - suffixes + 1) : 0;
    if (*text >= '0' && *text <= '9' && errno == 0 && end[suffix ? 1 : 0] == '\0' && n > 0 &&
        n <= (UINT64_MAX >> 8) >> shift) {
        *bytes = (uint64_t)n << shift;
        return true;
    }
    fprintf(stderr, "headrace %s: --%s is \"%.80s\"; bytes are wanted, as 1048576, 500M or 2G\n",
            tool, name, text);
    return false;
}

static bool bad_disk(const char *tool, const char *what)
{
    fprintf(stderr, "headrace %s: --kv-disk %s\n", tool, what);
    return false;
}

bool args_disk(const char *tool, const char *text, hr_disk *disks, int32_t most, int32_t *n)
{
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text)
        return bad_disk(tool, "wants DIR:BYTES, as /var/tmp:4G");
    if (*n == most)
        return bad_disk(tool, "is given too often");
    if (!args_bytes(tool, "kv-disk", colon + 1, &disks[*n].bytes))
        return false;
    char *path = strndup(text, (size_t)(colon - text));
    if (!path)
        return bad_disk(tool, "cannot be kept: out of memory");
    disks[(*n)++].path = path;
    return true;
}

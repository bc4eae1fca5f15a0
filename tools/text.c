/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/text.h"
#include "tools/gguf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool fail(const char *path, const char *what, char *error)
{
    snprintf(error, GGUF_ERROR_BYTES, "%.300s: %s", path, what);
    return false;
}

#define TEXT_BYTES_MAX ((size_t)1 << 30)

/* Not every file tells its size, so it is read until it ends; some never do. */
static bool read_all(FILE *in, char **bytes, size_t *n)
{
    size_t room = 1 << 16;
    *n = 0;
    *bytes = malloc(room);
    while (*bytes) {
        *n += fread(*bytes + *n, 1, room - *n, in);
        if (*n < room)
            return !ferror(in);
        if (room >= TEXT_BYTES_MAX) {
            errno = EFBIG;
            return false;
        }
        char *more = realloc(*bytes, room * 2);
        if (!more)
            break;
        room *= 2;
        *bytes = more;
    }
    errno = ENOMEM;
    return false;
}

bool text_read(const char *path, char **bytes, size_t *n, char *error)
{
    FILE *in = fopen(path, "rb");
    *bytes = NULL;
    if (!in)
        return fail(path, strerror(errno), error);
    bool ok = read_all(in, bytes, n) || fail(path, strerror(errno), error);
    fclose(in);
    if (ok && *n == 0)
        ok = fail(path, "the text is empty: there is nothing to run", error);
    if (ok && *n >= 2 && memcmp(*bytes, "\x1f\x8b", 2) == 0)
        ok = fail(path, "the text is compressed: unpack it with gunzip first", error);
    if (!ok) {
        free(*bytes);
        *bytes = NULL;
    }
    return ok;
}

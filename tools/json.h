/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON to a stream. Errors show in ferror() and fclose() of the stream. */
#ifndef HEADRACE_TOOLS_JSON_H
#define HEADRACE_TOOLS_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Start from {.out = stream}. */
struct json {
    FILE *out;
    int depth;
    bool more; /* something stands before in this object or array */
};

/* `key` is NULL inside arrays and for the outermost value. */
void json_open(struct json *json, const char *key, char bracket); /* '{' or '[' */
void json_close(struct json *json, char bracket);                 /* '}' or ']' */
void json_bool(struct json *json, const char *key, bool value);
void json_int(struct json *json, const char *key, int64_t value);
void json_number(struct json *json, const char *key, double value); /* not finite: null */
/* Control characters are escaped; bytes that are not UTF-8 become U+FFFD. */
void json_bytes(struct json *json, const char *key, const char *bytes, size_t n);
/* An array on one line. */
void json_ints(struct json *json, const char *key, const int32_t *values, size_t n);
void json_text(struct json *json, const char *key, const char *text); /* NULL: null */

#endif

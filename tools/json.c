/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void put_string(FILE *out, const char *bytes, size_t n);

static void put_key(struct json *json, const char *key)
{
    if (json->more)
        fputc(',', json->out);
    if (json->depth > 0)
        fprintf(json->out, "\n%*s", 2 * json->depth, "");
    if (key) {
        put_string(json->out, key, strlen(key));
        fputs(": ", json->out);
    }
    json->more = true;
}

void json_open(struct json *json, const char *key, char bracket)
{
    put_key(json, key);
    fputc(bracket, json->out);
    json->depth++;
    json->more = false;
}

void json_close(struct json *json, char bracket)
{
    json->depth--;
    if (json->more)
        fprintf(json->out, "\n%*s", 2 * json->depth, "");
    fputc(bracket, json->out);
    json->more = true;
    if (json->depth == 0)
        fputc('\n', json->out);
}

void json_bool(struct json *json, const char *key, bool value)
{
    put_key(json, key);
    fputs(value ? "true" : "false", json->out);
}

void json_int(struct json *json, const char *key, int64_t value)
{
    put_key(json, key);
    fprintf(json->out, "%" PRId64, value);
}

void json_number(struct json *json, const char *key, double value)
{
    put_key(json, key);
    if (isfinite(value))
        fprintf(json->out, "%.9g", value);
    else
        fputs("null", json->out);
}

/* Length of the UTF-8 character at s (n > 0 bytes left), 0 if there is none. */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] > 0xf4 || length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

static void put_character(FILE *out, const char *s, size_t length)
{
    unsigned char c = (unsigned char)s[0];
    if (length == 0)
        fputs("\\ufffd", out);
    else if (c == '"' || c == '\\')
        fprintf(out, "\\%c", c);
    else if (c == '\n')
        fputs("\\n", out);
    else if (c < 0x20 || c == 0x7f)
        fprintf(out, "\\u%04x", c);
    else
        fwrite(s, 1, length, out);
}

static void put_string(FILE *out, const char *bytes, size_t n)
{
    fputc('"', out);
    for (size_t i = 0; i < n;) {
        size_t length = utf8_length((const unsigned char *)bytes + i, n - i);
        put_character(out, bytes + i, length);
        i += length ? length : 1;
    }
    fputc('"', out);
}

void json_bytes(struct json *json, const char *key, const char *bytes, size_t n)
{
    put_key(json, key);
    put_string(json->out, bytes, n);
}

void json_text(struct json *json, const char *key, const char *text)
{
    if (text) {
        json_bytes(json, key, text, strlen(text));
        return;
    }
    put_key(json, key);
    fputs("null", json->out);
}

void json_ints(struct json *json, const char *key, const int32_t *values, size_t n)
{
    put_key(json, key);
    fputc('[', json->out);
    for (size_t i = 0; i < n; i++)
        fprintf(json->out, "%s%" PRId32, i ? ", " : "", values[i]);
    fputc(']', json->out);
}

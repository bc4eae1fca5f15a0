/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TOOLS_TEXT_H
#define HEADRACE_TOOLS_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Reads a whole file into *bytes, which the caller frees. False and a sentence in
 * error[GGUF_ERROR_BYTES] for what cannot be read or is empty or compressed. */
bool text_read(const char *path, char **bytes, size_t *n, char *error);

#endif

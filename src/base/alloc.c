/* SPDX-License-Identifier: Apache-2.0 */
#include "src/base/alloc.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

static void *libc_alloc(void *user, size_t bytes, size_t align)
{
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void libc_free(void *user, void *memory, size_t bytes, size_t align)
{
    free(memory);
}

void hr_alloc_init(struct hr_alloc *a, const hr_allocator *fns)
{
    *a = (struct hr_alloc){.fns = {libc_alloc, libc_free, NULL}};
    if (fns)
        a->fns = *fns;
}

void *hr_alloc_get(struct hr_alloc *a, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGN)
        return NULL;
    bytes = bytes ? bytes : 1;
    a->calls++;
    void *memory = a->fns.alloc(a->fns.user, bytes, ALIGN);
    if (memory)
        a->bytes_used += bytes;
    else
        a->refused++;
    return memory;
}

void *hr_alloc_zero(struct hr_alloc *a, size_t bytes)
{
    void *memory = hr_alloc_get(a, bytes);
    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

void hr_alloc_put(struct hr_alloc *a, void *memory, size_t bytes)
{
    if (!memory)
        return;
    bytes = bytes ? bytes : 1;
    a->bytes_used -= bytes;
    a->fns.free(a->fns.user, memory, bytes, ALIGN);
}

bool hr_alloc_grow(struct hr_alloc *a, void **array, size_t *capacity, size_t count, size_t size)
{
    size_t wanted = *capacity ? *capacity : 16;
    if (count <= *capacity)
        return true;
    if (count > SIZE_MAX / 4 / size)
        return false;
    while (wanted < count)
        wanted *= 2;
    void *bigger = hr_alloc_get(a, wanted * size);
    if (!bigger)
        return false;
    if (*capacity)
        memcpy(bigger, *array, *capacity * size);
    hr_alloc_put(a, *array, *capacity * size);
    *array = bigger;
    *capacity = wanted;
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* An allocator whose call number fail_at gives NULL. */
#ifndef HR_TESTS_FAILING_ALLOC_H
#define HR_TESTS_FAILING_ALLOC_H

#include <stdint.h>
#include <stdlib.h>

struct failing {
    int64_t calls, fail_at;
    int64_t held;
};

static void *failing_alloc(void *user, size_t bytes, size_t align)
{
    struct failing *f = user;
    if (f->calls++ == f->fail_at)
        return NULL;
    f->held++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void failing_free(void *user, void *memory, size_t bytes, size_t align)
{
    ((struct failing *)user)->held--;
    free(memory);
}

#endif

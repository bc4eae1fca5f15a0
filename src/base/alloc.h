/* SPDX-License-Identifier: Apache-2.0 */
/* Host allocations, counted. */
#ifndef HR_BASE_ALLOC_H
#define HR_BASE_ALLOC_H

#include <headrace/context.h>

struct hr_alloc {
    hr_allocator fns;
    uint64_t bytes_used;
    uint64_t calls;
    uint64_t refused; /* of them that gave no memory */
};

/* `fns` NULL: aligned_alloc and free. */
void hr_alloc_init(struct hr_alloc *a, const hr_allocator *fns);

/* Uninitialised memory aligned to 64, or NULL; 0 bytes give a valid pointer too. */
void *hr_alloc_get(struct hr_alloc *a, size_t bytes);

/* The same, zeroed. */
void *hr_alloc_zero(struct hr_alloc *a, size_t bytes);

/* NULL is fine; `bytes` as at the allocation. */
void hr_alloc_put(struct hr_alloc *a, void *memory, size_t bytes);

/* Makes *array hold at least `count` elements of `size`, keeping the first *capacity; grows by
 * doubling. False: no memory, nothing changed. */
bool hr_alloc_grow(struct hr_alloc *a, void **array, size_t *capacity, size_t count, size_t size);

#endif

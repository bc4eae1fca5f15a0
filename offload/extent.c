/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/extent.h"

static size_t bitmap_bytes(int64_t count)
{
    return ((size_t)count + 63) / 64 * sizeof(uint64_t);
}

bool hr_extents_init(struct hr_extents *e, struct hr_alloc *alloc, int64_t count)
{
    *e = (struct hr_extents){.count = count, .limit = count};
    e->used = hr_alloc_zero(alloc, bitmap_bytes(count));
    return e->used != NULL;
}

void hr_extents_close(struct hr_extents *e, struct hr_alloc *alloc)
{
    hr_alloc_put(alloc, e->used, bitmap_bytes(e->count));
    e->used = NULL;
}

static bool is_used(const struct hr_extents *e, int64_t i)
{
    return e->used[i / 64] >> (i % 64) & 1;
}

static void mark(struct hr_extents *e, int64_t first, int64_t run, bool used)
{
    for (int64_t i = first; i < first + run; i++) {
        uint64_t bit = 1ull << (i % 64);
        e->used[i / 64] = used ? e->used[i / 64] | bit : e->used[i / 64] & ~bit;
    }
    e->used_count += used ? run : -run;
}

int64_t hr_extents_take(struct hr_extents *e, int64_t run)
{
    int64_t length = 0;
    while (e->hint < e->limit && is_used(e, e->hint))
        e->hint++;
    for (int64_t i = e->hint; i < e->limit; i++) {
        length = is_used(e, i) ? 0 : length + 1;
        if (length == run) {
            mark(e, i - run + 1, run, true);
            return i - run + 1;
        }
    }
    return HR_EXTENT_NONE;
}

void hr_extents_give(struct hr_extents *e, int64_t first, int64_t run)
{
    mark(e, first, run, false);
    if (first < e->hint)
        e->hint = first;
}

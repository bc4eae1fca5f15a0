/* SPDX-License-Identifier: Apache-2.0 */
/* Extents: the arena in units of 2 MiB, handed out in runs. */
#ifndef HR_OFFLOAD_EXTENT_H
#define HR_OFFLOAD_EXTENT_H

#include "src/base/alloc.h"

enum { HR_EXTENT_BYTES = 2 << 20, HR_EXTENT_NONE = -1 };

struct hr_extents {
    uint64_t *used; /* bitmap, one bit an extent */
    int64_t count;
    int64_t limit; /* those from here on are not handed out */
    int64_t used_count;
    int64_t hint; /* no free extent lies before it */
};

/* False: no memory. */
bool hr_extents_init(struct hr_extents *e, struct hr_alloc *alloc, int64_t count);
void hr_extents_close(struct hr_extents *e, struct hr_alloc *alloc);

/* Takes the lowest run of `run` free extents; HR_EXTENT_NONE if there is none. */
int64_t hr_extents_take(struct hr_extents *e, int64_t run);
void hr_extents_give(struct hr_extents *e, int64_t first, int64_t run);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Moves blocks of a pool together, so that others can have the extents that become free. No step
 * may be open and nothing under way; copies go to the work queue, and who uses slots by another way
 * waits for a ticket behind them. */
#ifndef HR_OFFLOAD_PACK_H
#define HR_OFFLOAD_PACK_H

#include "offload/blocks.h"
#include "src/dev/dev.h"

/* Frees parts until the pool holds `parts` of them, at most; all blocks must fit in so many. `dev`
 * NULL: the slots hold no bytes. False: no memory; nothing changed. */
bool hr_pack_parts(struct hr_blocks *b, struct hr_dev *dev, uint32_t parts);
/* Moves parts that lie beyond the arena's limit to free extents before it. False: not all, for want
 * of such extents side by side. */
bool hr_pack_extents(struct hr_blocks *b, struct hr_dev *dev);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A cache's part of the tiers: shares of the device and of the disk for each pool, and its ring. */
#ifndef HR_TIERS_H
#define HR_TIERS_H

#include "src/cache.h"

/* Opens the tier of the options' disks; `hooks` may be NULL. */
hr_status hr_tiers_open(hr_context *context, const hr_options *options,
                        const struct hr_hooks *hooks, struct hr_error *error);

/* Gives a cache what the budgets have left. HR_E_BUDGET: too little; the sentence has how much. */
hr_status hr_tiers_make(hr_cache *cache);
/* HR_E_BUDGET: so many extents of the device are too few for the cache. */
hr_status hr_tiers_check(const hr_cache *cache, int64_t extents);
/* Shares them out to the pools; the rings are filled when there is room for them. */
void hr_tiers_share(hr_cache *cache, int64_t extents);
void hr_tiers_fill_rings(hr_cache *cache);
/* Waits for what is under way. */
void hr_tiers_free(hr_cache *cache);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The machine: usable cores, their order for binding, available memory. */
#ifndef HR_BASE_TOPO_H
#define HR_BASE_TOPO_H

#include <stdbool.h>
#include <stdint.h>

/* Cores that this process may use: its affinity mask, bounded by the cgroup's CPU quota (rounded
 * up); >= 1. */
int32_t hr_topo_cores(void);

/* Logical CPUs in the order in which threads are bound: one per core first, then their siblings;
 * only those of the affinity mask. Writes up to `count` into cpus[] and returns how many; 0 when
 * the topology cannot be read. */
int32_t hr_topo_bind_order(int32_t *cpus, int32_t count);

/* Binds the calling thread to one logical CPU. */
bool hr_topo_bind_self(int32_t cpu);

/* Bytes that this process can still use: the system's available memory, bounded by what is left in
 * its cgroups (v1 or v2). 0 when unknown. */
uint64_t hr_topo_memory_available(void);

#endif

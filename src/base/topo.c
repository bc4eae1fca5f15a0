/* SPDX-License-Identifier: Apache-2.0 */
#include "src/base/topo.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HR_HAVE_HWLOC
#include <hwloc.h>
#endif

enum { FILE_BYTES_MAX = 4096 };

/* Reads a small file of /proc or /sys; "" when it cannot. */
static void read_text(const char *path, char text[FILE_BYTES_MAX])
{
    ssize_t got = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        got = read(fd, text, FILE_BYTES_MAX - 1);
        close(fd);
    }
    text[got > 0 ? got : 0] = '\0';
}

/* The number at the start of a file; false for "max", junk or no file. */
static bool read_number(const char *path, uint64_t *value)
{
    char text[FILE_BYTES_MAX], *end;
    read_text(path, text);
    *value = strtoull(text, &end, 10);
    return end != text;
}

static int32_t affinity_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int32_t)online : 1;
}

/* CPU quota in cores, rounded up; 0: none. */
static int32_t quota_cores(void)
{
    char text[FILE_BYTES_MAX];
    unsigned long long quota = 0, period = 0;
    uint64_t v1_quota, v1_period;
    read_text("/sys/fs/cgroup/cpu.max", text);
    if (sscanf(text, "%llu %llu", &quota, &period) == 2 && period > 0)
        return (int32_t)((quota + period - 1) / period);
    if (read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &v1_quota) &&
        read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &v1_period) && v1_period > 0 &&
        (int64_t)v1_quota > 0)
        return (int32_t)((v1_quota + v1_period - 1) / v1_period);
    return 0;
}

int32_t hr_topo_cores(void)
{
    int32_t cores = affinity_cores(), quota = quota_cores();
    if (quota > 0 && quota < cores)
        cores = quota;
    return cores > 0 ? cores : 1;
}

#ifdef HR_HAVE_HWLOC
/* Logical CPUs by rank among their core's siblings: rank 0 of every core, then rank 1 … */
static int32_t order_by_core(hwloc_topology_t topology, hwloc_const_cpuset_t allowed, int32_t *cpus,
                             int32_t count)
{
    int32_t n = 0;
    bool more = true;
    for (unsigned rank = 0; more && n < count; rank++) {
        hwloc_obj_t core = NULL;
        more = false;
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) && n < count) {
            unsigned seen = 0;
            int cpu;
            hwloc_bitmap_foreach_begin(
                cpu, core->cpuset) if (hwloc_bitmap_isset(allowed, (unsigned)cpu) &&
                                       seen++ == rank && n < count)
            {
                cpus[n++] = cpu;
                more = true;
            }
            hwloc_bitmap_foreach_end();
        }
    }
    return n;
}

int32_t hr_topo_bind_order(int32_t *cpus, int32_t count)
{
    int32_t n = 0;
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (!allowed || hwloc_topology_init(&topology) != 0) {
        hwloc_bitmap_free(allowed);
        return 0;
    }
    if (hwloc_topology_load(topology) == 0 &&
        hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) == 0)
        n = order_by_core(topology, allowed, cpus, count);
    hwloc_topology_destroy(topology);
    hwloc_bitmap_free(allowed);
    return n;
}
#else
int32_t hr_topo_bind_order(int32_t *cpus, int32_t count)
{
    cpu_set_t set;
    int32_t n = 0;
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 0;
    for (int32_t cpu = 0; cpu < CPU_SETSIZE && n < count; cpu++)
        if (CPU_ISSET(cpu, &set))
            cpus[n++] = cpu;
    return n;
}
#endif

bool hr_topo_bind_self(int32_t cpu)
{
    cpu_set_t set;
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return false;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof(set), &set) == 0;
}

static uint64_t system_available(void)
{
    char text[FILE_BYTES_MAX];
    unsigned long long kib = 0;
    read_text("/proc/meminfo", text);
    const char *line = strstr(text, "MemAvailable:");
    if (!line || sscanf(line, "MemAvailable: %llu", &kib) != 1)
        return 0;
    return (uint64_t)kib * 1024;
}

/* What a limit file and a usage file leave; UINT64_MAX: no limit. */
static uint64_t limit_left(const char *limit_path, const char *usage_path)
{
    uint64_t limit, usage;
    if (!read_number(limit_path, &limit) || !read_number(usage_path, &usage))
        return UINT64_MAX;
    return limit > usage ? limit - usage : 0;
}

uint64_t hr_topo_memory_available(void)
{
    uint64_t bytes = system_available();
    uint64_t v2 = limit_left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    uint64_t v1 = limit_left("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                             "/sys/fs/cgroup/memory/memory.usage_in_bytes");
    bytes = v2 < bytes ? v2 : bytes;
    return v1 < bytes ? v1 : bytes;
}

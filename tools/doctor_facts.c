/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/doctor.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <headrace/headrace.h>

enum { FILE_BYTES = 16384, PATH_BYTES = 1024 };

static const char *const flag_names[DOCTOR_FLAGS] = {
    "avx2",     "fma",      "f16c",        "avx512f",  "avx512bw",
    "avx512dq", "avx512vl", "avx512_bf16", "amx_tile", "amx_bf16",
};

bool doctor_read_text(const char *root, const char *path, char *text, size_t size)
{
    char full[PATH_BYTES];
    size_t used = 0;
    ssize_t got = 0;
    text[0] = '\0';
    int length = snprintf(full, sizeof(full), "%s%s", root, path);
    if (length < 0 || (size_t)length >= sizeof(full))
        return false;
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    while (used + 1 < size && (got = read(fd, text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    close(fd);
    text[used] = '\0';
    return got >= 0;
}

/* The rest of the line "key<blanks>:<blanks>rest" of a file of such lines; "" when none. */
static void find_line(const char *text, const char *key, char *rest, size_t size)
{
    size_t length = strlen(key);
    rest[0] = '\0';
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *c = line + length;
        if (strncmp(line, key, length) != 0)
            continue;
        c += strspn(c, " \t");
        if (*c != ':')
            continue;
        c += 1 + strspn(c + 1, " \t");
        snprintf(rest, size, "%.*s", (int)strcspn(c, "\n"), c);
        return;
    }
}

static bool has_word(const char *line, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = line; (at = strstr(at, word)); at += length)
        if ((at == line || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

/* The first processor only: kernels want all to be alike. */
static void read_cpu(const char *root, struct doctor_facts *facts)
{
    char text[FILE_BYTES], line[FILE_BYTES];
    doctor_read_text(root, "/proc/cpuinfo", text, sizeof(text));
    find_line(text, "model name", line, sizeof(line));
    snprintf(facts->cpu_model, sizeof(facts->cpu_model), "%.95s", line);
    find_line(text, "flags", line, sizeof(line));
    for (int i = 0; i < DOCTOR_FLAGS; i++)
        facts->flags[i] = has_word(line, flag_names[i]);
}

/* Numbers in a list such as "0-3,8"; 0 for junk. */
static int32_t count_list(const char *list)
{
    int32_t count = 0;
    while (*list >= '0' && *list <= '9') {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        if (last < first || last > 65535)
            return 0;
        count += (int32_t)(last - first + 1);
        list = *end == ',' ? end + 1 : end;
    }
    return *list == '\0' || *list == '\n' ? count : 0;
}

/* A line of meminfo in bytes, or the count when it has no unit. */
static uint64_t meminfo(const char *text, const char *key)
{
    char line[64], *end;
    find_line(text, key, line, sizeof(line));
    unsigned long long value = strtoull(line, &end, 10);
    if (end == line)
        return DOCTOR_UNKNOWN;
    return strcmp(end, " kB") == 0 ? value * 1024 : value;
}

static void read_memory(const char *root, struct doctor_facts *facts)
{
    char text[FILE_BYTES];
    doctor_read_text(root, "/proc/meminfo", text, sizeof(text));
    uint64_t free_pages = meminfo(text, "HugePages_Free");
    facts->memory_bytes = meminfo(text, "MemTotal");
    facts->memory_available_bytes = meminfo(text, "MemAvailable");
    facts->hugepages_free = free_pages == DOCTOR_UNKNOWN ? -1 : (int64_t)free_pages;
    facts->hugepage_bytes = meminfo(text, "Hugepagesize");
}

/* The word in brackets: "always [madvise] never". */
static void read_thp(const char *root, struct doctor_facts *facts)
{
    char text[128];
    doctor_read_text(root, "/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof(text));
    const char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;
    if (close)
        snprintf(facts->thp, sizeof(facts->thp), "%.*s", (int)(close - open - 1), open + 1);
}

static int read_int(const char *root, const char *path)
{
    char text[32], *end;
    doctor_read_text(root, path, text, sizeof(text));
    long value = strtol(text, &end, 10);
    return end == text ? -1 : (int)value;
}

static int read_seccomp(const char *root)
{
    char text[FILE_BYTES], line[16], *end;
    doctor_read_text(root, "/proc/self/status", text, sizeof(text));
    find_line(text, "Seccomp", line, sizeof(line));
    long mode = strtol(line, &end, 10);
    return end == line ? -1 : (int)mode;
}

void doctor_facts_read(const char *root, struct doctor_facts *facts)
{
    char nodes[256];
    read_cpu(root, facts);
    read_memory(root, facts);
    read_thp(root, facts);
    doctor_cgroup_read(root, facts);
    doctor_read_text(root, "/sys/devices/system/node/online", nodes, sizeof(nodes));
    facts->numa_nodes = count_list(nodes);
    facts->uring.disabled = read_int(root, "/proc/sys/kernel/io_uring_disabled");
    facts->uring.seccomp = read_seccomp(root);
}

/* The library's own choice, from a context of the smallest budget. */
static void probe_library(struct doctor_facts *facts)
{
    hr_context *context;
    hr_options options = {.struct_size = sizeof(options), .device_bytes = 2u << 20};
    hr_stats stats = {.struct_size = sizeof(stats)};
    if (hr_open(&options, &context) != HR_OK) {
        snprintf(facts->kernel_error, sizeof(facts->kernel_error), "%.255s", hr_error_text(NULL));
        return;
    }
    snprintf(facts->kernel, sizeof(facts->kernel), "%.31s", hr_context_kernel(context));
    if (hr_context_stats(context, &stats) == HR_OK)
        facts->threads = stats.threads;
    hr_close(&context);
}

void doctor_facts_probe(struct doctor_facts *facts)
{
    cpu_set_t set;
    struct rlimit lock = {0, 0};
    const char *forced = getenv("HEADRACE_CAPS");
    snprintf(facts->kernel_forced, sizeof(facts->kernel_forced), "%.31s", forced ? forced : "");
    probe_library(facts);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    facts->cores_affinity = online > 0 ? (int32_t)online : 1;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        facts->cores_affinity = CPU_COUNT(&set);
    getrlimit(RLIMIT_MEMLOCK, &lock);
    facts->memlock_bytes = lock.rlim_cur == RLIM_INFINITY ? DOCTOR_UNKNOWN : lock.rlim_cur;
    doctor_uring_probe(&facts->uring);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the cgroups that hold this process. A limit may sit on any level between the process's
 * own cgroup and the root, and a container may see only part of the tree: so mountinfo says where
 * each hierarchy is mounted and from which of its directories, and the walk goes upwards. */
#include "tools/doctor.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 65536, PATH_BYTES = 512 };

struct cgroup {
    bool v2;
    char mount[PATH_BYTES]; /* where the hierarchy is mounted */
    char path[PATH_BYTES];  /* the process's cgroup below it: "" or "/a/b" */
};

/* Whether `word` is one of a comma-separated list of `length` bytes. */
static bool list_has(const char *list, size_t length, const char *word)
{
    size_t size = strlen(word);
    const char *end = list + length;
    while (list < end) {
        const char *comma = memchr(list, ',', (size_t)(end - list));
        const char *stop = comma ? comma : end;
        if ((size_t)(stop - list) == size && memcmp(list, word, size) == 0)
            return true;
        list = stop + 1;
    }
    return false;
}

/* This process's cgroup in the v1 hierarchy of `controller` (NULL: in v2), from lines
 * "id:controllers:path". */
static bool find_path(const char *text, const char *controller, char path[PATH_BYTES])
{
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL;
        if (!at)
            return false;
        size_t length = (size_t)(at - names - 1);
        if (controller ? list_has(names + 1, length, controller) : length == 0) {
            snprintf(path, PATH_BYTES, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
            return true;
        }
    }
    return false;
}

/* A line of mountinfo: "id parent dev root mount options [tags] - type source super_options". */
static bool parse_mount(const char *line, const char *controller, char *root, char *mount)
{
    char type[32], super[256];
    const char *dash = strstr(line, " - ");
    if (!dash || sscanf(line, "%*s %*s %*s %511s %511s", root, mount) != 2 ||
        sscanf(dash + 3, "%31s %*s %255s", type, super) != 2)
        return false;
    if (!controller)
        return strcmp(type, "cgroup2") == 0;
    return strcmp(type, "cgroup") == 0 && list_has(super, strlen(super), controller);
}

static bool find_mount(const char *text, const char *controller, char *root, char *mount)
{
    char line[2048];
    while (*text) {
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof(line), "%.*s", (int)length, text);
        if (parse_mount(line, controller, root, mount))
            return true;
        text += length + (text[length] == '\n');
    }
    return false;
}

/* The hierarchy that `controller` belongs to; NULL: v2. */
static bool find_cgroup(const char *root, const char *controller, struct cgroup *g)
{
    char text[TEXT_BYTES], top[PATH_BYTES] = "", path[PATH_BYTES] = "";
    g->v2 = !controller;
    doctor_read_text(root, "/proc/self/cgroup", text, sizeof(text));
    if (!find_path(text, controller, path))
        return false;
    doctor_read_text(root, "/proc/self/mountinfo", text, sizeof(text));
    if (!find_mount(text, controller, top, g->mount))
        return false;
    size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);
    bool below = strncmp(path, top, length) == 0 && (path[length] == '/' || path[length] == '\0');
    snprintf(g->path, sizeof(g->path), "%s", below ? path + length : "");
    if (strcmp(g->path, "/") == 0)
        g->path[0] = '\0';
    return true;
}

static bool read_file(const char *root, const struct cgroup *g, const char *name, char text[64])
{
    char path[2 * PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s%s/%s", g->mount, g->path, name);
    return doctor_read_text(root, path, text, 64);
}

/* A number; DOCTOR_UNKNOWN for "max", negative ones and no file. v1 says "no limit" by a number
 * near 2^63. */
static uint64_t read_number(const char *root, const struct cgroup *g, const char *name)
{
    char text[64], *end;
    if (!read_file(root, g, name, text))
        return DOCTOR_UNKNOWN;
    long long value = strtoll(text, &end, 10);
    return end == text || value < 0 || value > INT64_MAX / 2 ? DOCTOR_UNKNOWN : (uint64_t)value;
}

static void take_memory(const char *root, const struct cgroup *g, struct doctor_facts *facts)
{
    uint64_t limit = read_number(root, g, g->v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t usage = read_number(root, g, g->v2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit == DOCTOR_UNKNOWN)
        return;
    uint64_t left = usage == DOCTOR_UNKNOWN ? limit : limit > usage ? limit - usage : 0;
    if (limit < facts->cgroup_limit_bytes)
        facts->cgroup_limit_bytes = limit;
    if (left < facts->cgroup_left_bytes)
        facts->cgroup_left_bytes = left;
}

static void take_cores(const char *root, const struct cgroup *g, struct doctor_facts *facts)
{
    char text[64];
    double quota = 0, period = 0;
    if (g->v2) {
        if (!read_file(root, g, "cpu.max", text) || sscanf(text, "%lf %lf", &quota, &period) != 2)
            return;
    } else {
        uint64_t us = read_number(root, g, "cpu.cfs_quota_us");
        quota = us == DOCTOR_UNKNOWN ? 0 : (double)us;
        us = read_number(root, g, "cpu.cfs_period_us");
        period = us == DOCTOR_UNKNOWN ? 0 : (double)us;
    }
    if (!(quota > 0 && period > 0))
        return;
    if (facts->cores_quota <= 0 || quota / period < facts->cores_quota)
        facts->cores_quota = quota / period;
}

/* From the process's cgroup to the top of what is mounted. */
static void walk(const char *root, struct cgroup g, struct doctor_facts *facts,
                 void (*take)(const char *, const struct cgroup *, struct doctor_facts *))
{
    take(root, &g, facts);
    for (char *slash; (slash = strrchr(g.path, '/'));) {
        *slash = '\0';
        take(root, &g, facts);
    }
}

void doctor_cgroup_read(const char *root, struct doctor_facts *facts)
{
    struct cgroup g = {0};
    facts->cores_quota = 0;
    facts->cgroup_limit_bytes = facts->cgroup_left_bytes = DOCTOR_UNKNOWN;
    if (find_cgroup(root, "memory", &g))
        walk(root, g, facts, take_memory);
    if (find_cgroup(root, "cpu", &g))
        walk(root, g, facts, take_cores);
    if (find_cgroup(root, NULL, &g)) {
        walk(root, g, facts, take_memory);
        walk(root, g, facts, take_cores);
    }
}

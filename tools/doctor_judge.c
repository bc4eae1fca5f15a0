/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/doctor.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)
#define GIB (1024.0 * MIB)

void doctor_say(struct doctor_finding *f, enum doctor_verdict verdict, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof(f->text), format, args);
    va_end(args);
    f->verdict = verdict;
}

void doctor_fix(struct doctor_finding *f, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(f->fix, sizeof(f->fix), format, args);
    va_end(args);
}

static void add(struct doctor_finding *f, struct doctor_value value)
{
    if (f->n_values < DOCTOR_VALUES_MAX)
        f->values[f->n_values++] = value;
}

void doctor_add_number(struct doctor_finding *f, const char *name, double number, bool known)
{
    add(f, (struct doctor_value){.name = name, .number = number, .known = known});
}

void doctor_add_text(struct doctor_finding *f, const char *name, const char *text)
{
    add(f, (struct doctor_value){.name = name, .text = text, .known = text && text[0]});
}

static void add_bytes(struct doctor_finding *f, const char *name, uint64_t bytes)
{
    doctor_add_number(f, name, (double)bytes, bytes != DOCTOR_UNKNOWN);
}

static bool has_avx2(const struct doctor_facts *m)
{
    return m->flags[DOCTOR_AVX2] && m->flags[DOCTOR_FMA] && m->flags[DOCTOR_F16C];
}

static bool has_avx512bf16(const struct doctor_facts *m)
{
    return has_avx2(m) && m->flags[DOCTOR_AVX512F] && m->flags[DOCTOR_AVX512BW] &&
           m->flags[DOCTOR_AVX512DQ] && m->flags[DOCTOR_AVX512VL] && m->flags[DOCTOR_AVX512_BF16];
}

static bool has_amx(const struct doctor_facts *m)
{
    return has_avx512bf16(m) && m->flags[DOCTOR_AMX_TILE] && m->flags[DOCTOR_AMX_BF16];
}

/* A kernel level and what of the CPU it stands for. */
struct level {
    const char *name, *text;
};

static struct level best_level(const struct doctor_facts *m)
{
    if (has_amx(m))
        return (struct level){"amx", "AVX-512 with BF16, AMX"};
    if (has_avx512bf16(m))
        return (struct level){"avx512bf16", "AVX-512 with BF16"};
    if (has_avx2(m))
        return (struct level){"avx2", "AVX2 with FMA and F16C"};
    return (struct level){"portable", "no AVX2 with FMA and F16C"};
}

static void judge_cpu(const struct doctor_facts *m, struct doctor_finding *f)
{
    const char *model = m->cpu_model[0] ? m->cpu_model : "unknown CPU";
    f->check = "cpu";
    doctor_say(f, has_avx2(m) ? DOCTOR_OK : DOCTOR_WARN, "%s: %s", model, best_level(m).text);
    if (!has_avx2(m))
        doctor_fix(
            f, "use an x86-64 CPU of 2013 or later; in a virtual machine pass the host's CPU model "
               "through");
    doctor_add_text(f, "model", m->cpu_model);
    doctor_add_text(f, "best_level", best_level(m).name);
    doctor_add_number(f, "amx_bf16", m->flags[DOCTOR_AMX_BF16], true);
}

static void judge_kernel(const struct doctor_facts *m, struct doctor_finding *f)
{
    const char *best = best_level(m).name;
    f->check = "kernel";
    if (!m->kernel[0]) {
        doctor_say(f, DOCTOR_FAIL, "no context could be opened: %s", m->kernel_error);
        doctor_fix(f, m->kernel_forced[0] ? "unset HEADRACE_CAPS, or set it to a level this CPU has"
                                          : "remove the cause that the sentence names");
    } else if (strcmp(m->kernel, best) == 0) {
        doctor_say(f, DOCTOR_OK, "%s, the best level for this CPU", m->kernel);
    } else if (m->kernel_forced[0]) {
        doctor_say(f, DOCTOR_WARN, "%s, forced by HEADRACE_CAPS; this CPU could use %s", m->kernel,
                   best);
        doctor_fix(f, "unset HEADRACE_CAPS");
    } else {
        doctor_say(f, DOCTOR_WARN, "%s, though the CPU lists what %s needs", m->kernel, best);
        doctor_fix(f, "update the kernel or hypervisor: it does not save the wider registers");
    }
    doctor_add_text(f, "level", m->kernel);
    doctor_add_text(f, "forced", m->kernel_forced);
}

static void judge_cores(const struct doctor_facts *m, struct doctor_finding *f)
{
    int32_t usable = m->cores_affinity;
    bool limited = m->cores_quota > 0 && m->cores_quota < usable;
    char quota[64] = "no CPU quota";
    f->check = "cores";
    if (limited)
        usable = (int32_t)ceil(m->cores_quota);
    if (m->cores_quota > 0)
        snprintf(quota, sizeof(quota), "a quota of %.2f cores", m->cores_quota);
    doctor_say(f, DOCTOR_OK, "%d usable: %d in the affinity mask, %s; %d threads by default",
               usable, m->cores_affinity, quota, m->threads);
    if (m->threads > usable) {
        f->verdict = DOCTOR_WARN;
        doctor_fix(f, "run with --threads %d: more threads than the quota are stopped in turn",
                   usable);
    } else if (limited && m->cores_quota < usable) {
        f->verdict = DOCTOR_WARN;
        doctor_fix(f, "make the quota a whole number of cores (docker: --cpus %d)", usable);
    }
    doctor_add_number(f, "usable", usable, true);
    doctor_add_number(f, "affinity", m->cores_affinity, true);
    doctor_add_number(f, "quota", m->cores_quota, m->cores_quota > 0);
    doctor_add_number(f, "threads", m->threads, m->threads > 0);
}

static void judge_numa(const struct doctor_facts *m, struct doctor_finding *f)
{
    f->check = "numa";
    if (m->numa_nodes == 0) {
        doctor_say(f, DOCTOR_OK, "nodes not visible (no /sys/devices/system/node); one is assumed");
    } else if (m->numa_nodes == 1) {
        doctor_say(f, DOCTOR_OK, "1 node");
    } else {
        doctor_say(f, DOCTOR_WARN,
                   "%d nodes: K/V lie where they are first written, and the "
                   "threads of other nodes read them at the speed of the link",
                   m->numa_nodes);
        doctor_fix(f, "numactl --cpunodebind=0 --membind=0 headrace ...");
    }
    doctor_add_number(f, "nodes", m->numa_nodes, m->numa_nodes > 0);
}

static void judge_memory(const struct doctor_facts *m, struct doctor_finding *f)
{
    const double low = 2 * GIB, least = 0.25 * GIB;
    uint64_t usable = m->memory_available_bytes;
    char limit[64] = "no cgroup limit";
    f->check = "memory";
    if (m->cgroup_left_bytes < usable)
        usable = m->cgroup_left_bytes;
    if (m->cgroup_limit_bytes != DOCTOR_UNKNOWN)
        snprintf(limit, sizeof(limit), "a cgroup limit of %.2f GiB",
                 (double)m->cgroup_limit_bytes / GIB);
    if (usable == DOCTOR_UNKNOWN) {
        doctor_say(f, DOCTOR_WARN, "unknown: /proc/meminfo cannot be read");
        doctor_fix(f, "mount /proc, or set the K/V budget yourself");
    } else {
        double bytes = (double)usable;
        doctor_say(f,
                   bytes < least ? DOCTOR_FAIL
                   : bytes < low ? DOCTOR_WARN
                                 : DOCTOR_OK,
                   "%.2f GiB usable, %s", bytes / GIB, limit);
        if (bytes < low)
            doctor_fix(f, "%s (a model of 135M parameters with 8,192 tokens needs about 2 GiB)",
                       m->cgroup_left_bytes <= m->memory_available_bytes
                           ? "raise the cgroup's memory limit (docker: --memory)"
                           : "end other programs or add memory");
    }
    add_bytes(f, "usable_bytes", usable);
    add_bytes(f, "total_bytes", m->memory_bytes);
    add_bytes(f, "cgroup_limit_bytes", m->cgroup_limit_bytes);
}

static void judge_memlock(const struct doctor_facts *m, struct doctor_finding *f)
{
    const double enough = 64 * MIB;
    f->check = "memlock";
    if (m->memlock_bytes == DOCTOR_UNKNOWN) {
        doctor_say(f, DOCTOR_OK, "unlimited");
    } else if ((double)m->memlock_bytes >= enough) {
        doctor_say(f, DOCTOR_OK, "%.0f MiB may be locked", (double)m->memlock_bytes / MIB);
    } else {
        doctor_say(f, DOCTOR_WARN, "%.2f MiB may be locked, too little for registered I/O buffers",
                   (double)m->memlock_bytes / MIB);
        doctor_fix(f, "ulimit -l unlimited (docker: --ulimit memlock=-1)");
    }
    add_bytes(f, "limit_bytes", m->memlock_bytes);
}

static void judge_hugepages(const struct doctor_facts *m, struct doctor_finding *f)
{
    f->check = "hugepages";
    char reserved[64] = "";
    if (m->hugepages_free > 0 && m->hugepage_bytes != DOCTOR_UNKNOWN)
        snprintf(reserved, sizeof(reserved), ", %lld of %.0f MiB reserved and free",
                 (long long)m->hugepages_free, (double)m->hugepage_bytes / MIB);
    if (!m->thp[0])
        doctor_say(f, DOCTOR_OK, "transparent hugepages not visible%s", reserved);
    else
        doctor_say(f, strcmp(m->thp, "never") ? DOCTOR_OK : DOCTOR_WARN,
                   "transparent hugepages: %s%s", m->thp, reserved);
    if (f->verdict != DOCTOR_OK)
        doctor_fix(f, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    doctor_add_text(f, "transparent", m->thp);
    doctor_add_number(f, "reserved_free", (double)m->hugepages_free, m->hugepages_free >= 0);
    add_bytes(f, "page_bytes", m->hugepage_bytes);
}

static void judge_uring(const struct doctor_facts *m, struct doctor_finding *f)
{
    doctor_judge_uring(&m->uring, f);
}

void doctor_judge(const struct doctor_facts *facts, struct doctor_finding findings[DOCTOR_CHECKS])
{
    static void (*const judges[])(const struct doctor_facts *, struct doctor_finding *) = {
        judge_cpu,    judge_kernel,  judge_cores,     judge_numa,
        judge_memory, judge_memlock, judge_hugepages, judge_uring,
    };
    _Static_assert(sizeof(judges) / sizeof(judges[0]) == DOCTOR_CHECKS, "one finding per judge");
    for (int i = 0; i < DOCTOR_CHECKS; i++) {
        findings[i] = (struct doctor_finding){.verdict = DOCTOR_OK};
        judges[i](facts, &findings[i]);
    }
}

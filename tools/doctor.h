/* SPDX-License-Identifier: Apache-2.0 */
/* `headrace doctor`: facts about the machine -> one finding per check -> text or JSON. */
#ifndef HEADRACE_TOOLS_DOCTOR_H
#define HEADRACE_TOOLS_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <headrace/headrace.h>

enum { DOCTOR_TEXT_BYTES = 320, DOCTOR_VALUES_MAX = 10, DOCTOR_CHECKS = 8, DOCTOR_DISKS = 16 };

/* No limit, or an amount that the system does not tell. */
#define DOCTOR_UNKNOWN UINT64_MAX

/* CPU flags that kernels ask about, by their names in /proc/cpuinfo. */
enum doctor_flag {
    DOCTOR_AVX2,
    DOCTOR_FMA,
    DOCTOR_F16C,
    DOCTOR_AVX512F,
    DOCTOR_AVX512BW,
    DOCTOR_AVX512DQ,
    DOCTOR_AVX512VL,
    DOCTOR_AVX512_BF16,
    DOCTOR_AMX_TILE,
    DOCTOR_AMX_BF16,
    DOCTOR_FLAGS
};

/* What io_uring_setup and io_uring_enter said: 0 or an errno. */
struct doctor_uring {
    int setup_errno;
    int enter_errno;
    int disabled; /* sysctl kernel.io_uring_disabled; -1: the kernel has none */
    int seccomp;  /* Seccomp mode of this process: 2 is a filter; -1: unknown */
};

struct doctor_facts {
    char cpu_model[96]; /* "" unknown */
    bool flags[DOCTOR_FLAGS];
    char kernel[32];        /* level that hr_open chose; "" when it failed */
    char kernel_error[256]; /* its sentence then */
    char kernel_forced[32]; /* HEADRACE_CAPS; "" not set */
    int32_t threads;        /* that hr_open starts by default */
    int32_t cores_affinity;
    double cores_quota; /* of the cgroups; 0: none */
    int32_t numa_nodes; /* 0: unknown */
    uint64_t memory_bytes;
    uint64_t memory_available_bytes;
    uint64_t cgroup_limit_bytes;
    uint64_t cgroup_left_bytes;
    uint64_t memlock_bytes;
    char thp[16]; /* the mode in brackets; "" unknown */
    int64_t hugepages_free;
    uint64_t hugepage_bytes;
    struct doctor_uring uring;
};

/* A directory that was measured. */
struct doctor_disk {
    const char *path;
    uint64_t free_bytes;
    uint64_t measured_bytes; /* of the file that was written and read */
    char file_system[32];
    hr_status status; /* of hr_disk_measure */
    hr_disk_rates rates;
    char error[256]; /* its sentence, or "" */
};

/* Reads what files tell; `root` stands before /proc and /sys ("" outside tests). */
void doctor_facts_read(const char *root, struct doctor_facts *facts);

/* Asks the system and the library for the rest. */
void doctor_facts_probe(struct doctor_facts *facts);

/* The tightest limits on the way from this process's cgroups to the root, v1 and v2. */
void doctor_cgroup_read(const char *root, struct doctor_facts *facts);

void doctor_uring_probe(struct doctor_uring *uring);

/* Writes a file in the directory and reads it back. */
void doctor_disk_probe(const char *root, const char *path, struct doctor_disk *disk);

/* Reads a file below root into text[size], always terminated; false when it cannot. */
bool doctor_read_text(const char *root, const char *path, char *text, size_t size);

enum doctor_verdict { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

/* A number, or a string when `text` is set; `known` false: null in JSON. */
struct doctor_value {
    const char *name;
    const char *text;
    double number;
    bool known;
};

/* One line of the report. Strings may point into the facts. */
struct doctor_finding {
    const char *check;
    enum doctor_verdict verdict;
    char text[DOCTOR_TEXT_BYTES];
    char fix[DOCTOR_TEXT_BYTES]; /* "" when there is nothing to fix */
    struct doctor_value values[DOCTOR_VALUES_MAX];
    int n_values;
};

/* Judges the facts; pure. */
void doctor_judge(const struct doctor_facts *facts, struct doctor_finding findings[DOCTOR_CHECKS]);

/* The io_uring finding (the case with the most reasons). */
void doctor_judge_uring(const struct doctor_uring *uring, struct doctor_finding *finding);

/* One directory. */
void doctor_judge_disk(const struct doctor_disk *disk, struct doctor_finding *finding);

/* Used by the judges to fill a finding. */
void doctor_say(struct doctor_finding *f, enum doctor_verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void doctor_fix(struct doctor_finding *f, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void doctor_add_number(struct doctor_finding *f, const char *name, double number, bool known);
void doctor_add_text(struct doctor_finding *f, const char *name, const char *text);

/* Print the findings; return the worst verdict, or -1 when `out` could not be written. */
int doctor_print_text(const struct doctor_finding *findings, int count, FILE *out);
int doctor_print_json(const struct doctor_finding *findings, int count, FILE *out);

/* headrace doctor [--json] [--dir DIR] [--root DIR]. Returns the exit status: 0 unless a check
 * failed. */
int hr_tool_doctor(int argc, char **argv);

#endif

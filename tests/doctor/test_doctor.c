/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's parsers on planted files and its judges on planted facts. */
#include "tools/doctor.h"

#include <errno.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64];

static int make_root(void **state)
{
    snprintf(root, sizeof(root), "/tmp/headrace-doctor-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static int remove_root(void **state)
{
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Writes a file below the root, with the folders above it. */
static void plant(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static struct doctor_facts read_facts(void)
{
    struct doctor_facts facts;
    memset(&facts, 0, sizeof(facts));
    doctor_facts_read(root, &facts);
    return facts;
}

static void test_no_files(void **state)
{
    struct doctor_facts m = read_facts();
    assert_string_equal(m.cpu_model, "");
    assert_false(m.flags[DOCTOR_AVX2]);
    assert_int_equal(m.numa_nodes, 0);
    assert_true(m.cores_quota == 0);
    assert_true(m.memory_bytes == DOCTOR_UNKNOWN);
    assert_true(m.memory_available_bytes == DOCTOR_UNKNOWN);
    assert_true(m.cgroup_limit_bytes == DOCTOR_UNKNOWN);
    assert_string_equal(m.thp, "");
    assert_int_equal(m.hugepages_free, -1);
    assert_int_equal(m.uring.disabled, -1);
    assert_int_equal(m.uring.seccomp, -1);
}

static void test_machine_files(void **state)
{
    plant("/proc/cpuinfo", "processor\t: 0\nmodel name\t: A \"B\" C\n"
                           "flags\t\t: fpu fma avx2x avx512f f16c avx2 \n\nprocessor\t: 1\n");
    plant("/proc/meminfo", "MemTotal:       2048 kB\nMemFree:  9 kB\nMemAvailable:   1024 kB\n"
                           "HugePages_Free:        7\nHugepagesize:       2048 kB\n");
    plant("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    plant("/sys/devices/system/node/online", "0-1,3\n");
    plant("/proc/sys/kernel/io_uring_disabled", "2\n");
    plant("/proc/self/status", "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n");
    struct doctor_facts m = read_facts();
    assert_string_equal(m.cpu_model, "A \"B\" C");
    assert_true(m.flags[DOCTOR_AVX2] && m.flags[DOCTOR_FMA] && m.flags[DOCTOR_F16C]);
    assert_true(m.flags[DOCTOR_AVX512F]);
    assert_false(m.flags[DOCTOR_AVX512BW] || m.flags[DOCTOR_AMX_BF16]);
    assert_true(m.memory_bytes == 2048 * 1024);
    assert_true(m.memory_available_bytes == 1024 * 1024);
    assert_int_equal(m.hugepages_free, 7);
    assert_true(m.hugepage_bytes == 2048 * 1024);
    assert_string_equal(m.thp, "never");
    assert_int_equal(m.numa_nodes, 3);
    assert_int_equal(m.uring.disabled, 2);
    assert_int_equal(m.uring.seccomp, 2);
}

/* "avx2x" must not pass for "avx2", nor a word at the end be missed. */
static void test_flag_words(void **state)
{
    plant("/proc/cpuinfo", "flags : avx2x xavx2 fma\n");
    struct doctor_facts m = read_facts();
    assert_false(m.flags[DOCTOR_AVX2]);
    assert_true(m.flags[DOCTOR_FMA]);
}

static void test_junk(void **state)
{
    char line[8192];
    memset(line, 'x', sizeof(line) - 1);
    line[sizeof(line) - 1] = '\0';
    plant("/proc/cpuinfo", line);
    plant("/proc/meminfo", "MemTotal\nMemAvailable: lots kB\nHugePages_Free:");
    plant("/sys/kernel/mm/transparent_hugepage/enabled", "]always [");
    plant("/sys/devices/system/node/online", "3-1");
    plant("/proc/self/cgroup", "0:\n:\n::\n0::");
    plant("/proc/self/mountinfo", line);
    struct doctor_facts m = read_facts();
    assert_true(m.memory_available_bytes == DOCTOR_UNKNOWN);
    assert_int_equal(m.hugepages_free, -1);
    assert_string_equal(m.thp, "");
    assert_int_equal(m.numa_nodes, 0);
    assert_true(m.cgroup_limit_bytes == DOCTOR_UNKNOWN);
}

/* A limit of the parent counts, and the tighter of two quotas. */
static void test_cgroup_v2_nested(void **state)
{
    plant("/proc/self/cgroup", "0::/a/b\n");
    plant("/proc/self/mountinfo",
          "22 1 0:20 / /proc rw - proc proc rw\n"
          "25 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    plant("/sys/fs/cgroup/a/memory.max", "1000\n");
    plant("/sys/fs/cgroup/a/memory.current", "400\n");
    plant("/sys/fs/cgroup/a/cpu.max", "400000 100000\n");
    plant("/sys/fs/cgroup/a/b/memory.max", "max\n");
    plant("/sys/fs/cgroup/a/b/memory.current", "300\n");
    plant("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
    struct doctor_facts m = read_facts();
    assert_true(m.cgroup_limit_bytes == 1000);
    assert_true(m.cgroup_left_bytes == 600);
    assert_true(m.cores_quota == 1.5);
}

/* A container that sees its own cgroup as the root of the mount, but the host's path. */
static void test_cgroup_v1_container(void **state)
{
    plant("/proc/self/cgroup", "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/\n");
    plant("/proc/self/mountinfo",
          "31 30 0:27 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
          "32 30 0:28 /docker/x /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n");
    plant("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
    plant("/sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n");
    plant("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
    plant("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    struct doctor_facts m = read_facts();
    assert_true(m.cgroup_limit_bytes == 5000);
    assert_true(m.cgroup_left_bytes == 0);
    assert_true(m.cores_quota == 2);
}

static void test_cgroup_v1_unlimited(void **state)
{
    plant("/proc/self/cgroup", "5:memory:/\n4:cpu:/\n0::/\n");
    plant("/proc/self/mountinfo", "31 30 0:27 / /cg/memory ro - cgroup cgroup rw,memory\n"
                                  "32 30 0:28 / /cg/cpu ro - cgroup cgroup rw,cpu\n");
    plant("/cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
    plant("/cg/memory/memory.usage_in_bytes", "6000\n");
    plant("/cg/cpu/cpu.cfs_quota_us", "-1\n");
    plant("/cg/cpu/cpu.cfs_period_us", "100000\n");
    struct doctor_facts m = read_facts();
    assert_true(m.cgroup_limit_bytes == DOCTOR_UNKNOWN);
    assert_true(m.cgroup_left_bytes == DOCTOR_UNKNOWN);
    assert_true(m.cores_quota == 0);
}

/* A machine without anything to complain about. */
static struct doctor_facts good_facts(void)
{
    struct doctor_facts m = {
        .cpu_model = "CPU",
        .kernel = "avx2",
        .threads = 4,
        .cores_affinity = 4,
        .numa_nodes = 1,
        .memory_bytes = 16ull << 30,
        .memory_available_bytes = 8ull << 30,
        .cgroup_limit_bytes = DOCTOR_UNKNOWN,
        .cgroup_left_bytes = DOCTOR_UNKNOWN,
        .memlock_bytes = DOCTOR_UNKNOWN,
        .thp = "madvise",
        .hugepage_bytes = 2u << 20,
        .uring = {.disabled = 0, .seccomp = 0},
    };
    m.flags[DOCTOR_AVX2] = m.flags[DOCTOR_FMA] = m.flags[DOCTOR_F16C] = true;
    return m;
}

/* The finding of one check; every line that is not ok has to have a fix. */
static struct doctor_finding judge(const struct doctor_facts *m, const char *check)
{
    struct doctor_finding findings[DOCTOR_CHECKS], found = {0};
    doctor_judge(m, findings);
    for (int i = 0; i < DOCTOR_CHECKS; i++) {
        assert_true((findings[i].verdict == DOCTOR_OK) == (findings[i].fix[0] == '\0'));
        assert_true(findings[i].text[0] != '\0' && !strchr(findings[i].text, '\n'));
        if (strcmp(findings[i].check, check) == 0)
            found = findings[i];
    }
    assert_non_null(found.check);
    return found;
}

static void expect(const struct doctor_facts *m, const char *check, enum doctor_verdict verdict,
                   const char *words)
{
    struct doctor_finding f = judge(m, check);
    assert_int_equal(f.verdict, verdict);
    if (!strstr(f.text, words) && !strstr(f.fix, words))
        fail_msg("\"%s\" is neither in \"%s\" nor in \"%s\"", words, f.text, f.fix);
}

static void test_good_machine(void **state)
{
    static const char *const checks[] = {"cpu",    "kernel",  "cores",     "numa",
                                         "memory", "memlock", "hugepages", "io_uring"};
    struct doctor_facts m = good_facts();
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
        assert_int_equal(judge(&m, checks[i]).verdict, DOCTOR_OK);
}

static void test_judge_kernel(void **state)
{
    struct doctor_facts m = good_facts();
    snprintf(m.kernel, sizeof(m.kernel), "portable");
    expect(&m, "kernel", DOCTOR_WARN, "avx2");
    for (int i = 0; i < DOCTOR_FLAGS; i++)
        m.flags[i] = true;
    expect(&m, "kernel", DOCTOR_WARN, "amx");
    expect(&m, "cpu", DOCTOR_OK, "AMX");
    m.flags[DOCTOR_AMX_TILE] = false;
    expect(&m, "kernel", DOCTOR_WARN, "avx512bf16");
    snprintf(m.kernel_forced, sizeof(m.kernel_forced), "portable");
    expect(&m, "kernel", DOCTOR_WARN, "unset HEADRACE_CAPS");
    m.kernel[0] = '\0';
    snprintf(m.kernel_error, sizeof(m.kernel_error), "no luck");
    expect(&m, "kernel", DOCTOR_FAIL, "no luck");
    m.flags[DOCTOR_F16C] = false;
    expect(&m, "cpu", DOCTOR_WARN, "no AVX2 with FMA and F16C");
}

static void test_judge_cores(void **state)
{
    struct doctor_facts m = good_facts();
    m.cores_quota = 1.5;
    m.threads = 2;
    expect(&m, "cores", DOCTOR_WARN, "--cpus 2");
    m.threads = 4;
    expect(&m, "cores", DOCTOR_WARN, "--threads 2");
    m.cores_quota = 2;
    m.threads = 2;
    expect(&m, "cores", DOCTOR_OK, "2 usable: 4 in the affinity mask, a quota of 2.00 cores");
    m.cores_quota = 64;
    m.threads = 4;
    expect(&m, "cores", DOCTOR_OK, "4 usable");
    m.numa_nodes = 2;
    expect(&m, "numa", DOCTOR_WARN, "--cpunodebind");
    m.numa_nodes = 0;
    expect(&m, "numa", DOCTOR_OK, "not visible");
}

static void test_judge_memory(void **state)
{
    struct doctor_facts m = good_facts();
    m.cgroup_limit_bytes = 2ull << 30;
    m.cgroup_left_bytes = 1ull << 30;
    expect(&m, "memory", DOCTOR_WARN, "1.00 GiB usable, a cgroup limit of 2.00 GiB");
    expect(&m, "memory", DOCTOR_WARN, "docker: --memory");
    m.cgroup_left_bytes = 1u << 20;
    expect(&m, "memory", DOCTOR_FAIL, "0.00 GiB usable");
    m = good_facts();
    m.memory_available_bytes = 1ull << 30;
    expect(&m, "memory", DOCTOR_WARN, "end other programs");
    m.memory_available_bytes = DOCTOR_UNKNOWN;
    expect(&m, "memory", DOCTOR_WARN, "/proc/meminfo");
    m.memlock_bytes = 8u << 20;
    expect(&m, "memlock", DOCTOR_WARN, "8.00 MiB");
    m.memlock_bytes = 64u << 20;
    expect(&m, "memlock", DOCTOR_OK, "64 MiB");
    snprintf(m.thp, sizeof(m.thp), "never");
    expect(&m, "hugepages", DOCTOR_WARN, "echo madvise");
    m.thp[0] = '\0';
    m.hugepages_free = 3;
    expect(&m, "hugepages", DOCTOR_OK, "3 of 2 MiB reserved");
}

static void test_judge_uring(void **state)
{
    struct doctor_facts m = good_facts();
    m.uring.setup_errno = EPERM;
    expect(&m, "io_uring", DOCTOR_WARN, "audit log");
    m.uring.seccomp = 2;
    expect(&m, "io_uring", DOCTOR_WARN, "seccomp=unconfined");
    m.uring.disabled = 2;
    expect(&m, "io_uring", DOCTOR_WARN, "sysctl -w kernel.io_uring_disabled=0");
    m.uring.disabled = -1;
    m.uring.setup_errno = ENOSYS;
    expect(&m, "io_uring", DOCTOR_WARN, "hidden by a seccomp filter");
    m.uring.seccomp = 0;
    expect(&m, "io_uring", DOCTOR_WARN, "Linux 5.1");
    m.uring.setup_errno = ENOMEM;
    expect(&m, "io_uring", DOCTOR_WARN, "ulimit -l");
    m.uring.setup_errno = EMFILE;
    expect(&m, "io_uring", DOCTOR_WARN, strerror(EMFILE));
    m.uring = (struct doctor_uring){.enter_errno = EPERM, .disabled = -1, .seccomp = 2};
    expect(&m, "io_uring", DOCTOR_WARN, "io_uring_enter");
}

/* A directory without anything to complain about. */
static struct doctor_disk good_disk(void)
{
    return (struct doctor_disk){
        .path = "/data",
        .free_bytes = 80ull << 30,
        .file_system = "ext4",
        .rates = {.direct = true,
                  .alignment = 512,
                  .read_bytes_per_s = 2.5e9,
                  .write_bytes_per_s = 1.25e9,
                  .text = "threads: 16; \"/data\""},
    };
}

static void expect_disk(const struct doctor_disk *d, enum doctor_verdict verdict, const char *words)
{
    struct doctor_finding f;
    doctor_judge_disk(d, &f);
    assert_int_equal(f.verdict, verdict);
    assert_true((verdict == DOCTOR_OK) == (f.fix[0] == '\0'));
    assert_int_equal(f.n_values, 9);
    if (!strstr(f.text, words) && !strstr(f.fix, words))
        fail_msg("\"%s\" is neither in \"%s\" nor in \"%s\"", words, f.text, f.fix);
}

static void test_judge_disk(void **state)
{
    struct doctor_disk d = good_disk();
    expect_disk(&d, DOCTOR_OK,
                "/data: 80.00 GiB free, ext4, O_DIRECT (aligned to 512), threads: 2.50 GB/s read, "
                "1.25 GB/s written");
    d.free_bytes = 1u << 30;
    expect_disk(&d, DOCTOR_WARN, "free space there");
    d.rates.write_bytes_per_s = 0.1e9;
    expect_disk(&d, DOCTOR_WARN, "NVMe");
    d.rates.direct = false;
    expect_disk(&d, DOCTOR_WARN, "no O_DIRECT");
    d.rates.in_memory = true;
    expect_disk(&d, DOCTOR_WARN, "take memory");
    d = (struct doctor_disk){.path = "/none", .status = HR_E_SYSTEM, .error = "no such thing"};
    expect_disk(&d, DOCTOR_FAIL, "no such thing");
    expect_disk(&d, DOCTOR_FAIL, "free space there");
    d.free_bytes = DOCTOR_UNKNOWN;
    expect_disk(&d, DOCTOR_FAIL, "make the directory");
    d.free_bytes = 80ull << 30;
    expect_disk(&d, DOCTOR_FAIL, "the cause");
    d.status = HR_E_IO;
    expect_disk(&d, DOCTOR_FAIL, "kernel's log");
}

/* The file system's name by the device number; then by its magic. */
static void test_probe_disk(void **state)
{
    char line[256];
    struct stat st;
    struct doctor_disk d;
    assert_int_equal(stat(root, &st), 0);
    snprintf(line, sizeof(line),
             "30 1 9999:1 / /a rw - xfs /dev/a rw\n31 1 %u:%u / / rw shared:1 - ext9 /dev/b rw\n",
             major(st.st_dev), minor(st.st_dev));
    plant("/proc/self/mountinfo", line);
    doctor_disk_probe(root, root, &d);
    assert_int_equal(d.status, HR_OK);
    assert_string_equal(d.file_system, "ext9");
    assert_true(d.rates.read_bytes_per_s > 0 && d.measured_bytes > 0);
    doctor_disk_probe("/none", root, &d);
    assert_true(d.file_system[0] != '\0');
    doctor_disk_probe(root, "/none/none", &d);
    assert_int_equal(d.status, HR_E_SYSTEM);
    assert_true(d.free_bytes == DOCTOR_UNKNOWN);
    assert_non_null(strstr(d.error, "No such file"));
}

int main(void)
{
#define ON_FILES(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        ON_FILES(test_no_files),
        ON_FILES(test_machine_files),
        ON_FILES(test_flag_words),
        ON_FILES(test_junk),
        ON_FILES(test_cgroup_v2_nested),
        ON_FILES(test_cgroup_v1_container),
        ON_FILES(test_cgroup_v1_unlimited),
        cmocka_unit_test(test_good_machine),
        cmocka_unit_test(test_judge_kernel),
        cmocka_unit_test(test_judge_cores),
        cmocka_unit_test(test_judge_memory),
        cmocka_unit_test(test_judge_uring),
        cmocka_unit_test(test_judge_disk),
        ON_FILES(test_probe_disk),
    };
    return cmocka_run_group_tests_name("doctor", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* hr_disk_measure: on a real directory with each engine; bad arguments; files that fail. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/measure.h"
#include "tests/engine/fixture.h"

static char folder[300];

static int make_folder(void **state)
{
    const char *temp = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/headrace-measure-XXXXXX", temp ? temp : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

/* Fails unless the folder is empty. */
static int remove_folder(void **state)
{
    return rmdir(folder);
}

static hr_disk disk(uint64_t bytes)
{
    return (hr_disk){.path = folder, .bytes = bytes};
}

static void check_rates(const hr_disk_rates *r)
{
    assert_int_equal(r->struct_size, sizeof(*r));
    assert_true(isfinite(r->read_bytes_per_s) && r->read_bytes_per_s > 0);
    assert_true(isfinite(r->write_bytes_per_s) && r->write_bytes_per_s > 0);
    assert_true(r->direct ? r->alignment >= 1 && r->alignment <= 4096 : r->alignment == 1);
    assert_non_null(strstr(r->text, folder));
}

static void test_engines(void **state)
{
    hr_disk d = disk(80 << 20); /* more pieces than are under way at a time */
    hr_disk_rates r = {.struct_size = sizeof(r)};
    assert_int_equal(hr_disk_measure(&d, "threads", &r), HR_OK);
    check_rates(&r);
    assert_true(strncmp(r.text, "threads", 7) == 0);
    assert_int_equal(hr_disk_measure(&d, NULL, &r), HR_OK);
    check_rates(&r);
    if (hr_disk_measure(&d, "uring", &r) == HR_OK)
        assert_true(strncmp(r.text, "uring", 5) == 0);
    else
        print_message("no io_uring here: %s\n", hr_error_text(NULL));
    d.bytes = 2 << 20; /* the smallest */
    assert_int_equal(hr_disk_measure(&d, NULL, &r), HR_OK);
    check_rates(&r);
}

static void test_bad_arguments(void **state)
{
    hr_disk d = disk(4 << 20);
    hr_disk_rates r = {.struct_size = sizeof(r), .alignment = 77};
    expect_error(NULL, hr_disk_measure(NULL, NULL, &r), HR_E_INVALID, "disk is NULL");
    expect_error(NULL, hr_disk_measure(&d, NULL, NULL), HR_E_INVALID, "rates is NULL");
    r.struct_size = 8;
    expect_error(NULL, hr_disk_measure(&d, NULL, &r), HR_E_INVALID, "rates.struct_size is 8");
    r.struct_size = sizeof(r);
    expect_error(NULL, hr_disk_measure(&d, "floppy", &r), HR_E_INVALID, "io is \"floppy\"");
    d.path = NULL;
    expect_error(NULL, hr_disk_measure(&d, NULL, &r), HR_E_INVALID, "path is NULL");
    d = disk((2 << 20) - 1);
    expect_error(NULL, hr_disk_measure(&d, NULL, &r), HR_E_INVALID, "2097151 bytes");
    assert_int_equal(r.alignment, 77);
}

static void test_bad_directories(void **state)
{
    char path[400];
    hr_disk d = {.path = path, .bytes = 4 << 20};
    hr_disk_rates r = {.struct_size = sizeof(r)};
    snprintf(path, sizeof(path), "%s/none", folder);
    expect_error(NULL, hr_disk_measure(&d, NULL, &r), HR_E_SYSTEM, "No such file");
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && close(fd) == 0);
    expect_error(NULL, hr_disk_measure(&d, NULL, &r), HR_E_INVALID, "not a directory");
    assert_int_equal(unlink(path), 0);
    d = disk(100ull << 40);
    expect_error(NULL, hr_disk_measure(&d, NULL, &r), HR_E_SYSTEM, "MiB free");
}

/* What the files do wrong. */
static struct faults {
    bool no_direct, other_data;
    int read_error, write_error, sync_error;
} faults;

static int faulty_open(void *user, const char *path, int flags, int mode)
{
    if (flags & O_DIRECT && faults.no_direct)
        return -EINVAL;
    return hr_io_calls_system.open(user, path, flags, mode);
}

/* The probe moves a page, before the pieces do. */
static int64_t faulty_read(void *user, int fd, void *memory, size_t bytes, uint64_t offset)
{
    if (bytes > 4096 && faults.read_error)
        return -faults.read_error;
    int64_t n = hr_io_calls_system.pread(user, fd, memory, bytes, offset);
    if (bytes > 4096 && faults.other_data)
        ((unsigned char *)memory)[bytes / 2] ^= 4;
    return n;
}

static int64_t faulty_write(void *user, int fd, const void *memory, size_t bytes, uint64_t offset)
{
    if (bytes > 4096 && faults.write_error)
        return -faults.write_error;
    return hr_io_calls_system.pwrite(user, fd, memory, bytes, offset);
}

static int faulty_sync(void *user, int fd)
{
    return faults.sync_error ? -faults.sync_error : hr_io_calls_system.sync(user, fd);
}

static hr_status measure_faulty(struct faults what, hr_disk_rates *r, struct hr_error *error)
{
    struct hr_io_calls calls = hr_io_calls_system;
    struct hr_hooks hooks = {.calls = &calls};
    hr_disk d = disk(40 << 20);
    calls.open = faulty_open;
    calls.pread = faulty_read;
    calls.pwrite = faulty_write;
    calls.sync = faulty_sync;
    faults = what;
    *r = (hr_disk_rates){.struct_size = sizeof(*r)};
    return hr_measure(&d, "threads", &hooks, error, r);
}

static void expect_fault(struct faults what, hr_status status, const char *part)
{
    struct hr_error error = {0};
    hr_disk_rates r;
    assert_int_equal(measure_faulty(what, &r, &error), status);
    if (!strstr(error.text, part) || !strstr(error.text, folder))
        fail_msg("\"%s\" does not contain \"%s\" and the directory", error.text, part);
    assert_true(r.read_bytes_per_s == 0 && r.text[0] == '\0');
}

static void test_faults(void **state)
{
    struct hr_error error = {0};
    hr_disk_rates r;
    expect_fault((struct faults){.read_error = EIO}, HR_E_IO, "read of 1048576 bytes");
    expect_fault((struct faults){.write_error = ENOSPC}, HR_E_IO, "write of 1048576 bytes");
    expect_fault((struct faults){.other_data = true}, HR_E_CORRUPT, "other data");
    expect_fault((struct faults){.no_direct = true, .sync_error = EDQUOT}, HR_E_IO, "fdatasync");
    assert_int_equal(measure_faulty((struct faults){.no_direct = true}, &r, &error), HR_OK);
    assert_false(r.direct);
    check_rates(&r);
    assert_non_null(strstr(r.text, "buffered"));
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_engines),
        IN_FOLDER(test_bad_arguments),
        IN_FOLDER(test_bad_directories),
        IN_FOLDER(test_faults),
    };
    return cmocka_run_group_tests_name("measure", tests, NULL, NULL);
}

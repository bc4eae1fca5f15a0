/* SPDX-License-Identifier: Apache-2.0 */
/* io_uring by its bare system calls: the probe has to work in a build without liburing, which is
 * where people ask why. */
#include "tools/doctor.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/io_uring.h>

void doctor_uring_probe(struct doctor_uring *uring)
{
    struct io_uring_params params = {0};
    uring->setup_errno = uring->enter_errno = 0;
    long fd = syscall(SYS_io_uring_setup, 4, &params);
    if (fd < 0) {
        uring->setup_errno = errno;
        return;
    }
    /* A filter may allow the one call and not the other. */
    if (syscall(SYS_io_uring_enter, (int)fd, 0, 0, 0, NULL, 0) < 0)
        uring->enter_errno = errno;
    close((int)fd);
}

enum { SECCOMP_FILTER = 2 };

/* Why, and what to do, for a failed call. */
static void explain(const struct doctor_uring *u, const char *call, int error,
                    struct doctor_finding *f)
{
    const char *why = strerror(error), *fix = "see `man io_uring_setup` for this errno";
    if (error == EPERM && u->disabled > 0) {
        why = u->disabled == 1 ? "sysctl kernel.io_uring_disabled is 1 (privileged users only)"
                               : "sysctl kernel.io_uring_disabled is 2 (nobody may)";
        fix = "sysctl -w kernel.io_uring_disabled=0";
    } else if ((error == EPERM || error == EACCES) && u->seccomp == SECCOMP_FILTER) {
        why = "a seccomp filter forbids it, as container runtimes do";
        fix = "run the container with a seccomp profile that allows io_uring (docker: "
              "--security-opt seccomp=unconfined)";
    } else if (error == EPERM || error == EACCES) {
        why = "not permitted, by a security module or an LSM policy";
        fix = "look for the denial in the audit log";
    } else if (error == ENOSYS && u->seccomp == SECCOMP_FILTER) {
        why = "the system call is missing: hidden by a seccomp filter, or the kernel lacks it";
        fix = "allow io_uring in the container's seccomp profile; Linux 5.1 or newer has it";
    } else if (error == ENOSYS) {
        why = "this kernel does not have the system call";
        fix = "use Linux 5.1 or newer, built with CONFIG_IO_URING";
    } else if (error == ENOMEM) {
        why = "its rings exceed the memlock limit or the memory left";
        fix = "raise the memlock limit (ulimit -l)";
    }
    doctor_say(f, DOCTOR_WARN, "not usable: %s: %s (threads read and write files instead)", call,
               why);
    snprintf(f->fix, sizeof(f->fix), "%s", fix);
}

void doctor_judge_uring(const struct doctor_uring *u, struct doctor_finding *f)
{
    f->check = "io_uring";
    if (u->setup_errno)
        explain(u, "io_uring_setup", u->setup_errno, f);
    else if (u->enter_errno)
        explain(u, "io_uring_enter", u->enter_errno, f);
    else
        doctor_say(f, DOCTOR_OK, "usable");
    doctor_add_number(f, "setup_errno", u->setup_errno, true);
    doctor_add_number(f, "enter_errno", u->enter_errno, u->setup_errno == 0);
    doctor_add_number(f, "io_uring_disabled", u->disabled, u->disabled >= 0);
    doctor_add_number(f, "seccomp", u->seccomp, u->seccomp >= 0);
}

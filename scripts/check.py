#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the whole test suite: builds each variant, runs its groups of tests, prints the time of
each, and ends with one line of counts. Exit status 1 when anything failed.

usage: check.py [GROUP]...   no group: all of them (--list names them)
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Sanitizers bring their own malloc, and confuse one warning of gcc's. CUDA kernels do not depend on
# the host's compiler: the first variant has them.
SANITIZED = ["-Dtools=enabled", "-Dcuda=disabled", "-Djemalloc=disabled", "-Doptimization=1",
             "-Dc_args=-Wno-maybe-uninitialized"]

# Variant -> (folder, environment, meson options)
VARIANTS = {
    "gcc": ("build", {"CC": "gcc", "CXX": "g++"}, ["-Dtools=enabled"]),
    "clang": ("build-clang", {"CC": "clang", "CXX": "clang++"},
              ["-Dtools=enabled", "-Dcuda=disabled", "-Dfuzz=true"]),
    "asan": ("build-asan", {"CC": "gcc", "CXX": "g++"},
             ["-Db_sanitize=address,undefined", *SANITIZED]),
    "tsan": ("build-tsan", {"CC": "gcc", "CXX": "g++"}, ["-Db_sanitize=thread", *SANITIZED]),
}

# Group -> (variant, suites of tests)
GROUPS = {
    "tidy": ("gcc", ["tidy"]),
    "headers": ("gcc", ["headers"]),
    "install": ("gcc", ["install"]),
    "examples": ("gcc", ["examples"]),
    "unit": ("gcc", ["unit"]),
    "tools": ("gcc", ["tools"]),
    "engine": ("gcc", ["engine"]),
    "kernels": ("gcc", ["kernels"]),
    "model": ("gcc", ["model"]),
    "asan": ("asan", ["examples", "unit", "tools", "engine", "kernels"]),
    "tsan": ("tsan", ["examples", "engine", "kernels"]),
    "fuzz": ("clang", ["fuzz"]),
}

SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:abort_on_error=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


class Totals:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.times = []

    def add(self, result):
        if result in ("OK", "EXPECTEDFAIL"):
            self.passed += 1
        elif result == "SKIP":
            self.skipped += 1
        else:
            self.failed += 1

    def timed(self, name, seconds):
        self.times.append((name, seconds))
        print(f"== {name}: {seconds:.1f} s", flush=True)


def run(command, env=None, output=None):
    full = dict(os.environ, **(env or {}))
    return subprocess.run([str(c) for c in command], cwd=ROOT, env=full, stdin=subprocess.DEVNULL,
                          stdout=output, stderr=subprocess.STDOUT, check=False).returncode


def build(variant, totals):
    """Sets up and builds; a failure counts as one failed test."""
    folder, env, options = VARIANTS[variant]
    start = time.monotonic()
    print(f"== building {folder}", flush=True)
    log = ROOT / folder / "build.log"
    log.parent.mkdir(exist_ok=True)
    with open(log, "w", encoding="utf-8") as out:
        status = 0
        if not (ROOT / folder / "build.ninja").exists():
            status = run(["meson", "setup", folder, "--werror", *options], env, out)
        if status == 0:
            status = run(["ninja", "-C", folder], env, out)
    if status:
        print(log.read_text(encoding="utf-8", errors="replace")[-20000:])
        print(f"{folder} could not be built")
        totals.add("FAIL")
    totals.timed(f"build {variant}", time.monotonic() - start)
    return status == 0


def without_aslr():
    """gcc 12's TSan cannot map its shadow under the widest address randomisation."""
    setarch = shutil.which("setarch")
    if setarch and run([setarch, "-R", "true"], output=subprocess.DEVNULL) == 0:
        return [setarch, "-R"]
    return []


def run_group(name, totals):
    variant, suites = GROUPS[name]
    folder = VARIANTS[variant][0]
    start = time.monotonic()
    print(f"== {name}", flush=True)
    command = ["meson", "test", "-C", folder, "--no-rebuild", "--print-errorlogs",
               "--logbase", f"check-{name}"]
    for suite in suites:
        command += ["--suite", suite]
    log = ROOT / folder / "meson-logs" / f"check-{name}.json"
    log.unlink(missing_ok=True)
    run((without_aslr() if variant == "tsan" else []) + command, SANITIZER_OPTIONS)
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    for line in lines:
        totals.add(json.loads(line)["result"])
    if not lines:
        print(f"{name}: no test was run")
        totals.add("FAIL")
    totals.timed(name, time.monotonic() - start)


def main(arguments):
    if "--list" in arguments:
        print("\n".join(GROUPS))
        return 0
    unknown = [a for a in arguments if a not in GROUPS]
    if unknown:
        print(f"check: no group {unknown[0]}; there are {', '.join(GROUPS)}")
        return 2
    totals, built = Totals(), {}
    for name in arguments or GROUPS:
        variant = GROUPS[name][0]
        if variant not in built:
            built[variant] = build(variant, totals)
        if built[variant]:
            run_group(name, totals)
    print("== times")
    for name, seconds in totals.times:
        print(f"{seconds:8.1f} s  {name}")
    print(f"{sum(s for _, s in totals.times):8.1f} s  in all")
    print(f"{totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped", flush=True)
    return 1 if totals.failed or not totals.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

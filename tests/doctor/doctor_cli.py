#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`headrace doctor`: text and JSON say the same, exit statuses, a machine without /proc and /sys.

usage: doctor_cli.py HEADRACE
"""
import json
import os
import subprocess
import sys
import tempfile

CHECKS = ["cpu", "kernel", "cores", "numa", "memory", "memlock", "hugepages", "io_uring"]
VALUES = {
    "cpu": ["model", "best_level", "amx_bf16"],
    "kernel": ["level", "forced"],
    "cores": ["usable", "affinity", "quota", "threads"],
    "numa": ["nodes"],
    "memory": ["usable_bytes", "total_bytes", "cgroup_limit_bytes"],
    "memlock": ["limit_bytes"],
    "hugepages": ["transparent", "reserved_free", "page_bytes"],
    "io_uring": ["setup_errno", "enter_errno", "io_uring_disabled", "seccomp"],
    "disk": ["path", "free_bytes", "file_system", "io", "direct", "alignment", "read_bytes_per_s",
             "write_bytes_per_s", "measured_bytes"],
}


def doctor(program, *arguments, caps=None, **options):
    env = {k: v for k, v in os.environ.items() if k != "HEADRACE_CAPS"}
    if caps:
        env["HEADRACE_CAPS"] = caps
    return subprocess.run([program, "doctor", *arguments], env=env, text=True, check=False,
                          stderr=subprocess.PIPE, **{"stdout": subprocess.PIPE, **options})


def parse_line(line):
    """verdict, check, text, fix of a line of the text report."""
    verdict, check, rest = line.split(None, 2)
    text, _, fix = rest.partition("; fix: ")
    return verdict, check, text, fix or None


def check_report(program, *arguments, caps=None):
    """Both forms agree; returns the findings by check and the exit status."""
    report = doctor(program, "--json", *arguments, caps=caps)
    data = json.loads(report.stdout)
    found = [(c["verdict"], c["check"], c["text"], c["fix"]) for c in data["checks"]]
    assert [c["check"] for c in data["checks"]] == CHECKS, data
    for c in data["checks"]:
        assert list(c["values"]) == VALUES[c["check"]], c
    text = doctor(program, *arguments, caps=caps)
    lines = text.stdout.splitlines()
    stable = [i for i, c in enumerate(CHECKS) if c != "memory"]  # free memory moves
    assert [parse_line(lines[i]) for i in stable] == [found[i] for i in stable], text.stdout
    worst = max((f[0] for f in found), key=["ok", "warn", "fail"].index)
    assert data["verdict"] == worst == lines[-1].split()[0], (data["verdict"], lines[-1])
    assert text.returncode == report.returncode == (1 if worst == "fail" else 0)
    return {c["check"]: c for c in data["checks"]}


def check_disks(program):
    """A directory that is there and one that is not, in both forms."""
    with tempfile.TemporaryDirectory() as good:
        none = os.path.join(good, "none")
        report = doctor(program, "--json", "--dir", good, "--dir", none)
        checks = json.loads(report.stdout)["checks"]
        assert [c["check"] for c in checks] == CHECKS + ["disk", "disk"], checks
        assert report.returncode == 1, report
        for c in checks[-2:]:
            assert list(c["values"]) == VALUES["disk"], c
        there, missing = checks[-2]["values"], checks[-1]
        assert there["path"] == good and there["free_bytes"] > 0, there
        assert there["read_bytes_per_s"] > 0 and there["write_bytes_per_s"] > 0, there
        assert there["io"].split(":")[0] in ("uring", "threads"), there
        assert missing["verdict"] == "fail" and "No such file" in missing["text"], missing
        assert missing["values"]["read_bytes_per_s"] is None, missing
        lines = doctor(program, "--dir", none, "--dir", good).stdout.splitlines()
        assert parse_line(lines[-3]) == ("fail", "disk", missing["text"], missing["fix"]), lines
        verdict, check, text, _ = parse_line(lines[-2])
        assert (verdict, check) == (checks[-2]["verdict"], "disk") and " GB/s read" in text, lines
        assert os.listdir(good) == [], os.listdir(good)
    lost = doctor(program, "--dir")
    assert lost.returncode == 2 and "needs a directory" in lost.stderr, lost
    many = doctor(program, *["--dir", "/none"] * 17)
    assert many.returncode == 2 and "too often" in many.stderr, many


def main(program):
    real = check_report(program)
    assert real["kernel"]["values"]["level"] in (
        "portable", "avx2", "avx512bf16", "amx"), real["kernel"]
    assert 1 <= real["cores"]["values"]["usable"] <= os.cpu_count()
    assert real["memory"]["values"]["usable_bytes"] > 0
    forced = check_report(program, caps="portable")
    assert forced["kernel"]["values"] == {"level": "portable", "forced": "portable"}
    refused = check_report(program, caps="nonsense")
    assert refused["kernel"]["verdict"] == "fail" and "nonsense" in refused["kernel"]["text"]
    with tempfile.TemporaryDirectory() as empty:
        bare = check_report(program, "--root", empty)
        assert bare["numa"]["values"]["nodes"] is None
        assert bare["memory"]["verdict"] == "warn"
    check_disks(program)
    bad = doctor(program, "--jsn")
    assert bad.returncode == 2 and "--jsn" in bad.stderr, bad
    with open("/dev/full", "w", encoding="utf-8") as full:
        lost = doctor(program, stdout=full)
        assert lost.returncode == 1 and "could not be written" in lost.stderr, lost
    print(f"doctor: {len(CHECKS)} checks, text and JSON agree")


if __name__ == "__main__":
    main(sys.argv[1])

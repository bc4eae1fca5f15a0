#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`headrace bench` on small K/V: the same bits in memory and from disk, plausible figures,
and one sentence for options that cannot be.

    run_bench.py HEADRACE
"""
import json
import os
import subprocess
import sys
import tempfile

SMALL = ["--tokens", "3000", "--layers", "2", "--heads", "4/2", "--dim", "64", "--threads", "2"]
MIB = 1 << 20


def bench(program, *arguments, folder=None):
    env = dict(os.environ, TMPDIR=folder) if folder else None
    return subprocess.run([program, "bench", *arguments], env=env, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)


def check_result(result, kv_ram):
    """One case: what is known beforehand."""
    assert result["identical"] is True, result
    assert result["unit"] == "tokens/s" and result["peer"] == "resident", result
    for name in ("value", "peer_value", "ratio", "resident_s", "capped_s", "disk_bytes_per_s",
                 "disk_share"):
        assert result[name] > 0, (name, result)
    assert abs(result["value"] - result["tokens"] / result["capped_s"]) < 0.01 * result["value"]
    assert result["exposed_wait_s"] <= result["capped_s"], result
    assert result["kv_ram_bytes"] == kv_ram < result["kv_bytes"], result
    moved = result["disk_read_bytes"] + result["disk_write_bytes"]
    assert abs(moved / result["capped_s"] / result["disk_bytes_per_s"] - 1) < 0.01, result


def check_run(program, engine, folder):
    """A run with a budget in bytes and one with a share."""
    out = os.path.join(folder, "out.json")
    done = bench(program, *SMALL, "--kv-disk", f"{folder}:64M", "--kv-ram", "6M", "--io", engine,
                 "--repeat", "2", "--json", out)
    if done.returncode and engine == "uring" and "I/O engine" in done.stderr:
        print(f"no io_uring here: {done.stderr.strip()}")
        return
    assert done.returncode == 0, done
    with open(out, encoding="utf-8") as f:
        data = json.load(f)
    os.remove(out)
    assert os.listdir(folder) == [], os.listdir(folder)
    assert (data["tokens"], data["layers"], data["repeats"]) == (3000, 2, 2), data
    assert data["disks"][0]["io"].startswith(engine) and data["disks"][0]["path"] == folder, data
    results = {r["case"]: r for r in data["results"]}
    assert list(results) == ["prefill", "decode", "mix"], data
    assert done.stdout.count("the same") == 3, done.stdout
    small, large = results["prefill"], results["decode"]
    block = 2 * 2 * 128 * 64 * 2
    assert small["kv_bytes"] == 24 * 2 * block and large["kv_bytes"] == 4 * 24 * 2 * block
    assert small["tokens"] == 3000 and large["tokens"] == 4 * 16, results
    for name in ("decode", "mix"):
        check_result(results[name], 6 * MIB)
    # Every step of decode reads what memory lacks; nearly all is known to be there already.
    lacks = large["kv_bytes"] - large["kv_ram_bytes"]
    assert 16 * lacks <= large["disk_read_bytes"] <= 16 * large["kv_bytes"], large


def refused(program, words, *arguments):
    done = bench(program, *arguments)
    said = done.stderr.strip()
    good = done.returncode in (1, 2) and said.startswith("headrace bench: ")
    assert good and "\n" not in said and all(w in said for w in words), (arguments, done)


def check_options(program, folder):
    for option, low in (("tokens", "1024"), ("layers", "1"), ("dim", "8"), ("threads", "1"),
                        ("repeat", "1")):
        for value in ("", "x", "0", "-1", "1e3", "9" * 30):
            refused(program, [f"--{option}", f"from {low}"], f"--{option}", value)
    for value in ("", "x", "0", "-1", "1/0", "2", "1/4x", "nan", "1/"):
        refused(program, ["--budget", "1/4"], "--budget", value)
    for value in ("", "8", "8/", "3/2", "0/0", "8/-4", "8/4x", "2/4"):
        refused(program, ["--heads", "Q/KV"], "--heads", value)
    for value in ("", "x", "0", "5X", "-1"):
        refused(program, ["--kv-ram", "500M"], "--kv-ram", value)
    refused(program, ["--kv-disk", "DIR:BYTES"], "--kv-disk", folder)
    refused(program, ["--io", "threads"], "--io", "floppy")
    refused(program, ["No such file"], "--kv-disk", os.path.join(folder, "none") + ":64M")
    refused(program, ["dim_k is 12"], *SMALL, "--kv-disk", f"{folder}:64M", "--dim", "12")
    refused(program, ["bytes of device memory"], *SMALL, "--kv-disk", f"{folder}:64M",
            "--budget", "0.01")
    refused(program, ["MiB free"], *SMALL, "--kv-disk", folder + ":100T")
    refused(program, ["none/x", "No such file"], *SMALL, "--json", os.path.join(folder, "none/x"))
    refused(program, ["--colour"], "--colour")
    refused(program, ["stray"], "stray")
    refused(program, ["--tokens", "value"], "--tokens")
    refused(program, ["-x"], "-xyz")
    if os.path.exists("/dev/full"):
        refused(program, ["/dev/full", "No space left"], *SMALL, "--repeat", "1", "--kv-disk",
                f"{folder}:64M", "--budget", "0.9", "--json", "/dev/full")


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        for engine in ("uring", "threads"):
            check_run(program, engine, folder)
        usual = bench(program, *SMALL, "--repeat", "1", "--budget", "0.9", folder=folder)
        assert usual.returncode == 0 and folder in usual.stdout, usual
        check_options(program, folder)
        assert os.listdir(folder) == [], os.listdir(folder)
    assert "usage: headrace bench" in bench(program, "--help").stdout
    print("bench: the same bits, counts as expected, bad options named")


if __name__ == "__main__":
    main(sys.argv[1])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The I/O engines beside fio on one file: every engine against fio's engine of the same kind.

In turns, all on the same file past the page cache, with the same depth and request size, every
block once in random order: disk-bench with io_uring, fio's io_uring, disk-bench with threads, fio's
psync on as many threads; and disk-bench with huge pages as memory, which fio has only where such
pages are set aside. The order within a round is random; the figures are the medians of all rounds.
The file is made by the first run and deleted in the end.

    python3 bench/disk.py --bench build/tests/unit/disk-bench --file /mnt/disk/headrace.dat
"""
import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys

PIECE = 1 << 20  # of requests: what transfers are cut into


def headrace(args, name):
    command = [args.bench, args.file, str(args.bytes), str(args.depth), str(PIECE), *name.split()]
    out = subprocess.run(command + ["--write"] * args.write, check=True, stdout=subprocess.PIPE)
    return json.loads(out.stdout)["bytes_per_s"]


def fio(args, engine):
    # lfsr: the default generator, out of new random blocks, ends with nearly sequential ones.
    command = ["fio", "--name=disk", f"--filename={args.file}", "--direct=1", f"--bs={PIECE}",
               "--rw=" + ("randwrite" if args.write else "randread"), "--random_generator=lfsr",
               "--group_reporting", "--thread", f"--ioengine={engine}", "--output-format=json"]
    if engine == "psync":
        share = args.bytes // args.depth
        command += [f"--numjobs={args.depth}", f"--size={share}", f"--offset_increment={share}"]
    else:
        command += [f"--iodepth={args.depth}", f"--size={args.bytes}"]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(out.stdout)["jobs"][0]["write" if args.write else "read"]["bw_bytes"]


CONTESTANTS = (("uring", headrace), ("uring --huge", headrace), ("io_uring", fio),
               ("threads", headrace), ("threads --huge", headrace), ("psync", fio))
PAIRS = (("uring", "io_uring"), ("uring --huge", "io_uring"),
         ("threads", "psync"), ("threads --huge", "psync"))


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        name = next((line.split(":")[1].strip() for line in f if line.startswith("model name")),
                    platform.machine())
    return f"{name}, {os.cpu_count()} CPUs"


def measure(args):
    rates = {name: [] for name, _ in CONTESTANTS}
    for turn in range(args.rounds):
        for name, run in random.sample(CONTESTANTS, len(CONTESTANTS)):
            rates[name].append(run(args, name) * 1e-9)
        print(f"round {turn + 1}: " + ", ".join(f"{n} {r[-1]:.3f}" for n, r in rates.items()) +
              " GB/s", flush=True)
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/tests/unit/disk-bench")
    parser.add_argument("--file", default="/var/tmp/headrace-disk.dat", help="must not exist")
    parser.add_argument("--bytes", type=int, default=2 << 30)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write instead of reading")
    parser.add_argument("--out", default="bench/results/disk.json")
    args = parser.parse_args()
    if os.path.exists(args.file):
        sys.exit(f"{args.file} exists, and would be overwritten and deleted")
    if args.bytes % (args.depth * PIECE):
        sys.exit(f"--bytes must be a multiple of {args.depth * PIECE}: each thread's share")
    try:
        headrace(args, "threads")  # makes the file
        rates = measure(args)
    finally:
        if os.path.exists(args.file):
            os.remove(args.file)
    results, way = [], "write" if args.write else "read"
    print(f"{'engine':14s} {'GB/s':>8s} {'fio':>10s} {'GB/s':>8s} {'ratio':>6s}")
    for ours, peer in PAIRS:
        value, peer_value = statistics.median(rates[ours]), statistics.median(rates[peer])
        ratio = value / peer_value
        print(f"{ours:14s} {value:8.3f} {peer:>10s} {peer_value:8.3f} {ratio:6.3f}")
        results.append({"goal": "P9",
                        "case": f"{way} {args.bytes >> 20} MiB depth {args.depth} {ours}",
                        "value": round(value, 3), "unit": "GB/s", "peer": f"fio {peer}",
                        "peer_value": round(peer_value, 3), "ratio": round(ratio, 3)})
    with open(args.out, "w", encoding="utf-8") as out:
        json.dump({"commit": os.environ.get("HEADRACE_COMMIT", "unknown"), "machine": machine(),
                   "results": results}, out, indent=1)
        out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU kernels beside torch's scaled_dot_product_attention, cell by cell in one run.

Every prefill cell is run in turns by headrace-check and by torch with the same threads (torch in
bf16 and in fp32; the better one is the peer). torch is held to the level's instructions too: for
avx2 by ATEN_CPU_CAPABILITY=avx2, ONEDNN_MAX_CPU_ISA=AVX2 and MKL_ENABLE_INSTRUCTIONS=AVX2, for
avx512bf16 (which has no AMX) by ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 and
MKL_ENABLE_INSTRUCTIONS=AVX512_E3. Decode is measured by headrace-check alone, beside its read
sweep. Levels that the CPU lacks are left out.

    python3 bench/cpu_peers.py --check build/tests/check/headrace-check

torch must be importable by the Python that runs this script.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

CELLS = [(9, 3, 64, 4096), (32, 8, 128, 4096), (9, 3, 64, 16384), (32, 8, 128, 16384)]
SECONDS_PER_CELL = 30  # no further turn then
LEVELS = {"avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
                   "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
          "avx512bf16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
                         "MKL_ENABLE_INSTRUCTIONS": "AVX512_E3"},
          "amx": {}}


def flops(heads, dim, n):
    return 4.0 * dim * heads * n * (n + 1) / 2


def torch_server(threads):
    """Reads cells from stdin, answers each with the seconds of a bf16 and of an fp32 run."""
    import torch
    torch.set_num_threads(threads)
    print(torch.__version__, torch.backends.cpu.get_cpu_capability(), flush=True)
    for line in sys.stdin:
        heads, kv_heads, dim, n = map(int, line.split())
        seconds = []
        for dtype in (torch.bfloat16, torch.float32):
            q = torch.randn(1, heads, n, dim).to(dtype)
            k = torch.randn(1, kv_heads, n, dim).to(dtype)
            v = torch.randn(1, kv_heads, n, dim).to(dtype)
            best = float("inf")
            for _ in range(3 if n <= 4096 else 1):
                start = time.perf_counter()
                torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=True)
                best = min(best, time.perf_counter() - start)
            seconds.append(best)
        print(*seconds, flush=True)


class Torch:
    def __init__(self, threads, extra):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--torch-server", "--threads", str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **extra})
        self.version = self.process.stdout.readline().strip()
        if not self.version:
            sys.exit("torch could not be started: see above")

    def seconds(self, cell):
        print(*cell, file=self.process.stdin, flush=True)
        return [float(x) for x in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def headrace(check, level, pattern, threads):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([check, "--bench", "--caps", level, "--test", pattern, "--threads",
                        str(threads), "--json", file.name], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(file.name))


def prefill_cell(args, level, torch, cell):
    heads, kv_heads, dim, n = cell
    pattern = f"prefill causal {heads}/{kv_heads} d{dim} n{n} *"
    ours, theirs = [], [float("inf"), float("inf")]
    start = time.monotonic()
    for turn in range(args.rounds):
        if turn > 0 and time.monotonic() - start > SECONDS_PER_CELL:
            break
        out = headrace(args.check, level, pattern, args.threads)
        ours.append(out["results"][0])
        theirs = [min(a, b) for a, b in zip(theirs, torch.seconds(cell))]
    best = max(ours, key=lambda r: r["value"])
    rates = [flops(heads, dim, n) / s * 1e-9 for s in theirs]
    peer = "torch bf16" if rates[0] > rates[1] else "torch fp32"
    best.update(peer=peer, peer_value=round(max(rates), 1),
                ratio=round(best["value"] / max(rates), 3))
    print(f"{best['case']}: {best['value']:.1f} GFLOP/s, torch bf16 {rates[0]:.1f}, "
          f"fp32 {rates[1]:.1f}: {best['ratio']:.2f} x", flush=True)
    return best, out


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", default="build/tests/check/headrace-check")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--levels", nargs="*", default=list(LEVELS), choices=list(LEVELS))
    parser.add_argument("--rounds", type=int, default=3,
                        help="turns per cell, fewer when they take long")
    parser.add_argument("--short", action="store_true", help="4K cells and decode only")
    parser.add_argument("--out", default="bench/results/cpu.json")
    parser.add_argument("--torch-server", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch_server:
        return torch_server(args.threads)
    results, report = [], None
    tables = subprocess.run([args.check, "--list"], check=True, stdout=subprocess.PIPE,
                            text=True).stdout.splitlines()
    for level in args.levels:
        if not any(f"table {level}/" in t and "not on this CPU" not in t for t in tables):
            print(f"level {level} left out: this CPU lacks it")
            continue
        torch = Torch(args.threads, LEVELS[level])
        print(f"level {level}, {args.threads} threads, torch {torch.version}", flush=True)
        for cell in CELLS:
            if cell[3] > 4096 and args.short:
                continue
            best, report = prefill_cell(args, level, torch, cell)
            results.append(best)
        torch.close()
        for result in headrace(args.check, level, "decode*", args.threads)["results"]:
            print(f"{result['case']}: {result['value']:.1f} GB/s, read sweep "
                  f"{result['peer_value']:.1f}: {result['ratio']:.2f}", flush=True)
            results.append(result)
    file = {"commit": os.environ.get("HEADRACE_COMMIT", report["commit"]),
            "machine": report["machine"], "gpu": None, "clock_mhz": None,
            "threads": args.threads, "results": results}
    with open(args.out, "w") as out:
        json.dump(file, out, indent=1)
        out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`headrace run` gives the same logits and answers when K/V lie on disk: for any budget, chunk,
threads, I/O engine and wave cuts; what it says it read and wrote is what the system counted.

    run_capped.py HEADRACE [--model M.gguf --text FILE] [--tokens N] [--budgets 2,4,8] [--quick]

The budgets are shares of the K/V. Without a model a small one with random weights is made.
"""
import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile

from run_hash import words

CHUNKS, THREADS, ENGINES, WAVES = (128, 512, 1000), (1, 2), ("uring", "threads"), (1, 0)


def small(folder, here):
    model, text = os.path.join(folder, "wide.gguf"), os.path.join(folder, "words.txt")
    subprocess.run([sys.executable, os.path.join(here, "tiny_gguf.py"), model, "--type", "Q8_0",
                    "--wide"], check=True)
    with open(text, "w", encoding="utf-8") as out:
        out.write(words(3000))
    return model, text


def io_counts(process):
    """Bytes that the system read and wrote for a process that has ended but was not waited for."""
    with open(f"/proc/{process.pid}/io", encoding="ascii") as counts:
        return dict(line.split(": ") for line in counts.read().splitlines())


class Runner:
    def __init__(self, command, folder):
        self.command, self.folder = command, folder

    def run(self, extra):
        out = os.path.join(self.folder, "o.json")
        process = subprocess.Popen(self.command + extra + ["--json", out],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        error = process.stderr.read().decode()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        counted = io_counts(process)
        if process.wait():
            return None, error, counted
        with open(out, encoding="utf-8") as f:
            return json.load(f), error, counted


def essence(result):
    return (result["logits_hash"], result["perplexity"],
            tuple(tuple(a["tokens"]) for a in result["answers"]))


def counts_agree(result, counted):
    """Within 1 % and what reports and probes take. (In a folder in memory nothing is counted.)"""
    slack = 1 << 18
    pairs = ((result["disk_read_bytes"], int(counted["read_bytes"])),
             (result["disk_write_bytes"], int(counted["write_bytes"])))
    if pairs[1][1] < pairs[1][0] / 2:
        print("(the system counts no writes here)")
        return True
    return all(abs(a - b) <= 0.01 * a + slack for a, b in pairs)


def as_forecast(result):
    """To the byte, unless an answer ended before it was as long as it may be."""
    whole = all(answer["stop"] == "length" for answer in result["answers"])
    pairs = [(result[f"forecast_{way}_bytes"], result[f"disk_{way}_bytes"])
             for way in ("read", "write")]
    return all(a == b if whole else a >= b for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("headrace")
    parser.add_argument("--model")
    parser.add_argument("--text")
    parser.add_argument("--tokens", type=int, default=2500)
    parser.add_argument("--budgets", default="1.3,1.7,2.2")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as folder:
        model, text = (args.model, args.text) if args.model else small(folder, here)
        runner = Runner([args.headrace, "run", "--model", model, "--text", text,
                         "--beyond-context", "--tokens", str(args.tokens), "--kv-dtype",
                         "bf16" if args.model else "fp32", "--generate", "5",
                         "--ask", "How many sluices?", "--prompt", " And then"], folder)
        resident, error, _ = runner.run([])
        if not resident:
            sys.exit(error)
        bad = runs = 0
        shares = [float(s) for s in args.budgets.split(",")]
        cases = list(itertools.product(shares, CHUNKS, THREADS, ENGINES, WAVES))
        for i, (share, chunk, threads, engine, wave) in enumerate(cases):
            if args.quick and i % 5:
                continue
            budget = int(resident["kv_bytes"] / share)
            got, error, counted = runner.run([
                "--kv-ram", str(budget), "--kv-disk",
                f"{folder}:{2 * resident['kv_bytes'] + (64 << 20)}", "--io", engine,
                "--chunk", str(chunk), "--threads", str(threads),
                "--debug-wave-blocks", str(wave)])
            runs += 1
            name = f"1/{share:g} chunk {chunk:4} threads {threads} {engine:7} wave {wave}"
            if not got:
                if engine == "uring" and "I/O engine" in error:
                    print(f"{name}: skipped: {error.strip()}")
                    continue
                print(f"{name}: FAILED: {error.strip()}")
                bad += 1
                continue
            same = essence(got) == essence(resident)
            read, written = got["disk_read_bytes"], got["disk_write_bytes"]
            told = counts_agree(got, counted) and as_forecast(got)
            bad += not same or not told or read == 0
            print(f"{name}: {got['logits_hash']} read {read / 1e6:.1f} MB, wrote "
                  f"{written / 1e6:.1f} MB{'' if same else '  DIFFERENT'}"
                  f"{'' if told else '  MISCOUNTED'}", flush=True)
    print(f"{args.tokens} tokens: {runs - bad} of {runs} runs as the resident one")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

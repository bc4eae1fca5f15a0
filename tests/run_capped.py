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
    """Bytes that the system read and wrote for a process that has ended but was not waited for, and
    its major faults: each may have read megabytes of the program or the model, too."""
    with open(f"/proc/{process.pid}/io", encoding="ascii") as counts:
        counted = dict(line.split(": ") for line in counts.read().splitlines())
    with open(f"/proc/{process.pid}/stat", encoding="ascii") as stat:
        counted["faults"] = int(stat.read().rsplit(") ", 1)[1].split()[9])
    return counted


class Runner:
    def __init__(self, command, folder):
        self.command, self.folder = command, folder

    def run(self, extra):
        """Again, when something had to be read that is not K/V."""
        for _ in range(3):
            result = self.run_once(extra)
            if result[2]["faults"] == 0:
                break
        return result

    def run_once(self, extra):
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


def miscounted(result, counted):
    """What run, forecast and system say."""
    return "".join(f"  MISCOUNTED {way}: {result[f'disk_{way}_bytes']}, forecast "
                   f"{result[f'forecast_{way}_bytes']}, system {counted[f'{way}_bytes']}, "
                   f"{counted['faults']} major faults"
                   for way in ("read", "write"))


def trace_problem(path, result):
    """What is wrong with the trace of a run, or None."""
    with open(path, encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for wanted in ("compute", "model", "waits", "disk read 1", "disk write 1"):
        if wanted not in names.values():
            return f"there is no track \"{wanted}\""
    spans = [e for e in events if e["ph"] == "X"]
    end = {}  # of each track, in ns: times have that many digits
    for e in sorted(spans, key=lambda e: e["ts"]):
        first, length = (round(e[key] * 1000) for key in ("ts", "dur"))
        if e["tid"] not in names or first < end.get(e["tid"], 0) or length < 0:
            return f"{e} has no track, or overlaps another"
        end[e["tid"]] = first + length
    # Writes may: the report waits for them.
    calls = max(e["ts"] + e["dur"] for e in spans if e["name"] not in ("read", "write"))
    if calls > result["wall_s"] * 1e6:
        return "an event ends after the run"
    for way in ("read", "write"):
        moved = sum(e["args"]["bytes"] for e in spans if e["name"] == way)
        if moved != result[f"disk_{way}_bytes"]:
            return f"{moved} bytes in events \"{way}\", {result[f'disk_{way}_bytes']} in the report"
    waited = sum(round(e["dur"] * 1000) for e in spans if e["name"] == "wait") / 1e9
    if abs(waited - result["exposed_wait_s"]) > 1e-6:
        return f"{waited} s of waits, {result['exposed_wait_s']} s in the report"
    return None


def check_trace(runner, resident, budget):
    """With --trace: the same results, and a file that adds up."""
    path = os.path.join(runner.folder, "trace.json")
    got, error, _ = runner.run(budget + ["--trace", path])
    if not got:
        problem = error.strip()
    elif essence(got) != essence(resident):
        problem = "DIFFERENT"
    else:
        problem = trace_problem(path, got)
    print(f"--trace: {problem or 'adds up'}")
    return problem is None


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
                  f"{'' if told else miscounted(got, counted)}", flush=True)
        runs += 1
        bad += not check_trace(runner, resident, [
            "--kv-ram", str(int(resident["kv_bytes"] / shares[-1])), "--kv-disk",
            f"{folder}:{2 * resident['kv_bytes'] + (64 << 20)}"])
    print(f"{args.tokens} tokens: {runs - bad} of {runs} runs as the resident one")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

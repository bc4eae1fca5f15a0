#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`headrace explain`: bytes as `headrace run` moves them, times of their size, and nothing is left.
How near the times are is measured by hand (docs/run.md): a busy machine would fail any bound.

    run_explain.py HEADRACE
"""
import json
import os
import subprocess
import sys
import tempfile

from run_capped import small

TIMES = ("predicted_prefill_s", "predicted_branch_prefill_s", "predicted_decode_s",
         "predicted_decode_step_s", "predicted_exposed_wait_s", "measured_s")
RATES = ("disk_read_bytes_per_s", "disk_write_bytes_per_s", "stream_bytes_per_s")


class Tool:
    def __init__(self, program, folder):
        self.program = program
        self.model, self.text = small(folder, os.path.dirname(os.path.abspath(__file__)))
        self.out = os.path.join(folder, "out.json")
        self.disk = os.path.join(folder, "disk")
        os.mkdir(self.disk)

    def start(self, tool, *options, text=None, stdin=None):
        command = [self.program, tool, "--model", self.model, "--text", text or self.text,
                   "--beyond-context", *options]
        return subprocess.run(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=300, check=False)

    def result(self, tool, *options, **streams):
        done = self.start(tool, "--json", self.out, *options, **streams)
        assert done.returncode == 0, done
        assert os.listdir(self.disk) == [], os.listdir(self.disk)
        with open(self.out, encoding="utf-8") as f:
            return json.load(f), done.stdout


def check_times(told, steps):
    assert all(told[name] >= 0 for name in TIMES), told
    assert told["predicted_prefill_s"] > 0 and told["decode_steps"] == steps, told
    assert abs(told["predicted_decode_s"] - steps * told["predicted_decode_step_s"]) < 1e-6, told
    total = sum(told[name] for name in TIMES[:3])
    assert told["predicted_exposed_wait_s"] < total, told


def check_capped(tool):
    options = ["--tokens", "2500", "--chunk", "512", "--kv-dtype", "fp32", "--generate", "5",
               "--ask", "How many sluices?", "--prompt", " And then", "--kv-ram", "20M",
               "--kv-disk", f"{tool.disk}:256M"]
    told, said = tool.result("explain", *options)
    check_times(told, 4)
    assert all(told[name] > 0 for name in RATES), told
    assert "GB/s read" in said and "4 steps of" in said, said
    ran, _ = tool.result("run", *options)
    for way in ("read", "write"):
        assert told[f"forecast_{way}_bytes"] == ran[f"forecast_{way}_bytes"] > 0, (told, ran)
    # Not a bound on how near it is: a lost factor would show.
    assert 0.05 < told["predicted_prefill_s"] / ran["prefill_s"] < 20, (told, ran)
    untimed, said = tool.result("explain", "--no-measure", *options)
    assert not any(name in untimed for name in TIMES + RATES) and "GB/s" not in said, untimed
    assert untimed["forecast_read_bytes"] == told["forecast_read_bytes"], (untimed, told)
    least = [*options[:-3], str(told["least_ram_bytes"]), *options[-2:]]
    check_times(tool.result("explain", *least)[0], 4)


def check_resident(tool):
    told, said = tool.result("explain", "--tokens", "700", "--chunk", "100")
    check_times({**told, "predicted_decode_step_s": 0.0}, 0)
    assert told["predicted_decode_step_s"] is None and told["predicted_exposed_wait_s"] == 0, told
    assert not any(name in told for name in RATES) and "decode" not in said, said
    for tokens in ("1", "2", "130"):
        tool.result("explain", "--tokens", tokens, "--generate", "3")
    with open(tool.text, encoding="utf-8") as text:
        told, _ = tool.result("explain", "--tokens", "300", text="/dev/stdin", stdin=text)
    assert told["tokens"] == 300 and told["predicted_prefill_s"] > 0, told


def check_refused(tool):
    none = os.path.join(tool.disk, "none")
    done = tool.start("explain", "--kv-ram", "20M", "--kv-disk", f"{none}:256M")
    assert done.returncode == 1 and "No such file" in done.stderr, done
    done = tool.start("run", "--no-measure")
    assert done.returncode == 2 and "explain" in done.stderr, done


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        tool = Tool(program, folder)
        check_capped(tool)
        check_resident(tool)
        check_refused(tool)
    print("explain: bytes as run moves them, times of their size, nothing left behind")


if __name__ == "__main__":
    main(sys.argv[1])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The results of a bench on the GPU: printed as they come, and a JSON file in the end.

    gpu_report.py bench/results/h200.json PART...

makes one file of several: of those that Report wrote, and of files with one result a line.
"""
import json
import os
import platform
import sys

SWEEP = "sweep"  # names of contestants that only read the bytes begin with it: a bound, no peer


def fastest(figures):
    return max(figures, key=lambda f: f.tflops, default=None)


class Report:
    def __init__(self):
        self.results, self.mhz = [], []

    def add(self, goal, case, figures, ours, unit="TFLOP/s", work=0):
        """figures: of all contestants; each of ours against the fastest of the others. A rate is
        counted in 1e12 of the unit's things; `work`: how many of them a call does, for its us."""
        sweep = fastest([f for f in figures if f.name.startswith(SWEEP)])
        best = fastest([f for f in figures
                        if f.name not in ours and not f.name.startswith(SWEEP)])
        texts = []
        for f in figures:
            ratio = f" {f.tflops / best.tflops:.3f}x" if best and f.name in ours else ""
            if sweep and f.name in ours:
                ratio += f" {f.tflops / sweep.tflops:.3f} of sweep"
            power = f" {f.watts:.0f}W {f.joules * 1e3:.4g}mJ" if f.joules else ""
            us = f" {work / f.tflops * 1e-6:.1f}us" if work else ""
            texts.append(f"{f.name} {f.tflops:.{self.digits(unit)}f}{us}{ratio} "
                         f"{f.mhz:.0f}MHz{power}")
            if f.name in ours:
                result = self.result(goal, case, f, best, len(ours) > 1, unit)
                if sweep:
                    result["share_of_sweep"] = round(f.tflops / sweep.tflops, 3)
                if work:
                    result["us"] = round(work / f.tflops * 1e-6, 2)
                self.results.append(result)
        self.mhz += [f.mhz for f in figures]
        print(f"{case:46s} {' | '.join(texts)}", flush=True)

    @staticmethod
    def digits(unit):
        return 1 if unit == "TFLOP/s" else 3

    @classmethod
    def result(cls, goal, case, figure, best, several, unit):
        result = {"goal": goal, "case": f"{case} {figure.name}" if several else case,
                  "value": round(figure.tflops, cls.digits(unit)), "unit": unit,
                  "clock_mhz": figure.mhz}
        if best:
            result.update(peer=best.name, peer_value=round(best.tflops, cls.digits(unit)),
                          ratio=round(figure.tflops / best.tflops, 3))
        if figure.joules:
            result.update(watts=round(figure.watts), joules=figure.joules)
        if best and best.joules:
            result.update(peer_watts=round(best.watts), peer_joules=best.joules)
        return result

    def write(self, path):
        import torch
        write(path, {"commit": os.environ.get("HEADRACE_COMMIT"),
                     "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, torch "
                                f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}",
                     "gpu": torch.cuda.get_device_name(),
                     "clock_mhz": max(self.mhz, default=None), "results": self.results})


def write(path, file):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(file, out, indent=1)
        out.write("\n")


def read(path):
    """What lines of a program's output are no results, are passed over."""
    with open(path, encoding="utf-8") as part:
        text = part.read()
    try:
        return json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.startswith("{")]
        return {"results": [json.loads(line) for line in lines]}


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    parts = [read(path) for path in sys.argv[2:]]
    file = dict(next((p for p in parts if "gpu" in p), {}))
    file["clock_mhz"] = max((p["clock_mhz"] for p in parts if p.get("clock_mhz")), default=None)
    file["results"] = [result for part in parts for result in part["results"]]
    write(sys.argv[1], file)
    return 0


if __name__ == "__main__":
    sys.exit(main())

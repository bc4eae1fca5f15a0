#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles a CUDA kernel file, and fails where the compiler gives up what the kernel counts on:
registers that spill to memory, or wgmma and setmaxnreg that are made serial or ignored.

usage: nvcc.py NVCC OUT DEPFILE ARGUMENT...   (the compiler's resource report goes to OUT.txt)
"""
import re
import subprocess
import sys

BAD = re.compile(r"[1-9]\d* bytes (stack frame|spill)|C7508|C7519|serializ|"
                 r"\): warning|ptxas warning", re.IGNORECASE)


def main():
    nvcc, out, depfile, *arguments = sys.argv[1:]
    command = [nvcc, *arguments, "-Xptxas", "-v", "-MD", "-MF", depfile, "-o", out]
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                encoding="utf-8", errors="replace", check=False)
    except OSError as error:
        print(f"{nvcc}: {error.strerror}; it was there when the build folder was set up")
        return 1
    with open(out + ".txt", "w", encoding="utf-8") as report:
        report.write(result.stdout)
    bad = [line for line in result.stdout.splitlines() if BAD.search(line)]
    if result.returncode or bad:
        print(result.stdout if result.returncode else "\n".join(bad))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

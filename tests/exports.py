#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shared library exports the functions of the public headers, no more and no less; its soname
is the API number of headrace.h; the static library's symbols stay within hr_.

usage: exports.py INCLUDE_FOLDER LIBRARY.so LIBRARY.a
"""
import pathlib
import re
import subprocess
import sys


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def declared(include):
    names, number = set(), None
    for header in pathlib.Path(include, "headrace").glob("*.h"):
        text = header.read_text(encoding="utf-8")
        names |= set(re.findall(r"^HR_API\s[^;(]*?\b(\w+)\(", text, re.M))
        found = re.search(r"^#define HR_API_VERSION (\d+)$", text, re.M)
        number = found[1] if found else number
    return names, number


def symbols(*command):
    """Name -> type letter; version nodes (A) and undefined ones (U) left out."""
    lines = (line.split() for line in run(*command).split("\n"))
    return {f[-1].split("@")[0] for f in lines if len(f) >= 2 and f[-2] not in "AUw"}


def main(include, shared, static):
    problems = []
    names, number = declared(include)
    exported = symbols("nm", "-D", "--defined-only", shared)
    problems += [f"{n} is exported but in no public header" for n in sorted(exported - names)]
    problems += [f"{n} is declared but not exported" for n in sorted(names - exported)]
    soname = re.search(r"SONAME.*\[(.*)\]", run("readelf", "-d", shared))
    if not soname or soname[1] != f"libheadrace.so.{number}":
        problems.append(f"soname {soname and soname[1]}, but HR_API_VERSION is {number}")
    others = {n for n in symbols("nm", "-g", "--defined-only", static)
              if not n.startswith("hr_") and not n.endswith(":")}
    problems += [f"{n} in the static library does not begin with hr_" for n in sorted(others)]
    print("\n".join(problems) or f"{len(exported)} functions exported, soname {soname[1]}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))

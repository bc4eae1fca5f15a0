#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes compiled CUDA kernels as C arrays, and the table hr_cu_modules of them.

usage: embed.py OUT.c (ARCH FILE)...   a module's name is FILE's without its ending
"""
import pathlib
import struct
import sys

PER_LINE = 5


def words(data):
    """As 64-bit words, which also aligns the array for the driver."""
    data += bytes(-len(data) % 8)
    values = struct.unpack(f"={len(data) // 8}Q", data)
    for at in range(0, len(values), PER_LINE):
        yield "    " + " ".join(f"0x{v:x}," for v in values[at:at + PER_LINE])


def text(modules):
    lines = ['#include "kernels/cuda/launch.h"']
    for name, _, data in modules:
        lines += ["", f"static const uint64_t {name}[] = {{", *words(data), "};"]
    lines += ["", "const struct hr_cu_module hr_cu_modules[] = {"]
    lines += [f'    {{"{name}", "{arch}", {name}, {len(data)}}},' for name, arch, data in modules]
    lines += ["};", "", f"const int32_t hr_cu_modules_count = {len(modules)};", ""]
    return "\n".join(lines)


def main(out, *pairs):
    files = [(arch, pathlib.Path(path)) for arch, path in zip(pairs[::2], pairs[1::2])]
    modules = [(path.stem, arch, path.read_bytes()) for arch, path in files]
    pathlib.Path(out).write_text(text(modules), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

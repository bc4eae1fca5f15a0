#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each public header compiles alone, and twice, as C11 and as C++17 without a warning; so does the
C code of the README.

usage: headers.py SOURCE_FOLDER COMPILER...   C compilers; ones with ++ in the name get C++17
"""
import pathlib
import re
import subprocess
import sys

FLAGS = ["-pedantic", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fsyntax-only"]


def compile_text(compiler, include, source):
    cpp = "++" in compiler
    language = ["-x", "c++", "-std=c++17"] if cpp else ["-x", "c", "-std=c11"]
    command = [compiler, *language, *FLAGS, "-I", str(include), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False)


def sources(folder):
    """(name, text, whether C only) of what has to compile."""
    for header in sorted((folder / "include/headrace").glob("*.h")):
        yield header.name, f"#include <headrace/{header.name}>\n" * 2 + "int a;\n", False
    readme = (folder / "README.md").read_text(encoding="utf-8")
    for code in re.findall(r"^```c\n(.*?)^```$", readme, re.M | re.S):
        yield "README.md", code, True


def main(folder, compilers):
    compiled, failed = 0, 0
    for name, text, c_only in sources(pathlib.Path(folder)):
        for compiler in compilers:
            if c_only and "++" in compiler:
                continue
            result = compile_text(compiler, pathlib.Path(folder) / "include", text)
            compiled += 1
            if result.returncode:
                print(f"{name} with {compiler}:\n{result.stderr}")
                failed += 1
    print(f"{compiled} compiled with {', '.join(compilers)}: {failed} failures")
    return 1 if failed or not compiled else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

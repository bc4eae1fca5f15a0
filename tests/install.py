#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users do with the project, in folders with blanks in their names: install it to a DESTDIR
and build the examples against that through pkg-config, shared and static; build it as a subproject
of a Meson project.

usage: install.py SOURCE_FOLDER BUILD_FOLDER
"""
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

SUBPROJECT_NEEDS = ("include", "src", "kernels", "offload", "meson.build", "meson_options.txt",
                    "headrace.map")
PARENT = """project('parent', 'c', default_options: ['c_std=c11', 'werror=true'])
headrace = dependency('headrace', fallback: 'headrace',
  default_options: ['optimization=1'])
test('decode', executable('decode', 'decode.c',
  dependencies: [headrace, meson.get_compiler('c').find_library('m')]))
"""


def run(*command, env=None, **options):
    text = subprocess.run([str(c) for c in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, env=env, **options)
    if text.returncode:
        sys.exit(f"{shlex.join(map(str, command))}: status {text.returncode}\n{text.stdout}")
    return text.stdout


class Installed:
    """A DESTDIR with the library in it."""

    def __init__(self, build, dest):
        run("meson", "install", "-C", build, "--no-rebuild", "--destdir", dest)
        self.dest = dest
        pc = next(dest.rglob("headrace.pc"))
        self.lib = pc.parent.parent
        self.env = dict(os.environ, PKG_CONFIG_PATH=str(pc.parent), LD_LIBRARY_PATH=str(self.lib))
        self.prefix = dest / pc.read_text().split("prefix=")[1].split("\n")[0].lstrip("/")

    def flags(self, *wanted):
        """pkg-config's, with the paths of the DESTDIR; headrace's own prefix only is moved."""
        text = run("pkg-config", *wanted, "headrace", env=self.env)
        root = "/" + str(self.prefix.relative_to(self.dest))
        return [f.replace(f"-I{root}", f"-I{self.prefix}").replace(f"-L{root}", f"-L{self.prefix}")
                for f in shlex.split(text)]

    def build_and_run(self, compiler, source, program, static):
        link = self.flags("--libs", *(["--static"] if static else []))
        if static:
            link = ["-l:libheadrace.a" if f == "-lheadrace" else f for f in link]
        standard = "-std=c++17" if source.suffix == ".cpp" else "-std=c11"
        run(compiler, standard, "-Wall", "-Wextra", "-Werror", source, "-o", program,
            *self.flags("--cflags"), *link, "-lm")
        used = run("ldd", program, env=self.env)
        if ("libheadrace" in used) == static:
            sys.exit(f"{program}: wrong kind of library:\n{used}")
        print(f"{source.name}, {'static' if static else 'shared'}: "
              + run(program, env=self.env).strip())


def check_installed(source, build, folder):
    installed = Installed(build, folder / "dest dir")
    examples = [("cc", source / "examples/decode.c")]
    if shutil.which("c++"):
        examples.append(("c++", source / "examples/forks.cpp"))
    for compiler, example in examples:
        for static in (False, True):
            installed.build_and_run(compiler, example, folder / "program", static)


def check_subproject(source, folder):
    parent = folder / "a parent project"
    child = parent / "subprojects" / "headrace"
    child.mkdir(parents=True)
    for name in SUBPROJECT_NEEDS:
        copy = shutil.copytree if (source / name).is_dir() else shutil.copy
        copy(source / name, child / name)
    shutil.copy(source / "examples/decode.c", parent)
    (parent / "meson.build").write_text(PARENT, encoding="utf-8")
    run("meson", "setup", parent / "build folder", parent)
    run("meson", "test", "-C", parent / "build folder", "--print-errorlogs")
    print("subproject: built and run")


def main(source, build):
    with tempfile.TemporaryDirectory(prefix="headrace install ") as name:
        folder = pathlib.Path(name)
        check_installed(pathlib.Path(source), build, folder)
        check_subproject(pathlib.Path(source), folder)


if __name__ == "__main__":
    main(*sys.argv[1:3])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the tree against the rules of CONTRIBUTING.md and prints every violation.

usage: tidy.py [ROOT]                 check; exit status 1 when something is found
       tidy.py --write-errors [ROOT]  write docs/errors.md from the list in status.h

Needs the standard library only. clang-format is asked too when its version 14 is installed.
"""
import ast
import pathlib
import re
import shutil
import subprocess
import sys

LINE_MAX, FUNCTION_MAX, FILE_MAX, KERNEL_FILE_MAX = 100, 70, 600, 900
LIBRARY = ("src/", "kernels/", "offload/", "sparse/")
C_ENDS = (".c", ".h", ".cpp", ".cu", ".cuh")
SCRIPT_ENDS = (".py", ".sh")
SKIPPED = re.compile(r"^(\.git|\.venv|build.*|subprojects|__pycache__|\.cache)$")

# Floor of a path: the first prefix that matches; what its includes may start with.
FLOORS = (
    ("include/", ("headrace/",)),
    ("src/base/", ("headrace/", "src/base/")),
    ("src/dev/", ("headrace/", "src/base/", "src/dev/")),
    ("kernels/", ("headrace/", "src/base/", "src/dev/", "kernels/")),
    ("offload/", ("headrace/", "src/base/", "src/dev/", "offload/")),
    ("sparse/", ("headrace/", "src/base/", "src/dev/", "sparse/")),
    ("src/", ("headrace/", "src/", "kernels/", "offload/", "sparse/")),
    ("tools/", ("headrace/", "tools/")),
    ("examples/", ("headrace/",)),
    ("bench/", ("headrace/", "bench/")),
    ("python/", ("headrace/", "python/")),
)
API_FLOOR = re.compile(r"src/api[^/]*$")

BANNED = re.compile(
    r"(?<![\w.>])(malloc|calloc|realloc|aligned_alloc|posix_memalign|free|alloca|printf|fprintf|"
    r"vprintf|vfprintf|puts|fputs|putchar|perror|strcpy|strcat|sprintf|vsprintf|gets|exit|_exit|"
    r"abort|system|setenv|putenv)\s*\(")
# Where a banned call is the point of the file.
ALLOWED = {("src/base/alloc.c", "free"), ("src/base/alloc.c", "aligned_alloc")}
MUTABLE = re.compile(r"^(?:static\s+)?(?!typedef|extern|struct \w+ \{|enum|union \w+ \{|return)"
                     r"(?=[a-z_])[\w\s*]+?\b\w+(?:\[[^\]]*\])*\s*(?:=[^=].*|;)$")

# Words of a workplace instead of the project, and addresses. (Bracketed so that this file passes.)
WORDS = re.compile(
    r"\b[s]essions?\b|\b[h]elpers?\b|\b[a]gents?\b|(?<![\w&/])[#]\d{1,5}\b|/[w]ork/|/[r]oot/|"
    r"\b[d]eb\.debian\.org|\b[p]ypi\.org|[p]ythonhosted|[h]uggingface\.co\b|\b[c]onda\.io", re.I)
TODO = re.compile(r"\b(TO[D]O|FIX[M]E|XX[X])\b(?!: \S+ \S+ \S+)")
COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|(/\*.*?\*/|//[^\n]*)', re.S)
FUNCTION = re.compile(r"^HR_API\s[^;(]*?\b(\w+)\(", re.M)
STATUS = re.compile(r'X\((HR_\w+), (-?\d+), "([^"]*)",\s*\\?\s*"([^"]*)"\)')


class Tree:
    """The files of a checkout, read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.text = {}
        for path in sorted(self.root.rglob("*")):
            rel = path.relative_to(self.root)
            if any(SKIPPED.match(part) for part in rel.parts) or not path.is_file():
                continue
            try:
                self.text[rel.as_posix()] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # binary test data

    def named(self, ends, under=""):
        return ((p, t) for p, t in self.text.items() if p.endswith(ends) and p.startswith(under))

    def library(self):
        return ((p, t) for p, t in self.named(C_ENDS) if p.startswith(LIBRARY))


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def without_comments(text):
    """The text with comments and strings blanked, line numbers kept."""
    return COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def check_floors(tree):
    for path, text in tree.named(C_ENDS):
        allowed = next((rules for prefix, rules in FLOORS if path.startswith(prefix)), None)
        for m in re.finditer(r'^#\s*include\s+([<"])([^>"]+)[>"]', text, re.M):
            mark, name = m[1], m[2]
            at = f"{path}:{line_of(text, m.start())}"
            if mark == '"' and name not in tree.text:
                yield f'{at}: "{name}" is not a file of the tree (paths start at its root)'
            elif mark == '"' and name.startswith("include/"):
                yield f'{at}: public headers are included as <headrace/...>'
            elif (mark == '"' or name.startswith("headrace/")) and allowed is not None \
                    and not name.startswith(allowed):
                yield f'{at}: this floor may include {", ".join(allowed)} but not "{name}"'
            elif API_FLOOR.match(name) and not API_FLOOR.match(path) and allowed is not None:
                yield f'{at}: only src/api*.c may include "{name}"'


def check_lines(tree):
    for path, text in tree.named(C_ENDS + SCRIPT_ENDS + ("meson.build", "meson_options.txt")):
        limit = KERNEL_FILE_MAX if path.startswith("kernels/") else FILE_MAX
        lines = text.split("\n")
        if len(lines) - 1 > limit:
            yield f"{path}: {len(lines) - 1} lines; at most {limit}"
        for number, line in enumerate(lines, 1):
            if len(line) > LINE_MAX:
                yield f"{path}:{number}: {len(line)} columns; at most {LINE_MAX}"
            if line != line.rstrip():
                yield f"{path}:{number}: blanks at the end"
            if "\t" in line:
                yield f"{path}:{number}: a tab"
        if text and not text.endswith("\n"):
            yield f"{path}: no newline at the end"


def c_functions(text):
    """(line, length) of each function: its body is between braces in column 0."""
    lines = text.split("\n")
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{" and start is None:
            start = number
            while start > 1 and lines[start - 2].strip() and lines[start - 2][-1] not in ";}/\\":
                start -= 1
        elif line == "}" and start is not None:
            yield start, number - start + 1
            start = None


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def check_functions(tree):
    for path, text in tree.named(C_ENDS + (".py",)):
        try:
            found = list(python_functions(text) if path.endswith(".py") else c_functions(text))
        except SyntaxError as error:
            yield f"{path}:{error.lineno}: not Python: {error.msg}"
            continue
        for line, length in found:
            if length > FUNCTION_MAX:
                yield f"{path}:{line}: a function of {length} lines; at most {FUNCTION_MAX}"


def check_calls(tree):
    for path, text in tree.library():
        code = without_comments(text)
        for m in BANNED.finditer(code):
            if (path, m[1]) not in ALLOWED:
                yield f"{path}:{line_of(code, m.start())}: {m[1]}() is banned in the library"
        for m in re.finditer(r"(?<![\w.>])assert\s*\(", code):
            if not path.startswith("src/base/"):
                yield f"{path}:{line_of(code, m.start())}: assert() outside src/base"


def check_globals(tree):
    for path, text in tree.library():
        for number, line in enumerate(without_comments(text).split("\n"), 1):
            if MUTABLE.match(line) and not re.search(r"\bconst\b|_Thread_local|_Static_assert|"
                                                     r"^(struct|union|enum) \w+;", line):
                yield f"{path}:{number}: mutable state outside an object: {line.strip()}"


def check_licence(tree):
    for path, text in tree.named(C_ENDS + SCRIPT_ENDS):
        head = "\n".join(text.split("\n")[:2])
        want = "/* SPDX-License-Identifier: Apache-2.0 */" if path.endswith(C_ENDS) \
            else "# SPDX-License-Identifier: Apache-2.0"
        if want not in head:
            yield f"{path}:1: the first line is not {want}"


def check_words(tree):
    for path, text in tree.text.items():
        if path == "LICENSE":
            continue
        for m in WORDS.finditer(text):
            yield f'{path}:{line_of(text, m.start())}: "{m[0]}" is not about this project'


def check_todo(tree):
    for path, text in tree.named(C_ENDS + SCRIPT_ENDS):
        if path.endswith(C_ENDS):
            comments = ((m.start(1), m[1]) for m in COMMENT.finditer(text) if m[1])
        else:
            comments = ((m.start(), m[0]) for m in re.finditer(r"#[^\n]*", text))
        for offset, comment in comments:
            for m in TODO.finditer(comment):
                yield f"{path}:{line_of(text, offset + m.start())}: {m[1]} without a reason"


def check_public(tree):
    users = "\n".join(without_comments(t) for p, t in tree.named(C_ENDS)
                      if p.startswith(("tests/", "examples/")))
    names = re.findall(r"^\s*(\w+\*?);", tree.text.get("headrace.map", ""), re.M)
    for path, text in tree.named(".h", "include/"):
        for m in FUNCTION.finditer(text):
            name, at = m[1], f"{path}:{line_of(text, m.start())}"
            if not text[:m.start()].rstrip("\n").endswith("*/") or text[:m.start()][-2:] == "\n\n":
                yield f"{at}: {name} has no comment directly before it"
            if not any(n == name or n.endswith("*") and name.startswith(n[:-1]) for n in names):
                yield f"{at}: {name} is not in headrace.map"
            if not re.search(rf"\b{name}\s*\(", users):
                yield f"{at}: {name} is called by no test and no example"


def statuses(tree):
    text = tree.text.get("include/headrace/status.h", "")
    joined = re.sub(r'"\s*\\\n\s*"', "", text)
    return STATUS.findall(joined)


def check_statuses(tree):
    source = "\n".join(without_comments(t) for _, t in tree.library())
    tests = "\n".join(without_comments(t) for _, t in tree.named(C_ENDS, "tests/"))
    codes = statuses(tree)
    if not codes:
        yield "include/headrace/status.h: no status codes found"
    for name, *_ in codes:
        if not re.search(rf"\b{name}\b", source):
            yield f"include/headrace/status.h: {name} is returned nowhere in the library"
        if not re.search(rf"\b{name}\b", tests):
            yield f"include/headrace/status.h: {name} is reached by no test"


def errors_page(tree):
    rows = "".join(f"| `{name}` | {value} | {text} | {todo} |\n"
                   for name, value, text, todo in statuses(tree))
    return ("# Status codes\n\n"
            "Written by `tests/tidy.py --write-errors` from `include/headrace/status.h`.\n"
            "`hr_status_text` and `hr_status_todo` give the two texts; `hr_error_text` gives the\n"
            "sentence about the call that failed, with the numbers in it.\n\n"
            "| code | value | meaning | what to do |\n|---|---|---|---|\n" + rows)


def check_errors_page(tree):
    if tree.text.get("docs/errors.md") != errors_page(tree):
        yield "docs/errors.md: differs from status.h; run tests/tidy.py --write-errors"


def formatter():
    """clang-format of the one version whose output the tree follows, or None."""
    for name in ("clang-format-14", "clang-format"):
        tool = shutil.which(name)
        if tool and "version 14." in subprocess.run([tool, "--version"], capture_output=True,
                                                    text=True, check=True).stdout:
            return tool
    return None


def check_format(tree):
    tool = formatter()
    files = [p for p, _ in tree.named(C_ENDS)]
    if not tool or not files:
        return
    result = subprocess.run([tool, "--dry-run", "-Werror", *files], cwd=tree.root,
                            capture_output=True, text=True, check=False)
    bad = sorted({line.split(":")[0] for line in result.stderr.split("\n") if ": error:" in line})
    for path in bad:
        yield f"{path}: not as clang-format 14 would have it"
    if result.returncode and not bad:
        yield f"clang-format: {result.stderr.strip()}"


CHECKS = (check_floors, check_lines, check_functions, check_calls, check_globals, check_licence,
          check_words, check_todo, check_public, check_statuses, check_errors_page, check_format)


def violations(root):
    tree = Tree(root)
    return [found for check in CHECKS for found in check(tree)]


def main(arguments):
    write = "--write-errors" in arguments
    rest = [a for a in arguments if a != "--write-errors"]
    root = pathlib.Path(rest[0] if rest else pathlib.Path(__file__).parent.parent)
    if write:
        (root / "docs/errors.md").write_text(errors_page(Tree(root)), encoding="utf-8")
        return 0
    found = violations(root)
    print("\n".join(found) if found else "tidy: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

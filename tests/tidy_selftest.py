#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one violation of each rule in a small clean tree: tidy.py has to find just that one."""
import pathlib
import sys
import tempfile

import tidy

SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"
STATUS = SPDX + """#define HR_STATUS_LIST(X) \\
    X(HR_OK, 0, "success", "nothing") \\
    X(HR_E_BAD, -1, "bad", \\
      "do better")
"""
CLEAN = {
    "include/headrace/headrace.h": SPDX + "#define HR_API\n\n/* Makes one. */\nHR_API int hr_make("
                                          "void);\n",
    "include/headrace/status.h": STATUS,
    "headrace.map": "HEADRACE_0 {\n    global:\n        hr_*;\n};\n",
    "src/base/alloc.h": SPDX,
    "src/engine.c": SPDX + '#include <headrace/headrace.h>\n#include "src/base/alloc.h"\n\n'
                           "static const int ten = 10;\n\nint hr_make(void)\n{\n"
                           "    return ten ? HR_OK : HR_E_BAD;\n}\n",
    "src/api.h": SPDX,
    "kernels/kernel.h": SPDX,
    "tools/main.c": SPDX + "#include <headrace/headrace.h>\n",
    "tests/test_make.c": SPDX + "int main(void)\n{\n"
                                "    return hr_make() == HR_E_BAD ? 1 : HR_OK;\n}\n",
}
LONG_BODY = "".join("    x++;\n" for _ in range(70))

# (what, file, text to append or new text, what the message has to say)
PLANTED = (
    ("line too long", "src/engine.c", "/* " + "x" * 100 + " */\n", "columns"),
    ("blank at the end", "src/engine.c", "\n/* x */ \n", "blanks at the end"),
    ("tab", "src/engine.c", "/*\tx */\n", "a tab"),
    ("no newline at the end", "src/engine.c", "/* x */", "no newline"),
    ("file too long", "src/engine.c", "/* x */\n" * 600, "lines; at most 600"),
    ("kernel file too long", "kernels/k.c", SPDX + "/* x */\n" * 900, "lines; at most 900"),
    ("long function", "src/engine.c", f"\nvoid hr_f(void)\n{{\n{LONG_BODY}}}\n", "function of 73"),
    ("long Python function", "tests/x.py", "# SPDX-License-Identifier: Apache-2.0\ndef f(x):\n"
     + "    x += 1\n" * 71, "function of 72"),
    ("nothing", "tools/t.h", None, None),
    ("engine includes tools", "src/engine.c", '#include "tools/t.h"\n', "this floor may include"),
    ("base includes engine", "src/base/b.c", SPDX + '#include "src/api.h"\n', "this floor may"),
    ("kernels include a peer", "kernels/k.c", SPDX + '#include "src/engine.c"\n', "this floor may"),
    ("engine includes the API floor", "src/engine.c", '#include "src/api.h"\n', "only src/api"),
    ("tool includes the library's inside", "tools/main.c", '#include "kernels/kernel.h"\n',
     "this floor may include"),
    ("include of no file", "src/engine.c", '#include "base/alloc.h"\n', "not a file of the tree"),
    ("public header by path", "src/engine.c", '#include "include/headrace/status.h"\n',
     "included as <headrace"),
    ("malloc", "src/engine.c", "\nvoid *hr_f(void)\n{\n    return malloc(1);\n}\n", "malloc() is"),
    ("printf", "kernels/k.c", SPDX + 'void f(void)\n{\n    printf("x");\n}\n', "printf() is"),
    ("assert", "src/engine.c", "\nvoid hr_f(void)\n{\n    assert(1);\n}\n", "assert() outside"),
    ("static variable", "src/engine.c", "\nstatic int count;\n", "mutable state"),
    ("static array", "src/engine.c", "\nstatic char *names[3] = {0};\n", "mutable state"),
    ("global variable", "src/engine.c", "\nint hr_count = 1;\n", "mutable state"),
    ("no licence", "src/x.c", "int x(void);\n", "the first line is not"),
    ("no licence in Python", "tests/x.py", "x = 1\n", "the first line is not"),
    ("to do", "src/engine.c", "/* TO" + "DO later */\n", "without a reason"),
    ("workplace word", "src/engine.c", "/* see #" + "3 */\n", "is not about this project"),
    ("workplace path", "docs/x.md", "in /wo" + "rk/main\n", "is not about this project"),
    ("undocumented function", "include/headrace/headrace.h", "HR_API int hr_more(void);\n",
     "hr_more has no comment"),
    ("comment too far away", "include/headrace/headrace.h",
     "/* x */\n\nHR_API int hr_more(void);\n", "hr_more has no comment"),
    ("function not exported", "include/headrace/headrace.h", "/* x */\nHR_API int other(void);\n",
     "other is not in headrace.map"),
    ("function not tested", "include/headrace/headrace.h", "/* x */\nHR_API int hr_more(void);\n",
     "hr_more is called by no test"),
    ("status not returned", "include/headrace/status.h", ' X(HR_E_NEW, -2, "new", "x")\n',
     "HR_E_NEW is returned nowhere"),
    ("status not tested", "include/headrace/status.h", ' X(HR_E_NEW, -2, "new", "x")\n',
     "HR_E_NEW is reached by no test"),
    ("errors page out of date", "docs/errors.md", "more\n", "differs from status.h"),
)
UNFORMATTED = "\nvoid hr_f( void )\n{\n}\n"


def write(root, path, text, mode="w"):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, mode, encoding="utf-8") as out:
        out.write(text)


def make_tree(root):
    for path, text in CLEAN.items():
        write(root, path, text)
    write(root, "docs/errors.md", tidy.errors_page(tidy.Tree(root)))


def found_with(path, text):
    """Violations after planting; formatting is another test's business."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        make_tree(root)
        write(root, "tools/t.h", SPDX)
        if text:
            write(root, path, text, "a")
        tree = tidy.Tree(root)
        return [f for check in tidy.CHECKS if check is not tidy.check_format for f in check(tree)]


def check_formatter():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        make_tree(root)
        style = pathlib.Path(__file__).parent.parent / ".clang-format"
        write(root, ".clang-format", style.read_text(encoding="utf-8"))
        write(root, "src/engine.c", UNFORMATTED, "a")
        found = list(tidy.check_format(tidy.Tree(root)))
        return not tidy.formatter() or any("src/engine.c" in f for f in found)


def main():
    failures = []
    for what, path, text, message in PLANTED:
        found = found_with(path, text)
        if (message is None) != (not found) or message and not any(message in f for f in found):
            failures.append(f"{what}: wanted {message!r}, found {found}")
    if not check_formatter():
        failures.append("clang-format: an unformatted file was not found")
    print("\n".join(failures) if failures else f"{len(PLANTED)} planted violations found")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

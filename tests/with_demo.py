#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a test that needs the demo's model and document (scripts/fetch.sh brings them); says so and
counts as skipped when one is missing or another edition.

usage: with_demo.py FOLDER tokens TOKENIZE      ids of the whole document against known ones
       with_demo.py FOLDER perplexity HEADRACE  of the first tokens against transformers'
       with_demo.py FOLDER run SCRIPT.py ...    --model and --text are added to its arguments
"""
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

SKIP = 77
SHA256 = {
    "model.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "document.txt": "89dba06600463ed858b4ccd3bdf4e72452c512589f1029548346e5284eb71374",
}
# Of the ids, one a line; equal to llama.cpp's (tests/oracle/token_ids.py compares them).
TOKENS = 119465
TOKENS_SHA256 = "dd135dae0628af86e4f8fda8619eaab6d67d0db06b5f100138356e4807b7d16e"
# Of the first SCORED tokens by transformers in fp32 (tests/oracle/model_check.py computes it).
SCORED = 4096
PERPLEXITY = 4.71774
PERPLEXITY_SHARE = 0.002


def missing(folder):
    for name, sha256 in SHA256.items():
        path = folder / name
        if not path.exists():
            return f"{path} is not there: run `make fetch`"
        if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            return f"{path} is another edition than the one that this test knows"
    return None


def check_tokens(tokenize, model, document):
    command = [tokenize, model, document]
    ids = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    same = hashlib.sha256(ids).hexdigest() == TOKENS_SHA256
    count = ids.count(b"\n")
    print(f"{count} tokens, {'all as llama.cpp has them' if same else 'not those of llama.cpp'}")
    return 0 if same and count == TOKENS else 1


def check_perplexity(headrace, model, document):
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "out.json"
        command = [headrace, "run", "--model", model, "--text", document, "--tokens", str(SCORED),
                   "--json", str(out)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        got = json.loads(out.read_text(encoding="utf-8"))["perplexity"]
    print(f"perplexity {got:.5f} over {SCORED} tokens, transformers has {PERPLEXITY}")
    return 0 if abs(got / PERPLEXITY - 1) <= PERPLEXITY_SHARE else 1


def main(folder, what, command):
    reason = missing(folder)
    if reason:
        print(f"skipped: {reason}")
        return SKIP
    model, document = str(folder / "model.gguf"), str(folder / "document.txt")
    if what == "tokens":
        return check_tokens(command[0], model, document)
    if what == "perplexity":
        return check_perplexity(command[0], model, document)
    command = [sys.executable, *command, "--model", model, "--text", document]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))

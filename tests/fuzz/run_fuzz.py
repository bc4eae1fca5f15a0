#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one libFuzzer target from a seed corpus made on the spot.

    run_fuzz.py TARGET gguf|tokenizer|quant

Runs for HEADRACE_FUZZ_SECONDS (60). What broke it is left in the folder that is printed.
"""
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tiny_gguf  # noqa: E402

TEXTS = ["It's  2024, isn't IT'S?\n\n x", "low lower 1234567 <lit><|im_end|>", "日本語 é Привет 😀",
         "\r\n\t  \u00a0\u3000a", "abc" * 50, " " * 100, "\x00", ""]


def gguf_seeds():
    for arguments in (["--small"], ["--small", "--version", "2"], ["--small", "--pre", "qwen2"],
                      ["--small", "--pre", "llama-bpe", "--add-bos"], ["--small", "--pre", "gpt-2"],
                      ["--small", "--set", "general.alignment=u32:64"]):
        yield tiny_gguf.build(tiny_gguf.parse_arguments(["unused"] + arguments))


def tokenizer_seeds():
    for i, text in enumerate(TEXTS * 6):
        yield bytes([i % 24]) + text.encode()
    yield b"\x04a\xff\xfe"


def quant_seeds():
    rng = random.Random(1)
    for kind, (number, _, block_bytes) in tiny_gguf.TYPES.items():
        yield bytes([number]) + rng.randbytes(2 * block_bytes)


def main():
    target, kind = sys.argv[1:]
    seconds = os.environ.get("HEADRACE_FUZZ_SECONDS", "60")
    folder = tempfile.mkdtemp(prefix=f"headrace-fuzz-{kind}-")
    corpus = os.path.join(folder, "corpus")
    os.mkdir(corpus)
    seeds = {"gguf": gguf_seeds, "tokenizer": tokenizer_seeds, "quant": quant_seeds}[kind]
    for i, seed in enumerate(seeds()):
        with open(os.path.join(corpus, f"seed-{i:02}"), "wb") as file:
            file.write(seed)
    command = [os.path.abspath(target), f"-max_total_time={seconds}", "-timeout=20",
               "-rss_limit_mb=2048", "-max_len=16384", "-len_control=0", "-print_final_stats=1",
               "-verbosity=0", f"-artifact_prefix={folder}/", corpus]
    status = subprocess.run(command, cwd=folder).returncode
    if status:
        sys.exit(f"{target} failed; see {folder}")
    subprocess.run(["rm", "-r", folder], check=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares token ids with llama.cpp's (pip: llama-cpp-python, gguf).

    token_ids.py --model M.gguf --text FILE (--tokenize PROGRAM | --headrace PROGRAM)
    token_ids.py --model M.gguf --nasty [--pre NAME]... --tokenize PROGRAM [--seed N]
    token_ids.py --pairs [--pre NAME]... --tokenize PROGRAM [--seed N]

The first form compares the ids of a whole document. The second compares made-up texts (every code
point, contractions, runs of white space and digits, scripts, emoji, long words, control tokens)
under the model's vocabulary with each pre-tokenizer (default: every one that the tokenizer knows).
The third does so under a vocabulary in which any two bytes merge, so that a word cut one byte off
shows in the ids. --tokenize is build/tests/unit/tokenize; --headrace asks `headrace run
--dump-tokens` instead.
"""
import argparse
import os
import random
import struct
import subprocess
import sys
import tempfile

import gguf
import llama_cpp

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import tiny_gguf  # noqa: E402

PRES = ["smollm", "gpt-2", "default", "llama-bpe", "qwen2", "phi-2", "olmo", "mpt", "exaone4",
        "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "llama3",
        "llama-v3", "falcon3", "pixtral", "dbrx", "smaug-bpe", "deepseek-r1-qwen", "stablelm2",
        "megrez"]
PIECES = ["'s", "'S", "'t", "'re", "'RE", "'ve", "'ll", "'LL", "'d", "'m", "'", "''", " ", "  ",
          "   ", "\t", "\n", "\r\n", "\r", "\n\n\n", "\f", "\v", "\u00a0", "\u3000", "\u2028",
          "\u0085", "\u180e", "\u200b", "\ufeff", "a", "The", "word", "don", "I", "_", "-",
          "--", ".", "...", "!?", "$", "+", "<=>", "^", "~", "|", "`", "(", "[x]", "{", "#",
          "@", "0", "1", "23", "456", "7890", "12345678", "\u0663", "\u00bd", "\u2167",
          "\u00b2", "é", "ß", "ſ", "K", "Привет", "мир", "日本語", "中文", "한국어", "עברית", "العربية",
          "हिन्दी", "ไทย", "ελληνικά", "😀", "👩‍👩‍👧", "🇨🇭", "e\u0301", "\u0301", "<|im_start|>",
          "<|im_end|>", "<|endoftext|>", "<file_sep>", "<repo_name"]


def variant(model, pre, out):
    """A copy of the model's keys, without tensors, that names another pre-tokenizer."""
    reader = gguf.GGUFReader(model)
    with open(model, "rb") as file:
        head = file.read(reader.tensors[0].field.offset)
    key = b"tokenizer.ggml.pre" + (8).to_bytes(4, "little")
    at = head.index(key) + len(key)
    old_bytes = int.from_bytes(head[at:at + 8], "little")
    new = len(pre).to_bytes(8, "little") + pre.encode()
    head = head[:8] + bytes(8) + head[16:at] + new + head[at + 8 + old_bytes:]
    with open(out, "wb") as file:
        file.write(head)


def pairs_vocabulary(pre, out):
    """A GGUF whose tokens are all bytes and all pairs of bytes."""
    units = tiny_gguf.units()
    pairs = [(a, b) for a in units for b in units]
    random.Random(1).shuffle(pairs)
    tokens = tiny_gguf.CONTROLS + units + [a + b for a, b in pairs]
    options = tiny_gguf.parse_arguments([out, "--small", "--pre", pre])
    table = tiny_gguf.keys({"layers": 1, "heads": 1, "kv_heads": 1, "embed": 32, "hidden": 32},
                           options)
    table["llama.vocab_size"] = tiny_gguf.scalar("u32", len(tokens))
    table["tokenizer.ggml.tokens"] = tiny_gguf.array("str", tokens)
    table["tokenizer.ggml.token_type"] = tiny_gguf.array("i32", [3] * 3 + [1] * (len(tokens) - 3))
    table["tokenizer.ggml.merges"] = tiny_gguf.array("str", [f"{a} {b}" for a, b in pairs])
    with open(out, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(table)))
        file.write(b"".join(tiny_gguf.text(key) + value for key, value in table.items()))


def program_ids(options, model, path, special):
    if options.headrace:
        with tempfile.NamedTemporaryFile() as dump:
            # The ids are written before a document longer than the model's context is refused.
            subprocess.run([options.headrace, "run", "--model", model, "--text", path,
                            "--dump-tokens", dump.name], capture_output=True, check=False)
            return [int(line) for line in open(dump.name)]
    command = [options.tokenize, model, path] + (["--special"] if special else [])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return [int(line) for line in done.stdout.split()]


def first_difference(llama, text, theirs, ours):
    at = next((i for i, pair in enumerate(zip(theirs, ours)) if pair[0] != pair[1]),
              min(len(theirs), len(ours)))
    before = llama.detokenize(theirs[:at], special=True)
    return (f"token {at}: {theirs[at:at + 6]} is llama.cpp's, {ours[at:at + 6]} ours, after "
            f"{before[-20:]!r} in {text[len(before):len(before) + 20]!r}")


def compare(options, llama, model, text, special, what):
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        ours = program_ids(options, model, file.name, special)
    theirs = llama.tokenize(text, add_bos=False, special=special)
    if ours == theirs:
        return len(ours)
    sys.exit(f"{what}: {first_difference(llama, text, theirs, ours)}")


def has_tokens(point, options):
    """SmolLM2's vocabulary lacks some bytes: llama.cpp drops them, headrace refuses the text."""
    lacking = {4, 6, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
    return point and (options.pairs or not lacking & set(chr(point).encode()))


def nasty_texts(options):
    rng = random.Random(options.seed)
    points = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000 and has_tokens(p, options)]
    for start in range(0, len(points), 20000):
        chars = [chr(p) for p in points[start:start + 20000]]
        yield f"code points from U+{points[start]:04X}", "".join(
            f"a{c}b {c}1{c}\n{c}{c} {c} 's" for c in chars), False
    for i in range(40):
        yield f"random pieces {i}", "".join(rng.choices(PIECES, k=2000)), i % 2 == 1
    for i in range(20):
        points = [p for p in (rng.randrange(7, 127) for _ in range(4000)) if has_tokens(p, options)]
        yield f"random ASCII {i}", "".join(map(chr, points)), False
    yield "a long word", "ab" * 20000, False
    yield "many spaces", " " * 5000 + "x" + " " * 5000, False
    yield "many newlines", "\n" * 5000 + "x" + "\r\n" * 3000, False
    yield "many digits", "1234567890" * 500, False
    yield "nothing", "", False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--text")
    parser.add_argument("--nasty", action="store_true")
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--pre", action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenize")
    parser.add_argument("--headrace")
    options = parser.parse_args()
    if options.text:
        llama = llama_cpp.Llama(options.model, vocab_only=True, verbose=False)
        text = open(options.text, "rb").read()
        print(f"{options.text}: {compare(options, llama, options.model, text, False, options.text)}"
              " ids equal llama.cpp's")
    for pre in (options.pre or PRES) if options.nasty or options.pairs else []:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "variant.gguf")
            if options.pairs:
                pairs_vocabulary(pre, path)
            else:
                variant(options.model, pre, path)
            llama = llama_cpp.Llama(path, vocab_only=True, verbose=False)
            n = [compare(options, llama, path, text.encode(), special, f"{pre}: {what}")
                 for what, text, special in nasty_texts(options)]
            print(f"{pre}: {len(n)} texts, {sum(n)} ids equal llama.cpp's", flush=True)


if __name__ == "__main__":
    main()

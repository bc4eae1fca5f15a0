#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`headrace run` gives the same logits, bit for bit, for any chunk size, threads and wave cuts.

    run_hash.py HEADRACE [--model M.gguf --text FILE] [--tokens N] [--kv-dtype TYPE]

Without a model a tiny one with random weights is made. The number of tokens leaves short last
chunks, which the program has to join to the chunk before.
"""
import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile

CHUNKS = (128, 512, 1000)
THREADS = (1, 2)
WAVES = (1, 7, 0)
WORDS = ("the water of a mill runs in its race and turns wheel after wheel until evening, "
         "says an old book on the art of building; 17 stones, 4 sluices & one gate").split()


def words(n):
    rng = random.Random(7)
    return " ".join(rng.choice(WORDS) for _ in range(n))


def tiny(folder, here):
    model, text = os.path.join(folder, "tiny.gguf"), os.path.join(folder, "tiny.txt")
    subprocess.run([sys.executable, os.path.join(here, "tiny_gguf.py"), model, "--type", "Q4_1"],
                   check=True)
    with open(text, "w", encoding="utf-8") as out:
        out.write(words(1500))
    return model, text


def run(command, out, extra):
    subprocess.run(command + extra + ["--json", out], check=True, stdout=subprocess.DEVNULL)
    with open(out, encoding="utf-8") as f:
        result = json.load(f)
    return (result["logits_hash"], result["perplexity"],
            tuple(tuple(a["tokens"]) for a in result["answers"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("headrace")
    parser.add_argument("--model")
    parser.add_argument("--text")
    parser.add_argument("--tokens", type=int, default=1025)
    parser.add_argument("--kv-dtype", default="bf16")
    args = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as folder:
        model, text = (args.model, args.text) if args.model else tiny(folder, here)
        command = [args.headrace, "run", "--model", model, "--text", text, "--beyond-context",
                   "--tokens", str(args.tokens), "--kv-dtype", args.kv_dtype, "--generate", "5",
                   "--ask", "How many sluices?", "--prompt", " And then"]
        first, different = None, 0
        for chunk, threads, wave in itertools.product(CHUNKS, THREADS, WAVES):
            got = run(command, os.path.join(folder, "o.json"),
                      ["--chunk", str(chunk), "--threads", str(threads),
                       "--debug-wave-blocks", str(wave)])
            first = first or got
            different += got != first
            print(f"chunk {chunk:4} threads {threads} wave {wave}: {got[0]} {got[1]}"
                  f"{'' if got == first else '  DIFFERENT'}")
    print(f"{args.tokens} tokens: {'all the same' if not different else f'{different} differ'}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

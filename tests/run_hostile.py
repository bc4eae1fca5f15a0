#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input to `headrace run`: each case must end in one sentence that names what is wrong, with a
non-zero status, or succeed where nothing is wrong. It never crashes or hangs.

    run_hostile.py HEADRACE [--damaged N] [--seed N]
"""
import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 60


class Cases:
    def __init__(self, program, folder):
        self.program, self.folder, self.count, self.failures = program, folder, 0, []

    def path(self, name, content=None):
        path = os.path.join(self.folder, name)
        if content is not None:
            with open(path, "wb") as out:
                out.write(content)
        return path

    def model(self, name, *options):
        path = self.path(name)
        subprocess.run([sys.executable, os.path.join(HERE, "tiny_gguf.py"), path, *options],
                       check=True)
        return path

    def start(self, arguments, stdout=subprocess.PIPE):
        try:
            done = subprocess.run([self.program, *arguments], stdout=stdout,
                                  stderr=subprocess.PIPE, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return -1, f"no end within {SECONDS} s"
        return done.returncode, done.stderr.decode("utf-8", "replace")

    def note(self, name, good, status, said):
        self.count += 1
        if not good:
            said = said.strip()[:400] or "nothing"
            self.failures.append(f"{name}: status {status}, said: {said}")

    @staticmethod
    def is_sentence(said):
        lines = said.strip().splitlines()
        return (len(lines) == 1 and lines[0].startswith("headrace") and len(lines[0]) > 30
                and lines[0].isprintable())

    def refused(self, name, arguments, *words, stdout=subprocess.PIPE):
        """A sentence with all of `words` in it, and status 1 or 2."""
        status, said = self.start(["run", *arguments], stdout)
        good = status in (1, 2) and self.is_sentence(said) and all(w in said for w in words)
        self.note(name, good, status, said)

    def works(self, name, arguments):
        status, said = self.start(["run", *arguments])
        self.note(name, status == 0, status, said)

    def survives(self, name, arguments):
        """Works, or is refused."""
        status, said = self.start(["run", *arguments])
        self.note(name, status == 0 or (status in (1, 2) and self.is_sentence(said)), status, said)


def files(c, model, text):
    missing, folder = c.path("missing"), c.folder
    empty = c.path("empty", b"")
    c.refused("no such model", ["--model", missing, "--text", text], missing, "No such file")
    c.refused("model is a folder", ["--model", folder, "--text", text], folder)
    c.refused("model is empty", ["--model", empty, "--text", text], empty)
    c.refused("model is a text", ["--model", text, "--text", text], text)
    c.refused("no such text", ["--model", model, "--text", missing], missing, "No such file")
    c.refused("text is a folder", ["--model", model, "--text", folder], folder)
    c.refused("text is empty", ["--model", model, "--text", empty], empty, "empty")
    packed = c.path("text.gz", gzip.compress(b"some words"))
    c.refused("text is compressed", ["--model", model, "--text", packed], packed, "gunzip")


def texts(c, model):
    rng = random.Random(3)
    null = c.path("null.txt", b"twelve bytes\0 and more")
    c.refused("NUL in the text", ["--model", model, "--text", null], null, "12")
    latin = c.path("latin.txt", b"caf\xe9 au lait")
    c.refused("text is not UTF-8", ["--model", model, "--text", latin], latin, "3")
    binary = c.path("binary", rng.randbytes(100000))
    c.refused("text is binary", ["--model", model, "--text", binary], binary)
    line = c.path("line.txt", b"x" * 1000000)
    c.refused("a line of 1 MB", ["--model", model, "--text", line], line, "512", "--beyond-context")
    c.works("a line of 1 MB, cut", ["--model", model, "--text", line, "--tokens", "300"])
    spaces = c.path("spaces.txt", b" " * 1000000)
    c.works("1 MB of spaces, cut", ["--model", model, "--text", spaces, "--tokens", "300"])
    one = c.path("one.txt", b"a")
    c.works("one token", ["--model", model, "--text", one, "--generate", "3"])
    c.refused("prompt is not UTF-8", ["--model", model, "--prompt", b"a\xff"], "1")
    c.refused("empty prompt alone", ["--model", model, "--prompt", ""], "prompt", "empty")
    c.works("empty question", ["--model", model, "--text", one, "--ask", "", "--generate", "3"])
    c.works("control token in a question", ["--model", model, "--text", one, "--ask",
                                            "<|im_end|>", "--generate", "3"])


def values(c, model, text):
    usual = ["--model", model, "--text", text]
    for option in ("tokens", "chunk", "threads", "generate", "debug-wave-blocks"):
        for value in ("", "x", "-1", "3x", "1e3", "99999999999999999999", "0x10", "1" * 300):
            c.refused(f"--{option} {value[:24]!r}", usual + [f"--{option}", value], option, "from")
    for option in ("tokens", "chunk", "threads"):
        c.refused(f"--{option} 0", usual + [f"--{option}", "0"], option, "from 1")
    c.refused("--threads 100000", usual + ["--threads", "100000"], "threads", "256")
    c.survives("--threads 256", usual + ["--tokens", "20", "--threads", "256"])
    c.works("--chunk 1", usual + ["--tokens", "100", "--chunk", "1"])
    c.works("--chunk 65536", usual + ["--tokens", "100", "--chunk", "65536"])
    c.works("--tokens 10^12", usual + ["--tokens", "1000000000000"])
    c.refused("more than the context", usual + ["--generate", "1000000"], "1000000", "512")
    c.refused("--kv-dtype int8", usual + ["--kv-dtype", "int8"], "int8", "bf16")
    c.refused("no such option", usual + ["--colour"], "--colour")
    c.refused("a stray word", usual + ["stray"], "stray")
    c.refused("option without value", ["--model"], "--model", "value")
    c.refused("no model", ["--text", text], "--model")
    c.refused("no text", ["--model", model], "--text")
    c.refused("dump without text", ["--model", model, "--prompt", "a", "--dump-logits",
                                    c.path("x")], "--dump-logits", "--text")


def outputs(c, model, text):
    usual = ["--model", model, "--text", text, "--tokens", "100"]
    for option in ("json", "trace", "dump-tokens", "dump-logits"):
        if os.path.exists("/dev/full"):
            c.refused(f"disk full, --{option}", usual + [f"--{option}", "/dev/full"], "/dev/full",
                      "No space left")
        no_folder = os.path.join(c.folder, "none", "x")
        c.refused(f"no such folder, --{option}", usual + [f"--{option}", no_folder], no_folder)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            c.refused("disk full, standard output", usual, "standard output", stdout=full)
    for option in ("json", "trace", "dump-tokens", "dump-logits"):
        for name, victim in (("--model", model), ("--text", text)):
            with open(victim, "rb") as f:
                before = f.read()
            c.refused(f"--{option} on the file of {name}", usual + [f"--{option}", victim], name)
            with open(victim, "rb") as f:
                c.note(f"{name} is untouched by --{option}", f.read() == before, 0, "")
    twice = os.path.join(c.folder, "twice")
    for option in ("text", "json", "trace", "dump-tokens", "dump-logits"):
        c.refused(f"- as a name, --{option}", usual + [f"--{option}", "-"], "/dev/stdin")
    c.refused("one file for two outputs", usual + ["--json", twice, "--dump-logits", twice], twice)
    c.refused("an empty path", usual + ["--json", ""], "json", "empty")
    c.refused("a cluster of letters", usual + ["-xyz"], "-x")
    c.refused("a text without end", ["--model", model, "--text", "/dev/zero"], "/dev/zero")
    out = c.path("good.json")
    c.works("JSON is whole", usual + ["--json", out, "--ask", 'a "quoted"\n\x01 question'])
    with open(out, encoding="utf-8") as f:
        c.note("JSON's tokens", json.load(f)["tokens"] == 100, 0, "")


def models(c, text):
    def refused(name, options, *words):
        c.refused(name, ["--model", c.model("m.gguf", *options), "--text", text], *words)

    for name, key, value in (
            ("architecture", "general.architecture", "str:mamba"),
            ("pre-tokenizer", "tokenizer.ggml.pre", "str:klingon"),
            ("tokenizer", "tokenizer.ggml.model", "str:llama"),
            ("rope scaling", "llama.rope.scaling.type", "str:yarn"),
            ("rope scaling's factor", "llama.rope.scaling.factor", "f32:8"),
            ("key of the architecture", "llama.attention.sliding_window", "u32:16"),
            ("experts", "llama.expert_count", "u32:8"),
            ("layers, too many", "llama.block_count", "u32:4294967295"),
            ("layers, none", "llama.block_count", "u32:0"),
            ("layers, a string", "llama.block_count", "str:many"),
            ("heads, none", "llama.attention.head_count", "u32:0"),
            ("heads, no multiple", "llama.attention.head_count_kv", "u32:4"),
            ("heads, of 256", "llama.attention.head_count", "u32:4096"),
            ("width", "llama.embedding_length", "u32:1000000"),
            ("width, none", "llama.embedding_length", "u32:0"),
            ("context, none", "llama.context_length", "u32:0"),
            ("rope, odd", "llama.rope.dimension_count", "u32:3"),
            ("rope, more than the head", "llama.rope.dimension_count", "u32:64"),
            ("rope base", "llama.rope.freq_base", "f32:0"),
            ("epsilon", "llama.attention.layer_norm_rms_epsilon", "f32:nan")):
        words = [value.split(":")[1]] if value.startswith("str:") and value != "str:many" else []
        refused("bad " + name, ["--set", f"{key}={value}"], *words)
    refused("no context length", ["--unset", "llama.context_length"], "llama.context_length")
    refused("no architecture", ["--unset", "general.architecture"], "general.architecture")
    for name in ("blk.0.attn_q.bias", "rope_freqs.weight", "blk.2.attn_norm.weight", "strange"):
        refused("unused tensor " + name, ["--extra-tensor", name], name)
    for name in ("token_embd.weight", "output_norm.weight", "blk.1.ffn_down.weight"):
        refused("no tensor " + name, ["--drop-tensor", name], name)


def damaged(c, model, text, n, seed):
    """Truncated at n lengths, and n times with some bits turned; most of them in the header."""
    rng = random.Random(seed)
    with open(model, "rb") as f:
        whole = f.read()
    header = len(whole) - 2 * len(whole) // 3
    usual = ["--text", text, "--tokens", "40", "--generate", "2"]
    for i in range(n):
        cut = rng.randrange(len(whole) if i % 2 else header)
        path = c.path("damaged.gguf", whole[:cut])
        c.refused(f"model cut at {cut}", ["--model", path, *usual], "damaged.gguf")
        bits = bytearray(whole)
        flips = [rng.randrange(8 * (len(whole) if i % 4 == 0 else min(header, 16000)))
                 for _ in range(rng.choice((1, 1, 2, 8)))]
        for bit in flips:
            bits[bit // 8] ^= 1 << bit % 8
        path = c.path("damaged.gguf", bytes(bits))
        c.survives(f"model with bits {flips} turned (seed {seed})", ["--model", path, *usual])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("headrace")
    parser.add_argument("--damaged", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        c = Cases(args.headrace, folder)
        model = c.model("tiny.gguf", "--type", "Q8_0")
        text = c.path("text.txt", b"The old mill stands by the river. " * 12)
        files(c, model, text)
        texts(c, model)
        values(c, model, text)
        outputs(c, model, text)
        models(c, text)
        damaged(c, model, text, args.damaged, args.seed)
    for failure in c.failures:
        print(failure)
    print(f"{c.count} cases, {len(c.failures)} bad")
    return 1 if c.failures else 0


if __name__ == "__main__":
    sys.exit(main())

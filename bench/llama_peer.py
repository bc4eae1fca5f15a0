#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`headrace run` beside llama.cpp and transformers: same model, tokens, threads, in one run.

    llama_peer.py HEADRACE MODEL.gguf DOCUMENT [--tokens 4096] [--threads 2] [--rounds 3]
                  [--decode 32] [--json OUT]

Prefill with the logits of all tokens, then greedy decode behind them. Every measurement is a
process of its own, after loading and a warm-up; the order rotates, medians are compared. Needs
llama-cpp-python, torch, transformers, gguf and numpy from PyPI, which the product does not.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

PEERS = ("headrace", "llama.cpp", "transformers")
WARM_UP = 128


def measure_headrace(args, ids):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "o.json")
        subprocess.run([args.headrace, "run", "--model", args.model, "--text", args.document,
                        "--tokens", str(len(ids)), "--threads", str(args.threads),
                        "--generate", str(args.decode + 1), "--json", out],
                       check=True, stdout=subprocess.DEVNULL)
        with open(out, encoding="utf-8") as f:
            result = json.load(f)
    return result["prefill_tokens_per_s"], result["decode_tokens_per_s"]


def measure_llama(args, ids):
    import numpy as np
    from llama_cpp import Llama
    model = Llama(model_path=args.model, n_ctx=len(ids) + args.decode + 8, n_threads=args.threads,
                  n_threads_batch=args.threads, logits_all=True, verbose=False)
    model.eval(ids[:WARM_UP])
    model.reset()
    start = time.perf_counter()
    model.eval(ids)
    middle = time.perf_counter()
    for _ in range(args.decode):
        model.eval([int(np.argmax(model.scores[model.n_tokens - 1]))])
    end = time.perf_counter()
    return len(ids) / (middle - start), args.decode / (end - middle)


def measure_transformers(args, ids):
    import torch
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests",
                                    "oracle"))
    from model_check import reference_of
    torch.set_num_threads(args.threads)
    model = reference_of(args.model)
    with torch.no_grad():
        model(torch.tensor([ids[:WARM_UP]]))
        start = time.perf_counter()
        state = model(torch.tensor([ids]), use_cache=True)
        middle = time.perf_counter()
        cache = state.past_key_values
        for _ in range(args.decode):
            state = model(state.logits[:, -1:].argmax(-1), past_key_values=cache, use_cache=True)
        end = time.perf_counter()
    return len(ids) / (middle - start), args.decode / (end - middle)


MEASURES = dict(zip(PEERS, (measure_headrace, measure_llama, measure_transformers)))


def ids_of(args):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ids")
        subprocess.run([args.headrace, "run", "--model", args.model, "--text", args.document,
                        "--tokens", str(args.tokens), "--dump-tokens", path], check=True,
                       stdout=subprocess.DEVNULL)
        with open(path, encoding="ascii") as f:
            return [int(line) for line in f]


def in_own_process(args, peer):
    """The rates as a child of this script measures them."""
    command = [sys.executable, os.path.abspath(__file__), args.headrace, args.model, args.document,
               "--tokens", str(args.tokens), "--threads", str(args.threads), "--decode",
               str(args.decode), "--ids", args.ids, "--only", peer]
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads))
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return json.loads(done.stdout.splitlines()[-1])


def compare(args):
    rates = {peer: [] for peer in PEERS}
    for i in range(args.rounds):
        for j in range(len(PEERS)):
            peer = PEERS[(i + j) % len(PEERS)]
            rates[peer].append(in_own_process(args, peer))
            print(f"round {i + 1}: {peer:12} prefill {rates[peer][-1][0]:7.1f} tokens/s, "
                  f"decode {rates[peer][-1][1]:6.1f} tokens/s", flush=True)
    medians = {p: [statistics.median(r[k] for r in rates[p]) for k in (0, 1)] for p in PEERS}
    results = []
    for k, what in enumerate(("prefill", "decode")):
        for peer in PEERS[1:]:
            ratio = medians["headrace"][k] / medians[peer][k]
            results.append({"goal": "run", "case": f"{what} n{args.tokens} t{args.threads}",
                            "value": medians["headrace"][k], "unit": "tokens/s", "peer": peer,
                            "peer_value": medians[peer][k], "ratio": ratio})
            print(f"{what:7} headrace {medians['headrace'][k]:7.1f}, {peer:12} "
                  f"{medians[peer][k]:7.1f}: {ratio:.2f} x")
    return results


def machine_name():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        name = next((line.split(":")[1].strip() for line in f if line.startswith("model name")),
                    "unknown")
    return f"{name}, {os.cpu_count()} CPUs"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headrace")
    parser.add_argument("model")
    parser.add_argument("document")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--json")
    parser.add_argument("--ids", help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=PEERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        with open(args.ids, encoding="utf-8") as f:
            print(json.dumps(MEASURES[args.only](args, json.load(f))))
        return
    with tempfile.TemporaryDirectory() as folder:
        args.ids = os.path.join(folder, "ids.json")
        with open(args.ids, "w", encoding="utf-8") as f:
            json.dump(ids_of(args), f)
        results = compare(args)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"commit": os.environ.get("HEADRACE_COMMIT", "unknown"),
                       "machine": machine_name(), "gpu": None, "clock_mhz": None,
                       "threads": args.threads, "results": results}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()

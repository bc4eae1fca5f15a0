#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefill kernels beside their peers on one GPU, in one process and on the same data.

    peers.py build/kernels/cuda/prefill_sm90.cubin --sustained --json bench/results/h200.json

Ours always runs on the shipped path: shuffled pages, a full block list, lse. The peers get
contiguous copies of the same pages and need not write lse. cold: bursts of 8 ms after 30 ms of
idle, the median of 7. sustained: blocks back to back at the power limit, the median of 5.

A cell is D:HEADS:KV_HEADS:QUERIES:BATCH:CAUSAL[:KEYS]; p1 and short stand for lists of cells.
A kernel is PATH[:THREADS[:SHARED_BYTES[:ROWS]]] (else its launch is read off the cubin);
--ours NAME=KERNEL runs several as contestants; NAME@64=KERNEL gives NAME another one for D 64.

Needs torch; FlashAttention-3 (fa3_fwd_interface) and FlashInfer if they can be imported.
"""
import argparse
import collections
import math
import random
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import gpu_race
from gpu_case import BLOCK, Case, Inputs, need_hopper
from gpu_energy import Monitor
from gpu_report import Report

Cell = collections.namedtuple("Cell", "dim heads kv_heads n batch causal keys")
Kernel = collections.namedtuple("Kernel", "path threads shared rows", defaults=(0, 0, 0))
HEADS = ((128, 16, 16), (128, 32, 8), (64, 32, 32), (64, 9, 3))
TOKENS = 32768  # of the batch in a cell of several sequences
WORKSPACE_BYTES = 256 << 20  # FlashInfer's


def grid(heads, lengths, batches):
    return [Cell(*h, n, batch, causal, n) for h in heads for n in lengths
            for batch in sorted({b(n) for b in batches}) for causal in (1, 0)]


SETS = {
    "short": grid(HEADS[:1], (8192, 32768), [lambda n: 1]),
    "p1": grid(HEADS, (4096, 8192, 16384, 32768), [lambda n: 1, lambda n: TOKENS // n]) +
    [Cell(128, 32, 8, 4096, 1, causal, 131072) for causal in (1, 0)],
    "medium": grid(HEADS, (4096, 8192, 32768), [lambda n: TOKENS // n]) +
    [Cell(128, 32, 8, 4096, 1, 1, 131072)],
}


def cells_of(text):
    cells = []
    for word in text.split(","):
        if word in SETS:
            cells += SETS[word]
        else:
            numbers = [int(x) for x in word.split(":")]
            cells.append(Cell(*numbers, *numbers[3:4] * (len(numbers) == 6)))
    return cells


def name_of(cell):
    keys = "" if cell.keys == cell.n else f" k{cell.keys}"
    return (f"{'causal' if cell.causal else 'full'} d{cell.dim} h{cell.heads}/{cell.kv_heads} "
            f"n{cell.n}{keys} x{cell.batch}")


def kernels_of(args):
    """name -> {dim, or 0 for every other: Kernel}"""
    kernels = collections.OrderedDict()
    for word in ([f"ours={args.cubin}"] if args.cubin else []) + args.ours:
        name, text = word.split("=", 1)
        name, _, dim = name.partition("@")
        path, *numbers = text.split(":")
        kernels.setdefault(name, {})[int(dim or 0)] = Kernel(path, *map(int, numbers))
    return kernels


def case_of(kernel, cell, inputs, causal=None, lists=True):
    return Case(kernel.path, cell.heads, cell.kv_heads, cell.dim, inputs.lens, inputs=inputs,
                causal=bool(cell.causal if causal is None else causal), lists=lists,
                threads=kernel.threads, shared=kernel.shared, rows=kernel.rows)


def runner(case, wave=0):
    launches = case.waves(wave)

    def run():
        for arguments in launches:
            case.launch(arguments)
        return case.out
    return run


def torch_peer(backend):
    def make(cell, q, k, v):
        if cell.causal and cell.n != cell.keys:
            return None  # torch aligns the diagonal to the top left
        q, k, v = ([x.transpose(1, 2).contiguous() for x in (q, k, v)])
        gqa = cell.heads != cell.kv_heads

        def run():
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=bool(cell.causal), enable_gqa=gqa).transpose(1, 2)
        return run
    return make


def fa3_peer(cell, q, k, v):
    from fa3_fwd_interface import flash_attn_func
    splits = 1 if cell.n > 1 else 0  # 0: as many as its heuristic finds best
    return lambda: flash_attn_func(q, k, v, causal=bool(cell.causal), num_splits=splits)


def flashinfer_peer(cell, q, k, v):
    import flashinfer
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend="fa3")
    ends = [torch.arange(cell.batch + 1, dtype=torch.int32) * n for n in (cell.n, cell.keys)]
    wrapper.plan(*(e.cuda() for e in ends), cell.heads, cell.kv_heads, cell.dim,
                 causal=bool(cell.causal), q_data_type=q.dtype, kv_data_type=q.dtype)
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    return lambda: wrapper.run(q, k, v)


PEERS = {"cudnn": torch_peer(SDPBackend.CUDNN_ATTENTION), "fa3": fa3_peer,
         "flashinfer": flashinfer_peer, "fa2": torch_peer(SDPBackend.FLASH_ATTENTION)}


def peers_of(cell, inputs, names, broken):
    """A peer that fails once is not tried again."""
    k, v = (x.view(cell.batch, cell.keys, cell.kv_heads, cell.dim) for x in inputs.contiguous())
    q = inputs.q.view(cell.batch, cell.n, cell.heads, cell.dim)
    for name in names:
        if name in broken:
            continue
        try:
            run = PEERS[name](cell, q, k, v)
            if run is not None:
                run()
                torch.cuda.synchronize()
                yield name, run
        except Exception as error:  # whatever a library throws
            broken.add(name)
            print(f"{name} left out: {type(error).__name__} {str(error)[:300]}", flush=True)


def agreeing(contestants):
    """Without those whose output differs from the last one's by more than bf16's rounding."""
    right = contestants[-1][1]().clone().float()
    same = []
    for name, run in contestants:
        difference = (run().reshape(right.shape).float() - right).abs().max()
        error = (difference / right.abs().max()).item()
        if error < 2e-2:
            same.append((name, run))
        else:
            print(f"  {name} DIFFERS: {error:.1e} of the largest", flush=True)
    return same


class Bench:
    def __init__(self, args):
        self.args, self.kernels = args, kernels_of(args)
        self.monitor, self.report = Monitor(), Report()
        self.broken = set()

    def race(self, goal, case, contestants, flops, ours, sustained=False):
        lanes = gpu_race.lanes_of(contestants)
        if not any(one.name in ours for one in lanes):
            return
        if not (sustained and self.args.no_cold):
            figures = gpu_race.cold(lanes, flops, self.monitor, self.args.turns)
            self.report.add(goal, f"cold {case}", figures, ours)
        if sustained:
            figures = gpu_race.sustained(lanes, flops, self.monitor, self.args.blocks,
                                         self.args.block_ms)
            self.report.add(goal, f"sustained {case}", figures, ours)

    def cell(self, cell):
        inputs = Inputs(cell.heads, cell.kv_heads, cell.dim, [(cell.n, cell.keys)] * cell.batch)
        ours = [(name, runner(case_of(by_dim.get(cell.dim) or by_dim[0], cell, inputs)))
                for name, by_dim in self.kernels.items() if cell.dim in by_dim or 0 in by_dim]
        peers = list(peers_of(cell, inputs, self.args.peers, self.broken))
        self.race("P1", name_of(cell), agreeing(ours + peers), inputs.flops(cell.causal),
                  [name for name, _ in ours], self.args.sustained)

    def first_kernel(self, dim):
        return next(k.get(dim) or k[0] for k in self.kernels.values() if dim in k or 0 in k)

    def rules(self):
        """What page order, lists and waves cost: each against the shipped path."""
        for cell in SETS["short"]:
            lens, kernel = [(cell.n, cell.keys)], self.first_kernel(cell.dim)
            shuffled = Inputs(cell.heads, cell.kv_heads, cell.dim, lens)
            ordered = Inputs(cell.heads, cell.kv_heads, cell.dim, lens, shuffled=False)
            variants = {
                "ordered pages": case_of(kernel, cell, ordered),
                "trimmed list": case_of(kernel, cell, shuffled, lists="trimmed"),
                "no list": case_of(kernel, cell, shuffled, lists=False)}
            self.against_shipped(cell, case_of(kernel, cell, shuffled),
                                 {name: runner(case) for name, case in variants.items()})
        for cell in (Cell(128, 32, 8, 8192, 1, 1, 131072), Cell(128, 16, 16, 32768, 1, 1, 32768)):
            inputs = Inputs(cell.heads, cell.kv_heads, cell.dim, [(cell.n, cell.keys)])
            kernel = self.first_kernel(cell.dim)
            case, bare = (case_of(kernel, cell, inputs, lists=lists) for lists in (True, False))
            variants = {"no list": runner(bare)}
            for tokens in (32768, 16384, 8192):
                if tokens < cell.keys:
                    name = f"waves of {tokens // 1024}K"
                    variants[name] = runner(case, tokens // BLOCK)
                    variants[f"{name}, no list"] = runner(bare, tokens // BLOCK)
            self.against_shipped(cell, case, variants)

    def against_shipped(self, cell, case, variants):
        self.race("rules", name_of(cell), [("shipped", runner(case)), *variants.items()],
                  case.inputs.flops(cell.causal), list(variants))

    def ragged(self):
        """P8: log-uniform lengths against equal ones of like work per token, and FA3 varlen."""
        for seed in range(self.args.seeds):
            lens = lengths(random.Random(seed))
            for heads, kv_heads in ((16, 16), (32, 8)):
                cell = Cell(128, heads, kv_heads, 0, len(lens), 1, 0)
                kernel = self.first_kernel(128)
                mixed = Inputs(heads, kv_heads, 128, [(n, n) for n in lens])
                equal = Inputs(heads, kv_heads, 128, [(TOKENS, TOKENS)] * (sum(lens) // TOKENS))
                case = f"ragged causal d128 h{heads}/{kv_heads} seed {seed} x{len(lens)}"
                self.race_rates(case, {
                    "ours": (runner(case_of(kernel, cell, mixed)), mixed.flops(True)),
                    "ours at equal lengths": (runner(case_of(kernel, cell, equal)),
                                              equal.flops(True)),
                    "fa3": (fa3_varlen(mixed, self.broken), mixed.flops(True))})

    def race_rates(self, case, runs):
        """Contestants of different work: rates, not times, are compared. Each peer has a line."""
        runs = {name: run for name, run in runs.items() if run[0]}
        lanes = gpu_race.lanes_of([(name, run[0]) for name, run in runs.items()])
        times = gpu_race.cold(lanes, 1.0, self.monitor, self.args.turns)
        figures = [f._replace(tflops=f.tflops * runs[f.name][1]) for f in times]
        for peer in figures[1:]:
            self.report.add("P8", f"cold {case}, {peer.name}", [figures[0], peer], ["ours"])


def lengths(generator, tokens=8 * TOKENS, longest=65536):
    """Log-uniform in 1..longest, the last one cut so that their sum is `tokens`."""
    lens = []
    while sum(lens) < tokens:
        n = round(math.exp(generator.uniform(0, math.log(longest))))
        lens.append(min(n, tokens - sum(lens)))
    return lens


def fa3_varlen(inputs, broken):
    try:
        from fa3_fwd_interface import flash_attn_varlen_func
    except ImportError as error:
        broken.add("fa3")
        print(f"fa3 left out: {error}", flush=True)
        return None
    k, v = inputs.contiguous()
    ends = torch.tensor([0] + [n for n, _ in inputs.lens], device="cuda").cumsum(0).int()
    longest = max(n for n, _ in inputs.lens)
    return lambda: flash_attn_varlen_func(inputs.q, k, v, ends, ends, longest, longest, causal=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cubin", nargs="?", metavar="KERNEL")
    parser.add_argument("--ours", nargs="+", default=[], metavar="NAME[@DIM]=KERNEL")
    parser.add_argument("--cells", default="p1", help="%(default)s, short, medium or cells")
    parser.add_argument("--peers", default="cudnn,fa3,flashinfer", help="also fa2; or none")
    parser.add_argument("--turns", type=int, default=7, help="cold bursts of each")
    parser.add_argument("--sustained", action="store_true", help="sustained blocks too")
    parser.add_argument("--blocks", type=int, default=5, help="sustained blocks of each")
    parser.add_argument("--block-ms", type=float, default=100)
    parser.add_argument("--no-cold", action="store_true")
    parser.add_argument("--rules", action="store_true", help="what the rules cost")
    parser.add_argument("--ragged", action="store_true", help="mixed lengths (P8)")
    parser.add_argument("--seeds", type=int, default=3, help="of --ragged")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    args.peers = [p for p in args.peers.split(",") if p != "none"]
    args.cells = [] if args.cells == "none" else cells_of(args.cells)
    if not args.cubin and not args.ours:
        parser.error("a kernel is needed")
    return args


def main():
    args = arguments()
    need_hopper()
    torch.manual_seed(1)
    bench = Bench(args)
    for cell in args.cells:
        bench.cell(cell)
    if args.rules:
        bench.rules()
    if args.ragged:
        bench.ragged()
    step = bench.monitor.step_ms()
    print(f"energy counter: a step every {step or 0:.0f} ms")
    bench.monitor.close()
    if args.json:
        bench.report.write(args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

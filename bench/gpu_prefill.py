#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the Hopper prefill kernel against float64 and times it beside cuDNN, on a GPU machine.

    gpu_prefill.py build/kernels/cuda/prefill_sm90.cubin [--check] [--short]

Launches the compiled kernel itself, through the driver. Every case has shuffled pages, NaN behind
the last key, and is run in waves of 1 and 3 blocks too: the bits must be the same. Needs torch.
"""
import argparse
import ctypes
import struct
import sys
import time

import torch

BLOCK, ROWS, CONSUMERS, THREADS = 128, 128, 256, 384
L2_SECTION = 32 << 20  # bytes of K/V whose tiles run together
EVER = 1 << 40
LOG2E = 1.4426950408889634
# torch's type -> (CUtensorMapDataType, hr_dtype, name)
TYPES = {torch.bfloat16: (9, 1, "bf16"), torch.float16: (6, 2, "fp16"),
         torch.float32: (7, 3, "fp32")}
cuda = ctypes.CDLL("libcuda.so.1") if torch.cuda.is_available() else None


class Attend(ctypes.Structure):
    """struct hr_cu_attend of kernels/cuda/params.h."""
    _fields_ = [(n, t) for t, names in (
        (ctypes.c_uint64, "seqs tiles pages lists state out lse sink_logits next_tile"),
        (ctypes.c_int64, "out_stride_token out_stride_head lse_stride_token lse_stride_head "
                         "window sinks wave_begin wave_end"),
        (ctypes.c_int32, "n_tiles group tile_tokens causal first last out_type"),
        (ctypes.c_float, "factor softcap")) for n in names.split()]


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{name}: CUDA error {status}")


def tensor_map(dtype, pointer, dims, strides, box):
    """Keeps its memory alive as .owner; 64-byte aligned, 128-byte swizzle."""
    raw = (ctypes.c_uint8 * 192)()
    at = ctypes.c_void_p((ctypes.addressof(raw) + 63) // 64 * 64)
    at.owner = raw
    n = len(dims)
    call("cuTensorMapEncodeTiled", at, TYPES[dtype][0], n, ctypes.c_void_p(pointer),
         (ctypes.c_uint64 * n)(*dims), (ctypes.c_uint64 * (n - 1))(*strides),
         (ctypes.c_uint32 * n)(*box), (ctypes.c_uint32 * n)(*[1] * n), 0, 3, 2, 0)
    return at


def upload(data):
    return torch.frombuffer(bytearray(data or bytes(8)), dtype=torch.uint8).cuda()


def load(path, name, shared):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with open(path, "rb") as f:
        call("cuModuleLoadData", ctypes.byref(module), f.read())
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    call("cuFuncSetAttribute", function, 8, shared)
    return function


class Case:
    """lens: (queries, keys) of each sequence."""

    def __init__(self, cubin, heads, kv_heads, dim, lens, dtype=torch.bfloat16, out_dtype=None,
                 causal=True, window=0, sinks=0, softcap=0.0, sink_logits=False, lists=True):
        self.heads, self.kv_heads, self.dim, self.lens, self.dtype = (
            heads, kv_heads, dim, lens, dtype)
        self.causal, self.window, self.sinks, self.softcap = causal, window, sinks, softcap
        self.group, self.scale = heads // kv_heads, dim ** -0.5
        self.tokens = max(1, ROWS // self.group)
        self.blocks_of = [(keys + BLOCK - 1) // BLOCK for _, keys in lens]
        self.shared = dim * 256 * 5 + 256 + 1024
        self.kernel = load(cubin, f"hr_prefill_sm90_d{dim}_{TYPES[dtype][2]}", self.shared)
        self.make_rows(out_dtype or dtype, sink_logits)
        self.make_pages()
        self.make_tiles(lists)

    def make_rows(self, out_dtype, sink_logits):
        rows = max(1, sum(n for n, _ in self.lens))
        self.q = torch.randn(rows, self.heads, self.dim, device="cuda").to(self.dtype)
        self.out = torch.empty(rows, self.heads, self.dim, device="cuda", dtype=out_dtype)
        self.lse = torch.empty(rows, self.heads, device="cuda")
        self.sink_logits = torch.randn(self.heads, device="cuda") * 2 if sink_logits else None
        self.q_map = tensor_map(
            self.dtype, self.q.data_ptr(), [64, self.group, rows, self.dim // 64, self.kv_heads],
            [self.dim * 2, self.heads * self.dim * 2, 128, self.group * self.dim * 2],
            [64, self.group, self.tokens, 1, 1])

    def make_pages(self):
        total = max(1, sum(self.blocks_of))
        self.pool = torch.randn(total, self.kv_heads, 2, BLOCK, self.dim, device="cuda",
                                dtype=self.dtype)
        self.blocks = torch.randperm(total, device="cuda")
        self.pages = (self.blocks * self.kv_heads).to(torch.int32)
        last = 0
        for (_, keys), n in zip(self.lens, self.blocks_of):
            last += n
            if keys % BLOCK:
                block = int(self.blocks[last - 1])
                self.pool[block, :, 0, keys % BLOCK:] = float("nan")
                self.pool[block, :, 1, keys % BLOCK:] = 0
        self.kv_map = tensor_map(
            self.dtype, self.pool.data_ptr(),
            [64, BLOCK, self.dim // 64, 2, total * self.kv_heads],
            [self.dim * 2, 128, BLOCK * self.dim * 2, 2 * BLOCK * self.dim * 2],
            [64, BLOCK, self.dim // 64, 1, 1])

    def make_tiles(self, lists):
        seqs, row, block = b"", 0, 0
        for (queries, keys), n in zip(self.lens, self.blocks_of):
            seqs += struct.pack("<4q", keys, queries, row, block)
            row, block = row + queries, block + n
        longest = max(keys for _, keys in self.lens)
        section = max(1, L2_SECTION // max(1, longest * self.dim * 4))
        order = []
        for i, (queries, keys) in enumerate(self.lens):
            for first in range(0, queries, self.tokens):
                tokens = min(self.tokens, queries - first)
                seen = min(keys - queries + first + tokens, keys) if self.causal else keys
                order += [(h // section, -seen, i, h, first, tokens)
                          for h in range(self.kv_heads)]
        order.sort(key=lambda t: t[:3])
        ids, list_first = [], []
        for n in self.blocks_of:
            list_first.append(len(ids))
            ids += range(n - 1, -1, -1)
        carry = CONSUMERS * (self.dim // 2 + 4)
        self.tiles = upload(b"".join(
            struct.pack("<iiqqiiq", i, h, first, at * carry, tokens,
                        self.blocks_of[i] if lists else -1, list_first[i])
            for at, (_, _, i, h, first, tokens) in enumerate(order)))
        self.n_tiles, self.seqs = len(order), upload(seqs)
        self.lists = torch.tensor(ids or [0], dtype=torch.int32, device="cuda")
        self.state = torch.empty(0)
        self.state_floats = carry * len(order)
        self.counter = torch.zeros(1, dtype=torch.int32, device="cuda")

    def arguments(self, wave_begin=0, wave_end=EVER, first=1, last=1):
        if not (first and last) and self.state.numel() == 0:
            self.state = torch.full((self.state_floats,), float("nan"), device="cuda")
        return Attend(
            self.seqs.data_ptr(), self.tiles.data_ptr(), self.pages.data_ptr(),
            self.lists.data_ptr(), self.state.data_ptr(), self.out.data_ptr(),
            self.lse.data_ptr(), 0 if self.sink_logits is None else self.sink_logits.data_ptr(),
            self.counter.data_ptr(), self.heads * self.dim, self.dim, self.heads, 1, self.window,
            self.sinks, wave_begin, wave_end, self.n_tiles, self.group, self.tokens, self.causal,
            first, last, TYPES[self.out.dtype][1], (self.softcap or self.scale) * LOG2E,
            self.scale / self.softcap if self.softcap else 0.0)

    def launch(self, arguments):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        call("cuMemsetD32Async", ctypes.c_uint64(self.counter.data_ptr()), 0, ctypes.c_size_t(1),
             stream)
        parameters = (ctypes.c_void_p * 3)(ctypes.addressof(arguments), self.q_map, self.kv_map)
        grid = torch.cuda.get_device_properties(0).multi_processor_count
        call("cuLaunchKernel", self.kernel, grid, 1, 1, THREADS, 1, 1, self.shared, stream,
             parameters, None)

    def run(self, wave=0):
        """Attends in waves of so many blocks (0: one wave); the bits of out and lse."""
        n = max(self.blocks_of)
        wave = wave or max(n, 1)
        self.out.fill_(3)
        self.lse.fill_(3)
        for at in range(0, max(n, 1), wave):
            end = at + wave >= n
            self.launch(self.arguments(at, EVER if end else at + wave, at == 0, end))
        torch.cuda.synchronize()
        return (self.out.view(torch.uint8).clone(), self.lse.view(torch.uint8).clone())

    def reference_of(self, row, queries, keys, pool):
        """float64 out and lse of one sequence."""
        q = self.q[row:row + queries].double().view(queries, self.kv_heads, self.group, self.dim)
        k, v = (pool[:, :, side].permute(1, 0, 2, 3).reshape(self.kv_heads, -1, self.dim)[:, :keys]
                for side in (0, 1))
        s = torch.einsum("qhgd,hkd->hgqk", q, k) * self.scale
        if self.softcap:
            s = torch.tanh(s / self.softcap) * self.softcap
        at = torch.arange(queries, device="cuda")[:, None] + keys - queries
        key = torch.arange(keys, device="cuda")[None]
        seen = key <= at if self.causal else torch.ones_like(key <= at)
        if self.window:
            seen &= (key > at - self.window) | (key < self.sinks)
        s = s.masked_fill(~seen, -torch.inf)
        every = s
        if self.sink_logits is not None:
            sink = self.sink_logits.double().view(self.kv_heads, self.group, 1, 1)
            every = torch.cat([s, sink.expand(-1, -1, queries, 1)], -1)
        lse = torch.logsumexp(every, -1)
        p = torch.exp(s - lse.nan_to_num(neginf=0.0)[..., None])
        return (torch.einsum("hgqk,hkd->qhgd", p, v).reshape(queries, self.heads, self.dim),
                lse.permute(2, 0, 1).reshape(queries, self.heads))

    def check(self, name):
        bits = self.run()
        worst, worst_lse, row, block = 0.0, 0.0, 0, 0
        for (queries, keys), n in zip(self.lens, self.blocks_of):
            if queries and keys:
                pool = self.pool[self.blocks[block:block + n]].double()
                o, lse = self.reference_of(row, queries, keys, pool)
                ours = self.lse[row:row + queries].double()
                finite = torch.isfinite(lse)
                if not torch.equal(ours[~finite], lse[~finite]):
                    worst_lse = torch.inf
                error = (self.out[row:row + queries].double() - o).abs().max()
                worst = max(worst, (error / o.abs().max()).item())
                worst_lse = max(worst_lse, (ours - lse)[finite].abs().max().item())
            row, block = row + queries, block + n
        same = all(torch.equal(a, b) for wave in (1, 3) for a, b in zip(bits, self.run(wave)))
        good = worst < 1e-2 and worst_lse < 2e-5 and same
        print(f"{'ok ' if good else 'BAD'} {name}: out {worst:.1e} of the largest, lse "
              f"{worst_lse:.1e}, waves {'the same' if same else 'DIFFER'}", flush=True)
        return good

    def flops(self):
        pairs = sum(sum(min(keys - n + i + 1, keys) for i in range(n)) if self.causal else n * keys
                    for n, keys in self.lens)
        return 4 * self.dim * self.heads * pairs


def check_all(cubin):
    mixed = [(300, 300), (1, 1), (0, 5), (77, 1000), (1000, 1077), (40, 39)]
    cases = {
        "128 x 128, full": ((2, 2, 128, [(128, 128)]), {"causal": False}),
        "ragged, G 4": ((8, 2, 128, mixed), {}),
        "ragged, no list": ((8, 2, 128, mixed), {"lists": False}),
        "ragged, full": ((8, 2, 128, mixed), {"causal": False}),
        "ragged, D 64, G 3": ((9, 3, 64, mixed), {}),
        "window and sinks, D 64, fp16": ((4, 4, 64, [(700, 900), (130, 130)]),
                                         {"dtype": torch.float16, "window": 200, "sinks": 5}),
        "window and sinks, G 7": ((7, 1, 128, [(700, 900), (130, 130)]),
                                  {"window": 300, "sinks": 4}),
        "softcap, sink logits, fp32 out": ((8, 2, 128, [(300, 500)]),
                                           {"softcap": 20.0, "sink_logits": True,
                                            "out_dtype": torch.float32}),
        "fp16": ((4, 2, 128, [(700, 900)]), {"dtype": torch.float16}),
    }
    return all([Case(cubin, *shape, **more).check(name)
                for name, (shape, more) in cases.items()])


def burst_ms(run, count):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    time.sleep(0.03)
    begin.record()
    for _ in range(count):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count


def time_cell(cubin, heads, kv_heads, dim, n, causal):
    """Medians of 7 cold bursts of about 8 ms, in turns; 32K tokens in all."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    batch = max(1, 32768 // n)
    case = Case(cubin, heads, kv_heads, dim, [(n, n)] * batch, causal=causal)
    arguments = case.arguments()
    q, k, v = (torch.randn(batch, h, n, dim, device="cuda", dtype=torch.bfloat16)
               for h in (heads, kv_heads, kv_heads))

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)

    runs = [lambda: case.launch(arguments), cudnn]
    for run in runs:
        burst_ms(run, 1)
    counts = [max(1, int(8 / burst_ms(run, 1))) for run in runs]
    times = ([], [])
    for turn in range(7):
        for i in (turn % 2, 1 - turn % 2):
            times[i].append(burst_ms(runs[i], counts[i]))
    ours, peer = (case.flops() / sorted(t)[3] * 1e-9 for t in times)
    print(f"cold {'causal' if causal else 'full'} d{dim} h{heads}/{kv_heads} n{n} x {batch}: "
          f"{ours:.0f} TFLOP/s, cuDNN {peer:.0f}: {ours / peer:.2f} x", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cubin")
    parser.add_argument("--check", action="store_true", help="check only")
    parser.add_argument("--short", action="store_true", help="8K and 32K only")
    args = parser.parse_args()
    if cuda is None or torch.cuda.get_device_capability()[0] != 9:
        sys.exit("a GPU of compute capability 9.0 is needed")
    torch.manual_seed(1)
    torch.zeros(1, device="cuda")
    if not check_all(args.cubin):
        return 1
    if args.check:
        return 0
    for heads, kv_heads, dim in ((16, 16, 128), (32, 8, 128), (32, 32, 64), (9, 3, 64)):
        for n in (8192, 32768) if args.short else (4096, 8192, 16384, 32768):
            for causal in (True, False):
                time_cell(args.cubin, heads, kv_heads, dim, n, causal)
    return 0


if __name__ == "__main__":
    sys.exit(main())

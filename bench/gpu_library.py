#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The library on the GPU through its public API, beside its peers, in one process.

    gpu_library.py build/src/libheadrace.so --json bench/results/h200.json

decode (P5) beside cuDNN and FlashAttention-3, and the share of a kernel that only reads the K/V;
the portable kernels beside FlashAttention-2; append beside a copy of as many bytes; prefill beside
a bare launch of its kernel (--cubin). All are cold bursts as in peers.py. What is measured is one
call of attend or append, in CUDA graphs: its step has begun before. Decode reads as many layers
(and the peers as many copies) in turn as are larger than the L2.

Needs torch; FlashAttention-3 (fa3_fwd_interface) if it can be imported.
"""
import argparse
import collections
import ctypes
import itertools
import math
import sys

import torch

import gpu_race
from gpu_case import Inputs, need_hopper
from gpu_energy import Monitor
from gpu_report import SWEEP, Report
from peers import Cell, Kernel, agreeing, case_of, name_of, peers_of, runner

BUDGET = 6 << 30  # bytes of K/V of a context
ROTATED = 256 << 20  # bytes of K/V that one call after the other reads: some five times the L2
BF16 = 1  # hr_dtype

DECODE = [Cell(128, 32, 8, 1, batch, 0, keys) for batch, keys in (
    (1, 32768), (64, 4096), (1, 131072), (1, 524288), (32, 32768))] + [
    Cell(128, 32, kv_heads, 1, 4, 0, keys) for kv_heads in (4, 2) for keys in (8192, 32768)]
PORTABLE = [Cell(dim, heads, heads, 4096, 8, causal, 4096)
            for dim, heads in ((128, 16), (64, 32), (96, 16), (256, 8)) for causal in (1, 0)]
PREFILL = [Cell(128, 16, 16, n, 1, 1, n) for n in (8192, 32768)]
APPEND = [(32768, 1, 32), (2048, 1, 64), (1, 64, 64)]  # tokens of each sequence, sequences, layers

READ = """
extern "C" __global__ void __launch_bounds__(256, 8) read(const uint4 *from, int count, uint4 *to)
{
    const int threads = gridDim.x * 256;
    uint4 x[4], sum = {};
    for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += 4 * threads) {
        for (int j = 0; j < 4; j++)
            x[j] = __ldcs(from + min(i + j * threads, count - 1));
        for (int j = 0; j < 4; j++)
            sum.x ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
    }
    if (sum.x == 0x12345678)
        *to = sum;
}
"""
KINDS = {"z": ctypes.c_size_t, "p": ctypes.c_void_p, "s": ctypes.c_char_p, "i": ctypes.c_int32,
         "l": ctypes.c_int64, "u": ctypes.c_uint64, "b": ctypes.c_bool, "f": ctypes.c_float}


def structure(**kinds):
    """A struct of the API: names of its members by kind, in order, as in the headers."""
    class Made(ctypes.Structure):
        _fields_ = [(name, KINDS[kind.rstrip("_")]) for kind, names in kinds.items()
                    for name in names.split()]

        def __init__(self, **values):
            super().__init__(**values)
            if hasattr(self, "struct_size"):
                self.struct_size = ctypes.sizeof(self)
    return Made


Options = structure(z="struct_size", s="device", i="threads", b="unbound", u="device_bytes",
                    s_="caps", p="log log_user allocator disks", i_="n_disks", s__="io",
                    b_="manual_progress", l="patience_ms", b__="dry_run", l_="debug_wave_blocks",
                    p_="trace trace_user")
Layer = structure(i="q_heads kv_heads dim_k dim_v dtype", l="window sinks",
                  i_="kv_layers_back aux_bytes", b="v_is_prefix_of_k")
CacheOptions = structure(z="struct_size layer_size", p="layers", i="n_layers")
Limits = structure(z="struct_size", i="seqs", l="new_tokens query_tokens")
Batch = structure(z="struct_size", i="n_seqs", p="seqs n_new n_query stream")
Append = structure(z="struct_size", i="dtype", p="k v",
                   l="k_stride_token k_stride_head v_stride_token v_stride_head")
Attend = structure(z="struct_size", i="mask q_dtype out_dtype", p="q out lse",
                   l="q_stride_token q_stride_head out_stride_token out_stride_head "
                     "lse_stride_token lse_stride_head", f="scale softcap", p_="sink_logits")


class Context:
    def __init__(self, library, caps=None, device="cuda"):
        self.library, self.handle = ctypes.CDLL(library), ctypes.c_void_p()
        self.library.hr_error_text.restype = ctypes.c_char_p
        options = Options(device=device.encode(), caps=caps and caps.encode(), device_bytes=BUDGET)
        self.call("hr_open", ctypes.byref(options), ctypes.byref(self.handle))

    def call(self, name, *arguments):
        if getattr(self.library, name)(*arguments):
            text = self.library.hr_error_text(self.handle).decode()
            raise RuntimeError(f"{name}: {text}")

    def close(self):
        self.call("hr_close", ctypes.byref(self.handle))


class Cache:
    """Equal layers, sequences of equal length, and a step over all of them."""

    def __init__(self, context, cell, layers, stream):
        self.call, self.cell, self.stream = context.call, cell, stream
        self.cache, self.step = ctypes.c_void_p(), ctypes.c_void_p()
        self.seqs = (ctypes.c_void_p * cell.batch)()
        geometry = (Layer * layers)(*[Layer(q_heads=cell.heads, kv_heads=cell.kv_heads,
                                            dim_k=cell.dim, dtype=BF16)] * layers)
        options = CacheOptions(layer_size=ctypes.sizeof(Layer), n_layers=layers,
                               layers=ctypes.addressof(geometry))
        limits = Limits(seqs=cell.batch, new_tokens=cell.batch * cell.keys,
                        query_tokens=cell.batch * cell.n)
        byref = ctypes.byref
        self.call("hr_cache_create", context.handle, byref(options), byref(self.cache))
        self.call("hr_step_create", self.cache, byref(limits), byref(self.step))
        for seq in self.each():
            self.call("hr_seq_create", self.cache, seq)

    def each(self):
        return [ctypes.byref(self.seqs, i * ctypes.sizeof(ctypes.c_void_p))
                for i in range(len(self.seqs))]

    def begin(self, new, queries):
        """So many of each sequence."""
        new, queries = ((ctypes.c_int64 * len(self.seqs))(*[n] * len(self.seqs))
                        for n in (new, queries))
        batch = Batch(n_seqs=len(self.seqs), seqs=ctypes.addressof(self.seqs),
                      n_new=ctypes.addressof(new), n_query=ctypes.addressof(queries),
                      stream=self.stream)
        self.call("hr_step_begin", self.step, ctypes.byref(batch))

    def append(self, layer, k, v):
        arguments = Append(dtype=BF16, k=k.data_ptr(), v=v.data_ptr())
        self.call("hr_step_append", self.step, layer, ctypes.byref(arguments))

    def commit(self):
        self.call("hr_step_commit", self.step, None)

    def attend(self, layer, q, out, lse):
        """What enqueues it."""
        arguments = Attend(mask=0 if self.cell.causal else 1, q_dtype=BF16, out_dtype=BF16,
                           q=q.data_ptr(), out=out.data_ptr(), lse=lse.data_ptr())
        arguments.owners = q, out, lse

        def run():
            self.call("hr_step_attend", self.step, layer, ctypes.byref(arguments))
            return out
        return run

    def close(self):
        self.call("hr_step_destroy", ctypes.byref(self.step))  # aborts it
        for seq in self.each():
            self.call("hr_seq_destroy", seq)
        self.call("hr_cache_destroy", ctypes.byref(self.cache))


def case_name(cell):
    if cell.n > 1:
        return name_of(cell)
    return f"decode d{cell.dim} h{cell.heads}/{cell.kv_heads} k{cell.keys} x{cell.batch}"


def in_turn(runs):
    runs = itertools.cycle(runs)
    return lambda: next(runs)()


def sweeps(pool):
    """Two that read the pool; the faster one counts."""
    words, out = pool.view(torch.int32).flatten(), torch.empty(4, device="cuda")
    grid = 8 * torch.cuda.get_device_properties(0).multi_processor_count
    yield f"{SWEEP} sum", lambda: words.view(torch.float32).sum()
    try:
        kernel = torch.cuda._compile_kernel(READ, "read")
    except Exception as error:  # whatever the compiler says
        print(f"  {SWEEP} left out: {str(error)[:200]}", flush=True)
        return
    yield SWEEP, lambda: kernel((grid, 1, 1), (256, 1, 1), [words, words.numel() // 4, out])


class Bench:
    def __init__(self, args, stream):
        self.args, self.stream = args, stream
        self.monitor, self.report, self.broken = Monitor(), Report(), set()

    def filled(self, cell, sets):
        """A layer for each of the inputs, in an open step that attends."""
        cache = Cache(self.context, cell, len(sets), self.stream)
        cache.begin(cell.keys, 0)
        for layer, inputs in enumerate(sets):
            cache.append(layer, *inputs.contiguous())
        cache.commit()
        cache.begin(0, cell.n)
        return cache

    def attend(self, goal, cell, peers):
        """peers: of a set of inputs, pairs of name and run."""
        kv_bytes = cell.batch * cell.keys * cell.kv_heads * cell.dim * 4
        sets = [Inputs(cell.heads, cell.kv_heads, cell.dim, [(cell.n, cell.keys)] * cell.batch)
                for _ in range(math.ceil(ROTATED / kv_bytes) if cell.n == 1 else 1)]
        cache = self.filled(cell, sets)
        runs = collections.defaultdict(list)
        for layer, inputs in enumerate(sets):
            out, lse = torch.empty_like(inputs.q), torch.empty(inputs.q.shape[:2], device="cuda")
            mine = ("library", cache.attend(layer, inputs.q, out, lse))
            for name, run in agreeing([mine, *peers(cell, inputs)]):
                runs[name].append(run)
            for name, run in sweeps(inputs.pool) if cell.n == 1 else ():
                runs[name].append(run)
        work, unit = (kv_bytes, "TB/s") if cell.n == 1 else (sets[0].flops(cell.causal), "TFLOP/s")
        self.race(goal, f"cold {case_name(cell)}", work, unit, gpu_race.lanes_of(
            [(name, in_turn(r)) for name, r in runs.items() if len(r) == len(sets)]))
        cache.close()

    def race(self, goal, case, work, unit, lanes):
        figures = gpu_race.cold(lanes, work, self.monitor, self.args.turns)
        self.report.add(goal, case, figures, ["library"], unit, work)

    def theirs(self, *names):
        return lambda cell, inputs: peers_of(cell, inputs, names, self.broken)

    def bare(self, cell, inputs):
        case = case_of(Kernel(self.args.cubin), cell, inputs, lists=False)
        yield "bare kernel", runner(case)

    def append(self, tokens, batch, layers):
        """A step appends once to a layer: a graph of one call for each layer, behind a token."""
        cell = Cell(128, 8, 8, 0, batch, 0, tokens)
        both = torch.randn(2, batch * tokens, 8, 128, device="cuda").bfloat16()
        copies = torch.empty(layers, *both.shape, device="cuda", dtype=both.dtype)
        cache = Cache(self.context, cell, layers, self.stream)

        def append_all():
            for layer in range(layers):
                cache.append(layer, *both)

        def copy_all():
            for copy in copies:
                copy.copy_(both)
        cache.begin(1, 0)
        append_all()
        cache.commit()
        copy_all()
        cache.begin(tokens, 0)
        lanes = [gpu_race.captured("library", append_all, 1, layers),
                 gpu_race.captured("copy", copy_all, 1, layers)]
        self.race("append", f"cold append d128 h8 n{tokens} x{batch}",
                  2 * both.numel() * both.element_size(), "TB/s", lanes)
        cache.close()

    def run(self):
        short = self.args.short
        self.context = Context(self.args.library)
        for cell in DECODE[:2] if short else DECODE:
            self.attend("P5", cell, self.theirs("cudnn", "fa3"))
        for shape in APPEND:
            self.append(*shape)
        if self.args.cubin:
            for cell in PREFILL[:1] if short else PREFILL:
                self.attend("library", cell, self.bare)
        self.context.close()
        self.context = Context(self.args.library, "sm80")
        for cell in PORTABLE[:2] if short else PORTABLE:
            self.attend("portable", cell, self.theirs("fa2"))
        self.context.close()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libheadrace.so")
    parser.add_argument("--cubin", help="prefill_sm90.cubin of the same build")
    parser.add_argument("--short", action="store_true", help="few cells")
    parser.add_argument("--turns", type=int, default=7, help="cold bursts of each")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def main():
    args = arguments()
    need_hopper()
    torch.manual_seed(1)
    stream = torch.cuda.Stream()
    # A step keeps to one stream: the warm-up of gpu_race and its graphs have to be on it too.
    torch.cuda.graph.default_capture_stream = stream
    with torch.cuda.stream(stream):
        bench = Bench(args, stream.cuda_stream)
        bench.run()
    bench.monitor.close()
    if args.json:
        bench.report.write(args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

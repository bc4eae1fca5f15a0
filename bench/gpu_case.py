# SPDX-License-Identifier: Apache-2.0
"""Launches a compiled prefill kernel through the CUDA driver, over paged K/V of its own making.

Inputs holds a ragged batch: queries, and K/V in shuffled pages. A Case is one launch over it; the
Cases of several kernels may share one Inputs. Needs torch.
"""
import ctypes
import struct
import sys

import torch

BLOCK = 128  # tokens of a page
L2_SECTION = 32 << 20  # bytes of K/V whose tiles run together
EVER = 1 << 40
LOG2E = 1.4426950408889634
MAX_THREADS, SHARED_BYTES = 0, 8  # CUfunction_attribute
SHARED_OPTIN = 97  # CUdevice_attribute
SERIALIZATION = 6  # CUlaunchAttributeID: programmatic
# torch's type -> (CUtensorMapDataType, hr_dtype, name)
TYPES = {torch.bfloat16: (9, 1, "bf16"), torch.float16: (6, 2, "fp16"),
         torch.float32: (7, 3, "fp32")}
cuda = ctypes.CDLL("libcuda.so.1") if torch.cuda.is_available() else None


class Attend(ctypes.Structure):
    """struct hr_cu_attend of kernels/cuda/params.h."""
    _fields_ = [(n, t) for t, names in (
        (ctypes.c_uint64, "seqs tiles pages lists chunks folds state q out lse sink_logits "
                          "next"),
        (ctypes.c_int64, "q_stride_token q_stride_head out_stride_token out_stride_head "
                         "lse_stride_token lse_stride_head window sinks wave_begin wave_end"),
        (ctypes.c_int32, "n_tiles n_chunks n_folds group tile_tokens causal first last out_type"),
        (ctypes.c_float, "factor softcap")) for n in names.split()]


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute with a number as its value."""
    _fields_ = [("id", ctypes.c_int64), ("value", ctypes.c_int), ("rest", ctypes.c_uint8 * 60)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(LaunchAttribute)), ("count", ctypes.c_uint)]


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{name}: CUDA error {status}")


def need_hopper():
    if cuda is None or torch.cuda.get_device_capability()[0] != 9:
        sys.exit("a GPU of compute capability 9.0 is needed")
    torch.zeros(1, device="cuda")  # makes the context that the driver calls use


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


def load(path, name):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with open(path, "rb") as f:
        call("cuModuleLoadData", ctypes.byref(module), f.read())
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    return function


def attribute(name, which, of):
    value = ctypes.c_int()
    call(name, ctypes.byref(value), which, of)
    return value.value


class Inputs:
    """lens: (queries, keys) of each sequence. Rows past the last key: K NaN, V 0."""

    def __init__(self, heads, kv_heads, dim, lens, dtype=torch.bfloat16, shuffled=True):
        self.heads, self.kv_heads, self.dim, self.lens, self.dtype = (
            heads, kv_heads, dim, lens, dtype)
        self.group = heads // kv_heads
        self.blocks_of = [(keys + BLOCK - 1) // BLOCK for _, keys in lens]
        self.rows = max(1, sum(n for n, _ in lens))
        self.q = torch.randn(self.rows, heads, dim, device="cuda").to(dtype)
        total = max(1, sum(self.blocks_of))
        self.pool = torch.randn(total, kv_heads, 2, BLOCK, dim, device="cuda", dtype=dtype)
        self.number(shuffled)
        self.spoil_tails()
        self.kv_map = tensor_map(
            dtype, self.pool.data_ptr(), [64, BLOCK, dim // 64, 2, total * kv_heads],
            [dim * 2, 128, BLOCK * dim * 2, 2 * BLOCK * dim * 2], [64, BLOCK, dim // 64, 1, 1])

    def number(self, shuffled):
        total = len(self.pool)
        self.blocks = (torch.randperm if shuffled else torch.arange)(total, device="cuda")
        self.pages = (self.blocks * self.kv_heads).to(torch.int32)

    def spoil_tails(self):
        last = 0
        for (_, keys), n in zip(self.lens, self.blocks_of):
            last += n
            if keys % BLOCK:
                block = int(self.blocks[last - 1])
                self.pool[block, :, 0, keys % BLOCK:] = float("nan")
                self.pool[block, :, 1, keys % BLOCK:] = 0

    def each(self):
        """(first row, queries, keys, its blocks in order) of each sequence."""
        row, block = 0, 0
        for (queries, keys), n in zip(self.lens, self.blocks_of):
            yield row, queries, keys, self.blocks[block:block + n]
            row, block = row + queries, block + n

    def contiguous(self):
        """K and V without pages: [keys of all sequences][kv_heads][dim]."""
        sides = ([], [])
        for _, _, keys, blocks in self.each():
            for side, parts in enumerate(sides):
                rows = self.pool[blocks, :, side].permute(0, 2, 1, 3)
                parts.append(rows.reshape(-1, self.kv_heads, self.dim)[:keys])
        return [torch.cat(parts) for parts in sides]

    def flops(self, causal):
        def pairs(n, keys):
            if not causal:
                return n * keys
            blind = max(0, n - keys)  # rows before the first key
            return (n - blind) * (2 * keys - (n - blind) + 1) // 2
        return 4 * self.dim * self.heads * sum(pairs(n, keys) for n, keys in self.lens)


class Case:
    """One launch over Inputs. threads: by default as many as the kernel was compiled for; shared
    (bytes): by default all a block may have; rows of a tile: by default 64 for each warpgroup
    but the first, which loads. lists: True, every block of the sequence in each tile's list;
    "trimmed", the list begins with the newest block that the tile sees; False, no list."""

    def __init__(self, cubin, heads, kv_heads, dim, lens, dtype=torch.bfloat16, out_dtype=None,
                 causal=True, window=0, sinks=0, softcap=0.0, sink_logits=False, lists=True,
                 threads=0, shared=0, rows=0, inputs=None):
        self.inputs = inputs or Inputs(heads, kv_heads, dim, lens, dtype)
        self.heads, self.kv_heads, self.dim, self.lens, self.dtype = (
            heads, kv_heads, dim, lens, dtype)
        self.causal, self.window, self.sinks, self.softcap = causal, window, sinks, softcap
        self.group, self.scale = heads // kv_heads, dim ** -0.5
        self.kernel = load(cubin, f"hr_prefill_sm90_d{dim}_{TYPES[dtype][2]}")
        self.threads = threads or attribute("cuFuncGetAttribute", MAX_THREADS, self.kernel)
        self.shared = shared or attribute("cuDeviceGetAttribute", SHARED_OPTIN, 0)
        call("cuFuncSetAttribute", self.kernel, SHARED_BYTES, self.shared)
        self.tokens = max(1, (rows or (self.threads - 128) // 2) // self.group)
        self.make_rows(out_dtype or dtype, sink_logits)
        self.make_tiles(lists)

    def make_rows(self, out_dtype, sink_logits):
        rows, q = self.inputs.rows, self.inputs.q
        self.out = torch.empty(rows, self.heads, self.dim, device="cuda", dtype=out_dtype)
        self.lse = torch.empty(rows, self.heads, device="cuda")
        self.sink_logits = torch.randn(self.heads, device="cuda") * 2 if sink_logits else None
        self.q_map = tensor_map(
            self.dtype, q.data_ptr(), [64, self.group, rows, self.dim // 64, self.kv_heads],
            [self.dim * 2, self.heads * self.dim * 2, 128, self.group * self.dim * 2],
            [64, self.group, self.tokens, 1, 1])

    def order(self):
        """(sequence, KV head, first token, tokens, keys seen), as src/plan.c puts tiles: the
        longest sequence first, of it as many heads together as the L2 holds K/V of, in equal
        shares, newest tokens first."""
        order = []
        for i in sorted(range(len(self.lens)), key=lambda i: -self.lens[i][1]):
            queries, keys = self.lens[i]
            fit = max(1, L2_SECTION // max(1, keys * self.dim * 4))
            together = -(-self.kv_heads // -(-self.kv_heads // fit))
            for head in range(0, self.kv_heads, together):
                for first in reversed(range(0, queries, self.tokens)):
                    tokens = min(self.tokens, queries - first)
                    seen = min(keys - queries + first + tokens, keys) if self.causal else keys
                    order += [(i, h, first, tokens, seen)
                              for h in range(head, min(head + together, self.kv_heads))]
        return order

    def make_tiles(self, lists):
        seqs, row, block = b"", 0, 0
        for (queries, keys), n in zip(self.lens, self.inputs.blocks_of):
            seqs += struct.pack("<6q", keys, queries, row, block, 0, 0)
            row, block = row + queries, block + n
        ids, list_first = [], []
        for n in self.inputs.blocks_of:
            list_first.append(len(ids))
            ids += range(n - 1, -1, -1)
        carry = (self.threads - 128) * (self.dim // 2 + 4)
        order = self.order()
        tiles = b""
        for at, (i, h, first, tokens, seen) in enumerate(order):
            n = self.inputs.blocks_of[i]
            skip = n - (max(0, seen) + BLOCK - 1) // BLOCK if lists == "trimmed" else 0
            tiles += struct.pack("<iiqqiiq", i, h, first, at * carry, tokens,
                                 n - skip if lists else -1, list_first[i] + skip)
        self.tiles = upload(tiles)
        self.n_tiles, self.seqs = len(order), upload(seqs)
        self.lists = torch.tensor(ids or [0], dtype=torch.int32, device="cuda")
        self.state = torch.empty(0)
        self.state_floats = carry * len(order)
        self.counter = torch.zeros(1, dtype=torch.int32, device="cuda")

    def arguments(self, wave_begin=0, wave_end=EVER, first=1, last=1):
        if not (first and last) and self.state.numel() == 0:
            self.state = torch.full((self.state_floats,), float("nan"), device="cuda")
        sink_logits = 0 if self.sink_logits is None else self.sink_logits.data_ptr()
        row = self.heads * self.dim
        return Attend(
            self.seqs.data_ptr(), self.tiles.data_ptr(), self.inputs.pages.data_ptr(),
            self.lists.data_ptr(), 0, 0, self.state.data_ptr(), self.inputs.q.data_ptr(),
            self.out.data_ptr(), self.lse.data_ptr(), sink_logits, self.counter.data_ptr(),
            row, self.dim, row, self.dim, self.heads, 1, self.window, self.sinks,
            wave_begin, wave_end, self.n_tiles, 0, 0, self.group, self.tokens, self.causal, first,
            last, TYPES[self.out.dtype][1], (self.softcap or self.scale) * LOG2E,
            self.scale / self.softcap if self.softcap else 0.0)

    def waves(self, wave=0):
        """The arguments of each launch, in waves of so many blocks (0: one wave)."""
        n = max(max(self.inputs.blocks_of), 1)
        wave = wave or n
        return [self.arguments(at, EVER if at + wave >= n else at + wave, at == 0, at + wave >= n)
                for at in range(0, n, wave)]

    def launch(self, arguments):
        """As kernels/cuda/launch.c does: the kernel may begin before the one in front is over."""
        parameters = (ctypes.c_void_p * 3)(ctypes.addressof(arguments), self.q_map,
                                           self.inputs.kv_map)
        grid = min(torch.cuda.get_device_properties(0).multi_processor_count, self.n_tiles)
        early = LaunchAttribute(SERIALIZATION, 1)
        config = LaunchConfig((grid, 1, 1), (self.threads, 1, 1), self.shared,
                              torch.cuda.current_stream().cuda_stream, ctypes.pointer(early), 1)
        call("cuLaunchKernelEx", ctypes.byref(config), self.kernel, parameters, None)

    def run(self, wave=0):
        """Attends in waves of so many blocks (0: one wave); the bits of out and lse."""
        self.out.fill_(3)
        self.lse.fill_(3)
        for arguments in self.waves(wave):
            self.launch(arguments)
        torch.cuda.synchronize()
        return (self.out.view(torch.uint8).clone(), self.lse.view(torch.uint8).clone())

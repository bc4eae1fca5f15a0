#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the golden table of tests/unit/test_quant.c from the `gguf` Python package (pip: gguf)."""
import numpy as np
import gguf

# Type, and where in a block fp16 factors lie (their exponent is kept small: no inf, no NaN).
TYPES = {"F32": [], "F16": [0], "BF16": [], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2],
         "Q4_K": [0, 2], "Q6_K": [208]}
BLOCKS = 64
MASK = (1 << 64) - 1


def stream(n):
    """splitmix64, one byte of each number."""
    state, out = 0, bytearray()
    for _ in range(n):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        out.append((z ^ z >> 31) & 255)
    return out


def hash_of(values):
    total = 0xCBF29CE484222325
    for byte in values.astype("<f4").tobytes():
        total = (total ^ byte) * 0x100000001B3 & MASK
    return total


for name, factors in TYPES.items():
    kind = gguf.GGMLQuantizationType[name]
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = stream(BLOCKS * block_bytes)
    for start in range(0, len(raw), block_bytes):
        for at in factors:
            raw[start + at + 1] &= 0xBF
        if name in ("F32", "BF16"):
            raw[start + block_bytes - 1] &= 0xBF
    array = np.frombuffer(bytes(raw), np.uint8)
    if name in ("F32", "F16"):
        values = array.view("<f4" if name == "F32" else "<f2").astype(np.float32)
    else:
        values = gguf.quants.dequantize(array, kind)
    bits = values.astype("<f4").view("<u4").ravel()
    print(f"    {{QUANT_{name}, {{{', '.join(f'0x{b:08x}' for b in bits[:3])}}}, "
          f"UINT64_C(0x{hash_of(values):016x})}},")

halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
print("all halves but NaN:", hex(hash_of(halves[~np.isnan(halves)])))

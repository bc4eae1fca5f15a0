#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny but whole Llama-family GGUF with random weights, the same for the same arguments.

    tiny_gguf.py OUT.gguf [--type F32|F16|BF16|Q8_0|Q4_0|Q4_1|Q4_K|Q6_K|mixed] [--small|--wide]
                 [--pre NAME] [--add-bos] [--seed N] [--set KEY=TYPE:VALUE]... [--unset KEY]...
                 [--extra-tensor NAME]... [--drop-tensor NAME]... [--version 2|3]

2 layers, 6 query and 2 KV heads of 16 (32 for the K types), context 512, tied embeddings, a
byte-level vocabulary with a few merges and the ChatML tokens. --small leaves the tensors of the
model out but for one of each type: about 10 KB, for tests that damage it byte by byte. --wide: 3
layers, 8 query and 8 KV heads of 64, whose K/V take much room.
"""
import argparse
import random
import struct
import sys

TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
         "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2)}
VALUE_TYPES = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"),
               "u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<B"),
               "str": (8, None), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}
ALIGNMENT = 32
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "i n", "r e", "o n", "Ġ a", "Ġt he", "e r", "a t", "Ġ s", "o r", "e n",
          "Ġ o", "Ġ w", "i s", "i t", "Ġ c", "e s", "a n", "in g", "Ġ p", "Ġo f", "e d", "a l",
          "Ċ Ċ", "Ġ Ġ", "ĠĠ ĠĠ", "Ġa n", "Ġan d", "Ġt o", "Ð °", "Ã ©"]
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
          "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|im_start|>assistant\n' }}{% endif %}")


def units():
    """The character that stands for each byte in a byte-level vocabulary."""
    own = [b for b in range(256) if 0x21 <= b <= 0x7E or (0xA1 <= b <= 0xFF and b != 0xAD)]
    shifted = [b for b in range(256) if b not in own]
    table = {b: chr(b) for b in own}
    table.update({b: chr(256 + i) for i, b in enumerate(shifted)})
    return [table[b] for b in range(256)]


def vocabulary():
    tokens = CONTROLS + units() + [m.replace(" ", "", 1) for m in MERGES]
    types = [3] * len(CONTROLS) + [1] * (len(tokens) - len(CONTROLS))
    return tokens, types


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind, value):
    number, form = VALUE_TYPES[kind]
    body = text(str(value)) if form is None else struct.pack(form, value)
    return struct.pack("<I", number) + body


def array(kind, values):
    number, form = VALUE_TYPES[kind]
    body = b"".join(text(v) if form is None else struct.pack(form, v) for v in values)
    return struct.pack("<IIQ", 9, number, len(values)) + body


def parse_value(spec):
    kind, _, value = spec.partition(":")
    if kind == "str":
        return scalar("str", value)
    return scalar(kind, float(value) if kind[0] == "f" else int(value))


def keys(shape, options):
    tokens, types = vocabulary()
    table = {
        "general.architecture": scalar("str", "llama"),
        "general.name": scalar("str", "tiny"),
        "llama.block_count": scalar("u32", shape["layers"]),
        "llama.context_length": scalar("u32", 512),
        "llama.embedding_length": scalar("u32", shape["embed"]),
        "llama.feed_forward_length": scalar("u32", shape["hidden"]),
        "llama.attention.head_count": scalar("u32", shape["heads"]),
        "llama.attention.head_count_kv": scalar("u32", shape["kv_heads"]),
        "llama.attention.layer_norm_rms_epsilon": scalar("f32", 1e-5),
        "llama.rope.freq_base": scalar("f32", 10000.0),
        "llama.rope.dimension_count": scalar("u32", shape["embed"] // shape["heads"]),
        "llama.vocab_size": scalar("u32", len(tokens)),
        "tokenizer.ggml.model": scalar("str", "gpt2"),
        "tokenizer.ggml.pre": scalar("str", options.pre),
        "tokenizer.ggml.tokens": array("str", tokens),
        "tokenizer.ggml.token_type": array("i32", types),
        "tokenizer.ggml.merges": array("str", MERGES),
        "tokenizer.ggml.bos_token_id": scalar("u32", 1),
        "tokenizer.ggml.eos_token_id": scalar("u32", 2),
        "tokenizer.ggml.add_bos_token": scalar("bool", int(options.add_bos)),
        "tokenizer.chat_template": scalar("str", CHATML),
    }
    for key in options.unset:
        table.pop(key)
    for assignment in options.set:
        key, _, spec = assignment.partition("=")
        table[key] = parse_value(spec)
    return table


def small_half(rng, limit):
    return struct.pack("<e", rng.uniform(limit / 2, limit))


def block(kind, rng, spread):
    """One block whose numbers are random and about as large as `spread`."""
    if kind in ("F32", "F16"):
        return struct.pack("<f" if kind == "F32" else "<e", rng.uniform(-spread, spread))
    if kind == "BF16":
        return struct.pack("<f", rng.uniform(-spread, spread))[2:]
    if kind == "Q8_0":
        return small_half(rng, spread / 100) + rng.randbytes(32)
    if kind == "Q4_0":
        return small_half(rng, spread / 8) + rng.randbytes(16)
    if kind == "Q4_1":
        return small_half(rng, spread / 8) + struct.pack("<e", -spread) + rng.randbytes(16)
    if kind == "Q4_K":
        return small_half(rng, spread / 500) + small_half(rng, spread / 60) + rng.randbytes(140)
    return rng.randbytes(208) + small_half(rng, spread / 2000)  # Q6_K


def weights(kind, dims, rng):
    _, values, _ = TYPES[kind]
    count = 1
    for dim in dims:
        count *= dim
    if len(dims) == 1:  # a norm
        return b"".join(struct.pack("<f", 1 + rng.uniform(-0.1, 0.1)) for _ in range(count))
    spread = 1.7 / dims[0] ** 0.5
    return b"".join(block(kind, rng, spread) for _ in range(count // values))


def tensors(shape, options):
    """Name, type and dimensions (the fastest first) of each tensor."""
    embed, hidden = shape["embed"], shape["hidden"]
    kv = embed // shape["heads"] * shape["kv_heads"]
    if options.small:
        return [(f"test.{kind.lower()}", kind, [256]) for kind in TYPES]
    kinds = list(TYPES) if options.type == "mixed" else [options.type]
    result = [("token_embd.weight", "Q8_0" if options.type == "mixed" else options.type,
               [embed, len(vocabulary()[0])]), ("output_norm.weight", "F32", [embed])]
    for layer in range(shape["layers"]):
        matrices = [("attn_q", [embed, embed]), ("attn_k", [embed, kv]), ("attn_v", [embed, kv]),
                    ("attn_output", [embed, embed]), ("ffn_gate", [embed, hidden]),
                    ("ffn_up", [embed, hidden]), ("ffn_down", [hidden, embed])]
        for i, (name, dims) in enumerate(matrices):
            kind = kinds[(layer * len(matrices) + i) % len(kinds)]
            result.append((f"blk.{layer}.{name}.weight", kind, dims))
        result += [(f"blk.{layer}.{name}.weight", "F32", [embed])
                   for name in ("attn_norm", "ffn_norm")]
    result += [(name, "F32", [embed]) for name in options.extra_tensor]
    return [t for t in result if t[0] not in options.drop_tensor]


def build(options):
    needs_256 = options.type in ("Q4_K", "Q6_K", "mixed")
    shape = {"layers": 2, "heads": 8 if needs_256 else 6, "kv_heads": 2,
             "embed": 256 if needs_256 else 96, "hidden": 256 if needs_256 else 160}
    if options.wide:
        shape = {"layers": 3, "heads": 8, "kv_heads": 8, "embed": 512, "hidden": 256}
    rng = random.Random(options.seed)
    infos, data = b"", b""
    described = tensors(shape, options)
    for name, kind, dims in described:
        data += b"\0" * (-len(data) % ALIGNMENT)
        infos += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        infos += struct.pack("<IQ", TYPES[kind][0], len(data))
        data += (weights(kind, dims, rng) if not options.small else
                 b"".join(block(kind, rng, 1.0) for _ in range(dims[0] // TYPES[kind][1])))
    table = keys(shape, options)
    head = b"GGUF" + struct.pack("<IQQ", options.version, len(described), len(table))
    head += b"".join(text(key) + value for key, value in table.items()) + infos
    return head + b"\0" * (-len(head) % ALIGNMENT) + data


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--type", default="F32", choices=list(TYPES) + ["mixed"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--pre", default="smollm")
    parser.add_argument("--add-bos", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--version", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=TYPE:VALUE")
    parser.add_argument("--unset", action="append", default=[], metavar="KEY")
    parser.add_argument("--extra-tensor", action="append", default=[], metavar="NAME")
    parser.add_argument("--drop-tensor", action="append", default=[], metavar="NAME")
    return parser.parse_args(arguments)


def main():
    options = parse_arguments(sys.argv[1:])
    with open(options.out, "wb") as out:
        out.write(build(options))


if __name__ == "__main__":
    main()

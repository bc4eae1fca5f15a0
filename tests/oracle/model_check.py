#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `headrace run` with transformers in fp32 on the same dequantised weights and token ids.

    model_check.py HEADRACE MODEL.gguf DOCUMENT [--tokens 4096] [--threads 2]

Needs numpy, torch, transformers and gguf from PyPI, which the product does not. Checks, and exits
non-zero unless all hold: mean KL divergence of all positions' distributions <= 1e-3, the same
argmax wherever the reference's margin exceeds 0.1, perplexity within 0.2 %, and greedy
continuations of five prompts equal up to the first margin under 0.1.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

MARGIN = 0.1
GREEDY_TOKENS = 32
PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time, in a village",
           "A Debian package must", "The three laws of thermodynamics are:"]
LAYER_PARTS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
               "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
               "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
               "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def config_of(reader):
    def value(key):
        return reader.fields["llama." + key].contents()

    return LlamaConfig(
        vocab_size=value("vocab_size"), hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"), num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        max_position_embeddings=value("context_length"), rope_theta=value("rope.freq_base"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"), tie_word_embeddings=True,
        attention_bias=False, mlp_bias=False)


def unpermute(rows, heads):
    """The file pairs dimensions (2i, 2i + 1) of a head, transformers (i, i + n / 2)."""
    out, inner = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, inner).swapaxes(1, 2).reshape(out, inner)


def reference_of(path):
    reader = gguf.GGUFReader(path)
    config = config_of(reader)
    weights = {}
    for tensor in reader.tensors:
        data = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] == "attn_q":
                data = unpermute(data, config.num_attention_heads)
            if parts[2] == "attn_k":
                data = unpermute(data, config.num_key_value_heads)
            name = f"model.layers.{parts[1]}.{LAYER_PARTS[parts[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight",
                    "output_norm": "model.norm.weight"}[parts[0]]
        weights[name] = torch.from_numpy(np.ascontiguousarray(data))
    model = LlamaForCausalLM(config).to(torch.float32).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def run(args, *more):
    command = [args.headrace, "run", "--model", args.model, "--threads", str(args.threads), *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def check_document(args, model, folder):
    """Row by row, so that no more than a few hundred rows of logits are in memory."""
    paths = [os.path.join(folder, n) for n in ("r.json", "logits", "ids")]
    run(args, "--text", args.document, "--tokens", str(args.tokens), "--json", paths[0],
        "--dump-logits", paths[1], "--dump-tokens", paths[2])
    with open(paths[0], encoding="utf-8") as f:
        result = json.load(f)
    ids = torch.tensor([int(line) for line in open(paths[2], encoding="ascii")])
    ours = np.memmap(paths[1], dtype=np.float32, mode="r").reshape(len(ids), -1)
    kl = nll = nll_ours = 0.0
    kl_max, same, wanted, differ = 0.0, 0, 0, 0
    with torch.no_grad():
        states = model.model(ids[None]).last_hidden_state[0]
        for first in range(0, len(ids), 128):
            last = min(first + 128, len(ids))
            theirs = torch.log_softmax(model.lm_head(states[first:last]).double(), -1)
            own = torch.log_softmax(torch.from_numpy(np.array(ours[first:last])).double(), -1)
            rows = (theirs.exp() * (theirs - own)).sum(-1)
            kl += rows.sum().item()
            kl_max = max(kl_max, rows.max().item())
            top = theirs.topk(2, -1)
            sure = top.values[:, 0] - top.values[:, 1] > MARGIN
            equal = own.argmax(-1) == top.indices[:, 0]
            wanted += sure.sum().item()
            differ += (sure & ~equal).sum().item()
            same += equal.sum().item()
            n = min(last, len(ids) - 1) - first
            pick = torch.arange(n)
            nll -= theirs[pick, ids[first + 1:first + 1 + n]].sum().item()
            nll_ours -= own[pick, ids[first + 1:first + 1 + n]].sum().item()
    n = len(ids)
    perplexity = float(np.exp(nll / (n - 1)))
    off = abs(result["perplexity"] / perplexity - 1)
    print(f"{n} tokens, kernel {result['kernel']}, K/V {result['kv_dtype']}")
    print(f"mean KL                      {kl / n:.2e}   (<= 1e-3; largest {kl_max:.2e})")
    print(f"argmax differs, margin > 0.1 {differ} of {wanted}   (0; same at {same} of all {n})")
    print(f"perplexity                   {result['perplexity']:.5f}, reference {perplexity:.5f}: "
          f"{100 * off:.4f} % off   (<= 0.2 %)")
    own = float(np.exp(nll_ours / (n - 1)))
    print(f"  from the dumped logits     {own:.5f}")
    return (kl / n <= 1e-3 and differ == 0 and off <= 2e-3
            and abs(own / result["perplexity"] - 1) < 1e-5)


def tokens_equal(model, start, tokens):
    """(tokens that are equal, whether the first other one is at a margin under MARGIN)."""
    with torch.no_grad():
        logits = model(torch.tensor([start + tokens])).logits[0, len(start) - 1:-1]
    top = logits.topk(2, -1)
    for i, token in enumerate(tokens):
        if top.indices[i, 0].item() != token:
            return i, (top.values[i, 0] - top.values[i, 1]).item() < MARGIN
    return len(tokens), True


def check_greedy(args, model, folder):
    good = True
    for prompt in PROMPTS:
        paths = [os.path.join(folder, n) for n in ("g.json", "g.ids", "g.txt")]
        with open(paths[2], "w", encoding="utf-8") as f:
            f.write(prompt)
        run(args, "--text", paths[2], "--generate", str(GREEDY_TOKENS), "--json", paths[0],
            "--dump-tokens", paths[1])
        with open(paths[0], encoding="utf-8") as f:
            answer = json.load(f)["answers"][0]
        start = [int(line) for line in open(paths[1], encoding="ascii")]
        equal, fine = tokens_equal(model, start, answer["tokens"])
        fine = fine and (answer["stop"] == "end" or len(answer["tokens"]) == GREEDY_TOKENS)
        good = good and fine
        print(f"greedy: {equal:2} of {len(answer['tokens'])} tokens equal, "
              f"{'good' if fine else 'BAD':4}  {prompt!r}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headrace")
    parser.add_argument("model")
    parser.add_argument("document")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = reference_of(args.model)
    with tempfile.TemporaryDirectory() as folder:
        good = check_document(args, model, folder)
        good = check_greedy(args, model, folder) and good
    print("all hold" if good else "NOT all hold")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every architecture that `headrace run` takes, with random weights, against transformers in fp32.

    arch_check.py HEADRACE

Writes tiny llama, qwen2 (biases of q, k and v) and qwen3 (norms of heads) models with the gguf
package and compares the log-probabilities of all tokens of a text; K/V in fp32, so that 1e-4 is
wide. Needs numpy, torch, transformers and gguf from PyPI, which the product does not.
"""
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers as tf

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tiny_gguf  # noqa: E402

LAYERS, HEADS, KV_HEADS, FFN, CONTEXT, EPSILON, BASE = 2, 6, 2, 160, 512, 1e-5, 10000.0
HEAD = {"llama": 16, "qwen2": 16, "qwen3": 32}  # qwen3's heads need not make up the width
WIDTH = 96
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}
ENDS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight"}
TEXT = "The old mill stands by the river; its wheel turns day and night. " * 5


def reference(arch, vocab):
    kind = {"llama": (tf.LlamaConfig, tf.LlamaForCausalLM),
            "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM),
            "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM)}[arch]
    config = kind[0](vocab_size=vocab, hidden_size=WIDTH, intermediate_size=FFN,
                     num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                     num_key_value_heads=KV_HEADS, head_dim=HEAD[arch], rms_norm_eps=EPSILON,
                     max_position_embeddings=CONTEXT, tie_word_embeddings=False,
                     rope_parameters={"rope_type": "default", "rope_theta": BASE})
    model = kind[1](config).to(torch.float32).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.copy_(torch.rand(p.shape, generator=generator) + ("norm" in name) * 0.5)
            else:
                p.copy_(torch.randn(p.shape, generator=generator) / p.shape[1] ** 0.5)
    return model


def permute(rows, heads):
    """From transformers' pairs (i, i + n / 2) to the file's (2i, 2i + 1)."""
    out, inner = rows.shape
    return rows.reshape(heads, 2, out // heads // 2, inner).swapaxes(1, 2).reshape(out, inner)


def write(path, arch, model):
    tokens, types = tiny_gguf.vocabulary()
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(LAYERS)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD[arch])
    w.add_value_length(HEAD[arch])
    w.add_layer_norm_rms_eps(EPSILON)
    w.add_rope_freq_base(BASE)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(tiny_gguf.MERGES)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    for name, value in model.state_dict().items():
        data = value.numpy()
        parts = name.split(".")
        if name in ENDS:
            w.add_tensor(ENDS[name], data)
            continue
        part = ".".join(parts[3:-1])
        if arch == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            data = permute(data, HEADS if "q_proj" in part else KV_HEADS)
        w.add_tensor(f"blk.{parts[2]}.{NAMES[part]}.{parts[-1]}", np.ascontiguousarray(data))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def check(program, arch, folder):
    paths = [os.path.join(folder, n) for n in (arch, "text", "ids", "logits")]
    model = reference(arch, len(tiny_gguf.vocabulary()[0]))
    write(paths[0], arch, model)
    with open(paths[1], "w", encoding="utf-8") as out:
        out.write(TEXT)
    subprocess.run([program, "run", "--model", paths[0], "--text", paths[1], "--kv-dtype", "fp32",
                    "--dump-tokens", paths[2], "--dump-logits", paths[3]], check=True,
                   stdout=subprocess.DEVNULL)
    with open(paths[2], encoding="ascii") as f:
        ids = [int(line) for line in f]
    ours = torch.from_numpy(np.fromfile(paths[3], np.float32).reshape(len(ids), -1))
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0]
    error = (ours.log_softmax(-1) - theirs.log_softmax(-1)).abs().max().item()
    print(f"{arch}: {len(ids)} tokens, largest difference of a log-probability {error:.1e}")
    return error < 1e-4


def main():
    with tempfile.TemporaryDirectory() as folder:
        good = [check(sys.argv[1], arch, folder) for arch in HEAD]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

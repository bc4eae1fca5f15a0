#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the Hopper prefill kernel against float64, on a GPU machine.

    gpu_prefill.py build/kernels/cuda/prefill_sm90.cubin

Every case has shuffled pages, NaN behind the last key, and is run in waves of 1 and 3 blocks too:
the bits must be the same. Needs torch.
"""
import argparse
import sys

import torch

import gpu_case


def largest(x):
    """A NaN counts as infinite."""
    return x.abs().nan_to_num(nan=torch.inf).max().item()


class Case(gpu_case.Case):
    def reference_of(self, row, queries, keys, blocks):
        """float64 out and lse of one sequence."""
        shape = (queries, self.kv_heads, self.group, self.dim)
        q = self.inputs.q[row:row + queries].double().view(shape)
        pool = self.inputs.pool[blocks].double()
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
        errors, lse_errors = [0.0], [0.0]
        for row, queries, keys, blocks in self.inputs.each():
            if queries and keys:
                o, lse = self.reference_of(row, queries, keys, blocks)
                ours = self.lse[row:row + queries].double()
                blind = lse == -torch.inf
                difference = torch.where(blind & (ours == lse), 0.0, (ours - lse).abs())
                lse_errors.append(largest(difference))
                errors.append(largest(self.out[row:row + queries].double() - o) / largest(o))
        worst, worst_lse = max(errors), max(lse_errors)
        same = all(torch.equal(a, b) for wave in (1, 3) for a, b in zip(bits, self.run(wave)))
        good = worst < 1e-2 and worst_lse < 2e-5 and same
        print(f"{'ok ' if good else 'BAD'} {name}: out {worst:.1e} of the largest, lse "
              f"{worst_lse:.1e}, waves {'the same' if same else 'DIFFER'}", flush=True)
        return good


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


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cubin")
    args = parser.parse_args()
    gpu_case.need_hopper()
    torch.manual_seed(1)
    return 0 if check_all(args.cubin) else 1


if __name__ == "__main__":
    sys.exit(main())

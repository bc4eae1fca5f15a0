#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the prefill kernel on a Hopper GPU, then measures it beside its peers, cold and sustained,
# what its rules cost, and ragged batches. Stops at the first wrong output.
#
# usage: bench/gpu.sh [CUBIN [JSON]]   CELLS=p1: every cell of goal P1, some 8 minutes
#                                      (short: four cells; medium, the default: some 4 minutes)
#
# Needs torch. Peers: cuDNN comes with torch; FlashAttention-3 (fa3-fwd) and FlashInfer
# (flashinfer-python) take part when Python can import them. HEADRACE_COMMIT goes into the JSON.
set -eu

cubin=${1:-build/kernels/cuda/prefill_sm90.cubin}
json=${2:-bench/results/h200.json}
bench=$(dirname "$0")

python3 "$bench/gpu_prefill.py" "$cubin"
python3 "$bench/peers.py" "$cubin" --cells "${CELLS:-medium}" --sustained --rules --ragged \
    --json "$json"

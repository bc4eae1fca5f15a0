#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The CUDA part on a GPU machine, from a build folder.
#
# usage: bench/gpu.sh smoke|check|bench [BUILD [JSON]]
#   smoke  device, engine and kernels on few shapes, under a minute
#   check  the same on all shapes of headrace-check (SHAPES=2000), minutes
#   bench  smoke, then the Hopper prefill kernel beside its peers: cold, sustained, what its rules
#          cost, ragged batches. CELLS=p1: every cell of goal P1, some 8 minutes (short: four
#          cells; medium, the default: some 4 minutes)
#
# Stops at the first thing that is wrong. bench needs torch; cuDNN comes with it, FlashAttention-3
# (fa3-fwd) and FlashInfer (flashinfer-python) take part when Python can import them.
# HEADRACE_COMMIT goes into the JSON.
set -eu

what=${1:-smoke}
build=${2:-build}
json=${3:-bench/results/h200.json}
bench=$(dirname "$0")

case $what in
smoke | bench) shapes=${SHAPES:-60} ;;
check) shapes=${SHAPES:-2000} ;;
*) sed -n '3,14p' "$0"; exit 2 ;;
esac

"$build/tests/unit/test-cuda-gpu"
"$build/tests/engine/test-cuda"
"$build/tests/check/headrace-check" --caps sm80 --seed 1 --shapes "$shapes"
"$build/tests/check/headrace-check" --caps sm90 --seed 1 --shapes "$shapes"
[ "$what" = bench ] || exit 0
python3 "$bench/gpu_prefill.py" "$build/kernels/cuda/prefill_sm90.cubin"
python3 "$bench/peers.py" "$build/kernels/cuda/prefill_sm90.cubin" --cells "${CELLS:-medium}" \
    --sustained --rules --ragged --json "$json"

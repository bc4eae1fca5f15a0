#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The CUDA part on a GPU machine, after `make build`.
#
# usage: bench/gpu.sh smoke|check|sanitize|bench [BUILD [JSON]]
#   smoke  device, engine and kernels on few shapes, under a minute
#   check  the same on all shapes of headrace-check (SHAPES=2000), minutes
#   sanitize  compute-sanitizer over few shapes: memcheck, initcheck and synccheck of all kernels,
#          racecheck of those that use no copy engine; TOOLS="memcheck" and the like: only those
#   bench  smoke, then the Hopper prefill kernel beside its peers: cold, sustained, what its rules
#          cost, ragged batches; decode, the portable kernels, append and prefill through the
#          library beside theirs; gather. All into one JSON. CELLS=p1: every cell of goal P1,
#          some 8 minutes for them (short: four cells, and few of the library's; medium, the
#          default: some 4 minutes)
#
# Stops at the first thing that is wrong. bench needs torch; cuDNN comes with it, FlashAttention-3
# (fa3-fwd) and FlashInfer (flashinfer-python) take part when Python can import them.
# HEADRACE_COMMIT goes into the JSON. Exit status 77: there is no GPU.
set -eu

what=${1:-smoke}
bench=$(cd "$(dirname "$0")" && pwd)
build=${2:-${bench%/*}/build}
json=${3:-$build/gpu.json}

# One tool over one program, which may not find anything.
sanitize() {
    tool=$1
    shift
    echo "$tool: $*"
    compute-sanitizer --tool "$tool" --error-exitcode 1 --print-limit 5 "$@"
}

sanitize_all() {
    for tool in ${TOOLS:-memcheck initcheck synccheck racecheck}; do
        levels="sm80 sm90" shapes=20
        # does not know what the copy engine writes, and takes its time
        [ "$tool" != racecheck ] || { levels=sm80 shapes=4; }
        for level in $levels; do
            sanitize "$tool" "$build/tests/check/headrace-check" --caps "$level" --seed 1 \
                --test "[!om]*" --shapes "${SHAPES:-$shapes}" --threads 4
        done
        [ "$tool" = racecheck ] || levels=
        sanitize "$tool" "$build/tests/unit/test-cuda-gpu" --alive $levels
    done
}

case $what in
sanitize) sanitize_all; exit ;;
smoke | bench) shapes=${SHAPES:-60} ;;
check) shapes=${SHAPES:-2000} ;;
*) sed -n '3,18p' "$0"; exit 2 ;;
esac

"$build/tests/unit/test-cuda-gpu"
"$build/tests/engine/test-cuda"
"$build/tests/check/headrace-check" --caps sm80 --seed 1 --shapes "$shapes"
case $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1) in
9.0) "$build/tests/check/headrace-check" --caps sm90 --seed 1 --shapes "$shapes" ;;
*) echo "skipped sm90: the GPU is no Hopper" ;;
esac
[ "$what" = bench ] || exit 0

parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
cubin=$build/kernels/cuda/prefill_sm90.cubin
library=$build/src/libheadrace.so
short=
[ "${CELLS:-}" != short ] || short=--short
python3 "$bench/gpu_prefill.py" "$cubin"
python3 "$bench/peers.py" "$cubin" --cells "${CELLS:-medium}" --sustained --rules --ragged \
    --json "$parts/1.json"
if [ -e "$library" ]; then
    python3 "$bench/gpu_library.py" "$library" --cubin "$cubin" $short --json "$parts/2.json"
else
    echo "no figures of the library: there is no $library (-Ddefault_library=both makes one)"
fi
"$build/tests/unit/test-cuda-gpu" --bench >"$parts/3.json"
cat "$parts/3.json"
python3 "$bench/gpu_report.py" "$json" "$parts"/*.json

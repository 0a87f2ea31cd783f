#!/usr/bin/env bash
# All that one GPU can say, in nine minutes at most: orders, allocator, prices, plug-in and kernels, with the Python and
# the torch that are here (2.11 or later), without a network. Writes gpu_day.json and gpu_day.txt.
#
#   scripts/gpu_day.sh                              on a GPU
#   scripts/gpu_day.sh --device cpu --out dry.json  a dry run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHONPATH=".${PYTHONPATH:+:$PYTHONPATH}" exec timeout 570 "${PYTHON:-python3}" -m llama_repro.gpu.day "$@"

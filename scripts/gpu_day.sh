#!/usr/bin/env bash
# Step and memory of a Llama's backward graph in its own order and in ours, on one GPU, beside those predicted; with the
# Python and the torch that are here (2.11 or later), without a network. Writes gpu_day.json.
#
#   scripts/gpu_day.sh                              on a GPU
#   scripts/gpu_day.sh --device cpu --out dry.json  a dry run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHONPATH=".${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m llama_repro.gpu.day "$@"

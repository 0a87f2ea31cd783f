#!/usr/bin/env bash
# Train the same model three times, its graphs ordered by nobody, by overlap_sched and by torch's own pass; one table.
# Usage: compare_training.sh [RANKS (default 2)] [arguments of scripts/train.py, such as --model small --sharding 2d]
set -euo pipefail
# shellcheck source=scripts/setup_env.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
exec "$python" -m llama_repro.training.compare "$@"

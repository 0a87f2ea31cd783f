#!/usr/bin/env bash
# Reproduce the Llama memory regression, the fix, the bound, and pictures of both. Arguments go to `python -m llama_repro`.
set -euo pipefail
# shellcheck source=scripts/setup_env.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
exec "$python" -m llama_repro "$@"

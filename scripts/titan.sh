#!/usr/bin/env bash
# Train torchtitan's debug models with its GraphTrainer on CPU ranks, with overlap_sched and without; one table.
# --pipelines: instead, its pipeline parallelism GraphPP.
# --slow-network GB/S [--record OUT.json]: instead, steps of the debug Llama over an emulated link, timed.
# Uses the active environment if it has torchtitan, else .venv-torch-2.15.0, which it makes (some minutes, 6 GB).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
python="${VIRTUAL_ENV:-$root/.venv-torch-2.15.0}/bin/python"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
has_titan() { "$1" -c 'import importlib.metadata as m; m.version("torchtitan"), m.version("spmd_types")' 2>/dev/null; }

if ! has_titan "$python"; then
    python="$root/.venv-torch-2.15.0/bin/python"
    if ! has_titan "$python"; then
        printf '[setup] installing torch 2.15.0 and torchtitan 0.3.0 into .venv-torch-2.15.0\n' >&2
        [ -x "$python" ] || "${PYTHON:-python3}" -m venv "$root/.venv-torch-2.15.0"
        "$python" -m pip install -q torch==2.15.0 torchtitan==0.3.0 numpy sortedcontainers rich >&2
    fi
fi
cd "$root"
export PYTHONPATH="$root" OMP_NUM_THREADS=1
exec "$python" -W ignore -m tests.support.titan.compare "$@"

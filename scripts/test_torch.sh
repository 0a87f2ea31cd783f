#!/usr/bin/env bash
# Run all tests that touch torch on one version of it: test_torch.sh VERSION [arguments of pytest]
# Makes an environment of its own, .venv-torch-VERSION; a version with CUDA libraries takes some minutes and 6 GB.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
version="${1:?which version of torch? Usage: test_torch.sh VERSION [arguments of pytest]}"
shift
python="$root/.venv-torch-$version/bin/python"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

if [ "$("$python" -c 'import torch; print(torch.__version__.split("+")[0])' 2>/dev/null)" != "$version" ]; then
    printf '[setup] installing torch %s into .venv-torch-%s\n' "$version" "$version" >&2
    rm -rf "$root/.venv-torch-$version"
    "${PYTHON:-python3}" -m venv "$root/.venv-torch-$version"
    "$python" -m pip install -q "torch==$version" >&2
    "$python" -m pip install -q numpy sortedcontainers rich matplotlib hypothesis jsonschema ortools pytest pytest-xdist >&2
fi
cd "$root"
export PYTHONPATH="$root"
exec "$python" -m pytest -n 2 tests/fx tests/dump tests/inductor tests/distributed "$@"

#!/usr/bin/env bash
# Run all tests that touch torch on one version of it: test_torch.sh VERSION [arguments of pytest]
# Makes an environment of its own, .venv-torch-VERSION; a version with CUDA libraries takes some minutes and 6 GB.
# tests/titan too, where torch is 2.15: torchtitan 0.3.0 wants that one. Without torchtitan they are skipped.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=scripts/find_python.sh
source "$root/scripts/find_python.sh"
version="${1:?which version of torch? Usage: test_torch.sh VERSION [arguments of pytest]}"
shift
name=".venv-torch-$version"
python="$root/$name/bin/python"
titan=(torchtitan==0.3.0 spmd_types)
needs="numpy, sortedcontainers, rich, matplotlib, hypothesis, jsonschema, ortools, pytest, xdist" # as modules
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
cd "$root"

has_torch() { [ "$("$python" -c 'import torch; print(torch.__version__.split("+")[0])' 2>/dev/null)" = "$version" ]; }
has() { "$python" -c "import $1" >/dev/null 2>&1; }

make_environment() {
    local base
    base="$(pythons_311)"
    base="${base%%$'\n'*}"
    [ -n "$base" ] || fail_without_python
    say "making a virtual environment in $name with $base"
    rm -rf "${root:?}/$name"
    "$base" -m venv "$root/$name" >&2 || {
        rm -rf "${root:?}/$name"
        fail "$base -m venv" "install its venv module (Debian and Ubuntu: apt install python3-venv) and run this again."
    }
    say "installing torch $version (some minutes, up to 6 GB)"
    "$python" -m pip install -q "torch==$version" >&2 || {
        rm -rf "${root:?}/$name" # so that half an installation does not stay on a full disk
        fail "pip install torch==$version" \
            "see pip's message above. Is there a network, is there such a version, are 8 GB of disk free?"
    }
}

has_torch || make_environment
if ! has "$needs"; then
    say "installing overlap_sched and what its tests need"
    "$python" -m pip install -q -e ".[plot,test]" >&2 || fail "pip install -e .[plot,test]" "see pip's message above."
fi
tests=(tests/fx tests/dump tests/inductor tests/distributed tests/test_programs.py tests/sharding)
if [ -d tests/titan ]; then
    tests+=(tests/titan)
    if [[ "$version" == 2.15.* ]] && ! has "torchtitan, spmd_types"; then
        say "installing ${titan[*]}"
        "$python" -m pip install -q "${titan[@]}" "torch==$version" >&2 ||
            say "WITHOUT tests/titan: pip install ${titan[*]} failed, see its message above"
    fi
fi
say "torch $version: ${tests[*]}"
export PYTHONPATH="$root"
exec "$python" -m pytest -n 2 --dist worksteal "${tests[@]}" "$@"

# shellcheck shell=bash
# Sourced by the other scripts: makes sure of a Python environment with torch and this package in it.
#
# Sets `root` (the repository), `python` (the environment's interpreter) and PYTHONPATH (the repository first:
# llama_repro and the tests are not part of the package). Which environment:
#   1. the active virtual environment, where it holds a torch of the supported range already;
#   2. else .venv in the repository, made with the first Python >= 3.11 found. Where that Python has a suitable torch
#      of its own (an image that ships with one, say), .venv sees it; else torch is installed, pinned, before
#      anything that depends on it.
# A stamp in the environment says what was installed: the second run takes no time.

torch_pin="torch==2.13.0"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

# shellcheck source=scripts/find_python.sh
source "$root/scripts/find_python.sh"

# The torch version that an interpreter sees if it is of the supported range, 2.11 to 2.15; fails otherwise.
suitable_torch() {
    "$1" - 2>/dev/null <<'PYTHON'
import re, sys
from importlib.metadata import version

found = version("torch")
major, minor = map(int, re.match(r"(\d+)\.(\d+)", found).groups())
if not (2, 11) <= (major, minor) < (2, 16):
    sys.exit(1)
print(found)
PYTHON
}

# The first Python that is new enough; one that has a suitable torch goes before all others.
find_python() {
    local candidate first=""
    while read -r candidate; do
        if suitable_torch "$candidate" >/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
        [ -n "$first" ] || first="$candidate"
    done < <(pythons_311)
    [ -n "$first" ] || fail_without_python
    printf '%s\n' "$first"
}

make_venv() {
    local base options=()
    base="$(find_python)" || exit 1
    if suitable_torch "$base" >/dev/null; then
        options=(--system-site-packages)
    fi
    if [ -e "$root/.venv" ]; then
        [ -e "$root/.venv/pyvenv.cfg" ] ||
            fail "$root/.venv exists but is not a virtual environment." "move it away and run this again."
        say "replacing .venv, which does not run or is older than Python 3.11"
        rm -rf "$root/.venv"
    fi
    say "making a virtual environment in .venv with $base"
    "$base" -m venv ${options[@]+"${options[@]}"} "$root/.venv" >&2 || {
        rm -rf "$root/.venv"
        fail "$base -m venv" "install its venv module (Debian and Ubuntu: apt install python3-venv) and run this again."
    }
}

# What the environment was made from; changes when any of it does.
fingerprint() {
    (cd "$root" && cat setup.cfg setup.py pyproject.toml scripts/setup_env.sh) | cksum
    printf '%s\n' "$root" "$("$python" --version)" "torch $(suitable_torch "$python")"
}

install() {
    local pip=("$python" -m pip install -q)
    "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1 ||
        fail "$python has no pip." "install pip into that environment, or remove or deactivate it, and run this again."
    if suitable_torch "$python" >/dev/null; then
        say "keeping torch $(suitable_torch "$python")"
    else
        say "installing $torch_pin (some minutes, a few hundred MB)"
        "${pip[@]}" "$torch_pin" >&2 ||
            fail "pip install $torch_pin" \
                "see pip's message above. Is there a network, and does pip find its index (pip config list)?" \
                "or activate a virtual environment that has torch 2.11 to 2.15 and run this again: it is used as it is."
    fi
    say "installing overlap_sched with its extras"
    (cd "$root" && "${pip[@]}" -e ".[torch,plot,test]") >&2 ||
        fail "pip install -e .[torch,plot,test]" \
            "see pip's message above. Is there a network? If the environment is broken, remove $root/.venv and run this again."
}

if [ -n "${VIRTUAL_ENV:-}" ] && runs_311 "$VIRTUAL_ENV/bin/python" && suitable_torch "$VIRTUAL_ENV/bin/python" >/dev/null; then
    python="$VIRTUAL_ENV/bin/python"
else
    python="$root/.venv/bin/python"
    runs_311 "$python" || make_venv
fi

stamp="$("$python" -c 'import sys; print(sys.prefix)')/overlap_sched.stamp"
if [ "$(cat "$stamp" 2>/dev/null)" != "$(fingerprint)" ]; then
    install
    fingerprint >"$stamp"
fi
say "using $python, torch $(suitable_torch "$python")"

# shellcheck shell=bash
# Sourced by the scripts that set up environments: words for the user, and which interpreters are new enough.

say() { printf '[setup] %s\n' "$*" >&2; }

fail() { # what went wrong, then what to do
    printf '\n[setup] FAILED: %s\n' "$1" >&2
    shift
    printf '[setup] What to do: %s\n' "$@" >&2
    exit 1
}

# Is this interpreter new enough? (A pyenv shim may be on the PATH and yet not run.)
runs_311() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# All interpreters on the PATH that are, one a line.
pythons_311() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do
        runs_311 "$candidate" && command -v "$candidate"
    done
    return 0
}

fail_without_python() {
    fail "no Python 3.11 or newer among python3.11 to python3.14, python3 and python on the PATH." \
        "install one (Debian and Ubuntu: apt install python3.11 python3.11-venv; or pyenv, conda, uv) and run this again."
}

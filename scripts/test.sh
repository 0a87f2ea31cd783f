#!/usr/bin/env bash
# Style, types, then all tests. Arguments go to pytest: ./scripts/test.sh -m "not slow" tests/report
set -euo pipefail
# shellcheck source=scripts/setup_env.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
cd "$root"

style=0
check() { # run a tool; note a failure and go on, so that one run shows everything
    printf '[test] %s\n' "$*" >&2
    "$python" -m "$@" >&2 || { style=1; printf '[test] FAILED: %s\n' "$*" >&2; }
}
check ruff check .
check ruff format --check .
check mypy

printf '[test] pytest\n' >&2
tests=0
"$python" -m pytest -n 2 --dist worksteal "$@" || tests=$?
if [ "$tests" -eq 0 ] && [ "$style" -ne 0 ]; then
    printf '[test] FAILED: the tests pass, but a check above does not. ruff repairs much by itself:\n' >&2
    printf '[test] What to do: %s -m ruff check --fix . && %s -m ruff format .\n' "$python" "$python" >&2
    exit 1
fi
exit "$tests"

#!/usr/bin/env bash
# Build the documents and the API reference into build/docs; warnings are errors. Arguments go to sphinx-build.
set -euo pipefail
# shellcheck source=scripts/setup_env.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
cd "$root"

"$python" -c 'import furo, myst_parser, sphinx' 2>/dev/null || {
    say "installing Sphinx and its theme"
    "$python" -m pip install -q -e ".[docs]" >&2 ||
        fail "pip install -e .[docs]" "see pip's message above. Is there a network, and does pip find its index (pip config list)?"
}
rm -rf docs/api # one page per module, made anew: none stays of a module that is gone
"$python" -m sphinx -W --keep-going -q -b html "$@" docs build/docs
printf 'build/docs/index.html\n'

"""Settings of Sphinx for these documents and the API reference; ``scripts/docs.sh`` builds both."""

import re
from typing import Any

from overlap_sched import __version__

project = "overlap_sched"
author = "The overlap_sched contributors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.apidoc", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
suppress_warnings = ["ref.python"]  # `Node` and `Group` are short names that several modules have

html_theme = "furo"
html_title = f"{project} {release}"
myst_heading_anchors = 3  # as GitHub names them

# One page per module, made from its docstrings: a module that is renamed takes its page along.
apidoc_modules = [{"path": "../overlap_sched", "destination": "api", "separate_modules": True, "module_first": True}]
autodoc_default_options = {"ignore-module-all": True}  # a name is documented where it is defined, once
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torchtitan"]  # wants another torch than the one that these documents are built with
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # fields under "Attributes:" belong to their class


def drawings_as_blocks(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Let an indented drawing or example be a block of its own: docstrings here leave the ``::`` out."""
    shown: list[str] = []
    before = ""  # the last line with text
    for k, line in enumerate(lines):
        starts = line.startswith("    ") and k > 0 and not lines[k - 1].strip() and not before.startswith(" ")
        if starts and before and not before.endswith("::") and not before.startswith(("-", "..")):
            shown += ["::", ""]
        shown.append(line)
        before = line if line.strip() else before
    lines[:] = shown


def files_outside(_app: Any, _name: str, source: list[str]) -> None:
    """Let a link to a document outside of this folder lead to the file: it has no page here."""
    source[0] = re.sub(r"\]\((\.\./[^)#]*\.md)(?:#[^)]*)?\)", r"](path:\1)", source[0])


def setup(app: Any) -> None:
    """Sphinx calls this; drawings are found before napoleon reads the docstring."""
    app.connect("source-read", files_outside)
    app.connect("autodoc-process-docstring", drawings_as_blocks, priority=400)

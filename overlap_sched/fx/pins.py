"""What a model's code says of its nodes: the module of each, and pins (:mod:`overlap_sched.problem.pins`).

::

    with overlap_sched.pinned("in flight 64MiB"):        what runs in here, forward and backward
        full = gather(self.weight)
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx.traceback import annotate

from overlap_sched.problem.pins import read_mark

MARK = "overlap_sched: "
"""How keys of ``node.meta["custom"]`` begin that are pins: ``"overlap_sched: as written"``; values mean nothing."""

_ROOT = re.compile(r"^[LG]\['\w+'\]|^[LG]__\w+?___")
_STEP = re.compile(r"(?:\._modules)?\['?(\w+)'?\]")


def pinned(pin: str) -> AbstractContextManager[None]:
    """Pin all that runs inside, in the forward and the backward graph; in code that ``torch.compile`` traces.

    Args:
        pin: One as in ``Options.pins``, without nodes: those are what runs inside.

    Raises:
        OptionsError: It is none, or names nodes. Where it is traced, it is found when the graph is scheduled.
    """
    if not torch.compiler.is_compiling():
        read_mark(pin)
    block: AbstractContextManager[None] = annotate({MARK + pin: True})
    return block


def module_of(meta: Mapping[str, Any]) -> str:
    """The module in which a node was made, or whose backward it is of: ``"layers.3.attention"``; ``""``: not known."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    if not isinstance(stack, dict) or not stack:
        return ""
    last = list(stack.values())[-1]
    path = str(last[0] if isinstance(last, tuple) else last)
    return _STEP.sub(r".\1", _ROOT.sub("", path)).strip(".")


def marks_of(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """The pins that a node has itself, sorted."""
    custom = meta.get("custom")
    if not isinstance(custom, dict):
        return ()
    return tuple(sorted(key.removeprefix(MARK) for key in custom if isinstance(key, str) and key.startswith(MARK)))

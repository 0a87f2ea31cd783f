"""What the inputs of a compiled graph are called in the model.

AOTAutograd says of an input that it is a parameter of a name, or which input of Dynamo's graph it is, and keeps where
Dynamo found those (``L['self']._modules['layers']._modules['0']._parameters['w']``). torch hands that to no pass, so it
is looked for on Python's own stack, as :mod:`~overlap_sched.inductor.dynamo_frame` does, also where the backward is
compiled. It is used for messages alone: what is not found has no name.
"""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_LOCAL = re.compile(r"^[LG]\[['\"](\w+)['\"]\]")
_OF_A_PROCESS = re.compile(r"0x[0-9a-f]{6,}|\d{9,}")
"""Addresses and the like: another one in every process."""
_DEPTH = 8


Named = Callable[[int], str]
"""What an input of Dynamo's graph is called, by its position."""


def name_of(placeholder: fx.Node, named: Named) -> str:
    """Return what an input is called: ``layers.0.w``; ``""``: not known.

    Args:
        placeholder: The input.
        named: What those of Dynamo's graph are called, see :func:`dynamo_names`.
    """
    described = placeholder.meta.get("desc")
    for _ in range(_DEPTH):  # a part of a tensor of tensors, the base of a view
        inner = getattr(described, "base", None) or getattr(described, "base_of", None)
        if inner is None:
            break
        described = inner
    target = getattr(described, "target", None)
    if isinstance(target, str):
        return target
    return named(described.idx) if type(described).__name__ == "PlainAOTInput" else ""


def readable(source: str) -> str:
    """The name of a source of Dynamo's as a model has it; ``""``: it may be another one on each rank."""
    if _OF_A_PROCESS.search(source):
        return ""
    name = _LOCAL.sub(lambda found: "" if found[1] == "self" else found[1], _MEMBER.sub(r".\1", source))
    return name.removeprefix(".")


def dynamo_names() -> Named:
    """Return the names of the inputs of the graph that this thread compiles."""
    sources = _sources()

    def named(position: int) -> str:
        name = getattr(sources[position], "name", None) if position < len(sources) else None
        return readable(str(name() if callable(name) else name or ""))

    return named


def _sources() -> Sequence[Any]:
    """Where Dynamo found them; none: not known."""
    frame = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("torch._functorch."):
            known = frame.f_locals
            config = known.get("aot_config") or getattr(known.get("self"), "aot_config", None)
            sources = getattr(config, "aot_autograd_arg_pos_to_source", None)
            if sources:
                return list(sources)
        frame = frame.f_back  # type: ignore[assignment]
    return ()

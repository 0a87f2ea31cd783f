"""Actions as torch writes them: ``0F1``, ``3REDUCE_GRAD``, ``(3F7;3B2)OVERLAP_F_B``; ``str`` of an item is its text."""

import re

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import UPDATES, Action, ActionKind, Item, Pair

_KINDS = "|".join(sorted(ActionKind, key=len, reverse=True))
_ACTION = re.compile(rf"(\d{{1,9}})({_KINDS})(\d{{1,9}})?")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")


def read_item(text: str) -> Item:
    """The item of a text, spaces around it left out.

    Raises:
        PipelineError: It is none.
    """
    text = text.strip()
    pair = _PAIR.fullmatch(text)
    if pair is None:
        return _action(text, text)
    return Pair(_action(pair[1], text), _action(pair[2], text))


def _action(text: str, whole: str) -> Action:
    match = _ACTION.fullmatch(text.strip())
    if match is not None:
        kind = ActionKind(match[2])
        if (match[3] is None) == (kind in UPDATES):
            return Action(kind, int(match[1]), None if match[3] is None else int(match[3]))
    shown = whole if len(whole) <= 40 else whole[:37] + "..."
    raise PipelineError(
        f"{shown!r} is no action: write stage, kind and micro-batch, as in 2F0, or two that run together, as in "
        "(2F1;2B0)OVERLAP_F_B."
    )

"""What ``--json`` prints, and the JSON Schema that promises it.

The number at the end of ``"schema": "overlap-sched/plan/1"`` goes up when a key is taken away or changes its meaning.
"""

import json
from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files
from typing import Any

import msgspec

from overlap_sched.errors import ProblemError

COMMANDS = ("plan", "sweep", "explain", "memory", "costs", "fit", "pipeline")
"""``costs``: what ``explain --costs`` prints."""
VERSION = 1


def schema_text(command: str) -> str:
    """The JSON Schema of a command's output."""
    if command == "sweep":
        answer = import_module("overlap_sched.cli.sweep").SweepAnswer
        return json.dumps(msgspec.json.schema(answer), indent=2)
    return files(__name__).joinpath(f"{command}.json").read_text(encoding="utf-8").rstrip("\n")


def as_json(answer: msgspec.Struct | str, figures: Mapping[str, Any] | None = None) -> str:
    """Figures on one line, with the name of their schema in front."""
    if isinstance(answer, str):
        named = {"schema": f"overlap-sched/{answer}/{VERSION}", **(figures or {})}
    else:
        named = msgspec.to_builtins(answer)
    try:
        return json.dumps(named, allow_nan=False)
    except ValueError:
        raise ProblemError(
            "a figure of the result is not a finite number: the times are too large to be added up. "
            "Are they in microseconds?"
        ) from None

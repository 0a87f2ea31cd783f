"""What ``--json`` prints, and the JSON Schema that promises it: one file per command, beside this one.

The number at the end of ``"schema": "overlap-sched/plan/1"`` goes up when a key is taken away or changes its meaning.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from overlap_sched.errors import ProblemError

COMMANDS = ("plan", "frontier", "robust", "explain", "memory", "costs", "whatif", "fit", "pipeline")
"""``costs``: what ``explain --costs`` prints."""
VERSION = 1


def schema_text(command: str) -> str:
    """The JSON Schema of a command's output."""
    return files(__name__).joinpath(f"{command}.json").read_text(encoding="utf-8").rstrip("\n")


def as_json(command: str, figures: Mapping[str, Any]) -> str:
    """Figures on one line, with the name of their schema in front."""
    named = {"schema": f"overlap-sched/{command}/{VERSION}", **figures}
    try:
        return json.dumps(named, allow_nan=False)
    except ValueError:
        raise ProblemError(
            "a figure of the result is not a finite number: the times are too large to be added up. "
            "Are they in microseconds?"
        ) from None

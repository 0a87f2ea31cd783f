"""Pins in words: which there are, and what each is about."""

from typing import Any

from overlap_sched.problem.pins import pinned
from overlap_sched.report.units import count, printable
from overlap_sched.scheduler.result import Schedule


def pins_figures(schedule: Schedule) -> list[dict[str, Any]]:
    """For ``--json``: each pin, and how many nodes it is about."""
    return [{"pin": one.pin.text, "nodes": len(one.nodes)} for one in pinned(schedule.problem, schedule.options.pins)]


def pins_text(schedule: Schedule) -> str:
    """Say which pins the order keeps, or which it was to keep; ``""``: there are none."""
    listed = [f"'{printable(one['pin'])}' ({count(one['nodes'], 'node')})" for one in pins_figures(schedule)]
    kept = "Pins kept" if schedule.fell_back is None else "Pins asked for"
    return f"{kept}: {', '.join(listed)}." if listed else ""

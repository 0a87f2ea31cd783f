"""Pins in words: which there are, and what each is about."""

from typing import Any

from overlap_sched.problem.pins import BINDS_NOTHING, binds_nothing, pinned
from overlap_sched.report.units import count, printable
from overlap_sched.scheduler.driver import Schedule


def pins_figures(schedule: Schedule) -> list[dict[str, Any]]:
    """For ``--json``: each pin, and how many nodes it is about."""
    return [{"pin": one.pin.text, "nodes": len(one.nodes)} for one in pinned(schedule.problem, schedule.options.pins)]


def pins_text(schedule: Schedule) -> str:
    """Say which pins the order keeps, or which it was to keep, and which bind nothing; ``""``: there are none."""
    listed = []
    for one in pinned(schedule.problem, schedule.options.pins):
        nothing = BINDS_NOTHING.get(binds_nothing(schedule.problem, one))
        about = count(len(one.nodes), "node") if nothing is None else f"binds nothing: {nothing}"
        listed.append(f"'{printable(one.pin.text)}' ({about})")
    kept = "Pins kept" if schedule.fell_back is None else "Pins asked for"
    return f"{kept}: {', '.join(listed)}." if listed else ""

"""What came of a schedule: one sentence (step, memory live and reserved, whether it runs), and a word or two for it."""

from dataclasses import dataclass
from typing import Literal

from overlap_sched.problem import Problem
from overlap_sched.report.units import change, duration, size
from overlap_sched.report.words.reserved import Reserved
from overlap_sched.report.words.schedule import gap_percent
from overlap_sched.scheduler.driver import Schedule

Came = Literal["runs", "fails", "kept", "reordered"]

_BADGES: dict[Came, str] = {
    "runs": "Runs",
    "fails": "May run out of memory",
    "kept": "Original order kept",
    "reordered": "Reordered",
}


@dataclass(frozen=True)
class InShort:
    """What came of a schedule.

    Attributes:
        came: ``reordered``: whether it runs in a ``memory_limit`` was not asked.
        badge: The same in words.
        sentence: All that matters, in one sentence.
    """

    came: Came
    badge: str
    sentence: str


def verdict(schedule: Schedule, original: Problem, reserved: Reserved | None, fits: bool | None = None) -> InShort:
    """Say it.

    Args:
        schedule: What to tell of.
        original: The graph of the original order: another one than the schedule's where it was rewritten.
        reserved: Of both orders; ``None``: not replayed.
        fits: Does it fit into the memory limit that was asked for (the budget)? ``None``: none was.
    """
    before, after = schedule.original, schedule.scheduled
    gap = f"{gap_percent(after.step_us, schedule.lower_bound_us):.1f} % above the lower bound"
    if original is schedule.problem and schedule.order == schedule.problem.original_order:
        memory = f"{size(after.peak_bytes)} live" + (f" and {size(reserved.after)} reserved" if reserved else "")
        return _short(
            "kept", f"The original order stays: a step of {duration(after.step_us)}, {gap}, a peak of {memory}."
        )
    step = _compared(before.step_us, after.step_us, "as long as before", "shorter", "longer")
    memory = _memory("live", before.peak_bytes, after.peak_bytes)
    reserves = "reserved" if fits is None and schedule.memory_limit_bytes is None else "reserved without a limit"
    memory += "" if reserved is None else f" and {_memory(reserves, reserved.before, reserved.after)}"
    came, end = _end(schedule, fits)
    return _short(
        came,
        f"The step takes {duration(after.step_us)} instead of {duration(before.step_us)} ({step}; {gap}) with a peak "
        f"of {memory}{end}.",
    )


def _short(came: Came, sentence: str) -> InShort:
    return InShort(came, _BADGES[came], sentence)


def _end(schedule: Schedule, fits: bool | None) -> tuple[Came, str]:
    """Say whether it runs, where that was asked."""
    limit = schedule.memory_limit_bytes
    if fits is None and limit is None:
        return "reordered", ""
    limit = schedule.budget_bytes if limit is None else limit
    if not schedule.short_bytes if fits is None else fits:
        return "runs", f", and it fits into {size(limit)}"
    return "fails", f", but it does not fit into {size(limit)}"


def _memory(what: str, before: float, after: float) -> str:
    """``26.0 MiB live (23.8 % more)``."""
    return f"{size(int(after))} {what} ({_compared(before, after, 'as before', 'less', 'more')})"


def _compared(before: float, after: float, same: str, less: str, more: str) -> str:
    """``59.6 % shorter``."""
    found = change(before, after)
    if found == "-":
        return f"{more} than nothing"
    return same if found == "+0.0 %" else f"{found[1:]} {less if found[0] == '-' else more}"

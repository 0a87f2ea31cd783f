"""What came of a schedule: one sentence (step, memory live and reserved, whether it runs), and a word or two for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from overlap_sched.options import kept_allocator
from overlap_sched.peak_memory.allocator.reserved import ReservedChange
from overlap_sched.problem import Problem
from overlap_sched.problem.allocator_settings import PLAIN
from overlap_sched.report.units import change, duration, size
from overlap_sched.report.words.reserved import runs_as_before, settings_shown
from overlap_sched.report.words.schedule import gap_percent
from overlap_sched.scheduler.result import Schedule

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
        came: ``reordered``: whether it runs where the original order does was not asked (``allocator="none"``).
        badge: The same in words.
        sentence: All that matters, in one sentence.
    """

    came: Came
    badge: str
    sentence: str


def verdict(
    schedule: Schedule, original: Problem, reserved: Mapping[str, ReservedChange], fits: bool | None = None
) -> InShort:
    """Say it.

    Args:
        schedule: What to tell of.
        original: The graph of the original order: another one than the schedule's where it was rewritten.
        reserved: Of both orders, as of :func:`overlap_sched.report.words.reserved.reserved_changes`.
        fits: Does it fit into the memory limit that was asked for (the budget)? ``None``: none was.
    """
    before, after = schedule.original, schedule.scheduled
    gap = f"{gap_percent(after.step_us, schedule.lower_bound_us):.1f} % above the lower bound"
    held = _held(schedule, reserved)
    if original is schedule.problem and schedule.order == schedule.problem.original_order:
        memory = f"{size(after.peak_bytes)} live" + (f" and {size(held.new_bytes)} reserved" if held else "")
        return _short(
            "kept", f"The original order stays: a step of {duration(after.step_us)}, {gap}, a peak of {memory}."
        )
    step = _compared(before.step_us, after.step_us, "as long as before", "shorter", "longer")
    memory = _memory("live", before.peak_bytes, after.peak_bytes)
    reserves = "reserved" if fits is None else "reserved without a limit"
    memory += "" if held is None else f" and {_memory(reserves, held.original_bytes, held.new_bytes)}"
    came, end = _end(schedule, original, fits)
    return _short(
        came,
        f"The step takes {duration(after.step_us)} instead of {duration(before.step_us)} ({step}; {gap}) with a peak "
        f"of {memory}{end}.",
    )


def _short(came: Came, sentence: str) -> InShort:
    return InShort(came, _BADGES[came], sentence)


def _end(schedule: Schedule, original: Problem, fits: bool | None) -> tuple[Came, str]:
    """Say whether it runs, where that was asked."""
    if fits is not None:
        limit = size(schedule.budget_bytes)
        return ("runs", f", and it fits into {limit}") if fits else ("fails", f", but it does not fit into {limit}")
    if kept_allocator(schedule.options) is None:
        return "reordered", ""
    if runs_as_before(schedule, original):
        return "runs", ", and it runs where the original order runs"
    return "fails", ", but it may run out of memory where the original order runs"


def _held(schedule: Schedule, reserved: Mapping[str, ReservedChange]) -> ReservedChange | None:
    """Return what the allocator to keep to makes of the order, else plain segments; ``None``: not replayed."""
    settings = kept_allocator(schedule.options) or PLAIN
    return next((reserved[name] for name, shown in settings_shown().items() if shown == settings and reserved), None)


def _memory(what: str, before: float, after: float) -> str:
    """``26.0 MiB live (23.8 % more)``."""
    return f"{size(int(after))} {what} ({_compared(before, after, 'as before', 'less', 'more')})"


def _compared(before: float, after: float, same: str, less: str, more: str) -> str:
    """``59.6 % shorter``."""
    found = change(before, after)
    if found == "-":
        return f"{more} than nothing"
    return same if found == "+0.0 %" else f"{found[1:]} {less if found[0] == '-' else more}"

"""What the caching allocator makes of a schedule: three figures before and after, as data and as rows of a table."""

from dataclasses import replace
from typing import Any

from overlap_sched.options import kept_allocator
from overlap_sched.peak_memory.allocator.reserved import ReservedChange, change_of, requests_of
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Problem
from overlap_sched.problem.allocator_settings import (
    EXPANDABLE,
    PLAIN,
    VARIABLES,
    AllocatorSettings,
    allocator_settings,
    settings_in_environment,
)
from overlap_sched.report.units import between, change, size
from overlap_sched.scheduler.candidate import Task
from overlap_sched.scheduler.needs import NOTHING, Reserve
from overlap_sched.scheduler.result import Schedule

_SET = "as set"


def settings_shown() -> dict[str, AllocatorSettings]:
    """Plain and expandable segments; then what ``PYTORCH_ALLOC_CONF`` sets, where that is neither."""
    shown = {"plain": PLAIN, "expandable": EXPANDABLE}
    here = allocator_settings(settings_in_environment())
    return shown if here in shown.values() else {**shown, _SET: here}


def reserved_changes(schedule: Schedule, original: Problem | None = None) -> dict[str, ReservedChange]:
    """Per kind of allocator, what it makes of the original order and of the new one.

    Empty in the tracker memory model: it frees what a collective in flight still holds.

    Args:
        schedule: Whose order is the new one.
        original: Whose order is the original one; ``None``: the same problem (else it was rewritten).
    """
    problem = schedule.problem
    if problem.memory_model != "runtime":
        return {}
    live_ranges = LiveRanges(problem)
    was = live_ranges if original is None else LiveRanges(original)
    before, after = requests_of(was, was.problem.original_order), requests_of(live_ranges, schedule.order)
    return {name: change_of(before, after, settings) for name, settings in settings_shown().items()}


def reserved_figures(changes: dict[str, ReservedChange]) -> list[dict[str, Any]]:
    """For ``--json``: bytes; ``retries`` is null where the new order runs out of memory."""
    return [
        {
            "allocator": name,
            "original_reserved_bytes": found.original_bytes,
            "reserved_bytes": found.new_bytes,
            "original_capacity_bytes": found.original_capacity_bytes,
            "capacity_bytes": found.new_capacity_bytes,
            "retries": found.retries,
        }
        for name, found in changes.items()
    ]


def reserved_rows(changes: dict[str, ReservedChange]) -> list[tuple[str, ...]]:
    """Rows: what is looked at, original, scheduled, change."""
    rows: list[tuple[str, ...]] = []
    for name, found in changes.items():
        reserved = (found.original_bytes, found.new_bytes)
        capacity = (found.original_capacity_bytes, found.new_capacity_bytes)
        retries = "out of memory" if found.retries is None else str(found.retries)
        rows.append((f"reserved, {name}", *map(size, reserved), change(*reserved)))
        rows.append(("... runs in at least", *map(size, capacity), change(*capacity)))
        rows.append((f"... retries in {size(found.original_bytes)}", "0", retries))
    return rows


def not_held(schedule: Schedule, original: Problem | None = None) -> str:
    """What the new order needs beyond what its allocator was to keep to, and why; ``""``: nothing.

    Args:
        schedule: Whose order is the new one.
        original: Whose original order it is compared with; ``None``: the same problem (else it was rewritten).
    """
    settings = kept_allocator(schedule.options)
    if settings is None or (original is None and schedule.order == schedule.problem.original_order):
        return ""
    task = Task(schedule.problem, schedule.options, schedule.base_bytes)
    was = task if original is None else replace(task, problem=original)
    reserve = Reserve.of(was, settings).rewritten(task)
    broken = reserve.overdraft(schedule.order)
    if broken == NOTHING:
        return ""
    breaks = [
        "runs out of memory where the original order needs no retry" if broken.out_of_memory else "",
        f"has {_retries(broken.retries)} too many there" if broken.retries else "",
        f"needs {size(broken.over_bytes)} more than it may" if broken.over_bytes else "",
    ]
    found = " and ".join(filter(None, breaks))
    return (
        f"Allocator ({_title(settings)}): the new order {found}. No order that was tried fits with a step within "
        f"{schedule.options.allocator_cost:g}% of the shortest; a higher allocator_cost admits longer ones, and "
        "headroom gives room."
    )


def held_lines(schedule: Schedule) -> list[str]:
    """What the allocator that the new order was to keep to makes of both orders, in a line or two; none: nothing."""
    settings = kept_allocator(schedule.options)
    if settings is None:
        return []
    live_ranges, problem = LiveRanges(schedule.problem), schedule.problem
    before, after = requests_of(live_ranges, problem.original_order), requests_of(live_ranges, schedule.order)
    line = f"reserved, {_title(settings)}: {_text(change_of(before, after, settings))}"
    return [line, *filter(None, [not_held(schedule)])]


def reserved_lines(changes: dict[str, ReservedChange]) -> list[str]:
    """The same in a line each, for people."""
    lines = [f"  {_title(settings_shown()[name])}: {_text(found)}" for name, found in changes.items()]
    return ["reserved by torch's caching allocator (replayed), original order and this one:", *lines] if lines else []


def _text(found: ReservedChange) -> str:
    reserved = between(size(found.original_bytes), size(found.new_bytes))
    capacity = between(size(found.original_capacity_bytes), size(found.new_capacity_bytes))
    retries = "it runs out of memory" if found.retries is None else _retries(found.retries)
    return f"{reserved}; runs in at least {capacity}; in {size(found.original_bytes)}: {retries}"


def _retries(number: int) -> str:
    return f"{number:,} retr{'y' if number == 1 else 'ies'}"


def _title(settings: AllocatorSettings) -> str:
    return {PLAIN: "plain segments", EXPANDABLE: "expandable segments"}.get(settings, VARIABLES[0])

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
from overlap_sched.report.units import between, change, duration, size
from overlap_sched.scheduler.candidate import Task
from overlap_sched.scheduler.needs import NOTHING, Overdraft, Reserve
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
    """Say what the new order needs beyond what its allocator was to keep to, and why; ``""``: nothing."""
    settings = kept_allocator(schedule.options)
    if settings is None:
        return ""
    broken, runs = _broken(schedule, original, settings)
    if broken == NOTHING:
        return ""
    why = (
        "No order that was tried fits with a step within "
        f"{schedule.options.allocator_cost:g}% of the shortest; a higher allocator_cost admits longer ones"
        if runs
        else "No order that was tried runs where the original order does"
    )
    little = ", which is little enough to be taken" if runs and broken.lacks_bytes else ""
    return f"Allocator ({_title(settings)}): the new order {_words(broken)}{little}. {why}, and headroom gives room."


def not_taken(schedule: Schedule) -> str:
    """The faster order that would not run where the original order does, and what it needs; ``""``: there is none."""
    faster, settings = schedule.faster, kept_allocator(schedule.options)
    if faster is None or settings is None:
        return ""
    return (
        f"A faster order was not taken: {duration(faster.step_us)} instead of {duration(schedule.scheduled.step_us)}, "
        f"but with {_title(settings)} it needs {size(faster.lacks_bytes)} more memory than the original order. "
        "allocator='none' (--allocator none) takes it, and headroom gives room."
    )


def other_segments(schedule: Schedule, original: Problem | None = None) -> str:
    """Say what the new order lacks with the kind of segments that it was not made for; ``""``: nothing, or little."""
    settings = kept_allocator(schedule.options)
    other = {PLAIN: EXPANDABLE, EXPANDABLE: PLAIN}.get(settings) if settings is not None else None
    if other is None:
        return ""
    broken, runs = _broken(schedule, original, other)
    if runs:
        return ""
    name = next(name for name, shown in settings_shown().items() if shown == other)
    return (
        f"For a job with {_title(other)}: this order {_words(broken)}; allocator={name!r} (--allocator {name}) "
        "plans for it."
    )


def runs_as_before(schedule: Schedule, original: Problem) -> bool:
    """Does the new order run where the original one does, by the allocator that it was to keep to?"""
    settings = kept_allocator(schedule.options)
    was = None if original is schedule.problem else original
    return settings is None or _broken(schedule, was, settings)[1]


def _broken(schedule: Schedule, original: Problem | None, settings: AllocatorSettings) -> tuple[Overdraft, bool]:
    """Return what the new order breaks of what the original order needs, and whether it runs there all the same."""
    if original is None and schedule.order == schedule.problem.original_order:
        return NOTHING, True
    task = Task(schedule.problem, schedule.options, schedule.base_bytes)
    was = task if original is None else replace(task, problem=original)
    reserve = Reserve.of(was, settings).rewritten(task)
    broken = reserve.overdraft(schedule.order)
    return broken, reserve.runs(broken)


def _words(broken: Overdraft) -> str:
    grows = broken.over_bytes > broken.lacks_bytes
    breaks = [
        "runs out of memory where the original order needs no retry" if broken.out_of_memory else "",
        f"has {_retries(broken.retries)} too many where the original order needs none" if broken.retries else "",
        f"needs {size(broken.lacks_bytes)} more than it may" if broken.lacks_bytes else "",
        f"reserves {size(broken.over_bytes)} more than it may where there is no limit" if grows else "",
    ]
    return " and ".join(filter(None, breaks))


def held_lines(schedule: Schedule) -> list[str]:
    """Say what the allocator that the new order was to keep to makes of both orders, in a line or two, or none."""
    settings = kept_allocator(schedule.options)
    if settings is None:
        return []
    live_ranges, problem = LiveRanges(schedule.problem), schedule.problem
    before, after = requests_of(live_ranges, problem.original_order), requests_of(live_ranges, schedule.order)
    line = f"reserved, {_title(settings)}: {_text(change_of(before, after, settings))}"
    return [line, *filter(None, [not_taken(schedule), not_held(schedule)])]


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

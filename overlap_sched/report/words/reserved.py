"""What torch's caching allocator reserves for a schedule: replayed and reported; and what ``memory_limit`` came to."""

from collections.abc import Sequence
from typing import NamedTuple

from overlap_sched.options import Options, replayed_allocator
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.sizes import EXPANDABLE, PLAIN, VARIABLES, AllocatorSettings
from overlap_sched.report.units import between, change, size
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.simulate.allocator import replay_allocator


class Reserved(NamedTuple):
    """Bytes reserved on a device without a limit.

    Attributes:
        before, after: For the original order, and for the new one.
        settings: Of the allocator.
    """

    before: int
    after: int
    settings: AllocatorSettings

    @property
    def title(self) -> str:
        """``reserved, plain segments``."""
        kind = {PLAIN: "plain segments", EXPANDABLE: "expandable segments"}.get(self.settings, VARIABLES[0])
        return f"reserved, {kind}"


def settings_for(problem: Problem, options: Options | None = None) -> AllocatorSettings | None:
    """The allocator that is replayed for reports; ``None``: none is, as in the tracker's memory model."""
    settings = replayed_allocator(options or Options(memory_model=problem.memory_model))
    return settings if problem.memory_model == "runtime" else None


def reserved_for(
    problem: Problem, order: Order, settings: AllocatorSettings | None, original: Problem | None = None
) -> Reserved | None:
    """Replay the original order and a new one; ``None`` without settings.

    Args:
        problem: Of the new order.
        order: The new one.
        settings: Of the allocator.
        original: Whose order is the original one; ``None``: the same problem (else it was rewritten).
    """
    if settings is None:
        return None
    was = original or problem
    after = replay_allocator(problem, order, settings).reserved_bytes
    same = was is problem and order == was.original_order
    before = after if same else replay_allocator(was, was.original_order, settings).reserved_bytes
    return Reserved(before, after, settings)


def reserved_of(schedule: Schedule, original: Problem | None = None) -> Reserved | None:
    """The same of a schedule, with the allocator of its options."""
    settings = settings_for(schedule.problem, schedule.options)
    return reserved_for(schedule.problem, schedule.order, settings, original)


def reserved_figures(found: Reserved | None) -> dict[str, int | None]:
    """For ``--json``: bytes; null where nothing was replayed."""
    before, after = (None, None) if found is None else (found.before, found.after)
    return {"original_reserved_bytes": before, "reserved_bytes": after}


def reserved_rows(found: Reserved | None, limit_bytes: int | None = None) -> Sequence[tuple[str, ...]]:
    """The row of a table: original, scheduled, change, and the limit, if there is one."""
    if found is None:
        return ()
    limit = () if limit_bytes is None else (size(limit_bytes),)
    return ((found.title, size(found.before), size(found.after), change(found.before, found.after), *limit),)


def reserved_lines(found: Reserved | None) -> list[str]:
    """The same as a line of text; none where nothing was replayed."""
    return [] if found is None else [f"{found.title} (replayed): {between(size(found.before), size(found.after))}"]


def short_text(schedule: Schedule) -> str:
    """Say what a device of ``memory_limit`` lacks for the order; ``""``: nothing, or there is no limit."""
    if schedule.memory_limit_bytes is None or not schedule.short_bytes:
        return ""
    return (
        f"No order was found that runs in the memory_limit of {size(schedule.memory_limit_bytes)}: this one needs "
        f"{size(schedule.short_bytes)} more. Raise the limit, or let `overlap-sched fit` recompute and offload."
    )

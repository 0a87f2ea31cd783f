"""What came of a schedule in two sentences: the step, the memory that is live, and whether it runs where it did."""

from overlap_sched.options import kept_allocator
from overlap_sched.problem import Problem
from overlap_sched.report.units import change, duration, size
from overlap_sched.report.words.reserved import runs_as_before
from overlap_sched.report.words.schedule import gap_percent
from overlap_sched.scheduler.result import Schedule


def verdict(schedule: Schedule, original: Problem) -> str:
    """Say it; ``original``: the graph of the original order, another one than the schedule's where it was rewritten."""
    before, after = schedule.original, schedule.scheduled
    gap = f"{gap_percent(after.step_us, schedule.lower_bound_us):.1f} % above the lower bound"
    if original is schedule.problem and schedule.order == schedule.problem.original_order:
        peak = size(after.peak_bytes)
        return f"The original order stays: a step of {duration(after.step_us)}, {gap}, a peak of live memory of {peak}."
    step = _compared(before.step_us, after.step_us, "as long as before", "shorter", "longer")
    peak = _compared(before.peak_bytes, after.peak_bytes, "the same as before", "less", "more")
    runs = ""
    if kept_allocator(schedule.options) is not None:
        may = "runs" if runs_as_before(schedule, original) else "may run out of memory"
        runs = f" It {may} where the original order runs."
    return (
        f"The step is {step}: {duration(after.step_us)} instead of {duration(before.step_us)}, {gap}. "
        f"The peak of live memory is {size(after.peak_bytes)}, {peak}.{runs}"
    )


def _compared(before: float, after: float, same: str, less: str, more: str) -> str:
    """``59.6 % shorter``."""
    found = change(before, after)
    return same if found == "+0.0 %" else f"{found[1:]} {less if found[0] == '-' else more}"

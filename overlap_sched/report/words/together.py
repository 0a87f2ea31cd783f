"""Process groups in flight together, in words: how many pairs of collectives, and what it takes to keep them apart.

And how many collectives there are, those that block the compute stream, too.
"""

from typing import Any

from overlap_sched.problem import ANY_GROUP, Problem
from overlap_sched.report.units import change, count, duration
from overlap_sched.scheduler.driver import Schedule


def collectives_text(problem: Problem) -> str:
    """``3 collectives``, ``3 collectives (1 blocks compute)``: launched by an operator itself, or in a sub-graph."""
    blocking = sum(group != ANY_GROUP for node in problem.nodes for group in node.launches)
    if not blocking:
        return count(len(problem.collectives), "collective")
    text = f"{count(len(problem.collectives) + blocking, 'collective')} ({blocking:,} block"
    return f"{text}{'s' if blocking == 1 else ''} compute)"


def together_figures(schedule: Schedule) -> dict[str, Any]:
    """For ``--json``: pairs in flight together before and after; with groups kept apart, the step otherwise (us)."""
    before, after = schedule.original.groups_together, schedule.scheduled.groups_together
    return {
        "groups_together": {"original": before, "scheduled": after},
        "concurrent_groups": schedule.options.concurrent_groups,
        "unrestricted_step_us": schedule.unrestricted_us,
    }


def together_rows(schedule: Schedule) -> list[tuple[str, ...]]:
    """A row for the summary where any are in flight together, before or after."""
    pairs = schedule.original.groups_together, schedule.scheduled.groups_together
    return [("groups together", *(f"{k:,} pair{'' if k == 1 else 's'}" for k in pairs))] if any(pairs) else []


def apart_line(schedule: Schedule) -> str:
    """Pairs in flight together before and after, in a line of a report; ``""``: none are."""
    before, after = schedule.original.groups_together, schedule.scheduled.groups_together
    return f"pairs of groups that share ranks in flight together: {before:,} -> {after:,}" if before or after else ""


def together_text(schedule: Schedule) -> str:
    """Say what keeping groups apart costs, or how to have it; ``""``: there is nothing to be said."""
    problem, asked = schedule.problem, schedule.options.concurrent_groups
    before, after = schedule.original.groups_together, schedule.scheduled.groups_together
    if schedule.unrestricted_us is not None:
        step_us, without_us = schedule.scheduled.step_us, schedule.unrestricted_us
        costs = f"costs {duration(step_us - without_us)}" if step_us > without_us else "costs nothing"
        return (
            f"To keep process groups apart ({asked}) {costs}: the step takes {duration(step_us)}, and "
            f"{duration(without_us)} where all may be in flight together ({change(without_us, step_us)})."
        )
    if after <= before:
        return ""
    known = all(problem.groups[problem.nodes[v].group or ""].ranks for v in problem.collectives)
    pairs, are = ("pair", "is") if after == 1 else ("pairs", "are")
    return (
        f"{after:,} {pairs} of collectives of process groups that share more than one rank"
        f"{'' if known else ' (ranks that are not known are taken to be shared)'} {are} in flight together, "
        f"{before:,} originally. Where a backend must not have that: --concurrent-groups disjoint."
    )

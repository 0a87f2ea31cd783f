"""Why the original order was kept, in one line.

The records of an order that was kept say what blocks each collective in it, but not whether memory would have refused a
launch ahead of its place: nobody moved it. That is asked here, of the judge of memory.
"""

from overlap_sched.judge.liveness import peak_memory
from overlap_sched.problem import Kind, Problem
from overlap_sched.report.causes import TAIL, causes
from overlap_sched.report.units import count, duration
from overlap_sched.scheduler.result import Decision, Schedule

_BECAUSE = {
    TAIL: "no compute is left at the end of the step to run meanwhile",
    "dependency": "what is sent was ready too late for an earlier launch",
    "stream": "another collective was still on the stream",
    "memory": "an earlier launch would not have fitted into the memory budget",
    "start": "what is launched at the start of the graph is waited for too soon",
    "choice": "an earlier launch would not have made the step shorter",
    "nothing": "of rounding",
}
_SHOWN = 2
"""So many causes are named."""
_ASKED = 8
"""Of so many of the most exposed collectives memory is asked; the rest is taken to be like them."""


def why_no_better(schedule: Schedule) -> str:
    """Why a schedule has the original order: what exposes it, the two most expensive causes.

    A cause is ``memory`` where most of the time that a launch ahead of its place could hide, as far as dependencies go,
    belongs to launches that the budget refuses.
    """
    if schedule.fell_back is not None:
        return schedule.fell_back
    if schedule.options.effort == 0:
        return "no other order was looked for (effort=0)"
    if not schedule.problem.collectives and schedule.options.base != "original":
        return "no order with a clearly lower peak was found"
    found = [cause for cause in causes(schedule) if cause.collectives]
    if not found:
        return "no better order was found: nothing is exposed"
    refused = any(cause.name == "choice" for cause in found) and _memory_refuses(schedule)
    parts = []
    for name, us, collectives in found[:_SHOWN]:
        because = _BECAUSE["memory" if refused and name == "choice" else name]
        share = f"{duration(us)} " if len(found) > 1 else ""
        parts.append(f"{share}because {because} ({count(collectives, 'collective')})")
    comma = "," if len(found) > 1 else ""
    return (
        f"no better order was found: {duration(schedule.scheduled.exposed_us)} stay exposed{comma} {', '.join(parts)}"
    )


def _memory_refuses(schedule: Schedule) -> bool:
    """Are most of the collectives that could be launched sooner refused by the budget? Counted by exposed time."""
    movable = sorted((d for d in schedule.decisions if d.held_by == "choice"), key=lambda d: -d.exposed_us)[:_ASKED]
    refused_us = sum(d.exposed_us for d in movable if _over_budget(schedule, d))
    return 2 * refused_us > sum(d.exposed_us for d in movable)


def _over_budget(schedule: Schedule, decision: Decision) -> bool:
    """Would a launch as early as its dependencies allow exceed the budget?"""
    problem, order = schedule.problem, schedule.order
    moved, after = _with_what_prepares_it(problem, decision.collective)
    ready = 1 + max((at for at, v in enumerate(order) if v in after), default=-1)
    first = [v for v in order[:ready] if v not in moved]
    earlier = (*first, *(v for v in order if v in moved), *(v for v in order[ready:] if v not in moved))
    return peak_memory(problem, earlier)[0] > schedule.budget_bytes


def _with_what_prepares_it(problem: Problem, launch: int) -> tuple[set[int], set[int]]:
    """A launch with the views and the like that only prepare it, and what has to run before them."""
    moved, after, open_ = {launch}, set[int](), [launch]
    while open_:
        for u in problem.predecessors[open_.pop()]:
            node = problem.nodes[u]
            if node.kind is Kind.COMPUTE and not node.time_us:
                if u not in moved:
                    moved.add(u)
                    open_.append(u)
            else:
                after.add(u)
    return moved, after

"""Why a step is exposed, in totals: each microsecond that compute stalls at a wait has one cause.

A collective that keeps compute waiting after the last compute node has nothing left to hide behind: that is the tail,
whatever kept it from being launched sooner. All other stall time goes to what blocked its collective.
"""

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from overlap_sched.judge.replay import Replay, replay
from overlap_sched.problem import Kind, Problem
from overlap_sched.report.table import align_rows
from overlap_sched.report.units import duration
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.scheduler.explain import Decision

TAIL = "tail"
WORDS = {
    TAIL: "no compute is left at the end of the step to run meanwhile",
    "dependency": "what is sent was ready too late for an earlier launch",
    "stream": "another collective was still on the stream",
    "memory": "an earlier launch would not have fitted into the memory budget",
    "start": "what is launched at the start of the graph is waited for too soon",
    "choice": "launched where the order has it, although an earlier launch was possible",
    "nothing": "rounding",
}
"""What each cause is, for people."""
ROUNDING = 1e-9
"""Relative to the step: stall time below this comes from adding up floating-point numbers."""


class Cause(Struct, frozen=True, forbid_unknown_fields=True):
    """One cause and what it costs.

    Attributes:
        name: ``tail``, or what blocked the collectives (:data:`overlap_sched.scheduler.driver.Holder`).
        exposed_us: Stall that it causes.
        collectives: How many collectives it makes compute wait for.
    """

    name: str
    exposed_us: float
    collectives: int


def causes(schedule: Schedule) -> tuple[Cause, ...]:
    """The causes that cost anything, the most expensive first; they add up to the exposed time of the step."""
    return causes_of(schedule.problem, replay(schedule.problem, schedule.order), schedule.decisions)


def causes_of(problem: Problem, timeline: Replay, decisions: Sequence[Decision]) -> tuple[Cause, ...]:
    """The same of any order: its replay, and the records of its collectives."""
    last_us, found = last_compute_us(problem, timeline), defaultdict[str, list[float]](list)
    for decision in decisions:
        for name, us in stalls_by_cause(problem, timeline, decision, last_us).items():
            found[name].append(us)
    least_us = ROUNDING * timeline.step_us
    made = (Cause(name, sum(all_us), sum(us > least_us for us in all_us)) for name, all_us in found.items())
    return tuple(sorted((one for one in made if one.exposed_us > 0), key=lambda one: (-one.exposed_us, one.name)))


def stalls_by_cause(problem: Problem, timeline: Replay, decision: Decision, last_us: float) -> dict[str, float]:
    """Return the stalls of one collective in microseconds, by cause; ``last_us`` is :func:`last_compute_us`."""
    found: dict[str, float] = {}
    for w in problem.waits.get(decision.collective, ()):
        name = TAIL if timeline.at_us[w] >= last_us else decision.held_by
        found[name] = found.get(name, 0.0) + timeline.stall_us[w]
    return found


def last_compute_us(problem: Problem, timeline: Replay) -> float:
    """When the last compute node that takes time has run: a stall from then on is the tail."""
    computing = (v for v, node in enumerate(problem.nodes) if node.kind is Kind.COMPUTE and node.time_us)
    return max((timeline.finish_us[v] for v in computing), default=0.0)


def causes_text(found: tuple[Cause, ...]) -> str:
    """One line per cause; rounding is left out."""
    rows = [
        (duration(cause.exposed_us), f"{cause.collectives:,}", WORDS.get(cause.name, cause.name))
        for cause in found
        if cause.collectives
    ]
    title = "Exposed time by cause, and of how many collectives:" if rows else "Nothing is exposed."
    return "\n".join([title, *align_rows(rows)])

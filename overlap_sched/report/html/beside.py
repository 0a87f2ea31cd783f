"""What else a page may show: rewrites, one more order beside ours, the frontier."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from overlap_sched.analysis.frontier_points import Frontier
from overlap_sched.fit.answer import FitPoint
from overlap_sched.judge.validate import measure
from overlap_sched.problem import Order, Problem
from overlap_sched.scheduler.result import Figures, Schedule
from overlap_sched.transform.left_out import Left
from overlap_sched.transform.plan import Plan


class ExtraOrder(NamedTuple):
    """One more order of the graph as it was (torch's, say): what it is called, node ids."""

    title: str
    order: Order


@dataclass(frozen=True)
class Extras:
    """What a page shows beyond a schedule; ``None``: nothing of the kind.

    Attributes:
        made: The plan that the schedule is of.
        beside: Another order of the graph as it was.
        frontier: Of the graph as it was; or the plans of a fit, by ascending peak.
        earlier: The plan by which collectives were rewritten before this schedule was looked for: it is of the graph
            that they left, lifted anew (a plug-in's: fused, perhaps). Not both this and ``made``.
        answer: What a search for a memory limit has found, in a sentence; it says what the allocator lacks, too.
        left: The step without each of the rewrites of ``made``, where that was asked for.
    """

    made: Plan | None = None
    beside: ExtraOrder | None = None
    frontier: Frontier | tuple[FitPoint, ...] | None = None
    earlier: Plan | None = None
    answer: str | None = None
    left: tuple[Left, ...] = ()

    @property
    def told(self) -> Plan | None:
        """The plan whose rewrites are listed."""
        return self.earlier if self.made is None else self.made


NOTHING_ELSE = Extras()


def original_problem(schedule: Schedule, extras: Extras) -> Problem:
    """The graph as it was, before rewrites."""
    return schedule.problem if extras.made is None else extras.made.without.problem


def schedule_of(schedule: Schedule, problem: Problem, order: Order) -> Schedule:
    """Another order in the place of the scheduled one, with its own figures; its decisions are not known."""
    measured = measure(problem, order)
    peak = max(measured.profile)
    figures = Figures(measured.timeline.step_us, measured.timeline.exposed_us, peak, list(measured.profile).index(peak))
    return replace(schedule, problem=problem, order=order, scheduled=figures, decisions=())

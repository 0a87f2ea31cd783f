"""What else a page may show: rewrites, one more order beside ours, the frontier; and what the page of a fit shows."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from overlap_sched.fit.answer import Fit, FitPoint
from overlap_sched.judge.replay import Replay
from overlap_sched.judge.validate import measure
from overlap_sched.options import Options
from overlap_sched.problem import Order, Problem
from overlap_sched.report.words.fit import answer_line, costs
from overlap_sched.scheduler.driver import Figures, Schedule
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.task import NO_WORK, Candidate, Task
from overlap_sched.transform.left_out import Left
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.records import Record


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
        frontier: The plans of a fit, by ascending peak.
        earlier: The plan by which collectives were rewritten before this schedule was looked for: it is of the graph
            that they left, lifted anew (a plug-in's: fused, perhaps). Not both this and ``made``.
        answer: What a search for a memory limit has found, in a sentence; it says what the allocator lacks, too.
        command: That made the page; ``""``: a program did.
        times: Where its times come from (``"predicted for dgx-h100"``); ``""``: not known.
        fits: Does it fit into the memory limit of a search? ``None``: that was not asked.
        left: The step without each of the rewrites of ``made``, where that was asked for.
    """

    made: Plan | None = None
    beside: ExtraOrder | None = None
    frontier: tuple[FitPoint, ...] | None = None
    earlier: Plan | None = None
    answer: str | None = None
    left: tuple[Left, ...] = ()
    command: str = ""
    times: str = ""
    fits: bool | None = None

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
    figures, _ = _measured(problem, order)
    return replace(schedule, problem=problem, order=order, scheduled=figures, decisions=())


def _measured(problem: Problem, order: Order) -> tuple[Figures, Replay]:
    """The figures of an order by the judges, and its replay."""
    measured = measure(problem, order)
    peak, timeline = max(measured.profile), measured.timeline
    return Figures(timeline.step_us, timeline.exposed_us, peak, list(measured.profile).index(peak)), timeline


def shown_fit(found: Fit) -> tuple[Schedule, Extras]:
    """The schedule that the page is of, and what else is on it; the budget is the limit, or the peak that was found.

    Why the search has launched a collective where it did is not known: what is told is what binds it there.
    """
    base_bytes = found.original.peak_bytes
    limit_bytes = found.best.peak_bytes if found.limit_bytes is None else found.limit_bytes
    before, _ = _measured(found.original.problem, found.original.order)
    without = _schedule(found.without, before, base_bytes, 0)
    best = _schedule(found.best, before, base_bytes, limit_bytes - base_bytes)
    records = tuple(
        Record(rewrite, -cost.copy_us, cost.compute_us, -cost.bytes)  # longer on the streams to the host; kept no more
        for rewrite, cost in zip(found.best.rewrites, costs(found), strict=True)
    )
    return best, Extras(
        Plan(found.best.rewrites, best, without, records),
        frontier=found.points,
        answer=answer_line(found),
        fits=None if found.limit_bytes is None else found.fits,
    )


def _schedule(point: FitPoint, original: Figures, base_bytes: int, headroom_bytes: int) -> Schedule:
    figures, timeline = _measured(point.problem, point.order)
    options = Options(memory_model=point.problem.memory_model)
    order = Candidate(tuple(point.order), figures.step_us, figures.peak_bytes)
    return Schedule(
        problem=point.problem,
        options=options,
        order=order.order,
        original=original,
        scheduled=figures,
        headroom_bytes=headroom_bytes,
        base_bytes=base_bytes,
        decisions=decisions(point.problem, timeline, order, Task(point.problem, options, base_bytes + headroom_bytes)),
        fell_back=None,
        work=NO_WORK,
        schedule_s=0.0,
    )

"""What the page of a fit shows: its rewritten graph and order, beside the graph as it was, and the plans found."""

from overlap_sched.fit.answer import Fit, FitPoint
from overlap_sched.judge.replay import Replay
from overlap_sched.judge.validate import measure
from overlap_sched.options import Options
from overlap_sched.report.html.beside import Extras
from overlap_sched.report.words.fit import answer_line, costs
from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.result import NO_WORK, Figures, Schedule
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.records import Record


def shown_fit(found: Fit) -> tuple[Schedule, Extras]:
    """The schedule that the page is of, and what else is on it; the budget is the limit, or the peak that was found.

    Why the search has launched a collective where it did is not known: what is told is what binds it there.
    """
    base_bytes = found.original.peak_bytes
    limit_bytes = found.best.peak_bytes if found.limit_bytes is None else found.limit_bytes
    before, _ = _figures(found.original)
    without = _schedule(found.without, before, base_bytes, 0)
    best = _schedule(found.best, before, base_bytes, limit_bytes - base_bytes)
    records = tuple(
        Record(rewrite, -cost.copy_us, cost.compute_us, -cost.bytes)  # longer on the streams to the host; kept no more
        for rewrite, cost in zip(found.best.rewrites, costs(found), strict=True)
    )
    return best, Extras(
        Plan(found.best.rewrites, best, without, records), frontier=found.points, answer=answer_line(found)
    )


def _figures(point: FitPoint) -> tuple[Figures, Replay]:
    measured = measure(point.problem, point.order)
    peak = max(measured.profile)
    timeline = measured.timeline
    return Figures(timeline.step_us, timeline.exposed_us, peak, list(measured.profile).index(peak)), timeline


def _schedule(point: FitPoint, original: Figures, base_bytes: int, headroom_bytes: int) -> Schedule:
    figures, timeline = _figures(point)
    order = Candidate(tuple(point.order), figures.step_us, figures.peak_bytes)
    return Schedule(
        problem=point.problem,
        options=Options(memory_model=point.problem.memory_model),
        order=order.order,
        original=original,
        scheduled=figures,
        headroom_bytes=headroom_bytes,
        base_bytes=base_bytes,
        decisions=decisions(point.problem, timeline, order),
        fell_back=None,
        work=NO_WORK,
        schedule_s=0.0,
    )

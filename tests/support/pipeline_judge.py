"""Times and memory of a valid schedule, from its graph of events and from one list of live bytes per rank."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from overlap_sched.pipeline.action import Action, ActionKind, Pair, PipelineSchedule, parts
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob
from overlap_sched.pipeline.judge import Event, event_graph, needs_of

_Where = dict[Action, tuple[int, int]]
_Times = dict[Event, tuple[float, float]]
_Together = dict[Action, tuple[PipelineBlock | None, bool]]
"""Of actions in pairs: what is known of the pair, and whether it is counted here."""


@dataclass(frozen=True)
class JudgedPipeline:
    """A schedule as the judge sees it; tuples are indexed by rank.

    Attributes:
        spans_us: Per rank, start and end of each item.
        step_us: When all is done.
        busy_us: Of the compute stream.
        exposed_us: Idle time of the compute stream at what is made already.
        peaks: The most bytes, and the first instant at which they are live.
    """

    spans_us: tuple[tuple[tuple[float, float], ...], ...]
    step_us: float
    busy_us: tuple[float, ...]
    exposed_us: tuple[float, ...]
    peaks: tuple[tuple[int, float], ...]


def measure_pipeline(job: PipelineJob, schedule: PipelineSchedule) -> JudgedPipeline:
    """Judge a valid schedule (:func:`~overlap_sched.pipeline.judge.violation`)."""
    times = event_graph(job, schedule).times()
    spans = tuple(tuple(times[rank, k] for k in range(len(order))) for rank, order in enumerate(schedule.orders))
    reduces = [[parts(item)[0].kind is ActionKind.REDUCE for item in order] for order in schedule.orders]
    busy = tuple(
        sum(end - start for (start, end), reduce in zip(one, apart, strict=True) if not reduce)
        for one, apart in zip(spans, reduces, strict=True)
    )
    where = _where(schedule)
    exposed = tuple(_exposed_us(job, schedule, rank, times, where) for rank in range(job.ranks))
    step = max(end for _, end in times.values())
    together = {
        action: (job.pairs.get((item.forward.stage, item.backward.stage)), action == item.forward)
        for order in schedule.orders
        for item in order
        if isinstance(item, Pair)
        for action in item
    }
    peaks = tuple(_peak(list(_live(job, rank, times, where, together))) for rank in range(job.ranks))
    return JudgedPipeline(spans, step, busy, exposed, peaks)


def _exposed_us(job: PipelineJob, schedule: PipelineSchedule, rank: int, times: _Times, where: _Where) -> float:
    """Idle time minus what would be idle if transfers and reductions took no time, item by item."""
    ended, last, exposed = 0.0, 0.0, 0.0
    for k, item in enumerate(schedule.orders[rank]):
        start, end = times[rank, k]
        last = max(last, end)
        if parts(item)[0].kind is ActionKind.REDUCE:
            continue
        made = [times[where[maker]][1] for action in parts(item) if (maker := _maker(job, action, where)) is not None]
        exposed += start - max([ended, *made])
        ended = end
    return exposed + last - ended


def _where(schedule: PipelineSchedule) -> _Where:
    return {
        action: (rank, k)
        for rank, order in enumerate(schedule.orders)
        for k, item in enumerate(order)
        for action in parts(item)
    }


def _neighbour(job: PipelineJob, stage: int, by: int) -> int | None:
    """The stage that comes so many behind another on its route."""
    for route in job.routes:
        if stage in route.stages:
            at = route.stages.index(stage) + by
            return route.stages[at] if 0 <= at < len(route.stages) else None
    return None


def _maker(job: PipelineJob, action: Action, where: _Where) -> Action | None:
    """The action of another stage whose output is this one's input."""
    kinds, by = {
        ActionKind.FORWARD: ((ActionKind.FORWARD,), -1),
        ActionKind.BACKWARD: ((ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT), 1),
        ActionKind.INPUT_GRADIENT: ((ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT), 1),
    }.get(action.kind, ((), 0))
    stage = _neighbour(job, action.stage, by) if kinds else None
    makers = [Action(kind, stage, action.micro_batch) for kind in kinds] if stage is not None else []
    return next((maker for maker in makers if maker in where), None)


def _live(
    job: PipelineJob, rank: int, times: _Times, where: _Where, together: _Together
) -> Iterator[tuple[float, float, int]]:
    """From when, until when, how many bytes."""
    for stage in range(len(job.stages)):
        if job.rank_of[stage] == rank:
            yield 0.0, float("inf"), job.stages[stage].static_bytes
    for action, place in where.items():
        start, end = times[place]
        on, own, block = job.rank_of[action.stage] == rank, job.stages[action.stage], needs_of(job, action)
        if on and block is not None:
            known, counts = together.get(action, (None, True))
            yield start, end, block.transient_bytes if known is None else known.transient_bytes * counts
        if on and action.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT):
            yield times[where[action._replace(kind=ActionKind.FORWARD)]][0], end, own.saved_bytes
        if on and action.kind is ActionKind.WEIGHT_GRADIENT:
            yield times[where[action._replace(kind=ActionKind.INPUT_GRADIENT)]][1], end, own.kept_bytes
        maker = _maker(job, action, where)
        made_of = None if maker is None else needs_of(job, maker)
        if maker is None or made_of is None:
            continue
        made, here = times[where[maker]][1], job.rank_of[maker.stage] == rank
        if here and on:
            buffer = made, start, made_of.buffer_bytes
        elif here:
            buffer = made, times[maker][1], made_of.buffer_bytes
        elif on:
            buffer = times[maker][0], start, made_of.output_bytes
        else:
            continue
        if buffer[0] < buffer[1]:
            yield buffer


def _peak(live: list[tuple[float, float, int]]) -> tuple[int, float]:
    """The most bytes at any instant at which something begins, counted anew for each of them."""
    starts, ends = sorted(live), sorted((end, size) for start, end, size in live if end > start)
    moments = sorted((start, size) for start, end, size in live if end == start)
    at = [start for start, _, _ in starts]
    begun = [0, *accumulate(size for start, end, size in starts if end > start)]
    lasting = [start for start, end, _ in starts if end > start]
    gone = [0, *accumulate(size for _, size in ends)]
    over = [end for end, _ in ends]
    instants = [instant for instant, _ in moments]
    passing = [0, *accumulate(size for _, size in moments)]
    best, best_at = -1, 0.0
    for now in at:
        count = begun[bisect_right(lasting, now)] - gone[bisect_right(over, now)]
        count += passing[bisect_right(instants, now)] - passing[bisect_left(instants, now)]
        if count > best:
            best, best_at = count, now
    return best, best_at

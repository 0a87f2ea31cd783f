"""What a schedule of a pipeline takes, and whether its sends can hang: shares only the data with what it judges."""

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import accumulate
from typing import Literal

from overlap_sched.pipeline.action import (
    RECEIVES,
    SENDS,
    Action,
    ActionKind,
    Item,
    Pair,
    PipelineSchedule,
    parts,
)
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob
from overlap_sched.pipeline.judge import Event, event_graph

# Times and memory of a valid schedule, from its graph of events and from one list of live bytes per rank.


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
    graph = event_graph(job, schedule)
    times: dict[Event, tuple[float, float]] = {}
    for event in TopologicalSorter({event: before for event, (_, before) in graph.items()}).static_order():
        time_us, before = graph[event]
        start = max([0.0, *(times[earlier][1] for earlier in before)])
        times[event] = start, start + time_us
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
        on, own, block = (
            job.rank_of[action.stage] == rank,
            job.stages[action.stage],
            job.stages[action.stage].block(action.kind),
        )
        if on and block is not None:
            known, counts = together.get(action, (None, True))
            yield start, end, block.transient_bytes if known is None else known.transient_bytes * counts
        if on and action.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT):
            yield times[where[action._replace(kind=ActionKind.FORWARD)]][0], end, own.saved_bytes
        if on and action.kind is ActionKind.WEIGHT_GRADIENT:
            yield times[where[action._replace(kind=ActionKind.INPUT_GRADIENT)]][1], end, own.kept_bytes
        maker = _maker(job, action, where)
        made_of = None if maker is None else job.stages[maker.stage].block(maker.kind)
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


# Do sends and receives of a schedule match, and can it hang? Ranks are run action by action, without a clock.


Sending = Literal["blocking", "buffered"]
"""``blocking``: a send ends when its receive is reached on the other rank (rendezvous). ``buffered``: at once."""

_SENT_AS = {
    ActionKind.FORWARD: (ActionKind.SEND_FORWARD, ActionKind.RECEIVE_FORWARD, 1),
    ActionKind.BACKWARD: (ActionKind.SEND_BACKWARD, ActionKind.RECEIVE_BACKWARD, -1),
    ActionKind.INPUT_GRADIENT: (ActionKind.SEND_BACKWARD, ActionKind.RECEIVE_BACKWARD, -1),
}


def transfer_violation(job: PipelineJob, schedule: PipelineSchedule, sending: Sending) -> str | None:
    """The first rule that the sends and receives of a schedule break, or ``None`` if it runs to its end.

    An output for another rank is sent once, behind what makes it, and received in front of what needs it; messages of
    one pair of ranks are received in the order in which they are sent; no ring of ranks that wait for each other.
    """
    return _unmatched(job, schedule) or _hang(job, schedule, sending)


def _way(job: PipelineJob, action: Action) -> tuple[Action, Action] | None:
    """The send and the receive of what an action makes; ``None``: it stays."""
    if action.kind not in _SENT_AS:
        return None
    send, receive, by = _SENT_AS[action.kind]
    for route in job.routes:
        for one, other in zip(route.stages[::by], route.stages[::by][1:], strict=False):
            if one == action.stage and job.rank_of[one] != job.rank_of[other]:
                return Action(send, one, action.micro_batch), Action(receive, other, action.micro_batch)
    return None


def _unmatched(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    place: dict[Action, tuple[int, int]] = {}
    for rank, order in enumerate(schedule.orders):
        for k, item in enumerate(order):
            for action in parts(item):
                if action in place:
                    return f"{action} runs twice, on ranks {place[action][0]} and {rank}"
                place[action] = (rank, k)
    wanted: set[Action] = set()
    for action in list(place):
        way = _way(job, action)
        if way is None:
            continue
        wanted.update(way)
        send, receive = way
        for one in way:
            if place.get(one, (-1, 0))[0] != job.rank_of[one.stage]:
                return f"rank {job.rank_of[one.stage]} never runs {one}, for what {action} makes"
        if place[send] < place[action]:
            return f"{send} comes before {action}"
        ahead = action.kind is ActionKind.FORWARD
        for kind in (ActionKind.FORWARD,) if ahead else (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT):
            user = Action(kind, receive.stage, receive.micro_batch)
            if user in place and place[user] < place[receive]:
                return f"{user} comes before {receive}"
    extra = [action for action in place if action.kind in (*SENDS, *RECEIVES) and action not in wanted]
    return f"nothing is sent by {extra[0]}" if extra else None


def _hang(job: PipelineJob, schedule: PipelineSchedule, sending: Sending) -> str | None:
    at = [0] * job.ranks
    channels: dict[tuple[int, int], deque[Action]] = defaultdict(deque)
    ways = {way[1]: way[0] for r in range(job.ranks) for a in schedule.actions(r) if (way := _way(job, a)) is not None}
    back = {send: receive for receive, send in ways.items()}

    def head(rank: int) -> Item | None:
        order = schedule.orders[rank]
        return order[at[rank]] if at[rank] < len(order) else None

    moved = True
    while moved:
        moved = False
        for rank in range(job.ranks):
            item = head(rank)
            if item is None:
                continue
            if isinstance(item, Action) and item.kind in SENDS:
                to = job.rank_of[back[item].stage]
                if sending == "buffered":
                    channels[rank, to].append(back[item])
                elif head(to) == back[item]:
                    at[to] += 1
                else:
                    continue
            elif isinstance(item, Action) and item.kind in RECEIVES:
                waiting = channels[job.rank_of[ways[item].stage], rank]
                if not waiting:
                    continue
                if waiting[0] != item:
                    return f"rank {rank} is at {item}, but what comes next is for {waiting[0]}"
                waiting.popleft()
            at[rank] += 1
            moved = True
    stuck = [f"rank {rank} at {head(rank)}" for rank in range(job.ranks) if head(rank) is not None]
    return f"ranks wait for each other where sends are {sending}: {', '.join(stuck)}" if stuck else None

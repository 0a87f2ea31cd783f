"""Pipelined jobs with few stages, and random valid schedules of them."""

import random
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    backward,
    forward,
    input_gradient,
    parts,
    weight_gradient,
)
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage, Route
from overlap_sched.pipeline.judge import Event, event_graph, needs_of
from overlap_sched.pipeline.layout import mirrored
from overlap_sched.pipeline.replay import PipelineReplay, with_updates

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


def uniform(
    ranks: int, micro_batches: int, chunks: int = 1, f: float = 1.0, i: float = 1.0, w: float = 1.0, saved: int = 1
) -> PipelineJob:
    """All stages alike, no transfer time; what a stage saves it keeps until its weight gradient."""
    blocks = PipelineBlock(f), PipelineBlock(i + w), PipelineBlock(i), PipelineBlock(w)
    count = ranks * chunks
    return PipelineJob(
        "uniform",
        (PipelineStage(*blocks, saved_bytes=saved, kept_bytes=saved),) * count,
        tuple(stage % ranks for stage in range(count)),
        ranks,
        (Route(tuple(range(count)), range(micro_batches)),),
    )


def random_job(rng: random.Random, most_stages: int = 5, most_batches: int = 4) -> PipelineJob:
    """Small integers everywhere, so that sums are exact; some without halves of backward, some in two directions."""

    def block() -> PipelineBlock:
        return PipelineBlock(
            float(rng.randint(0, 6)), rng.randint(0, 9), rng.randint(0, 9), rng.choice((None, 0, rng.randint(0, 9)))
        )

    def stage() -> PipelineStage:
        halves = (block(), block()) if rng.random() < 0.7 else (None, None)
        updates = [block() if rng.random() < 0.3 else None for _ in range(2)]
        held = [rng.randint(0, 20) for _ in range(3)]
        return PipelineStage(block(), block(), *halves, *held, *updates)

    count, batches = rng.randint(1, most_stages), rng.randint(1, most_batches)
    ranks = rng.randint(1, count)
    places = [*range(ranks), *(rng.randrange(ranks) for _ in range(count - ranks))]
    rng.shuffle(places)
    pairs = [(a, b) for a in range(count) for b in range(count) if rng.random() < 0.3]
    job = PipelineJob(
        "random",
        tuple(stage() for _ in range(count)),
        tuple(places),
        ranks,
        (Route(tuple(rng.sample(range(count), count)), range(batches)),),
        PipelineLink(float(rng.randint(0, 3)), rng.choice((float("inf"), 1e6, 2e6))),
        {(a, b): PipelineLink(1.0) for a in range(ranks) for b in range(ranks) if rng.random() < 0.2},
        None,
        rng.choice((0.5, 0.75, 1.0, 1.5)),
        {pair: PipelineBlock(float(rng.randint(0, 9)), rng.randint(0, 9)) for pair in pairs},
    )
    if ranks == count and batches > 1 and rng.random() < 0.3:
        return mirrored(job)
    return job


def random_schedule(job: PipelineJob, rng: random.Random) -> PipelineSchedule:
    """Any valid one: actions of all ranks one after the other, each when what it needs has run."""
    following = {s: t for route in job.routes for s, t in zip(route.stages, route.stages[1:], strict=False)}
    todo = {forward(route.stages[0], m) for route in job.routes for m in route.micro_batches}
    ran: set[Action] = set()
    orders: list[list[Item]] = [[] for _ in range(job.ranks)]
    previous = {t: s for s, t in following.items()}

    def opens(action: Action) -> list[Action]:
        """What may run because this has run."""
        _, s, m = action
        assert m is not None
        if action == forward(s, m):
            return [forward(following[s], m)] if s in following else [turn(s, m)]
        if action == weight_gradient(s, m):
            return []
        weights = [weight_gradient(s, m)] if action == input_gradient(s, m) else []
        return [*weights, *([turn(previous[s], m)] if s in previous else [])]

    def turn(s: int, m: int) -> Action:
        return input_gradient(s, m) if job.stages[s].splits and rng.random() < 0.5 else backward(s, m)

    while todo:
        action = rng.choice(sorted(todo))
        _, s, m = action
        assert m is not None
        backs = [a for a in sorted(todo) if a == backward(a.stage, a.micro_batch or 0)]
        beside = [a for a in backs if job.rank_of[a.stage] == job.rank_of[s]]
        item: Item = (
            Pair(action, rng.choice(beside)) if action == forward(s, m) and beside and rng.random() < 0.5 else action
        )
        done = list(item) if isinstance(item, Pair) else [action]
        orders[job.rank_of[s]].append(item)
        todo.difference_update(done)
        ran.update(done)
        todo.update(one for action in done for one in opens(action))
    return with_updates(job, PipelineSchedule("random", tuple(map(tuple, orders))))


def swapped(schedule: PipelineSchedule, rng: random.Random) -> PipelineSchedule:
    """Two items of one rank change places."""
    rank = rng.choice([r for r, order in enumerate(schedule.orders) if len(order) > 1])
    order = list(schedule.orders[rank])
    a, b = rng.sample(range(len(order)), 2)
    order[a], order[b] = order[b], order[a]
    return replace(schedule, orders=(*schedule.orders[:rank], tuple(order), *schedule.orders[rank + 1 :]))


def inner_bubble_us(replay: PipelineReplay) -> tuple[float, ...]:
    """Per rank, the idle time between its first and its last item: what papers on zero bubbles count."""
    return tuple(
        max(run.end_us for run in items) - items[0].start_us - busy_us if items else 0.0
        for items, busy_us in zip(replay.items, replay.busy_us, strict=True)
    )

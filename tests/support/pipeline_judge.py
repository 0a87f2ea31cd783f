"""What a schedule of a pipeline takes, and whether its sends can hang: shares only the data with what it judges."""

from collections import defaultdict, deque
from collections.abc import Container, Iterator
from graphlib import TopologicalSorter
from itertools import count
from typing import Literal, NamedTuple

from overlap_sched.pipeline.action import (
    BACKWARDS,
    BESIDE,
    RECEIVES,
    SENDS,
    Action,
    ActionKind,
    Item,
    Pair,
    PipelineSchedule,
    parts,
)
from overlap_sched.pipeline.job import PipelineJob

Event = tuple[int, int] | Action
"""``(rank, position)`` of an item; the action that made what is sent, of a transfer."""


class JudgedPipeline(NamedTuple):
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


_Times = dict[Event, tuple[float, float]]


def _event_graph(job: PipelineJob, schedule: PipelineSchedule) -> dict[Event, tuple[float, list[Event]]]:
    """What each event takes, and what it waits for, where no streams share links."""
    graph = dict[Event, tuple[float, list[Event]]]()
    runs = [(rank, k, item) for rank, order in enumerate(schedule.orders) for k, item in enumerate(order)]
    at: dict[Action, Event] = {action: (rank, k) for rank, k, item in runs for action in parts(item)}
    for rank, order in enumerate(schedule.orders):
        compute, beside = list[Event](), list[Event]()
        sent, gathered = dict[int, Event](), dict[int, Event]()
        for k, item in enumerate(order):
            here = parts(item)
            needed = [gathered[action.stage] for action in here if action.stage in gathered]
            for action in here:
                if (maker := _maker(job, action, at)) is not None:
                    needed.append(maker if job.rank_of[maker.stage] != rank else at[maker])
                if action.kind is ActionKind.STEP and (reduce := Action(ActionKind.REDUCE, action.stage)) in at:
                    needed.append(at[reduce])
            if here[0].kind in BESIDE:
                graph[rank, k] = _item_us(job, item), [*compute, *beside]
                beside = [(rank, k)]
                gathered |= {here[0].stage: (rank, k)} if here[0].kind is ActionKind.UNSHARD else {}
                continue
            graph[rank, k] = _item_us(job, item), [*compute, *needed]
            compute = [(rank, k)]
            for action in here:
                to, block = job.gives_to(action), job.stages[action.stage].block(action.kind)
                if to is not None and block is not None and (other := job.rank_of[to]) != rank:
                    link = job.links.get((rank, other), job.link)
                    us = link.latency_us + block.output_bytes / link.bytes_per_s * 1e6
                    graph[action] = us, [(rank, k), *([sent[other]] if other in sent else [])]
                    sent[other] = action
    return graph


def _item_us(job: PipelineJob, item: Item) -> float:
    times = [block.time_us for action in parts(item) if (block := job.stages[action.stage].block(action.kind))]
    if not isinstance(item, Pair):
        return times[0]
    both = item.forward.stage, item.backward.stage
    return max(*times, job.pairs[both].time_us if both in job.pairs else job.pair_factor * sum(times))


def measure_pipeline(job: PipelineJob, schedule: PipelineSchedule) -> JudgedPipeline:
    """Judge a valid schedule (:func:`~overlap_sched.pipeline.judge.violation`)."""
    graph, times = _event_graph(job, schedule), _Times()
    for event in TopologicalSorter({event: before for event, (_, before) in graph.items()}).static_order():
        time_us, before = graph[event]
        start = max([0.0, *(times[earlier][1] for earlier in before)])
        times[event] = start, start + time_us
    spans = tuple(tuple(times[rank, k] for k in range(len(order))) for rank, order in enumerate(schedule.orders))
    own = {
        action: spans[r][k]
        for r, order in enumerate(schedule.orders)
        for k, i in enumerate(order)
        for action in parts(i)
    }
    busy, exposed = [0.0] * job.ranks, [0.0] * job.ranks
    for rank, order in enumerate(schedule.orders):
        ended = last = 0.0
        for item, (start, end) in zip(order, spans[rank], strict=True):
            last = max(last, end)
            if parts(item)[0].kind not in BESIDE:
                made = [own[maker][1] for action in parts(item) if (maker := _maker(job, action, own)) is not None]
                exposed[rank] += start - max([ended, *made])  # idle, though all has been made
                busy[rank] += end - start
                ended = end
        exposed[rank] += last - ended
    live: list[list[tuple[float, float, int]]] = [[(0.0, float("inf"), most)] for most in job.static_bytes]
    for rank, *what in _live(job, schedule, times, own):
        live[rank].append((what[0], what[1], int(what[2])))
    step = max(end for _, end in times.values())
    return JudgedPipeline(spans, step, tuple(busy), tuple(exposed), tuple(map(_peak, live)))


def _maker(job: PipelineJob, action: Action, known: Container[Action]) -> Action | None:
    """The action of another stage whose output is this one's input."""
    stage, kinds = job.needs_from(action), BACKWARDS if action.kind in BACKWARDS else (action.kind,)
    makers = [Action(kind, stage, action.micro_batch) for kind in kinds] if stage is not None else []
    return next((maker for maker in makers if maker in known), None)


def _live(
    job: PipelineJob, schedule: PipelineSchedule, times: _Times, own: dict[Action, tuple[float, float]]
) -> Iterator[tuple[int, float, float, int]]:
    """On which rank from when until when are how many bytes."""
    for rank, order in enumerate(schedule.orders):
        for item in order:
            blocks = [job.stages[action.stage].block(action.kind) for action in parts(item)]
            transient = sum(block.transient_bytes for block in blocks if block is not None)
            if len(blocks) > 1 and (pair := job.pairs.get((parts(item)[0].stage, parts(item)[1].stage))) is not None:
                transient = pair.transient_bytes
            yield rank, *own[parts(item)[0]], transient
    for action, (start, end) in own.items():
        kind, s, m = action
        rank, stage, maker = job.rank_of[s], job.stages[s], _maker(job, action, own)
        if kind in BACKWARDS:
            yield rank, own[Action(ActionKind.FORWARD, s, m)][0], end, stage.saved_bytes
        elif kind is ActionKind.WEIGHT_GRADIENT:
            yield rank, own[Action(ActionKind.INPUT_GRADIENT, s, m)][1], end, stage.kept_bytes
        elif kind is ActionKind.RESHARD and stage.unshard is not None:
            yield rank, own[Action(ActionKind.UNSHARD, s, m)][0], start, stage.unshard.output_bytes
        block = None if maker is None else job.stages[maker.stage].block(maker.kind)
        if maker is not None and block is not None:
            made, sender = own[maker][1], job.rank_of[maker.stage]
            over = start if sender == rank else times[maker][1]
            if made < over:
                yield sender, made, over, block.buffer_bytes
            if sender != rank and times[maker][0] < start:
                yield rank, times[maker][0], start, block.output_bytes


def _peak(live: list[tuple[float, float, int]]) -> tuple[int, float]:
    """The most bytes at any instant at which something begins, counted anew for each, and the first of these."""
    instants = {start for start, _, _ in live}
    counts = [
        (sum(size for start, end, size in live if start <= now < end or start == end == now), -now) for now in instants
    ]
    most, at = max(counts)
    return most, -at


Sending = Literal["blocking", "buffered"]
"""``blocking``: a send ends when its receive is reached on the other rank (rendezvous). ``buffered``: at once."""


def transfer_violation(job: PipelineJob, schedule: PipelineSchedule, sending: Sending) -> str | None:
    """The first rule that the sends and receives of a schedule break, or ``None`` if it runs to its end.

    An output for another rank is sent once, behind what makes it, and received in front of what needs it; messages of
    one pair of ranks are received in the order in which they are sent; no ring of ranks that wait for each other.
    Ranks are run action by action, without a clock.
    """
    number = count()
    placed = [(action, rank, next(number)) for rank in range(job.ranks) for action in schedule.actions(rank)]
    place = {action: at for action, _, at in placed}
    ways: dict[Action, Action] = {}  # by receive, its send
    for action in place:
        to = job.gives_to(action)
        if to is not None and job.rank_of[to] != job.rank_of[action.stage]:
            back = action.kind is not ActionKind.FORWARD
            send = Action(SENDS[back], action.stage, action.micro_batch)
            receive = Action(RECEIVES[back], to, action.micro_batch)
            ways[receive] = send
            users = (Action(kind, to, action.micro_batch) for kind in (BACKWARDS if back else (ActionKind.FORWARD,)))
            for first, second in ((action, send), *((receive, user) for user in users)):
                if first in place and second in place and place[second] < place[first]:
                    return f"{second} comes before {first}"
    there = sorted((action, rank) for action, rank, _ in placed if action.kind in (*SENDS, *RECEIVES))
    if there != sorted((end, job.rank_of[end.stage]) for both in ways.items() for end in both):
        return "sends and receives are not those of what is made, on its rank and once"
    return _hang(job, schedule, sending, ways)


def _hang(job: PipelineJob, schedule: PipelineSchedule, sending: Sending, ways: dict[Action, Action]) -> str | None:
    at, back = [0] * job.ranks, {send: receive for receive, send in ways.items()}
    channels: dict[tuple[int, int], deque[Action]] = defaultdict(deque)

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
            if item in back:
                to = job.rank_of[back[item].stage]
                if sending == "buffered":
                    channels[rank, to].append(back[item])
                elif head(to) == back[item]:
                    at[to] += 1
                else:
                    continue
            elif item in ways:
                waiting = channels[job.rank_of[ways[item].stage], rank]
                if not waiting:
                    continue
                if waiting.popleft() != item:
                    return f"rank {rank} is at {item}, but that is not what comes next"
            at[rank] += 1
            moved = True
    stuck = [f"rank {rank} at {head(rank)}" for rank in range(job.ranks) if head(rank) is not None]
    return f"ranks wait for each other where sends are {sending}: {', '.join(stuck)}" if stuck else None

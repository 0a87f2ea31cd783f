"""How long a schedule of a pipelined job takes.

Each rank has a compute stream that runs its items in order, a reduction stream, and a stream to each other rank. An
output is sent as soon as it is there, in the order of making, one at a time per ordered pair of ranks; sending takes
nothing from compute. An item starts when the one before it has ended and what it needs has arrived::

    rank 0   | 0F0 | 0F1 |.......................| 0B0 |          . idle
    0 -> 1         |s|   |s|
    rank 1           | 1F0 | 1B0 | 1F1 | 1B1 |
    1 -> 0                       |s|

A reduction starts when the compute stream has come to it; a step waits for that of its stage. The streams do not slow
each other.

How many bytes are live on each rank of a replayed schedule, by the rules of :mod:`overlap_sched.pipeline.job`.
"""

from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import NamedTuple

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import (
    BACKWARDS,
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

_SENT = (ActionKind.FORWARD, ActionKind.INPUT_GRADIENT)


def block_of(job: PipelineJob, action: Action) -> PipelineBlock:
    """Look up what an action takes; its stage has such an action."""
    block = job.stages[action.stage].block(action.kind)
    assert block is not None, f"stage {action.stage} has no {action.kind}"
    return block


def item_us(job: PipelineJob, item: Item) -> float:
    """The time of an item on its stream, in microseconds."""
    if not isinstance(item, Pair):
        return block_of(job, item).time_us
    one, other = (block_of(job, action).time_us for action in item)
    known = pair_block(job, item)
    return max(one, other, job.pair_factor * (one + other) if known is None else known.time_us)


def inside_us(job: PipelineJob, item: Item) -> float:
    """The part of an item's time in which compute waits for collectives of its graphs; microseconds."""
    known = pair_block(job, item) if isinstance(item, Pair) else None
    return sum(block_of(job, action).exposed_us for action in parts(item)) if known is None else known.exposed_us


def pair_block(job: PipelineJob, pair: Pair) -> PipelineBlock | None:
    """Look up what a pair takes, if that is known."""
    return job.pairs.get((pair.forward.stage, pair.backward.stage))


def least_part(job: PipelineJob) -> float:
    """The least part of what a forward and a backward take apart that a pair of them takes; at most 1."""
    apart = {(f, b): job.stages[f].forward.time_us + job.stages[b].backward.time_us for f, b in job.pairs}
    known = [pair.time_us / apart[both] for both, pair in job.pairs.items() if apart[both]]
    return min([1.0, job.pair_factor, *known])


def transfers_us(job: PipelineJob) -> list[float]:
    """List what the transfers between ranks take for one micro-batch, of forwards and of input gradients."""
    batch = job.routes[0].micro_batches[0]
    actions = [Action(kind, s, batch) for s in range(len(job.stages)) for kind in _SENT]
    return [
        transfer_us(job, action, job.rank_of[to])
        for action in actions
        if (to := job.gives_to(action)) is not None and job.rank_of[to] != job.rank_of[action.stage]
    ]


def transfer_us(job: PipelineJob, action: Action, receiver: int) -> float:
    """The time that the output of an action takes to another rank."""
    link = job.links.get((job.rank_of[action.stage], receiver), job.link)
    return link.latency_us + block_of(job, action).output_bytes / link.bytes_per_s * 1e6


class RunItem(NamedTuple):
    """An item on its rank's compute stream; of a reduction, on its reduction stream."""

    item: Item
    start_us: float
    end_us: float


class SentOutput(NamedTuple):
    """An output on its way to another rank.

    Attributes:
        action: That made it.
        needed_by: Stage that needs it.
        made_us: When it was there.
        start_us, end_us: On the stream from the one rank to the other; both ``made_us`` where it stays on its rank.
    """

    action: Action
    needed_by: int
    made_us: float
    start_us: float
    end_us: float


@dataclass(frozen=True)
class PipelineReplay:
    """The timeline of a schedule; tuples are indexed by rank.

    Attributes:
        items: Each rank's items in order, reductions among them.
        ran: All of them in an order in which each comes behind what it needs; with the rank.
        sent: Outputs in the order in which they were made, those that stay on their rank among them.
        step_us: When all streams of all ranks are done.
        busy_us: Of the compute stream.
        exposed_us: Time that the compute stream is idle although what it waits for has been made: transfers,
        reductions.
    """

    items: tuple[tuple[RunItem, ...], ...]
    ran: tuple[tuple[int, RunItem], ...]
    sent: tuple[SentOutput, ...]
    step_us: float
    busy_us: tuple[float, ...]
    exposed_us: tuple[float, ...]

    @property
    def bubble_us(self) -> tuple[float, ...]:
        """Per rank, the time of the step in which its compute stream is idle."""
        return tuple(self.step_us - busy_us for busy_us in self.busy_us)

    @property
    def bubble(self) -> float:
        """The idle part of all compute streams together, 0 to 1."""
        whole = self.step_us * len(self.busy_us)
        return sum(self.bubble_us) / whole if whole else 0.0


def replay_pipeline(job: PipelineJob, schedule: PipelineSchedule) -> PipelineReplay:
    """Run a schedule in simulated time; linear in actions.

    Raises:
        PipelineError: It cannot run to its end: an item waits for what is never made.
    """
    run = _PipelineRun(job, schedule)
    ready = deque(range(job.ranks))
    while ready:
        rank = ready.popleft()
        while (item := run.next_item(rank)) is not None:
            missing = next((need for need in run.needs(item) if need not in run.arrived), None)
            if missing is not None:
                run.waiting[missing] = rank
                break
            ready.extend(run.execute(rank, item))
    return run.result()


_Need = tuple[bool, int, int]
"""An input: whether of a forward, the stage that needs it, the micro-batch."""


class _PipelineRun:
    def __init__(self, job: PipelineJob, schedule: PipelineSchedule) -> None:
        self._job, self._schedule = job, schedule
        self.arrived: dict[_Need, tuple[float, float]] = {}  # when made, when there
        self.waiting: dict[_Need, int] = {}
        self._runs: list[list[RunItem]] = [[] for _ in range(job.ranks)]
        self._ran: list[tuple[int, RunItem]] = []
        self._clock, self._busy = [0.0] * job.ranks, [0.0] * job.ranks
        self._exposed, self._reduced = [0.0] * job.ranks, [0.0] * job.ranks
        self._reductions: dict[int, float] = {}
        self._stream: dict[tuple[int, int], float] = {}
        self._sent: list[SentOutput] = []

    def next_item(self, rank: int) -> Item | None:
        order, done = self._schedule.orders[rank], len(self._runs[rank])
        return order[done] if done < len(order) else None

    def needs(self, item: Item) -> list[_Need]:
        """List what must have come from other stages."""
        return [
            (action.kind is ActionKind.FORWARD, action.stage, action.micro_batch or 0)
            for action in parts(item)
            if self._job.needs_from(action) is not None
        ]

    def execute(self, rank: int, item: Item) -> list[int]:
        """Run an item whose needs are met; returns the ranks that waited for what it makes."""
        clock, time_us = self._clock[rank], item_us(self._job, item)
        if isinstance(item, Action) and item.kind is ActionKind.REDUCE:
            start = max(clock, self._reduced[rank])
            self._reduced[rank] = self._reductions[item.stage] = start + time_us
            self._record(rank, RunItem(item, start, start + time_us))
            return []
        inputs = [self.arrived[need] for need in self.needs(item)]
        made = max([clock, *(made for made, _ in inputs)])
        start = max([made, *(there for _, there in inputs)])
        if isinstance(item, Action) and item.kind is ActionKind.STEP:
            start = max(start, self._reductions.get(item.stage, 0.0))
        self._exposed[rank] += start - made
        self._busy[rank] += time_us
        self._clock[rank] = end = start + time_us
        self._record(rank, RunItem(item, start, end))
        return [waiting for action in parts(item) for waiting in self._send(rank, action, end)]

    def _record(self, rank: int, run: RunItem) -> None:
        self._runs[rank].append(run)
        self._ran.append((rank, run))

    def _send(self, rank: int, action: Action, made_us: float) -> list[int]:
        to = self._job.gives_to(action)
        if to is None:
            return []
        receiver, start, end = self._job.rank_of[to], made_us, made_us
        if receiver != rank:
            start = max(made_us, self._stream.get((rank, receiver), 0.0))
            end = self._stream[rank, receiver] = start + transfer_us(self._job, action, receiver)
        self._sent.append(SentOutput(action, to, made_us, start, end))
        need = (action.kind is ActionKind.FORWARD, to, action.micro_batch or 0)
        self.arrived[need] = (made_us, end)
        return [self.waiting.pop(need)] if need in self.waiting else []

    def result(self) -> PipelineReplay:
        for rank in range(self._job.ranks):
            item = self.next_item(rank)
            if item is not None:
                raise PipelineError(
                    f"{self._schedule.name}: rank {rank} waits at {item} for what is never made: a deadlock."
                )
        ends = [max([clock, reduced]) for clock, reduced in zip(self._clock, self._reduced, strict=True)]
        step = max([*ends, *self._stream.values()])
        exposed = tuple(
            known + max(reduced - clock, 0.0)
            for known, reduced, clock in zip(self._exposed, self._reduced, self._clock, strict=True)
        )
        items, ran, sent = tuple(map(tuple, self._runs)), tuple(self._ran), tuple(self._sent)
        return PipelineReplay(items, ran, sent, step, tuple(self._busy), exposed)


class RankPeak(NamedTuple):
    """The most bytes live on a rank at once.

    Attributes:
        bytes: All, what is static among them.
        at_us: The first instant at which they are.
        item: What the rank computes then; of an idle one, what begins to be live.
    """

    bytes: int
    at_us: float
    item: Item


class _LiveBytes(NamedTuple):
    start_us: float
    end_us: float
    bytes: int
    owner: Action


def pipeline_peaks(job: PipelineJob, replay: PipelineReplay) -> tuple[RankPeak, ...]:
    """The peak of each rank; sorts what is live by time."""
    live = _live_bytes(job, replay)
    return tuple(_peak(job.static_bytes[rank], live[rank], replay.items[rank]) for rank in range(job.ranks))


def within_limits(job: PipelineJob, replay: PipelineReplay) -> bool:
    """Tell whether no rank needs more than its limit."""
    limits = job.memory_limit_bytes
    return limits is None or all(
        peak.bytes <= limit for peak, limit in zip(pipeline_peaks(job, replay), limits, strict=True)
    )


def memory_curves(job: PipelineJob, replay: PipelineReplay) -> tuple[tuple[tuple[float, int], ...], ...]:
    """Per rank, the bytes that are live from each instant (microseconds) at which they change, from 0 on."""
    curves = []
    for rank, live in enumerate(_live_bytes(job, replay)):
        change: dict[float, int] = {0.0: job.static_bytes[rank]}
        for one in live:
            change[one.start_us] = change.get(one.start_us, 0) + one.bytes
            change[one.end_us] = change.get(one.end_us, 0) - one.bytes
        now, curve = 0, list[tuple[float, int]]()
        for time_us in sorted(change):
            now += change[time_us]
            curve.append((time_us, now))
        curves.append(tuple(curve))
    return tuple(curves)


def _peak(static: int, live: list[_LiveBytes], items: tuple[RunItem, ...]) -> RankPeak:
    first, now = items[0], static
    best, at_us, owner = static, 0.0, first.item
    ends = [(one.end_us, 0 if one.end_us > one.start_us else 2, -one.bytes, one.owner) for one in live]
    for time_us, _, size, action in sorted([*ends, *((one.start_us, 1, one.bytes, one.owner) for one in live)]):
        now += size
        if now > best:
            best, at_us, owner = now, time_us, action
    running = [run.item for run in items if run.start_us <= at_us and (at_us < run.end_us or run.start_us == at_us)]
    return RankPeak(best, at_us, running[-1] if running else owner)


def _transient_bytes(job: PipelineJob, action: Action, item: Item) -> int:
    """Those of an action; where those of its pair are known, the forward has them all."""
    known = pair_block(job, item) if isinstance(item, Pair) else None
    if known is None:
        return block_of(job, action).transient_bytes
    return known.transient_bytes if action.kind is ActionKind.FORWARD else 0


def _live_bytes(job: PipelineJob, replay: PipelineReplay) -> list[list[_LiveBytes]]:
    """Per rank, what is live from when to when, without what is static."""
    found: list[list[_LiveBytes]] = [[] for _ in range(job.ranks)]
    times = {action: run for items in replay.items for run in items for action in parts(run.item)}
    for action, run in times.items():
        kind, stage, m = action
        live, needs = found[job.rank_of[stage]], job.stages[stage]
        live.append(_LiveBytes(run.start_us, run.end_us, _transient_bytes(job, action, run.item), action))
        if kind is ActionKind.FORWARD:
            back = next(times[one] for kind in BACKWARDS if (one := Action(kind, stage, m)) in times)
            live.append(_LiveBytes(run.start_us, back.end_us, needs.saved_bytes, action))
        elif kind is ActionKind.INPUT_GRADIENT:
            weights = times[Action(ActionKind.WEIGHT_GRADIENT, stage, m)]
            live.append(_LiveBytes(run.end_us, weights.end_us, needs.kept_bytes, action))
    for action, stage, made_us, start_us, end_us in replay.sent:
        sender, receiver, m = job.rank_of[action.stage], job.rank_of[stage], action.micro_batch
        ahead = action.kind is ActionKind.FORWARD
        kinds = (ActionKind.FORWARD,) if ahead else BACKWARDS
        user = next(times[one] for kind in kinds if (one := Action(kind, stage, m)) in times)
        block = block_of(job, action)
        if sender == receiver:
            if user.start_us > made_us:
                found[sender].append(_LiveBytes(made_us, user.start_us, block.buffer_bytes, action))
            continue
        send, receive = SENDS[not ahead], RECEIVES[not ahead]
        if end_us > made_us:
            found[sender].append(_LiveBytes(made_us, end_us, block.buffer_bytes, Action(send, action.stage, m)))
        if user.start_us > start_us:
            found[receiver].append(_LiveBytes(start_us, user.start_us, block.output_bytes, Action(receive, stage, m)))
    return found


def with_updates(job: PipelineJob, schedule: PipelineSchedule) -> PipelineSchedule:
    """The same with a reduction behind each stage's last gradient of its weights, and the steps at the end.

    Of stages that have them. Reductions are where torch's ``_add_reduce_grad`` puts them.
    """
    orders = []
    for rank, order in enumerate(schedule.orders):
        left = Counter(action.stage for item in order for action in parts(item) if _of_weights(action))
        found: list[Item] = []
        for item in order:
            found.append(item)
            for action in filter(_of_weights, parts(item)):
                left[action.stage] -= 1
                if not left[action.stage] and job.stages[action.stage].reduce is not None:
                    found.append(Action(ActionKind.REDUCE, action.stage))
        steps = [stage for stage in job.stages_of[rank] if job.stages[stage].step is not None]
        orders.append((*found, *(Action(ActionKind.STEP, stage) for stage in steps)))
    return replace(schedule, orders=tuple(orders))


def _of_weights(action: Action) -> bool:
    return action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT)

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
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import Action, ActionKind, Item, parts
from overlap_sched.pipeline.durations import item_us, transfer_us
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.schedule import PipelineSchedule


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

    @property
    def inner_bubble_us(self) -> tuple[float, ...]:
        """Per rank, the idle time between its first and its last item: what papers on zero bubbles count."""
        return tuple(
            max(run.end_us for run in items) - items[0].start_us - busy_us if items else 0.0
            for items, busy_us in zip(self.items, self.busy_us, strict=True)
        )


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

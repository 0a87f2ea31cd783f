"""A list scheduler for the ranks of a pipeline: each takes its passes in the order that it wants, within its memory.

Where the next one's input is not there, a rank takes a later one, if what it holds stays within its limit until that
one's turn would have come::

    wanted by rank 1    0F0 3F0 3B0 0F1 0B0 ..
    taken               |0F0|0F1|   |3F0|3B0|0B0| ..     3F0 waits for ranks behind: 0F1 goes first, if it fits
                                 gap

Micro-batches are alike, so each stage takes them in turn: of any schedule, renaming those that overtake makes one in
turn that is as long and needs as much.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import NamedTuple

from overlap_sched.pipeline.action import COMPUTE, Action, ActionKind, Item, Pair, PipelineSchedule, parts
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.replay import block_of, item_us, transfer_us

F, B, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT


class Lead(NamedTuple):
    """How far ranks run ahead; a rank takes a backward that is there, else a forward that it may, else what waits.

    Attributes:
        forwards: Those without their backwards, per stage, beyond 1F1B's: one for each stage behind it, and its own.
        weights: Weight gradients that may wait while other passes are there.
    """

    forwards: int
    weights: int


Wanted = Sequence[Sequence[Action]] | Lead
"""Per rank, all of its passes, ``B`` standing for ``I`` where there are halves; or the lead of all ranks."""


def greedy_schedule(
    job: PipelineJob, wanted: Wanted, steady: bool = False, pairs: bool = False
) -> PipelineSchedule | None:
    """Run a job as its ranks want; ``None``: it comes to a stop, as ranks wait for room.

    Limits are kept to by activations and inputs that wait; :func:`~overlap_sched.pipeline.replay.pipeline_peaks` counts
    all.

    Args:
        job: As a layout has placed it.
        wanted: What ranks take.
        steady: From its first stage's first gradient to that one's last forward, a rank takes what it wants in turn.
        pairs: A forward and a backward that are both there run together, where that saves time.
    """
    return _GreedyRun(job, wanted, steady, pairs).finish()


class _GreedyRun:
    """What has begun so far, and when it ends, in microseconds.

    Once all forwards of its first stage have begun, a rank with an order puts weight gradients off: they go last.

    Attributes:
        wakes: When a rank is to look again for what it may begin: a heap of times and ranks.
        orders: Per rank, what it has begun.
        left: Per rank, what it has not, in the order that it wants.
        batches: Per stage, its micro-batches. begun: How many of them, forward and backward (I or B).
        waiting: Per stage, the micro-batches whose weight gradients wait.
        room: Per rank, bytes for what is saved, kept and coming. coming: Those of outputs under way to it, or waiting.
    """

    def __init__(self, job: PipelineJob, wanted: Wanted, steady: bool, pairs: bool) -> None:
        self.job, self._steady, self._pairs = job, steady, pairs
        self.wakes: list[tuple[float, int]] = [(0.0, rank) for rank in range(job.ranks)]
        self.orders: list[list[Item]] = [[] for _ in range(job.ranks)]
        self.batches = [route.micro_batches for route in job.route_of]
        self._find: Callable[[float, int, Sequence[ActionKind]], Action | None] = self._next_in_order
        if isinstance(wanted, Lead):
            self._find, wanted = partial(self._next_by_lead, wanted), [self._passes(own) for own in job.stages_of]
        self.left = [dict.fromkeys(order) for order in wanted]
        self.begun = {kind: [0] * len(job.stages) for kind in "FB"}
        self.waiting: list[deque[int]] = [deque() for _ in job.stages]
        self._there: dict[str, list[list[float]]] = {kind: [[] for _ in job.stages] for kind in "FB"}
        for route in job.routes:
            self._there["F"][route.stages[0]] = [0.0] * len(route.micro_batches)
        self._free_us, self._stream = [0.0] * job.ranks, defaultdict[tuple[int, int], float](float)
        behind = {s: len(route.stages) - k for route in job.routes for k, s in enumerate(route.stages)}
        self._last_first = [sorted(own, key=behind.__getitem__) for own in job.stages_of]
        self._ahead = [-(-sum(behind[s] for s in own) // len(own)) for own in job.stages_of]
        self.coming = [0] * job.ranks
        self.room = list(job.memory_limit_bytes or (2**62,) * job.ranks)
        for rank, stages in enumerate(job.stages_of):
            blocks = [block for s in stages for kind in COMPUTE if (block := job.stages[s].block(kind)) is not None]
            passing = max(block.transient_bytes + block.output_bytes for block in blocks)
            self.room[rank] -= job.static_bytes[rank] + passing

    def finish(self) -> PipelineSchedule | None:
        """Run to the end; ``None``: it comes to a stop."""
        while self.wakes:
            self._act(*heapq.heappop(self.wakes))
        return None if any(self.left) else PipelineSchedule("found", tuple(map(tuple, self.orders)))

    def _act(self, time_us: float, rank: int) -> None:
        """Have a rank begin what it may at a time, or wait for what is known to come."""
        if time_us < self._free_us[rank]:
            return
        item = self._take(time_us, rank)
        if item is None:
            coming = [self._next_us(kind, s) for s in self.job.stages_of[rank] for kind in "FB"]
            later = min((us for us in coming if us > time_us), default=inf)
            if later < inf:
                heapq.heappush(self.wakes, (later, rank))
            return
        end = self._free_us[rank] = time_us + item_us(self.job, item)
        self.orders[rank].append(item)
        heapq.heappush(self.wakes, (end, rank))
        for action in parts(item):
            self._note(action, rank, end)

    def _next_us(self, kind: str, s: int) -> float:
        """When the input of a stage's next forward or backward is there, if that is known."""
        there, k = self._there[kind][s], self.begun[kind][s]
        return there[k] if k < len(there) else inf

    def _passes(self, stages: Sequence[int]) -> list[Action]:
        """All passes of some stages, in no order."""
        kinds = {s: (F, B, W) if self.job.stages[s].splits else (F, B) for s in stages}
        return [Action(kind, s, m) for s in stages for kind in kinds[s] for m in self.batches[s]]

    def _take(self, time_us: float, rank: int) -> Item | None:
        """Take what a rank begins from what is left for it."""
        left, one = self.left[rank], self._find(time_us, rank, (F, B, W))
        if one is None:
            return None
        del left[one]
        other = self._find(time_us, rank, (B if one.kind is F else F,)) if self._pairs and one.kind is not W else None
        if other is not None:
            pair = Pair(*sorted((one, other), key=lambda action: action.kind is B))
            if item_us(self.job, pair) < sum(item_us(self.job, action) for action in pair):
                del left[other]
                left.pop(pair.backward._replace(kind=W), None)
                return pair
        return one if one.kind is not B else one._replace(kind=self._back(one.stage))

    def _next_by_lead(self, lead: Lead, time_us: float, rank: int, kinds: Sequence[ActionKind]) -> Action | None:
        """Find what a rank may begin by its lead, of such kinds: stages that come last on the way go first."""
        own = self._last_first[rank]
        waiting = [Action(W, s, self.waiting[s][0]) for s in own if self.waiting[s] and W in kinds]
        weights = min(waiting, key=lambda one: one.micro_batch or 0, default=None)
        if weights is not None and sum(len(self.waiting[s]) for s in own) > lead.weights:
            return weights
        ready = (
            Action(kind, s, self.batches[s][self.begun[kind][s]])
            for kind in (B, F)
            for s in own
            if kind in kinds
            and self._next_us(kind, s) <= time_us
            and (kind is B or self._may_begin_forward(rank, s, lead))
        )
        return next(ready, weights)

    def _may_begin_forward(self, rank: int, stage: int, lead: Lead) -> bool:
        """Tell whether lead and room allow a forward, with its micro-batch in all later stages of the rank."""
        own, stages = self._last_first[rank], self.job.stages
        new = own[: own.index(stage) + 1]
        begun = sum(self.begun["F"][s] - self.begun["B"][s] for s in own)
        if begun + len(new) > max(self._ahead[rank] + lead.forwards, 1) * len(own):
            return False
        more = sum(stages[s].saved_bytes for s in new) - self._input_bytes(Action(F, stage))
        return self._held_bytes(rank) + self.coming[rank] + more <= self.room[rank]

    def _held_bytes(self, rank: int) -> int:
        """Bytes of what is saved and kept."""
        return sum(
            (self.begun["F"][s] - self.begun["B"][s]) * self.job.stages[s].saved_bytes
            + len(self.waiting[s]) * self.job.stages[s].kept_bytes
            for s in self.job.stages_of[rank]
        )

    def _next_in_order(self, time_us: float, rank: int, kinds: Sequence[ActionKind]) -> Action | None:
        """Find the first pass that a rank may begin, of such kinds, in the order that it wants."""
        stages, own = self.job.stages, self.job.stages_of[rank]
        room, last = self.room[rank] - self.coming[rank], self.begun["F"][own[0]] == len(self.batches[own[0]])
        live = most = self._held_bytes(rank)
        weights: Action | None = None
        in_turn = self._steady and self.begun["B"][own[0]] > 0 and not last
        for action in islice(self.left[rank], 1 if in_turn else 48):  # as far as pays
            kind, s, m = action
            if kind is W:
                more, there = -stages[s].kept_bytes, m in list(self.waiting[s])[:1]
                if there and last:
                    weights, there = action if weights is None else weights, False
            else:
                there = self._next_us(kind, s) <= time_us and self.batches[s][self.begun[kind][s]] == m
                more = stages[s].saved_bytes
                if kind is B:
                    more = stages[s].kept_bytes * stages[s].splits - more
                else:
                    there = there and most + more - self._input_bytes(action) <= room
            if there and kind in kinds:
                return action
            live += more
            most = max(most, live)
        return weights if W in kinds else None

    def _input_bytes(self, item: Action) -> int:
        """Bytes that another stage has made for an action."""
        maker = self.job.needs_from(item)
        if maker is None:
            return 0
        kind = F if item.kind is F else self._back(maker)
        return block_of(self.job, Action(kind, maker)).output_bytes

    def _back(self, s: int) -> ActionKind:
        """``I``, or ``B`` of a stage without halves."""
        return ActionKind.INPUT_GRADIENT if self.job.stages[s].splits else B

    def _note(self, action: Action, rank: int, end: float) -> None:
        """Note what has begun, and when what it makes will be there."""
        job, (kind, s, m) = self.job, action
        self.coming[rank] -= self._input_bytes(action)
        if kind is W:
            self.waiting[s].popleft()
            return
        way = "F" if kind is F else "B"
        self.begun[way][s] += 1
        if kind is ActionKind.INPUT_GRADIENT:
            self.waiting[s].append(m or 0)
        to = job.gives_to(action)
        if to is None:
            if way == "F":
                self._there["B"][s].append(end)
            return
        receiver = job.rank_of[to]
        self.coming[receiver] += block_of(job, action).output_bytes
        if receiver != rank:
            start = max(end, self._stream[rank, receiver])
            end = self._stream[rank, receiver] = start + transfer_us(job, action, receiver)
        self._there[way][to].append(end)
        heapq.heappush(self.wakes, (end, receiver))

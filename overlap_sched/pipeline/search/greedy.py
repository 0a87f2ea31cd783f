"""A list scheduler for the ranks of a pipeline: each takes what is ready, by a few rules and within its memory.

A free rank takes, in this order, both in a pair if that saves time, a backward, a forward if it may begin one, a
weight gradient that waits::

    rank 1   |F0|F1|F2|     |I0|F3|I1|F4|I2|W0|I3|W1|..       more forwards ahead: fewer gaps, more memory
                       gap

What differs between policies is how many forwards may be ahead, how many weight gradients may wait, and which of
several stages goes first. Micro-batches are alike, so each stage takes them in turn: of any schedule, renaming those
that overtake makes one in turn that is as long and needs as much.
"""

import heapq
from collections import deque
from dataclasses import dataclass

from overlap_sched.pipeline.action import Action, ActionKind, Item, Pair, parts
from overlap_sched.pipeline.durations import item_us, transfer_us
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob
from overlap_sched.pipeline.schedule import PipelineSchedule


@dataclass(frozen=True)
class PipelinePolicy:
    """How a rank chooses.

    Attributes:
        ahead: Forwards without their backwards that a rank may have, beyond those of 1F1B: one per stage behind it and
            itself.
        waiting: Weight gradients of a rank that may wait; 0: backward is whole where it has no halves, else its halves
            run one behind the other.
        deepest: Of forwards of several stages, that of the last one goes first; else that of the first.
        patient: A weight gradient does not begin where a backward is known to arrive before half of it has run.
        pairs: A forward and a backward that are both there run together.
    """

    ahead: int
    waiting: int
    deepest: bool = True
    patient: bool = False
    pairs: bool = False


def greedy_schedule(job: PipelineJob, policy: PipelinePolicy) -> PipelineSchedule | None:
    """Schedule a job of one route by a policy; ``None``: it comes to a stop, as ranks wait for room.

    Memory limits are kept to by activations alone; :func:`~overlap_sched.pipeline.memory.pipeline_peaks` counts all.
    O(actions x stages per rank).
    """
    run = _GreedyRun(job, policy)
    while run.wakes:
        time_us, rank = heapq.heappop(run.wakes)
        run.act(time_us, rank)
    return run.result()


class _GreedyRun:
    """What has begun so far, and when it ends, in microseconds.

    Attributes:
        wakes: When a rank is to look again for what it may begin: a heap of times and ranks.
    """

    def __init__(self, job: PipelineJob, policy: PipelinePolicy) -> None:
        self._job, self._policy = job, policy
        self._count = job.micro_batches
        stages = range(len(job.stages))
        first, last = job.routes[0].stages[0], job.routes[0].stages[-1]
        self._last = last
        self._forward_there: list[list[float]] = [[0.0] * self._count if s == first else [] for s in stages]
        self._backward_there: list[list[float]] = [[] for _ in stages]
        self._begun = {kind: [0] * len(job.stages) for kind in ("F", "B")}
        self._waiting: list[deque[int]] = [deque() for _ in stages]
        self._forward_end: list[list[float]] = [[] for _ in stages]
        self._free_us = [0.0] * job.ranks
        self._stream: dict[tuple[int, int], float] = {}
        self._orders: list[list[Item]] = [[] for _ in range(job.ranks)]
        depth = {s: k for k, s in enumerate(job.routes[0].stages)}
        self._depth = depth
        self._ahead = [self._most_ahead(rank) for rank in range(job.ranks)]
        self.wakes: list[tuple[float, int]] = [(0.0, rank) for rank in range(job.ranks)]
        limits = job.memory_limit_bytes or (2**62,) * job.ranks
        self._room = [limit - static for limit, static in zip(limits, job.static_bytes, strict=True)]

    def _most_ahead(self, rank: int) -> int:
        behind = [len(self._depth) - self._depth[s] for s in self._job.stages_of[rank]]
        per_rank = max(len(self._depth) // self._job.ranks, 1)
        return -(-sum(behind) // per_rank) + self._policy.ahead

    def act(self, time_us: float, rank: int) -> None:
        """Have a rank begin what it may at a time, or wait for what is known to come."""
        if time_us < self._free_us[rank]:
            return
        item = self._chosen(time_us, rank)
        if item is not None:
            self._begin(time_us, rank, item)
            return
        coming = [us for s in self._job.stages_of[rank] for us in (self._next_forward(s), self._next_backward(s))]
        later = [us for us in coming if us is not None and us > time_us]
        if later:
            heapq.heappush(self.wakes, (min(later), rank))

    def _next_forward(self, s: int) -> float | None:
        k = self._begun["F"][s]
        return self._forward_there[s][k] if k < len(self._forward_there[s]) else None

    def _next_backward(self, s: int) -> float | None:
        k = self._begun["B"][s]
        there = self._forward_end[s] if s == self._last else self._backward_there[s]
        return max(there[k], self._forward_end[s][k]) if k < min(len(there), len(self._forward_end[s])) else None

    def _chosen(self, time_us: float, rank: int) -> Item | None:
        stages = sorted(self._job.stages_of[rank], key=self._depth.__getitem__, reverse=True)
        waiting = [s for s in stages if self._waiting[s]]
        if sum(len(self._waiting[s]) for s in waiting) > self._policy.waiting:
            return self._weights(waiting)
        back = next((s for s in stages if _is_there(self._next_backward(s), time_us)), None)
        inward = stages if self._policy.deepest else stages[::-1]
        if back is None or self._policy.pairs:
            ahead = (s for s in inward if _is_there(self._next_forward(s), time_us) and self._may_begin(s, rank))
            forward = next((Action(ActionKind.FORWARD, s, self._begun["F"][s]) for s in ahead), None)
            if back is None and forward is not None:
                return forward
            if forward is not None and back is not None:
                pair = Pair(forward, Action(ActionKind.BACKWARD, back, self._begun["B"][back]))
                if item_us(self._job, pair) < sum(item_us(self._job, one) for one in pair):
                    return pair
        if back is not None:
            kind = ActionKind.INPUT_GRADIENT if self._splits(back) else ActionKind.BACKWARD
            return Action(kind, back, self._begun["B"][back])
        if waiting and not self._better_to_wait(time_us, stages, waiting):
            return self._weights(waiting)
        return None

    def _splits(self, s: int) -> bool:
        return self._job.stages[s].splits

    def _weights(self, waiting: list[int]) -> Action:
        s = min(waiting, key=lambda one: (self._waiting[one][0], -self._depth[one]))
        return Action(ActionKind.WEIGHT_GRADIENT, s, self._waiting[s][0])

    def _better_to_wait(self, time_us: float, stages: list[int], waiting: list[int]) -> bool:
        if not self._policy.patient:
            return False
        coming = [us for s in stages if (us := self._next_backward(s)) is not None and us > time_us]
        return bool(coming) and min(coming) < time_us + item_us(self._job, self._weights(waiting)) / 2

    def _may_begin(self, stage: int, rank: int) -> bool:
        """Is there room for a forward, and for its micro-batch in all later stages of the rank?"""
        stages, job = self._job.stages_of[rank], self._job
        ahead = sum(self._begun["F"][s] - self._begun["B"][s] for s in stages)
        later = [s for s in stages if self._depth[s] > self._depth[stage]]
        if ahead + len(later) >= self._ahead[rank] * len(stages) and ahead:
            return False
        held = sum(
            (self._begun["F"][s] - self._begun["B"][s]) * job.stages[s].saved_bytes
            + len(self._waiting[s]) * job.stages[s].kept_bytes
            for s in stages
        )
        needed = sum(job.stages[s].saved_bytes for s in (stage, *later))
        most = max(max(block.transient_bytes + block.output_bytes for block in _blocks(job, s)) for s in stages)
        return held + needed + most <= self._room[rank]

    def _begin(self, time_us: float, rank: int, item: Item) -> None:
        end = self._free_us[rank] = time_us + item_us(self._job, item)
        self._orders[rank].append(item)
        heapq.heappush(self.wakes, (end, rank))
        for action in parts(item):
            self._note(action, rank, end)

    def _note(self, action: Action, rank: int, end: float) -> None:
        """Note what has begun, and when what it makes will be there."""
        job, s = self._job, action.stage
        if action.kind is ActionKind.WEIGHT_GRADIENT:
            self._waiting[s].popleft()
            return
        kind = "F" if action.kind is ActionKind.FORWARD else "B"
        self._begun[kind][s] += 1
        if action.kind is ActionKind.INPUT_GRADIENT:
            self._waiting[s].append(action.micro_batch or 0)
        elif kind == "F":
            self._forward_end[s].append(end)
        to = job.gives_to(action)
        if to is None:
            return
        receiver = job.rank_of[to]
        if receiver != rank:
            start = max(end, self._stream.get((rank, receiver), 0.0))
            end = self._stream[rank, receiver] = start + transfer_us(job, action, receiver)
        (self._forward_there if kind == "F" else self._backward_there)[to].append(end)
        heapq.heappush(self.wakes, (end, receiver))

    def result(self) -> PipelineSchedule | None:
        """The schedule, if all has run."""
        if any(self._waiting) or min(self._begun["B"]) < self._count:
            return None
        return PipelineSchedule("found", tuple(map(tuple, self._orders)))


def _is_there(there: float | None, time_us: float) -> bool:
    return there is not None and there <= time_us


def _blocks(job: PipelineJob, stage: int) -> list[PipelineBlock]:
    one = job.stages[stage]
    blocks = (one.forward, one.backward, one.input_gradient, one.weight_gradient)
    return [block for block in blocks if block is not None]

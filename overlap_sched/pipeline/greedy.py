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
import random
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf

from overlap_sched.pipeline.action import COMPUTE, Action, ActionKind, Item, Pair, PipelineSchedule, parts
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.judge import violation
from overlap_sched.pipeline.replay import (
    PipelineClock,
    block_of,
    excess_bytes,
    item_us,
    least_part,
    transfer_us,
    with_updates,
)


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


def greedy_schedule(
    job: PipelineJob, policies: Sequence[PipelinePolicy], spare: Sequence[int] = ()
) -> PipelineSchedule | None:
    """Schedule a job by a policy per rank; ``None``: it comes to a stop, as ranks wait for room.

    Limits are kept to by activations and inputs that wait; :func:`~overlap_sched.pipeline.replay.pipeline_peaks` counts
    all. O(actions x stages per rank).

    Args:
        job: As a layout has placed it.
        policies: How each rank chooses.
        spare: Bytes per rank that are left free.
    """
    return GreedyRun(job, policies, spare or (0,) * job.ranks).finish()


class GreedyRun:
    """What has begun so far, and when it ends, in microseconds.

    Attributes:
        wakes: When a rank is to look again for what it may begin: a heap of times and ranks.
        orders: Per rank, what it has begun.
        batches: Per stage, its micro-batches. begun: How many of them, forward and backward (I or B).
        waiting: Per stage, the micro-batches whose weight gradients wait.
        room: Per rank, bytes for what is saved, kept and coming. coming: Those of outputs under way to it, or waiting.
    """

    def __init__(self, job: PipelineJob, policies: Sequence[PipelinePolicy], spare: Sequence[int]) -> None:
        self.job, self._policies = job, policies
        self.wakes: list[tuple[float, int]] = [(0.0, rank) for rank in range(job.ranks)]
        self.orders: list[list[Item]] = [[] for _ in range(job.ranks)]
        self.batches = [route.micro_batches for route in job.route_of]
        self.begun = {kind: [0] * len(job.stages) for kind in "FB"}
        self.waiting: list[deque[int]] = [deque() for _ in job.stages]
        self._there: dict[str, list[list[float]]] = {kind: [[] for _ in job.stages] for kind in "FB"}
        for route in job.routes:
            self._there["F"][route.stages[0]] = [0.0] * len(route.micro_batches)
        self._free_us, self._stream = [0.0] * job.ranks, defaultdict[tuple[int, int], float](float)
        self._depth = {s: k for route in job.routes for k, s in enumerate(route.stages)}
        self._deepest_first = [sorted(stages, key=self._depth.__getitem__, reverse=True) for stages in job.stages_of]
        per_rank = max(len(job.stages) // job.ranks, 1)
        behind = [sum(len(job.route_of[s].stages) - self._depth[s] for s in stages) for stages in job.stages_of]
        self._ahead = [max(-(-one // per_rank) + policies[rank].ahead, 1) for rank, one in enumerate(behind)]
        self.coming = [0] * job.ranks
        self.room = []
        for rank, limit in enumerate(job.memory_limit_bytes or (2**62,) * job.ranks):
            blocks = [job.stages[s].block(kind) for s in job.stages_of[rank] for kind in COMPUTE]
            passing = max(block.transient_bytes + block.output_bytes for block in blocks if block is not None)
            self.room.append(limit - job.static_bytes[rank] - spare[rank] - passing)

    def finish(self) -> PipelineSchedule | None:
        """Run to the end; ``None``: it comes to a stop."""
        while self.wakes:
            self._act(*heapq.heappop(self.wakes))
        done = self.begun["B"] == list(map(len, self.batches)) and not any(self.waiting)
        return PipelineSchedule("found", tuple(map(tuple, self.orders))) if done else None

    def _act(self, time_us: float, rank: int) -> None:
        """Have a rank begin what it may at a time, or wait for what is known to come."""
        if time_us < self._free_us[rank]:
            return
        item = self._chosen(time_us, rank)
        if item is None:
            coming = [self.next_us(kind, s) for s in self.job.stages_of[rank] for kind in "FB"]
            later = min((us for us in coming if us > time_us), default=inf)
            if later < inf:
                heapq.heappush(self.wakes, (later, rank))
            return
        end = self._free_us[rank] = time_us + item_us(self.job, item)
        self.orders[rank].append(item)
        heapq.heappush(self.wakes, (end, rank))
        for action in parts(item):
            self._note(action, rank, end)

    def next_us(self, kind: str, s: int) -> float:
        """When the input of a stage's next forward or backward is there, if that is known."""
        there, k = self._there[kind][s], self.begun[kind][s]
        return there[k] if k < len(there) else inf

    def _chosen(self, time_us: float, rank: int) -> Item | None:
        policy, stages = self._policies[rank], self._deepest_first[rank]
        waiting = [s for s in stages if self.waiting[s]]
        if sum(len(self.waiting[s]) for s in waiting) > policy.waiting:
            return self._weights(waiting)
        back = next((self._next("B", s) for s in stages if self.next_us("B", s) <= time_us), None)
        ahead = None
        if back is None or policy.pairs:
            inward = stages if policy.deepest else stages[::-1]
            may = (s for s in inward if self.next_us("F", s) <= time_us and self._may_begin(s, rank))
            ahead = next((self._next("F", s) for s in may), None)
        if back is not None:
            pair = None if ahead is None else Pair(ahead, back)
            if pair is not None and item_us(self.job, pair) < sum(item_us(self.job, one) for one in pair):
                return pair
            return back._replace(kind=self.back(back.stage))
        if ahead is not None or not waiting:
            return ahead
        weights, coming = self._weights(waiting), [us for s in stages if (us := self.next_us("B", s)) > time_us]
        soon = policy.patient and min(coming, default=inf) < time_us + item_us(self.job, weights) / 2
        return None if soon else weights

    def _next(self, kind: str, s: int) -> Action:
        return Action(ActionKind(kind), s, self.batches[s][self.begun[kind][s]])

    def _weights(self, waiting: list[int]) -> Action:
        s = min(waiting, key=lambda one: (self.waiting[one][0] - self.batches[one].start, -self._depth[one]))
        return Action(ActionKind.WEIGHT_GRADIENT, s, self.waiting[s][0])

    def _may_begin(self, stage: int, rank: int) -> bool:
        """Tell whether there is room for a forward, and for its micro-batch in all later stages of the rank."""
        own, stages = self.job.stages_of[rank], self.job.stages
        ahead = {s: self.begun["F"][s] - self.begun["B"][s] for s in own}
        new = [s for s in own if s == stage or self._depth[s] > self._depth[stage]]
        if sum(ahead.values()) + len(new) > self._ahead[rank] * len(own) and any(ahead.values()):
            return False
        used = sum(ahead[s] * stages[s].saved_bytes + len(self.waiting[s]) * stages[s].kept_bytes for s in own)
        needed = sum(stages[s].saved_bytes for s in new) - self.input_bytes(Action(ActionKind.FORWARD, stage))
        return self.coming[rank] + used + needed <= self.room[rank]

    def input_bytes(self, item: Action) -> int:
        """Bytes that another stage has made for an action."""
        maker = self.job.needs_from(item)
        if maker is None:
            return 0
        kind = ActionKind.FORWARD if item.kind is ActionKind.FORWARD else self.back(maker)
        return block_of(self.job, Action(kind, maker)).output_bytes

    def back(self, s: int) -> ActionKind:
        """``I``, or ``B`` of a stage without halves."""
        return ActionKind.INPUT_GRADIENT if self.job.stages[s].splits else ActionKind.BACKWARD

    def _note(self, action: Action, rank: int, end: float) -> None:
        """Note what has begun, and when what it makes will be there."""
        job, (kind, s, m) = self.job, action
        self.coming[rank] -= self.input_bytes(action)
        if kind is ActionKind.WEIGHT_GRADIENT:
            self.waiting[s].popleft()
            return
        way = "F" if kind is ActionKind.FORWARD else "B"
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


POLICIES = tuple(
    PipelinePolicy(ahead, waiting, patient=patient)
    for ahead, waiting, patient in product((-1, 0, 1, 4), (0, 1, 2, 4, 64), (False, True))
)
"""On all ranks; the best :data:`BENT` of them also with the first stage's forwards before the last one's."""
BENT = 8
WORTH = 1.05
"""What is longer than the best that is known by more is not looked at for memory."""
TIGHTENED = 3
"""So many times a policy has another go with less room, where what it made did not fit."""
LEAST_AHEAD = -6
SEED = 0


@dataclass(frozen=True)
class MadeSchedule:
    """A schedule of a layout that fits; ``made_from``: for people; ``policies``: of its ranks, if they have made it."""

    step_us: float
    schedule: PipelineSchedule
    made_from: str
    policies: tuple[PipelinePolicy, ...] = ()


class ScheduleSearch:
    """Schedules of one job.

    Attributes:
        clock: Of the job.
        made: Those that fit, the shortest first.
        best_us: The shortest that is known, of other cuts, too.
    """

    def __init__(self, job: PipelineJob, post_validation: bool = False) -> None:
        self.clock, self.made, self.best_us = PipelineClock(job, post_validation), list[MadeSchedule](), inf
        self._seen: dict[tuple[object, ...], float] = {}
        self._pairs = least_part(job) < 1.0

    def add(
        self,
        schedule: PipelineSchedule,
        made_from: str,
        below_us: float = inf,
        policies: tuple[PipelinePolicy, ...] = (),
    ) -> None:
        """Keep a schedule if it is valid, fits, and is shorter than ``below_us``."""
        job = self.clock.job
        if violation(job, schedule) is None:
            replay = self.clock.replay(schedule)
            if replay.step_us < below_us and not any(excess_bytes(job, replay)):
                self.best_us = min(self.best_us, replay.step_us)
                made = MadeSchedule(replay.step_us, schedule, made_from, policies)
                insort(self.made, made, key=lambda one: one.step_us)

    def try_policies(self) -> None:
        """Try each of some policies on all ranks."""
        ranks = self.clock.job.ranks
        for policy, pairs in product(POLICIES, (False, True) if self._pairs else (False,)):
            made_from = f"{policy.ahead} ahead, {policy.waiting} waiting{', pairs' * pairs}"
            self._try((replace(policy, pairs=pairs),) * ranks, made_from)
        for made in [one for one in self.made if one.policies][:BENT]:
            self._try((replace(made.policies[0], deepest=False),) * ranks, made.made_from)

    def vary_policies(self, count: int) -> None:
        """Change the best policies on some ranks, so many times, and keep to what is no longer."""
        best = next((one for one in self.made if one.policies), None)
        if best is None:
            return
        rng, best_us, policies = random.Random(SEED), best.step_us, best.policies
        for _ in range(count):
            changed = self._changed(policies, rng)
            step_us = self._try(changed, "a policy for each rank")
            if step_us <= best_us:
                best_us, policies = step_us, changed

    def _changed(self, policies: Sequence[PipelinePolicy], rng: random.Random) -> tuple[PipelinePolicy, ...]:
        one = rng.randrange(len(policies))
        ranks = rng.choice(([one], [one], range(one, len(policies)), range(len(policies))))
        policy = policies[one]
        changes: list[PipelinePolicy] = [
            replace(policy, ahead=max(policy.ahead + rng.choice((-2, -1, 1, 2)), LEAST_AHEAD)),
            replace(policy, waiting=max(policy.waiting + rng.choice((-2, -1, 1, 2, 4)), 0)),
            replace(policy, deepest=not policy.deepest, patient=policy.patient != (rng.random() < 0.5)),
        ]
        if self._pairs:
            changes.append(replace(policy, pairs=not policy.pairs))
        changed = rng.choice(changes)
        return tuple(changed if rank in ranks else kept for rank, kept in enumerate(policies))

    def _try(self, policies: tuple[PipelinePolicy, ...], made_from: str) -> float:
        return self.try_made(partial(greedy_schedule, self.clock.job, policies), made_from, policies)

    def try_made(
        self,
        make: Callable[[Sequence[int]], PipelineSchedule | None],
        made_from: str,
        policies: tuple[PipelinePolicy, ...] = (),
    ) -> float:
        """Return the step of what is made with so much left free; infinite: it does not fit, or comes to a stop."""
        job, clock = self.clock.job, self.clock
        spare = [0] * job.ranks
        for _ in range(TIGHTENED + 1):
            found = make(spare)
            if found is None or found.orders in self._seen:
                return inf if found is None else self._seen[found.orders]
            schedule = with_updates(job, found)
            step_us = clock.step_us(clock.orders_of(schedule))
            if step_us > self.best_us * WORTH:
                return inf
            excess = excess_bytes(job, clock.replay(schedule))
            if not any(excess):
                self._seen[found.orders] = step_us
                self.add(schedule, made_from, policies=policies)
                return step_us
            spare = [one + more for one, more in zip(spare, excess, strict=True)]
        return inf

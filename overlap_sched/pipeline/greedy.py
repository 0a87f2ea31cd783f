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
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

from overlap_sched.pipeline.action import COMPUTE, Action, ActionKind, Item, Pair, PipelineSchedule, forward, parts
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
    run = _GreedyRun(job, policies, spare or (0,) * job.ranks)
    while run.wakes:
        time_us, rank = heapq.heappop(run.wakes)
        run.act(time_us, rank)
    return run.result()


class _GreedyRun:
    """What has begun so far, and when it ends, in microseconds.

    Attributes:
        wakes: When a rank is to look again for what it may begin: a heap of times and ranks.
    """

    def __init__(self, job: PipelineJob, policies: Sequence[PipelinePolicy], spare: Sequence[int]) -> None:
        self._job, self._policies = job, policies
        stages = range(len(job.stages))
        self._batches = [route.micro_batches for route in job.route_of]
        there = [[0.0] * len(self._batches[s]) if job.before[s] is None else [] for s in stages]
        self._forward_there: list[list[float]] = there
        self._backward_there: list[list[float]] = [[] for _ in stages]
        self._begun = {kind: [0] * len(job.stages) for kind in ("F", "B")}
        self._waiting: list[deque[int]] = [deque() for _ in stages]
        self._forward_end: list[list[float]] = [[] for _ in stages]
        self._free_us = [0.0] * job.ranks
        self._stream: dict[tuple[int, int], float] = {}
        self._orders: list[list[Item]] = [[] for _ in range(job.ranks)]
        self._depth = {s: k for route in job.routes for k, s in enumerate(route.stages)}
        self._ahead = [self._most_ahead(rank) for rank in range(job.ranks)]
        self.wakes: list[tuple[float, int]] = [(0.0, rank) for rank in range(job.ranks)]
        limits = job.memory_limit_bytes or (2**62,) * job.ranks
        self._room = [
            limit - static - free for limit, static, free in zip(limits, job.static_bytes, spare, strict=True)
        ]
        self._coming = [0] * job.ranks  # outputs under way to a rank, or waiting there
        self._most = [max(map(self._passing_bytes, stages)) for stages in job.stages_of]

    def _most_ahead(self, rank: int) -> int:
        behind = [len(self._job.route_of[s].stages) - self._depth[s] for s in self._job.stages_of[rank]]
        per_rank = max(len(self._depth) // self._job.ranks, 1)
        return max(-(-sum(behind) // per_rank) + self._policies[rank].ahead, 1)

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
        there = self._forward_end[s] if self._job.after[s] is None else self._backward_there[s]
        return max(there[k], self._forward_end[s][k]) if k < min(len(there), len(self._forward_end[s])) else None

    def _chosen(self, time_us: float, rank: int) -> Item | None:
        policy = self._policies[rank]
        stages = sorted(self._job.stages_of[rank], key=self._depth.__getitem__, reverse=True)
        waiting = [s for s in stages if self._waiting[s]]
        if sum(len(self._waiting[s]) for s in waiting) > policy.waiting:
            return self._weights(waiting)
        back = next((s for s in stages if _is_there(self._next_backward(s), time_us)), None)
        inward = stages if policy.deepest else stages[::-1]
        ahead: Action | None = None
        if back is None or policy.pairs:
            may = (s for s in inward if _is_there(self._next_forward(s), time_us) and self._may_begin(s, rank))
            ahead = next((forward(s, self._batches[s][self._begun["F"][s]]) for s in may), None)
        if back is None and ahead is not None:
            return ahead
        if back is not None:
            batch = self._batches[back][self._begun["B"][back]]
            pair = None if ahead is None else Pair(ahead, Action(ActionKind.BACKWARD, back, batch))
            if pair is not None and item_us(self._job, pair) < sum(item_us(self._job, one) for one in pair):
                return pair
            return Action(self._back(back), back, batch)
        if waiting and not (policy.patient and self._better_to_wait(time_us, stages, waiting)):
            return self._weights(waiting)
        return None

    def _weights(self, waiting: list[int]) -> Action:
        s = min(waiting, key=lambda one: (self._waiting[one][0] - self._batches[one].start, -self._depth[one]))
        return Action(ActionKind.WEIGHT_GRADIENT, s, self._waiting[s][0])

    def _better_to_wait(self, time_us: float, stages: list[int], waiting: list[int]) -> bool:
        coming = [us for s in stages if (us := self._next_backward(s)) is not None and us > time_us]
        return bool(coming) and min(coming) < time_us + item_us(self._job, self._weights(waiting)) / 2

    def _may_begin(self, stage: int, rank: int) -> bool:
        """Is there room for a forward, and for its micro-batch in all later stages of the rank?"""
        stages, job = self._job.stages_of[rank], self._job
        ahead = sum(self._begun["F"][s] - self._begun["B"][s] for s in stages)
        later = [s for s in stages if self._depth[s] > self._depth[stage]]
        if ahead + len(later) >= self._ahead[rank] * len(stages) and ahead:
            return False
        needed = sum(job.stages[s].saved_bytes for s in (stage, *later)) - self._input_bytes(forward(stage, 0))
        return self._used(rank) + needed + self._most[rank] <= self._room[rank]

    def _used(self, rank: int) -> int:
        """Bytes of activations, and of inputs."""
        begun, stages = self._begun, self._job.stages
        return self._coming[rank] + sum(
            (begun["F"][s] - begun["B"][s]) * stages[s].saved_bytes + len(self._waiting[s]) * stages[s].kept_bytes
            for s in self._job.stages_of[rank]
        )

    def _passing_bytes(self, stage: int) -> int:
        """The most of a stage that is live only while an action runs, its output included."""
        blocks = [self._job.stages[stage].block(kind) for kind in COMPUTE]
        return max(block.transient_bytes + block.output_bytes for block in blocks if block is not None)

    def _input_bytes(self, item: Action) -> int:
        """Bytes that another stage has made for an action."""
        maker = self._job.needs_from(item)
        if maker is None or item.kind is ActionKind.WEIGHT_GRADIENT:
            return 0
        kind = ActionKind.FORWARD if item.kind is ActionKind.FORWARD else self._back(maker)
        return block_of(self._job, Action(kind, maker)).output_bytes

    def _back(self, s: int) -> ActionKind:
        return ActionKind.INPUT_GRADIENT if self._job.stages[s].splits else ActionKind.BACKWARD

    def _begin(self, time_us: float, rank: int, item: Item) -> None:
        end = self._free_us[rank] = time_us + item_us(self._job, item)
        self._orders[rank].append(item)
        heapq.heappush(self.wakes, (end, rank))
        for action in parts(item):
            self._note(action, rank, end)

    def _note(self, action: Action, rank: int, end: float) -> None:
        """Note what has begun, and when what it makes will be there."""
        job, s = self._job, action.stage
        self._coming[rank] -= self._input_bytes(action)
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
        self._coming[receiver] += block_of(job, action).output_bytes
        if receiver != rank:
            start = max(end, self._stream.get((rank, receiver), 0.0))
            end = self._stream[rank, receiver] = start + transfer_us(job, action, receiver)
        (self._forward_there if kind == "F" else self._backward_there)[to].append(end)
        heapq.heappush(self.wakes, (end, receiver))

    def result(self) -> PipelineSchedule | None:
        """The schedule, if all has run."""
        done = self._begun["B"] == list(map(len, self._batches)) and not any(self._waiting)
        return PipelineSchedule("found", tuple(map(tuple, self._orders))) if done else None


def _is_there(there: float | None, time_us: float) -> bool:
    return there is not None and there <= time_us


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

    def __init__(self, job: PipelineJob) -> None:
        self.clock, self.made, self.best_us = PipelineClock(job), list[MadeSchedule](), inf
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
        """Return the step of what policies make; infinite: it does not fit, or they come to a stop."""
        job, clock = self.clock.job, self.clock
        spare = [0] * job.ranks
        for _ in range(TIGHTENED + 1):
            found = greedy_schedule(job, policies, spare)
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

"""A schedule made shorter, action by action: what stands on its longest path is moved.

The step is the length of a chain of actions, each of which begins when the one before has ended or its output has
arrived. Only what changes that chain makes the step shorter: two neighbours on a rank change places, or a weight
gradient goes to where its rank is idle (Nowicki and Smutnicki, *A fast taboo search algorithm for the job shop
problem*, Management Science 42, 1996, move only what is critical, too)::

    rank 0  | F |W| F |      | B |          | F | F |  W  | B |
    rank 1      ...| F |B|            =>          | F |B|
            longest: F W F -> F B -> B              F F -> F B -> B

Of all such moves the best that was not undone lately is made, even where the step becomes longer for a while.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from overlap_sched.pipeline.action import ActionKind, Pair, PipelineSchedule
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.replay import block_of, replay_pipeline, transfer_us, within_limits

NONE = -1
Orders = list[list[int]]
"""Per rank, the numbers of its actions."""


class QuickTimes:
    """Of the schedules of one job, without pairs.

    Attributes:
        actions: By number. time_us: What each takes.
        needs: The token that it needs; ``NONE``: none. gives: The token that it makes.
        maker: Of a token, who made it in the schedule that was asked about last.
        start_us, end_us: Of that schedule, by number.
    """

    def __init__(self, job: PipelineJob, schedule: PipelineSchedule) -> None:
        """Numbers the actions of a schedule; others of the job are not known."""
        self.job = job
        self.actions = [action for rank in range(job.ranks) for action in schedule.actions(rank)]
        self.number = {action: k for k, action in enumerate(self.actions)}
        self.time_us = [block_of(job, action).time_us for action in self.actions]
        self.needs, self.gives, self._stream = list[int](), list[int](), list[int]()
        self._transfer_us: list[float] = []
        tokens: dict[tuple[bool, int, int | None], int] = {}
        streams: dict[tuple[int, int], int] = {}
        for action in self.actions:
            to, ahead = job.gives_to(action), action.kind is ActionKind.FORWARD
            needed, made = (ahead, action.stage, action.micro_batch), (ahead, to or 0, action.micro_batch)
            self.needs.append(NONE if job.needs_from(action) is None else tokens.setdefault(needed, len(tokens)))
            self.gives.append(NONE if to is None else tokens.setdefault(made, len(tokens)))
            ranks = job.rank_of[action.stage], job.rank_of[action.stage if to is None else to]
            apart = ranks[0] != ranks[1]
            self._transfer_us.append(transfer_us(job, action, ranks[1]) if apart else 0.0)
            self._stream.append(streams.setdefault(ranks, len(streams)) if apart else NONE)
        self._free, self.maker = [0.0] * len(streams), [NONE] * len(tokens)
        self.start_us, self.end_us = [0.0] * len(self.actions), [0.0] * len(self.actions)
        kinds = {ActionKind.REDUCE: 0, ActionKind.STEP: 1}
        self._updates = [kinds.get(action.kind, NONE) for action in self.actions]

    def orders_of(self, schedule: PipelineSchedule) -> Orders:
        """The numbers of a schedule of the same actions."""
        return [[self.number[action] for action in schedule.actions(rank)] for rank in range(self.job.ranks)]

    def schedule_of(self, orders: Orders, name: str) -> PipelineSchedule:
        """The schedule of such numbers."""
        return PipelineSchedule(name, tuple(tuple(self.actions[k] for k in order) for order in orders))

    def step_us(self, orders: Orders) -> float | None:
        """The step of a schedule; ``None``: its ranks wait for each other. Linear in actions."""
        ranks = len(orders)
        at, clock, reduced = [0] * ranks, [0.0] * ranks, [0.0] * ranks
        there, waiting, free = [-1.0] * len(self.maker), [NONE] * len(self.maker), self._free.copy()
        reduced_at: dict[int, float] = {}
        start_us, end_us, time_us = self.start_us, self.end_us, self.time_us
        needs, gives, maker, streams = self.needs, self.gives, self.maker, self._stream
        ready = deque(range(ranks))
        while ready:
            rank = ready.popleft()
            order, k, now = orders[rank], at[rank], clock[rank]
            while k < len(order):
                one = order[k]
                token, start = needs[one], now
                if token >= 0:
                    came = there[token]
                    if came < 0.0:
                        waiting[token] = rank
                        break
                    start = came if came > now else now
                if self._updates[one] >= 0:
                    now = self._update(one, rank, now, reduced, reduced_at)
                    k += 1
                    continue
                start_us[one] = start
                now = end_us[one] = start + time_us[one]
                k += 1
                token = gives[one]
                if token < 0:
                    continue
                arrival, stream = now, streams[one]
                if stream >= 0:
                    arrival = free[stream] = max(now, free[stream]) + self._transfer_us[one]
                there[token], maker[token] = arrival, one
                if waiting[token] >= 0:
                    ready.append(waiting[token])
            at[rank], clock[rank] = k, now
        if any(k < len(order) for k, order in zip(at, orders, strict=True)):
            return None
        return max([*clock, *reduced, *free])

    def _update(self, one: int, rank: int, now: float, reduced: list[float], reduced_at: dict[int, float]) -> float:
        """Run a reduction or a step; when the compute stream goes on."""
        stage, steps = self.actions[one].stage, self._updates[one] == 1
        start = self.start_us[one] = max(now, reduced_at.get(stage, 0.0) if steps else reduced[rank])
        end = self.end_us[one] = start + self.time_us[one]
        if steps:
            return end
        reduced[rank] = reduced_at[stage] = end
        return now


TABU = 12
"""So many moves a move may not be undone."""
IDLE_PLACES = 3
"""A weight gradient goes at most to so many of the idle places behind it, and before it."""
LOOKED_AT = 8
"""Of the moves of one turn, so many are looked at for memory at most, the shortest first."""
SAME = 1e-9
"""Steps that differ by less are equal (part of the step)."""


class PipelineMove(NamedTuple):
    """Of a rank, the action at a position goes to another."""

    rank: int
    at: int
    to: int


def improve_schedule(job: PipelineJob, schedule: PipelineSchedule, bound_us: float, trials: int) -> PipelineSchedule:
    """Return a schedule that is as short or shorter and needs no more on any rank than its limit.

    Args:
        job: As the schedule lays it out; without limits memory is not looked at.
        schedule: Valid, and within the limits. One with pairs comes back as it is.
        bound_us: Where the step has come to it, nothing more is tried.
        trials: So many schedules are timed at most.
    """
    if any(isinstance(item, Pair) for order in schedule.orders for item in order):
        return schedule
    walk = _TabuWalk(job, schedule)
    while walk.tried < trials and walk.best_us > bound_us * (1 + SAME) and walk.go_on():
        pass
    return walk.times.schedule_of(walk.best, schedule.name)


class _TabuWalk:
    """A walk under way: ``now``, and the ``best`` of it so far."""

    def __init__(self, job: PipelineJob, schedule: PipelineSchedule) -> None:
        self._job, self.times = job, QuickTimes(job, schedule)
        self.now = self.best = self.times.orders_of(schedule)
        step_us = self.times.step_us(self.now)
        assert step_us is not None
        self.best_us, self.tried, self._turn = step_us, 0, 0
        self._tabu: dict[tuple[int, int], int] = {}

    def go_on(self) -> bool:
        """Make one move; ``False``: there is none."""
        self._turn += 1
        self.times.step_us(self.now)
        found: list[tuple[float, int, PipelineMove]] = []
        for move in dict.fromkeys(self._moves()):
            made = self._moved(move)
            if made is None or self._tabu.get(self._makes(move), 0) > self._turn:
                continue
            self.tried += 1
            step_us = self.times.step_us(made)
            if step_us is not None:
                found.append((step_us, len(found), move))
        for step_us, _, move in sorted(found, key=lambda one: one[:2])[:LOOKED_AT]:
            made = self._moved(move)
            assert made is not None
            if self._within_limits(made):
                order = self.now[move.rank]
                self._tabu[order[move.at], order[move.at - 1] if move.at else NONE] = self._turn + TABU
                self.now = made
                if step_us < self.best_us * (1 - SAME):
                    self.best, self.best_us = made, step_us
                return True
        return False

    def _makes(self, move: PipelineMove) -> tuple[int, int]:
        """Name what a move makes: an action behind another."""
        order = self.now[move.rank]
        before = move.to if move.to > move.at else move.to - 1
        return order[move.at], order[before] if before >= 0 else NONE

    def _within_limits(self, orders: Orders) -> bool:
        if self._job.memory_limit_bytes is None:
            return True
        return within_limits(self._job, replay_pipeline(self._job, self.times.schedule_of(orders, "")))

    def _moves(self) -> Iterator[PipelineMove]:
        """Yield what changes the longest path, of the schedule that was timed last."""
        start, end = self.times.start_us, self.times.end_us
        for rank, k in self._longest():
            order = self.now[rank]
            yield PipelineMove(rank, k, k - 1)
            yield PipelineMove(rank, k, k + 1)
            idle = [p for p in range(1, len(order)) if start[order[p]] > end[order[p - 1]] * (1 + SAME)]
            if self._is_weights(order[k]):
                yield from (PipelineMove(rank, k, p - 1) for p in [p for p in idle if p > k + 1][:IDLE_PLACES])
                yield from (PipelineMove(rank, k, p) for p in [p for p in idle if p < k][-IDLE_PLACES:])
                yield PipelineMove(rank, k, len(order) - 1)
            elif k in idle:
                later = [p for p in range(k + 1, len(order)) if self._is_weights(order[p])]
                yield from (PipelineMove(rank, p, k) for p in later[:IDLE_PLACES])

    def _is_weights(self, one: int) -> bool:
        return self.times.actions[one].kind is ActionKind.WEIGHT_GRADIENT

    def _longest(self) -> list[tuple[int, int]]:
        """Return the ranks and positions of the chain of actions that ends last, from its end."""
        times, path = self.times, list[tuple[int, int]]()
        place = {one: (rank, k) for rank, order in enumerate(self.now) for k, one in enumerate(order)}
        one = max(place, key=lambda number: times.end_us[number])
        while True:
            rank, k = place[one]
            path.append((rank, k))
            before = self.now[rank][k - 1] if k else NONE
            if before >= 0 and times.end_us[before] >= times.start_us[one] * (1 - SAME):
                one = before
            elif times.needs[one] >= 0 and times.start_us[one] > 0.0:
                one = times.maker[times.needs[one]]
            else:
                return path

    def _moved(self, move: PipelineMove) -> Orders | None:
        """The orders with a move; ``None``: an action would come before what it needs on its rank."""
        order, at, to = self.now[move.rank], move.at, move.to
        if not 0 <= to < len(order) or at == to:
            return None
        one = order[at]
        passed = order[to:at] if to < at else order[at + 1 : to + 1]
        if any(self._keep(other, one) for other in passed):
            return None
        rest = [*order[:at], *order[at + 1 :]]
        rest.insert(to, one)
        return [rest if rank == move.rank else kept for rank, kept in enumerate(self.now)]

    def _keep(self, one: int, other: int) -> bool:
        """Do two actions keep their order: of one stage, and of one micro-batch or kind, or an update?"""
        first, second = self.times.actions[one], self.times.actions[other]
        if first.micro_batch is None or second.micro_batch is None:
            return True
        alike = first.micro_batch == second.micro_batch or first.kind == second.kind
        return first.stage == second.stage and alike

"""A schedule made shorter, action by action: what stands on its longest path is moved.

The step is the length of a chain of actions, each of which begins when the one before has ended or its output has
arrived. Only what changes that chain makes the step shorter: two neighbours on a rank change places, or a weight
gradient goes to where its rank is idle (Nowicki and Smutnicki, *A fast taboo search algorithm for the job shop
problem*, Management Science 42, 1996, move only what is critical, too)::

    rank 0  | F |W| F |      | B |          | F | F |  W  | B |
    rank 1      ...| F |B|            =>          | F |B|
            longest: F W F -> F B -> B              F F -> F B -> B

Of all such moves of what was not moved lately the best is made, even where the step becomes longer for a while.
"""

from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import NamedTuple

from overlap_sched.pipeline.action import ActionKind, Pair, PipelineSchedule, parts
from overlap_sched.pipeline.replay import NONE, Orders, PipelineClock, excess_bytes

SAME = 1e-9
"""Steps that differ by less are equal (part of the step)."""


class PipelineMove(NamedTuple):
    """Of a rank, the action at a position goes to another."""

    rank: int
    at: int
    to: int


def improve_schedule(
    times: PipelineClock, schedule: PipelineSchedule, bound_us: float, trials: int
) -> PipelineSchedule:
    """Return a schedule that is as short or shorter and needs no more on any rank than its limit.

    Args:
        times: Of the job as the schedule lays it out.
        schedule: Valid, and within the limits. One with pairs comes back as it is.
        bound_us: Where the step has come to it, nothing more is tried.
        trials: So many schedules are timed at most.
    """
    if any(isinstance(item, Pair) for order in schedule.orders for item in order):
        return schedule
    walk = _TabuWalk(times, schedule)
    while walk.tried < trials and walk.best_us > bound_us * (1 + SAME) and walk.go_on():
        pass
    return times.schedule_of(walk.best, schedule.name)


class _TabuWalk:
    """A walk under way: ``now``, and the ``best`` of it so far."""

    def __init__(self, times: PipelineClock, schedule: PipelineSchedule) -> None:
        self.times = times
        self.now = self.best = self.times.orders_of(schedule)
        self._actions = [parts(item)[0] for item in times.items]
        self.best_us, self.tried, self._turn = self.times.step_us(self.now), 0, 0
        self._tabu: dict[int, int] = {}  # by action, the turn until which it stays

    def go_on(self) -> bool:
        """Make one move; ``False``: there is none."""
        self._turn += 1
        times = self.times
        times.step_us(self.now)
        found: list[tuple[float, PipelineMove, Orders]] = []
        for move in dict.fromkeys(self._moves()):
            made = self._moved(move)
            if made is not None and self._tabu.get(self.now[move.rank][move.at], 0) <= self._turn:
                self.tried += 1
                found.append((times.step_us(made), move, made))
        for step_us, move, made in sorted(found, key=lambda one: one[0])[:8]:  # memory is dear to look at
            if step_us < inf and not any(excess_bytes(times.job, times.replay(times.schedule_of(made, "")))):
                self._tabu[self.now[move.rank][move.at]] = self._turn + 12
                self.now = made
                if step_us < self.best_us * (1 - SAME):
                    self.best, self.best_us = made, step_us
                return True
        return False

    def _moves(self) -> Iterator[PipelineMove]:
        """Yield what changes the longest path, of the schedule that was timed last."""
        start, end = self.times.start_us, self.times.end_us
        for rank, k in self._longest():
            order = self.now[rank]
            yield PipelineMove(rank, k, k - 1)
            yield PipelineMove(rank, k, k + 1)
            idle = [p for p in range(1, len(order)) if start[order[p]] > end[order[p - 1]] * (1 + SAME)]
            if self._is_weights(order[k]):
                near = sorted(idle, key=lambda p: abs(p - k))[:6]
                yield from (PipelineMove(rank, k, p - (p > k)) for p in (*near, len(order)))
            elif k in idle:
                later = (p for p in range(k + 1, len(order)) if self._is_weights(order[p]))
                yield from (PipelineMove(rank, p, k) for p in islice(later, 3))

    def _is_weights(self, one: int) -> bool:
        return self._actions[one].kind is ActionKind.WEIGHT_GRADIENT

    def _longest(self) -> list[tuple[int, int]]:
        """Return the ranks and positions of the chain of actions that ends last, from its end."""
        times, path = self.times, list[tuple[int, int]]()
        place = {one: (rank, k) for rank, order in enumerate(self.now) for k, one in enumerate(order)}
        longest: list[int] = max(self.now, key=times.span_us)
        one = max(longest, key=times.end_us.__getitem__)
        while True:
            rank, k = place[one]
            path.append((rank, k))
            before = self.now[rank][k - 1] if k else NONE
            if before >= 0 and times.end_us[before] >= times.start_us[one] * (1 - SAME):
                one = before
            elif times.needs[one] and times.start_us[one] > 0.0:
                one = times.maker[max(times.needs[one], key=times.there_us.__getitem__)]
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
        """Tell whether two actions keep their order: of one stage, and of one micro-batch or kind, or an update."""
        a, b = self._actions[one], self._actions[other]
        alike = a.micro_batch == b.micro_batch or a.kind == b.kind
        return None in (a.micro_batch, b.micro_batch) or (a.stage == b.stage and alike)

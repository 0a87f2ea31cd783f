"""Mend an order where its allocator fails: what holds the room ends before that place, or begins behind it.

::

    order     ... launch ... mm ... big (128 MiB: no room) ... wait ... use
    mended    ... mm ... big ... launch ... wait ... use                        launch made what was in the way

The order is replayed up to the first request that fails; of all room that could be made there
(:mod:`overlap_sched.scheduler.room`) those that move the least compute are tried, the one with the shortest step is
made, and it starts again, until nothing fails or nothing can be moved. Each room that is tried replays the order: O(n).
What keeps the step short need not be what fits in the end: the room that moves the least by itself leads elsewhere.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from overlap_sched.problem import Kind, NodeId
from overlap_sched.problem.precedence import neighbours, positions
from overlap_sched.scheduler.candidate import SAME_STEP, Candidate, Task
from overlap_sched.scheduler.room import AllocationFailure, Growth, cheapest_room, out_of_memory, outgrown

MOST_REPAIRS = 15
"""Of one order, for one way to fail."""
ROOMS = (1, 8)
"""So many rooms are compared for one request: the one that moves the least compute, or the best of some."""
_MOST_REFUSED = 8
"""More rooms are not tried for one request: the budget refused what they move, or they make the step longer."""
_MOST_MOVED = 12
"""More nodes are not moved out of one request's way."""
_AGAIN = 4.0
"""What was moved that way before costs so many times as much: two storages do not make way for each other for ever."""

Moved = tuple[int, bool]
"""A storage, and whether it was moved behind the request that failed; else before it."""

Replays = Callable[[Sequence[NodeId]], AllocationFailure | None]
"""Where an order fails; None: nowhere."""


class Displacement(NamedTuple):
    """How to have a storage out of the way of a node: others that then run behind it, or before it."""

    cost_us: float
    later: bool
    nodes: frozenset[NodeId]


NO_WAY = Displacement(math.inf, True, frozenset())


def repaired(
    task: Task, found: Candidate, growth: Growth | None, spare_bytes: int, capacity: int, rooms: int
) -> Candidate:
    """The candidate mended as far as that can be had: for how it grows, then for a capacity, then both once more.

    Args:
        task: What is asked for; the budget is kept.
        found: A valid order within the budget.
        growth: Of the original order; ``None``: it may grow otherwise.
        spare_bytes: By how much more than that the allocator may grow.
        capacity: Bytes of a device on which the order must run.
        rooms: How many are compared for each request that fails, see :data:`ROOMS`.
    """
    mend, order = _Repair(task, rooms), list(found.order)
    live_ranges = task.live_ranges
    for _ in range(2):
        before = order
        if growth is not None:
            order = mend.until_it_fits(order, lambda o: outgrown(live_ranges, o, growth, spare_bytes))
        order = mend.until_it_fits(order, lambda o: out_of_memory(live_ranges, o, capacity))
        if order is before:
            break
    return found if tuple(order) == found.order else task.remeasured(found, tuple(order))


class _Repair:
    """The repairs of one order: which storages were moved, which way, and how often."""

    def __init__(self, task: Task, rooms: int) -> None:
        self._rooms = rooms
        self._task, self._nodes, self._storages = task, task.problem.nodes, task.problem.storages
        self._before, self._after = neighbours(task.problem, task.pairs)
        self._outputs = frozenset(v for v, node in enumerate(self._nodes) if node.kind is Kind.OUTPUT)
        self._moved: dict[Moved, int] = {}
        self._refused: set[tuple[int, bool, NodeId]] = set()

    def until_it_fits(self, order: list[NodeId], replays: Replays) -> list[NodeId]:
        """The order mended until it fails no more, or cannot be mended further."""
        for _ in range(MOST_REPAIRS):
            failure = replays(order)
            mended = None if failure is None else self._mended(order, failure)
            if mended is None:
                break
            order = mended
        return order

    def _mended(self, order: list[NodeId], failure: AllocationFailure) -> list[NodeId] | None:
        """The order with the room for what fails that makes the step shortest; None: there is none."""
        compared = self._rooms > 1
        least_us = self.step_us(order) * (1 + SAME_STEP) if compared else math.inf
        best: tuple[float, list[NodeId], list[Moved]] | None = None
        for mended, moved in islice(self.with_room(order, failure), self._rooms):
            step_us = self.step_us(mended) if compared else 0.0
            if best is None or step_us < best[0]:
                best = step_us, mended, moved
            if step_us <= least_us:
                break
        if best is None:
            return None
        self.note(best[2])
        return best[1]

    def note(self, moved: Iterable[Moved]) -> None:
        """These were moved: to move them once more costs more."""
        for key in moved:
            self._moved[key] = self._moved.get(key, 0) + 1

    def with_room(self, order: list[NodeId], failure: AllocationFailure) -> Iterator[tuple[list[NodeId], list[Moved]]]:
        """Orders with room that the budget admits, the cheapest first, each without the dearest of the one before."""
        failing, position = failure.node, positions(order)
        ways: dict[int, Displacement] = {}
        tried: set[Moved] = set()

        def cost_of(s: int) -> float:
            if s not in ways:
                ways[s] = self._way(s, failing, position, tried)
            return ways[s].cost_us

        for _ in range(_MOST_REFUSED):
            room = cheapest_room(failure, cost_of)
            if not room:
                break
            mended, moved = order, list[Moved]()
            for s in room:
                mended, way = self._without(mended, s, failing, tried)
                moved += [] if way is None else [(s, way.later)]
            if moved:
                dearest = max(room, key=cost_of)
                tried.add((dearest, ways.pop(dearest).later))
                yield mended, moved
            else:
                ways.clear()  # some were refused

    def _without(
        self, order: list[NodeId], s: int, failing: NodeId, tried: Collection[Moved]
    ) -> tuple[list[NodeId], Displacement | None]:
        """The order with a storage out of the way of the failing node, and how; as it was where that cannot be had."""
        position = positions(order)
        way = self._way(s, failing, position, tried)
        moved = sorted(way.nodes, key=position.__getitem__)
        mended = [v for v in order if v not in way.nodes]
        at = mended.index(failing) + way.later
        mended[at:at] = moved
        if not moved or not self._task.within_budget(tuple(mended)):
            self._refused.add((s, way.later, failing))
            return order, None
        return mended, way

    def step_us(self, order: Sequence[NodeId]) -> float:
        """Return the step of an order."""
        return self._task.step_times.of(order)

    def _way(self, s: int, failing: NodeId, position: Sequence[int], tried: Collection[Moved]) -> Displacement:
        """The cheapest way, not tried yet, to have a live storage out of the way of a node; of equals the later one."""
        users, at = self._task.live_ranges.users[s], position[failing]
        if self._storages[s].pinned or failing in users:
            return NO_WAY
        ways = [NO_WAY]
        maker = self._task.problem.maker[s]
        if self._nodes[maker].kind is not Kind.INPUT and position[maker] < at:  # not moved with another one already
            ways.append(self._priced(s, True, failing, self._moving([maker], True, failing, position)))
        still = [v for v in users if position[v] > at]
        ways.append(self._priced(s, False, failing, self._moving(still, False, failing, position)))
        return min((way for way in ways if (s, way.later) not in tried or way is NO_WAY), key=lambda way: way.cost_us)

    def _moving(self, nodes: list[NodeId], later: bool, failing: NodeId, position: Sequence[int]) -> frozenset[NodeId]:
        """The nodes, and all that must move with them past the failing one; empty: they cannot, as no output can."""
        following, outputs, at = self._after if later else self._before, self._outputs, position[failing]
        if not outputs.isdisjoint(nodes):
            return frozenset()
        reached, open_ = set(nodes), list(nodes)
        while open_:
            for w in following[open_.pop()]:
                if w == failing or len(reached) > _MOST_MOVED:
                    return frozenset()
                if w not in reached and (position[w] < at if later else position[w] > at):
                    if w in outputs:
                        return frozenset()
                    reached.add(w)
                    open_.append(w)
        return frozenset(reached)

    def _priced(self, s: int, later: bool, failing: NodeId, nodes: frozenset[NodeId]) -> Displacement:
        if not nodes or (s, later, failing) in self._refused:
            return NO_WAY
        cost_us = 1.0 + sum(self._nodes[v].time_us for v in nodes if self._nodes[v].kind is not Kind.WAIT)
        return Displacement(cost_us * _AGAIN ** self._moved.get((s, later), 0), later, nodes)

"""Left-shift launches, right-shift waits: the same order, but every collective gets as much time as memory allows.

A schedule is made for predicted times: it waits for a collective the moment it should be finished. When that takes a
little longer than predicted, all that follows stalls. Two moves cure it at no cost in time, whatever the times
turn out to be:

``wait later``
    A wait (and what takes no time behind it: a view) moves to just before its first user. What it moves past starts
    no later without it; its user starts no later, since it waited as long before.
``launch sooner``
    A launch moves to just behind what it needs and the launch before it on its group's stream. Its stream gets
    everything no later.

(Where collectives slow compute down, :mod:`overlap_sched.problem.contention`, neither is certain: compare the steps.)

Both cost memory in between: the wait holds the collective's input, the launch its output. So each goes as far as the
budget allows. Memory is exact: a move changes it only between its two places.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, NodeId, Order, Problem
from overlap_sched.problem.precedence import Pair, launch_pairs, neighbours
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.stage import Context

FARTHEST = 2_000
"""A move goes no further than so many positions: that is enough time for any error, and keeps large graphs linear."""

_MANY = 20
"""Of more users than this the last is found by vector operations."""


def shift_best(context: Context, best: Candidate) -> Candidate:
    """The stage: what runs have made, shifted; any other order is as good as it gets."""
    task = context.task
    return shift(task, best, best.order, task.limit_after(best)) if best.reasons else best


def shift(task: Task, best: Candidate, order: Order, limit: npt.NDArray[np.int64]) -> Candidate:
    """The candidate with its nodes in a valid order, shifted within a limit in bytes where that is no longer."""
    moved = task.remeasured(best, shifted(task.live_ranges, order, limit, task.pairs))
    if task.problem.contention:
        as_it_was = task.remeasured(best, order)
        return as_it_was if as_it_was.beats(moved) else moved
    return moved


def shifted(
    live_ranges: LiveRanges,
    order: Sequence[int],
    limit: npt.NDArray[np.int64],
    pairs: Sequence[Pair] = (),
) -> Order:
    """The order with waits later and launches sooner, within the budget; without contention never a longer step.

    Args:
        live_ranges: Of the problem that the order is of.
        order: A valid order within the budget.
        limit: Budget in bytes, a scalar or one value per position.
        pairs: Extra pairs (before, after) that the order keeps and must go on to keep.
    """
    problem = live_ranges.problem
    before, after = neighbours(problem, (*pairs, *launch_pairs(problem, order, "group")))
    line = _Line(live_ranges, order, limit)
    still = [_takes_no_time(problem, v) for v in range(len(order))]
    _later(line, (v for v in reversed(order) if still[v]), after)
    prepares = [False] * len(order)  # a launch, or what takes no time and is there for a launch alone
    for v in reversed(line.order.tolist()):
        launch = problem.nodes[v].kind is Kind.COLLECTIVE
        prepares[v] = launch or (still[v] and bool(after[v]) and all(prepares[w] for w in after[v]))
    front = 0
    while front < len(order) and problem.nodes[line.order[front]].kind is Kind.INPUT:
        front += 1  # inputs that lead the order go on to lead it: in a graph they are its signature
    for v in line.order.tolist():
        if prepares[v] and problem.nodes[v].kind is not Kind.WAIT:
            line.move_sooner(v, max(max((int(line.position[u]) + 1 for u in before[v]), default=0), front))
    # a launch may have gone to just behind a view that it shares with a wait's first user, in front of which both are
    again = [still[v] and (not prepares[v] or problem.nodes[v].kind is Kind.WAIT) for v in range(len(order))]
    _later(line, (v for v in reversed(line.order.tolist()) if again[v]), after)
    return tuple(line.order.tolist())


def _later(line: "_Line", nodes: Iterable[NodeId], after: Sequence[tuple[NodeId, ...]]) -> None:
    """Each of these to just before the first of what comes after it, as far as memory allows."""
    for v in nodes:
        line.move_later(v, min((int(line.position[w]) for w in after[v]), default=len(line.order)) - 1)


def _takes_no_time(problem: Problem, v: int) -> bool:
    node = problem.nodes[v]
    return node.kind is Kind.WAIT or (node.kind is Kind.COMPUTE and node.time_us == 0)


class _Line:
    """An order whose nodes move, and its memory. A move over k positions is O(k), in vector operations.

    Attributes:
        order: Node ids. position: its inverse.
    """

    def __init__(self, live_ranges: LiveRanges, order: Sequence[int], limit: npt.NDArray[np.int64]) -> None:
        self.order = np.array(order, dtype=np.int64)
        self.position = np.empty(len(order), dtype=np.int64)
        self._placed(0, len(order))
        self._limit = limit if limit.ndim else np.full(len(order), int(limit), dtype=np.int64)
        self._users, self._takes, self._keeps = live_ranges.users, live_ranges.alloc_bytes, live_ranges.kept_bytes
        self._inputs_bytes, self._dying = live_ranges.input_bytes, live_ranges.dying
        self._many: dict[int, npt.NDArray[np.int64]] = {}  # users of storages that have many
        self._during = live_ranges.profile(order)  # live while the node at a position runs
        takes = np.array(live_ranges.alloc_bytes, dtype=np.int64)[self.order]
        self._between = np.append(self._during[1:] - takes[1:], live_ranges.end_bytes)  # live once it has run

    @property
    def during(self) -> list[int]:
        """Bytes live while the node at each position runs."""
        return [int(live) for live in self._during]

    def move_later(self, v: int, target: int) -> None:
        """Move v to position ``target``, or as near to it as memory allows."""
        at = int(self.position[v])
        target = min(target, at + FARTHEST)
        if target <= at:
            return
        during, between = self._held(v, at + 1, target + 1)
        during += self._during[at + 1 : target + 1]
        between += self._between[at + 1 : target + 1]
        # the nodes between go one place to the left; v itself must fit where it lands
        over = np.flatnonzero(during > self._limit[at:target])
        reach = int(over[0]) if len(over) else target - at
        while reach and between[reach - 1] + self._takes[v] > self._limit[at + reach]:
            reach -= 1
        if reach == 0:
            return
        end, last = at + reach, self._between[at + reach]
        self._during[at:end], self._between[at:end] = during[:reach], between[:reach]
        self._during[end], self._between[end] = between[reach - 1] + self._takes[v], last
        self.order[at:end] = self.order[at + 1 : end + 1]
        self.order[end] = v
        self._placed(at, end + 1)

    def move_sooner(self, v: int, target: int) -> None:
        """Move v to position ``target``, or as near to it as memory allows."""
        at = int(self.position[v])
        target = max(target, at - FARTHEST)
        if target >= at:
            return
        held_during, held_between = self._held(v, target, at)
        during = self._during[target:at] - held_during
        between = self._between[target:at] - held_between
        # the nodes between go one place to the right; v itself must fit where it lands
        over = np.flatnonzero(during > self._limit[target + 1 : at + 1])
        begin = target + int(over[-1]) + 1 if len(over) else target
        while begin < at and self._before(begin) + self._takes[v] > self._limit[begin]:
            begin += 1
        if begin == at:
            return
        before = self._before(begin)
        freed = sum(
            size for s, size in self._dying[v] if all(self.position[u] < begin for u in self._users[s] if u != v)
        )
        self._during[begin + 1 : at + 1] = during[begin - target :]
        self._between[begin + 1 : at + 1] = between[begin - target :]
        self._during[begin] = before + self._takes[v]
        self._between[begin] = before + self._keeps[v] - freed
        self.order[begin + 1 : at + 1] = self.order[begin:at]
        self.order[begin] = v
        self._placed(begin, at + 1)

    def _held(self, v: int, begin: int, end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return what is live at places ``begin`` to ``end``, and behind each, as v has not run, less what it makes."""
        during = np.full(end - begin, -self._keeps[v], dtype=np.int64)
        between = during.copy()
        for s, size in self._dying[v]:
            other = self._last_other(v, s)
            during[max(other + 1 - begin, 0) :] += size
            between[max(other - begin, 0) :] += size
        return during, between

    def _last_other(self, v: int, s: int) -> int:
        """The last position at which another node uses a storage; -1: none does."""
        users = self._users[s]
        if len(users) <= _MANY:
            return max([int(self.position[u]) for u in users if u != v], default=-1)
        if s not in self._many:
            self._many[s] = np.array(users, dtype=np.int64)
        positions = self.position[self._many[s]]
        positions[self._many[s] == v] = -1
        return int(positions.max())

    def _before(self, at: int) -> int:
        """Return what is live before the node at a place runs."""
        return int(self._between[at - 1]) if at else self._inputs_bytes

    def _placed(self, begin: int, end: int) -> None:
        """Positions of the nodes at places ``begin`` to ``end``, end excluded."""
        self.position[self.order[begin:end]] = np.arange(begin, end)

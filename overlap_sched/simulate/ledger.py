"""From which step to which each storage is live: made once for a problem, then asked about many orders of it.

The one table of live ranges outside the checkers, which count on their own (:mod:`overlap_sched.judge.validate`,
:mod:`overlap_sched.peak_memory.addresses`). The rules are those of the judge.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, Node, Problem


class LiveRange(NamedTuple):
    """One storage: live from step ``first`` to step ``last`` of an order, both included."""

    storage: int
    bytes: int
    first: int
    last: int


class NodeStorages(NamedTuple):
    """Storages of one node, as an allocator meets them.

    Attributes:
        makes: What it brings to life; nothing of an input, which is there from the start.
        uses: What it uses that goes once its last user is done. drops: what it makes and nobody uses.
    """

    makes: tuple[int, ...]
    uses: tuple[int, ...]
    drops: tuple[int, ...]


class LiveRanges:
    """What the live ranges of all orders of a problem share, and those of any one order.

    Time and space, with n nodes and m uses of storages::

        LiveRanges(problem)    O(n + m)
        dying                  O(m), once
        profile(order)         O(n + m), vector operations
        of(order)              O(n + m)

    Attributes:
        problem: What the orders are of.
        users: Per storage, the ids of the nodes that use it, ascending.
        alloc_bytes: Per node id, all that its step brings to life (0 for inputs: they are live from the start).
        kept_bytes: The part of it that outlives the step.
        freed_size: Per storage, bytes that go when its last user is done (0 where it is pinned).
        input_bytes: Bytes of all inputs: live from the start. end_bytes: of all that is live at the end.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        nodes, storages = problem.nodes, problem.storages
        self.freed_size = [0 if storage.pinned else storage.bytes for storage in storages]
        self.users: list[list[int]] = [[] for _ in storages]
        for v, node in enumerate(nodes):
            for s in node.use:
                self.users[s].append(v)
        self.alloc_bytes, self.kept_bytes = [0] * len(nodes), [0] * len(nodes)
        self.input_bytes = 0
        for v, node in enumerate(nodes):
            if node.kind is Kind.INPUT:
                self.input_bytes += sum(storages[s].bytes for s in node.alloc)
            elif node.alloc:
                self.alloc_bytes[v] = sum(storages[s].bytes for s in node.alloc)
                keeps = node.kind is Kind.OUTPUT
                self.kept_bytes[v] = sum(storages[s].bytes for s in node.alloc if keeps or self.users[s])
        self._arrays()

    @cached_property
    def dying(self) -> list[list[tuple[int, int]]]:
        """Per node id, what it uses that goes when its last user is done: (storage, bytes)."""
        size = self.freed_size
        return [[(s, size[s]) for s in node.use if size[s]] for node in self.problem.nodes]

    @cached_property
    def steps(self) -> list[NodeStorages]:
        """Per node id."""
        return list(map(self._step, self.problem.nodes))

    def _step(self, node: Node) -> NodeStorages:
        storages, users = self.problem.storages, self.users
        uses = tuple([s for s in node.use if not storages[s].pinned])
        if node.kind is Kind.INPUT:
            return NodeStorages((), uses, ())
        drops = () if node.kind is Kind.OUTPUT else tuple([s for s in node.alloc if not users[s]])
        return NodeStorages(node.alloc, uses, drops)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Per storage, bytes."""
        return tuple([storage.bytes for storage in self.problem.storages])

    @cached_property
    def given(self) -> tuple[int, ...]:
        """Storages that are there from the start."""
        return tuple([s for node in self.problem.nodes if node.kind is Kind.INPUT for s in node.alloc])

    def uses_left(self) -> list[int]:
        """Per storage, how many nodes use it; a new list."""
        return [len(users) for users in self.users]

    def _arrays(self) -> None:
        nodes, storages = self.problem.nodes, self.problem.storages
        born = sorted((s, v) for v, node in enumerate(nodes) for s in node.alloc)
        kinds = [nodes[v].kind for _, v in born]
        self._storages = [s for s, _ in born]
        self._sizes = np.array([storages[s].bytes for s, _ in born], dtype=np.int64)
        self._maker = np.array([v for _, v in born], dtype=np.int64)
        self._early = np.array([kind is Kind.INPUT for kind in kinds], dtype=bool)
        stays = [
            storages[s].pinned if self.users[s] else kind in (Kind.INPUT, Kind.OUTPUT)
            for (s, _), kind in zip(born, kinds, strict=True)
        ]
        self._stays = np.array(stays, dtype=bool)
        self.end_bytes = int(self._sizes[self._stays].sum())
        used = [(at, self.users[s]) for at, (s, _) in enumerate(born) if self.users[s]]
        self._used = np.array([at for at, _ in used], dtype=np.int64)
        self._users = np.array([v for _, users in used for v in users], dtype=np.int64)
        self._starts = np.cumsum([0, *(len(users) for _, users in used)])[:-1]

    def profile(self, order: Sequence[int]) -> npt.NDArray[np.int64]:
        """Bytes live at each position of a valid order."""
        first, last = self._first_and_last(order)
        change = np.zeros(len(order) + 1, dtype=np.int64)
        np.add.at(change, first, self._sizes)
        np.subtract.at(change, last + 1, self._sizes)
        return np.cumsum(change[:-1])

    def of(self, order: Sequence[int]) -> list[LiveRange]:
        """One per storage that is ever allocated, by storage id, in a valid order.

        What is live from the start has ``first == 0``, what stays to the end ``last == len(order) - 1``.
        """
        first, last = (steps.tolist() for steps in self._first_and_last(order))
        return list(map(LiveRange, self._storages, self._sizes.tolist(), first, last))

    def _first_and_last(self, order: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Per storage that is ever allocated, by storage id: its first and its last step."""
        position = np.empty(len(order), dtype=np.int64)
        position[np.array(order, dtype=np.int64)] = np.arange(len(order))
        first = np.where(self._early, 0, position[self._maker])
        last = first.copy()
        if len(self._used):
            last[self._used] = np.maximum.reduceat(position[self._users], self._starts)
        last[self._stays] = len(order) - 1
        return first, last


class MovableOrder:
    """A valid order within a budget whose nodes move, and its memory. A move over k positions is O(k), vectorised.

    Attributes:
        order: Node ids. position: its inverse.
        during: Bytes live while the node at each position runs.
    """

    def __init__(self, live_ranges: LiveRanges, order: Sequence[int], limit: npt.NDArray[np.int64]) -> None:
        """Start with an order; ``limit``: the budget in bytes, one value or one per position."""
        self.order, self.position = np.array(order, dtype=np.int64), np.empty(len(order), dtype=np.int64)
        self.position[self.order] = np.arange(len(order))
        self.during = live_ranges.profile(order)
        self._limit = np.broadcast_to(limit, len(order))
        self._ranges, self._takes = live_ranges, np.array(live_ranges.alloc_bytes, dtype=np.int64)

    def move_later(self, v: int, target: int) -> None:
        """Move v to position ``target``, or as near to it as memory allows."""
        at = int(self.position[v])
        if target <= at:
            return
        # the nodes between go one place to the left; v itself must fit where it goes
        held, takes = self._held(v, at + 1, target + 2), int(self._takes[v])
        during = self.during[at + 1 : target + 1] + held[:-1]
        over = (during > self._limit[at:target]).nonzero()[0]
        end, own = at + int(over[0]) if len(over) else target, 0
        while end > at and (own := self._before(end + 1) + int(held[end - at]) + takes) > self._limit[end]:
            end -= 1
        if end > at:
            self.order[at:end] = self.order[at + 1 : end + 1]
            self.during[at:end] = during[: end - at]
            self._place(v, end, own, at, end + 1)

    def move_sooner(self, v: int, target: int) -> None:
        """Move v to position ``target``, or as near to it as memory allows."""
        at = int(self.position[v])
        if target >= at:
            return
        # the nodes between go one place to the right; v itself must fit where it goes
        during, takes = self.during[target:at] - self._held(v, target, at), int(self._takes[v])
        over = (during > self._limit[target + 1 : at + 1]).nonzero()[0]
        begin, own = target + int(over[-1]) + 1 if len(over) else target, 0
        while begin < at and (own := self._before(begin) + takes) > self._limit[begin]:
            begin += 1
        if begin < at:
            self.order[begin + 1 : at + 1] = self.order[begin:at]
            self.during[begin + 1 : at + 1] = during[begin - target :]
            self._place(v, begin, own, begin, at + 1)

    def _held(self, v: int, begin: int, end: int) -> npt.NDArray[np.int64]:
        """Bytes live more at these positions while v has not run: what it uses last, less what it makes."""
        held = np.full(end - begin, -self._ranges.kept_bytes[v], dtype=np.int64)
        for s, size in self._ranges.dying[v]:
            other = max([int(self.position[u]) for u in self._ranges.users[s] if u != v], default=-1)
            held[max(other + 1 - begin, 0) :] += size
        return held

    def _before(self, at: int) -> int:
        """Bytes live before the node at a position runs; behind the last one: at the end."""
        if at == len(self.order):
            return self._ranges.end_bytes
        return int(self.during[at]) - int(self._takes[self.order[at]])

    def _place(self, v: int, at: int, during: int, begin: int, end: int) -> None:
        self.order[at], self.during[at] = v, during
        self.position[self.order[begin:end]] = np.arange(begin, end)

"""The nodes that could run now, sorted by what makes them urgent.

A node sits in every set that concerns it, under keys that never change while it is inside: whoever changes a
score takes the node out, rescores it and puts it back (a key that changes inside a sorted set corrupts it).

================  ==============================  =======================================================
set               who                             key
================  ==============================  =======================================================
``free``          views, waits that are finished  none: a queue, first ready, first run
``compute``       other compute                   reference position
``launches``      per stream: its collectives,    :class:`~overlap_sched.scheduler.task.LaunchKey`
                  the cheap compute that
                  prepares them
``paths``         collectives, compute            :class:`~overlap_sched.scheduler.task.PathKey`
``in_flight``     waits that would stall          :class:`InFlightKey`
``blocked``       refused by the budget           :class:`BlockedKey`
``blocked_now``   too large for this very step    :class:`TooLargeKey`
================  ==============================  =======================================================

A refused node leaves all other sets until the obstacle is gone: the position that refused it has been passed or
its memory has gone down.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from sortedcontainers import SortedList

from overlap_sched.problem import NodeId, Position
from overlap_sched.scheduler.admission import THIS_STEP, CompletionProfile, Obstacle
from overlap_sched.scheduler.task import LaunchKey, PathKey, Priorities, Reference

FEW = 20_000
"""Up to so many keys are in a plain list."""

K = TypeVar("K")


class SortedKeys(Protocol[K]):
    """Keys, the smallest first; what ``add`` and ``remove`` are given never changes while it is inside."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[K]: ...
    def __getitem__(self, at: int, /) -> K: ...
    def add(self, key: K, /) -> None:
        """Put a key in its place."""

    def remove(self, key: K, /) -> None:
        """Take a key out.

        Raises:
            ValueError: It is not inside.
        """

    def pop(self, at: int, /) -> K:
        """Take out the key at a place."""

    def irange(self, low: Any = None, high: Any = None, /) -> Iterator[K]:
        """The keys from ``low`` to ``high``, both included; ``None``: no end."""


def sorted_keys(most: int) -> SortedKeys[Any]:
    """An empty one that is to hold at most so many keys."""
    return FewKeys() if most <= FEW else SortedList()


class FewKeys(list[Any]):
    """A sorted plain list; as :class:`SortedKeys`."""

    __slots__ = ()

    def add(self, key: Any, /) -> None:
        """Put a key in its place."""
        insort(self, key)

    def remove(self, key: Any, /) -> None:
        """Take a key out."""
        at = bisect_left(self, key)
        if at == len(self) or self[at] != key:
            raise ValueError(f"{key!r} is not among the keys")
        del self[at]

    def irange(self, low: Any = None, high: Any = None, /) -> Iterator[Any]:
        """The keys from ``low`` to ``high``, as they are now."""
        begin = 0 if low is None else bisect_left(self, low)
        return iter(self[begin:] if high is None else self[begin : bisect_right(self, high)])


class InFlightKey(NamedTuple):
    """A wait that would stall: the collective that completes first comes first."""

    completed_us: float
    position: Position
    node: NodeId


class BlockedKey(NamedTuple):
    """A node refused at a reference position, and how low the profile must go there to admit it."""

    obstacle: Position
    position: Position
    node: NodeId
    enough_bytes: int


class TooLargeKey(NamedTuple):
    """A node that allocates more than there is room for at this step."""

    alloc_bytes: int
    position: Position
    node: NodeId


class ReadyList:
    """The sets above, for n nodes ready.

    ``add``, ``remove``, ``add_in_flight`` and ``block`` are O(log n); ``completed`` and ``unblocked`` O(log n) per node
    that they give back, plus one look per node blocked in the ranges given.
    """

    def __init__(self, reference: Reference, priorities: Priorities, memory: CompletionProfile) -> None:
        """Start empty."""
        self.free: deque[int] = deque()
        most = len(reference.order)
        self.compute: SortedKeys[Position] = sorted_keys(most)
        self.launches: dict[str, SortedKeys[LaunchKey]] = {g: sorted_keys(most) for g in reference.problem.groups}
        self.paths: SortedKeys[PathKey] = sorted_keys(most)
        self.in_flight: SortedKeys[InFlightKey] = sorted_keys(most)
        self.blocked: SortedKeys[BlockedKey] = sorted_keys(most)
        self.blocked_now: SortedKeys[TooLargeKey] = sorted_keys(most)
        self.rescored = 0  # nodes put into sets so far: the work done, for tests and benchmarks
        self._memory, self._position = memory, memory.position
        self._launch_keys, self._path_keys = priorities.launch_keys, priorities.path_keys
        self._stream, self._launches, self._costs = priorities.stream, reference.launches, reference.costs

    def add(self, v: NodeId) -> None:
        """Node v is ready (a wait: and its collective has completed)."""
        self.rescored += 1
        if not self._costs[v]:
            self.free.append(v)
            return
        self.paths.add(self._path_keys[v])
        if not self._launches[v]:
            self.compute.add(self._position[v])
        group, key = self._stream[v], self._launch_keys[v]
        if group is not None and key is not None:
            self.launches[group].add(key)

    def remove(self, v: NodeId) -> None:
        """Undo ``add``: node v runs, or is refused; one from ``free`` has been taken out already."""
        if not self._costs[v]:
            return
        self.paths.remove(self._path_keys[v])
        if not self._launches[v]:
            self.compute.remove(self._position[v])
        group, key = self._stream[v], self._launch_keys[v]
        if group is not None and key is not None:
            self.launches[group].remove(key)

    def add_in_flight(self, v: NodeId, completed_us: float) -> None:
        """Wait v is ready but would stall: its collective completes later."""
        self.rescored += 1
        self.in_flight.add(InFlightKey(completed_us, self._position[v], v))

    def completed(self, clock_us: float) -> list[int]:
        """Take out the waits whose collective was to have completed by now; the caller adds them."""
        nodes = []
        while self.in_flight and self.in_flight[0].completed_us <= clock_us:
            nodes.append(self.in_flight.pop(0).node)
        return nodes

    def block(self, v: NodeId, obstacle: Obstacle) -> None:
        """Keep v out until an obstacle to it is gone."""
        memory, at, (over_bytes, place) = self._memory, self._position[v], obstacle
        if place == THIS_STEP:
            self.blocked_now.add(TooLargeKey(memory.alloc_bytes[v], at, v))
        else:
            self.blocked.add(BlockedKey(place, at, v, memory.profile[place] - over_bytes))
        self.remove(v)

    def unblocked(self, lowered: Iterable[tuple[int, int]]) -> list[int]:
        """Take out the nodes whose obstacle is gone; the caller adds them again.

        Args:
            lowered: Ranges of reference positions, end excluded, where the profile went down.
        """
        memory = self._memory
        again: list[BlockedKey] = list(self.blocked.irange(None, (memory.first,)))
        for low, high in lowered:
            for key in self.blocked.irange((max(low, memory.first),), (high,)):
                if memory.profile[key.obstacle] <= key.enough_bytes:
                    again.append(key)
        nodes = []
        for key in dict.fromkeys(again):
            self.blocked.remove(key)
            nodes.append(key.node)
        room_bytes = memory.room_bytes()
        while self.blocked_now and self.blocked_now[0].alloc_bytes <= room_bytes:
            nodes.append(self.blocked_now.pop(0).node)
        return nodes

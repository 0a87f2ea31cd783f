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

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from overlap_sched.problem import Kind, NodeId, Position
from overlap_sched.scheduler.admission import THIS_STEP, CompletionProfile, Obstacle
from overlap_sched.scheduler.task import LaunchKey, PathKey, Priorities, Reference


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
    """The sets above. With n nodes ready all is O(log n) per node.

    Attributes:
        rescored: Nodes put into sets so far: the work done, for tests and benchmarks.
    """

    def __init__(self, reference: Reference, priorities: Priorities, memory: CompletionProfile) -> None:
        """Start empty."""
        self.free = deque[NodeId]()
        self.compute, self.paths = SortedList[Position](), SortedList[PathKey]()
        self.launches = {group: SortedList[LaunchKey]() for group in reference.problem.groups}
        self.in_flight = SortedList[InFlightKey]()
        self.blocked, self.blocked_now = SortedList[BlockedKey](), SortedList[TooLargeKey]()
        self.rescored = 0
        self._memory, self._position = memory, memory.position
        self._priorities, self._nodes, self._costs = priorities, reference.problem.nodes, reference.costs

    def add(self, v: NodeId) -> None:
        """Node v is ready (a wait: and its collective has completed)."""
        self.rescored += 1
        if not self._costs[v]:
            self.free.append(v)
            return
        for keys, key in self._sets(v):
            keys.add(key)

    def remove(self, v: NodeId) -> None:
        """Undo ``add``: node v runs, or is refused; one from ``free`` has been taken out already."""
        if self._costs[v]:
            for keys, key in self._sets(v):
                keys.remove(key)

    def _sets(self, v: NodeId) -> Iterator[tuple[SortedList[Any], Any]]:
        """The sets that concern v, each with its key there."""
        yield self.paths, self._priorities.path_keys[v]
        if self._nodes[v].kind is not Kind.COLLECTIVE:
            yield self.compute, self._position[v]
        group, key = self._priorities.stream[v], self._priorities.launch_keys[v]
        if group is not None and key is not None:
            yield self.launches[group], key

    def add_in_flight(self, v: NodeId, completed_us: float) -> None:
        """Wait v is ready but would stall: its collective completes later."""
        self.rescored += 1
        self.in_flight.add(InFlightKey(completed_us, self._position[v], v))

    def completed(self, clock_us: float) -> list[NodeId]:
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
            self.blocked.add(BlockedKey(place, at, v, int(memory.profile[place]) - over_bytes))
        self.remove(v)

    def unblocked(self, lowered: Iterable[tuple[Position, Position]]) -> list[NodeId]:
        """Take out the nodes whose obstacle is gone; the caller adds them again.

        Args:
            lowered: Ranges of reference positions, end excluded, where the profile went down.
        """
        memory, blocked = self._memory, self.blocked
        again = list(blocked[: blocked.bisect_left((memory.first,))])
        for low, high in lowered:
            there = blocked[blocked.bisect_left((max(low, memory.first),)) : blocked.bisect_left((high,))]
            again += [key for key in there if memory.profile[key.obstacle] <= key.enough_bytes]
        nodes = []
        for key in dict.fromkeys(again):
            blocked.remove(key)
            nodes.append(key.node)
        room_bytes = memory.room_bytes()
        while self.blocked_now and self.blocked_now[0].alloc_bytes <= room_bytes:
            nodes.append(self.blocked_now.pop(0).node)
        return nodes

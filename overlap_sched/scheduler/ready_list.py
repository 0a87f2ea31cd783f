"""The nodes that could run now, sorted by what makes them urgent.

A node sits in every set that concerns it, under keys that never change while it is inside: whoever changes a
score takes the node out, rescores it and puts it back (a key that changes inside a sorted set corrupts it).

============  ==============================  =======================================================
set           who                             key
============  ==============================  =======================================================
``free``      views, waits that are finished  none: a queue, first ready, first run
``work``      other compute                   reference position
``due``       per stream: its collectives,    latest start; what frees memory first; reference position
              the cheap compute that
              prepares them
``late``      collectives, compute            longest path to the end, longest first; reference position
``flying``    waits that would stall          when their collective finishes; reference position
``held``      refused by the budget           the position that refused it; reference position; how low the
                                              profile must go there
``held_now``  too large for this very step    bytes that it allocates; reference position
============  ==============================  =======================================================

A refused node leaves all other sets until the obstacle is gone: the position that refused it has been passed or
its memory has gone down.
"""

from collections import deque
from collections.abc import Iterable

from sortedcontainers import SortedList

from overlap_sched.scheduler.admission import THIS_STEP, CompletionProfile
from overlap_sched.scheduler.priority import Keys
from overlap_sched.scheduler.reference import Reference


class Ready:
    """The sets above. The keys that are chosen from end in the reference position, which leads back to the node."""

    def __init__(self, reference: Reference, keys: Keys, memory: CompletionProfile) -> None:
        """Start empty."""
        self.free: deque[int] = deque()
        self.work: SortedList = SortedList()
        self.due: dict[str, SortedList] = {group: SortedList() for group in reference.problem.groups}
        self.late: SortedList = SortedList()
        self.flying: SortedList = SortedList()
        self.held: SortedList = SortedList()
        self.held_now: SortedList = SortedList()
        self.rescored = 0  # nodes put into sets so far: the work done, for tests and benchmarks
        self.frees = reference.frees
        self._memory, self._keys = memory, keys
        self._launch, self._costs, self._stream = reference.launches, reference.costs, keys.stream

    def add(self, v: int) -> None:
        """Node v is ready (a wait: and what it waits for is finished)."""
        self.rescored += 1
        if not self._costs[v]:
            self.free.append(v)
            return
        keys, at = self._keys, self._memory.position[v]
        self.late.add((-keys.tail_us[v], at))
        if not self._launch[v]:
            self.work.add(at)
        group = self._stream[v]
        if group is not None:
            self.due[group].add((keys.due_us[v], not self.frees[v], at))

    def remove(self, v: int) -> None:
        """Undo ``add``: node v runs, or is refused; one from ``free`` has been taken out already."""
        if not self._costs[v]:
            return
        keys, at = self._keys, self._memory.position[v]
        self.late.remove((-keys.tail_us[v], at))
        if not self._launch[v]:
            self.work.remove(at)
        group = self._stream[v]
        if group is not None:
            self.due[group].remove((keys.due_us[v], not self.frees[v], at))

    def fly(self, v: int, finish_us: float) -> None:
        """Wait v is ready but would stall: its collective finishes later."""
        self.rescored += 1
        self.flying.add((finish_us, self._memory.position[v]))

    def landed(self, clock_us: float) -> list[int]:
        """The clock has moved: take out the waits whose collective was to be finished by now; the caller adds them."""
        nodes = []
        while self.flying and self.flying[0][0] <= clock_us:
            nodes.append(self._memory.order[self.flying.pop(0)[1]])
        return nodes

    def hold(self, v: int) -> None:
        """The budget has just refused v: keep it out until that obstacle is gone."""
        memory, at = self._memory, self._memory.position[v]
        over_bytes, obstacle = memory.obstacle
        if obstacle == THIS_STEP:
            self.held_now.add((memory.alloc_bytes[v], at))
        else:
            self.held.add((obstacle, at, memory.profile[obstacle] - over_bytes))
        self.remove(v)

    def freed(self, lowered: Iterable[tuple[int, int]]) -> list[int]:
        """Take out the nodes whose obstacle is gone; the caller adds them again.

        Args:
            lowered: Ranges of reference positions, end excluded, where the profile went down.
        """
        memory, nodes = self._memory, []
        again = list(self.held.irange(None, (memory.first,)))
        for low, high in lowered:
            for key in self.held.irange((max(low, memory.first),), (high,)):
                obstacle, _, enough_bytes = key
                if memory.profile[obstacle] <= enough_bytes:
                    again.append(key)
        for key in dict.fromkeys(again):
            self.held.remove(key)
            nodes.append(memory.order[key[1]])
        room_bytes = memory.room_bytes()
        while self.held_now and self.held_now[0][0] <= room_bytes:
            nodes.append(memory.order[self.held_now.pop(0)[1]])
        return nodes

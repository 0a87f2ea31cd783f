"""The completion profile: memory, exactly, if the rest of the graph ran in the reference order.

At any moment some nodes have run. Keep, for every reference position that is still open, the bytes that would
be live there *if all open nodes ran in reference order from here*. Running node ``v`` now, ahead of its place
``q``, changes that profile only between the first open position and ``q``::

    reference position   first open ......... p' ......... q ............
    what v allocates         +  +  +  +  +  + + + + + + +  (was live from q on anyway)
    v was its last user                         - - - - -   (now dies at p', its last user still open,
                                                             or with this step where there is none)

This is the safe-state test of the banker's algorithm (E. W. Dijkstra, EWD 108, 1965): a step is taken only if what is
left can be completed within what there is, here in one known order instead of some order.

Budget: ``admits(v)`` says whether every one of these positions, and this very step, stays within it. Since
the reference order itself is within the budget, **the first open node is always admitted**: from every state
there is a completion within the budget, so no order that comes out of here can exceed it.

The profile is an array with range additions and range maxima, in blocks: both cost the square root of its length. Each
block keeps its own maximum (found again when it is asked for), and a sum that all its values still have to get::

    values   | 3 1 4 1 | 5 9 2 6 | 5 3 5 8 |      add 10 to [2, 9)
    top      |    4    |    9    |    8    |
                 ^^^^^^^^^^^^^^^^^^^
    values   | 3 1 14 11 | 5 9 2 6 | 15 3 5 8 |   at the edges value by value,
    top      |    14     |    9    |   15    |    in between
    sum      |     0     |   10    |    0    |    one sum a block
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import NodeId, Position
from overlap_sched.scheduler.task import Reference, Refusal

BLOCK = 2048
"""Values a block: few enough blocks in a graph of a million nodes, and one or a few in most graphs."""

LOWEST = -(2**62)
"""Below anything, whatever is added to it."""


class RangeMax:
    """Integers at positions 0, 1, 2, ...; ranges are given by begin and end, end excluded, and are not empty.

    With n values in blocks of b::

        self[at], drop              O(1)
        add, max, last_above        O(b + n / b)
        array                       O(length of the range)
    """

    def __init__(self, values: npt.NDArray[np.int64], block: int = BLOCK) -> None:
        """A copy of the values."""
        count = max(-(-len(values) // block), 1)
        self._size = block
        self._values = np.full(count * block, LOWEST, dtype=np.int64)
        self._values[: len(values)] = values
        self._rows = self._values.reshape(count, block)
        self._sum = [0] * count
        self._top = self._rows.max(axis=1).tolist()  # with the sum; of those that are not stale
        self._stale: set[int] = set()

    def __getitem__(self, at: int) -> int:
        return int(self._values[at]) + self._sum[at // self._size]

    def add(self, begin: int, end: int, amount: int) -> None:
        """Add to each value of a range."""
        first, last = begin // self._size, (end - 1) // self._size
        self._stale.add(first)
        if first == last:
            self._values[begin:end] += amount
            return
        self._stale.add(last)
        self._values[begin : (first + 1) * self._size] += amount
        self._values[last * self._size : end] += amount
        for row in range(first + 1, last):
            self._sum[row] += amount
            self._top[row] += amount

    def drop(self, at: int) -> None:
        """Make one value lower than all others, for good."""
        self._values[at] = LOWEST
        self._stale.add(at // self._size)

    def max(self, begin: int, end: int) -> int:
        """The largest value of a range."""
        first, last = begin // self._size, (end - 1) // self._size
        if first == last:
            return int(self._values[begin:end].max()) + self._sum[first]
        highest = int(self._values[begin : (first + 1) * self._size].max()) + self._sum[first]
        highest = max(highest, int(self._values[last * self._size : end].max()) + self._sum[last])
        for row in range(first + 1, last):
            highest = max(highest, self._top_of(row))
        return highest

    def last_above(self, begin: int, end: int, limit: int) -> int:
        """The last position of a range whose value is above the limit; -1: there is none."""
        for row in range((end - 1) // self._size, begin // self._size - 1, -1):
            low, high = max(begin, row * self._size), min(end, (row + 1) * self._size)
            if high - low == self._size and self._top_of(row) <= limit:
                continue
            above = self._values[low:high] > limit - self._sum[row]
            at = high - 1 - int(above[::-1].argmax())
            if above[at - low]:
                return at
        return -1

    def array(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The values of a range, one by one."""
        return self._values[begin:end] + np.array(self._sum)[np.arange(begin, end) // self._size]

    def _top_of(self, row: int) -> int:
        """The largest value of a block."""
        if row in self._stale:
            self._stale.discard(row)
            self._top[row] = int(self._rows[row].max()) + self._sum[row]
        return self._top[row]


THIS_STEP = -1


class Obstacle(NamedTuple):
    """What stands against a node: so many bytes above the budget at a reference position, or at ``THIS_STEP``."""

    over_bytes: int
    position: Position


class CompletionProfile:
    """The completion profile of one scheduling run, and the admission rule on it.

    With k storages that v uses, and a profile of n positions in blocks (:mod:`overlap_sched.scheduler.admission`)::

        admits(v)      O(k) range queries of O(sqrt n) each
        run(v)         O(k) range updates of O(sqrt n) each
        obstacle_of(v) as admits: what stands against v; as long as that stands, v is refused
        refusal(v)     O(n), asked once per collective

    Attributes:
        order: The reference order. position: its inverse, per node id.
        first: The first reference position whose node is still open.
        live_bytes: Bytes live now, between steps. peak_bytes: the most that have been live at a step so far.
        kept_bytes: Per node id, what it allocates that outlives its own step.
        updates: Range updates and queries so far: the work done, for tests and benchmarks.
    """

    def __init__(self, reference: Reference, peak_limit: int) -> None:
        """Start with nothing run; ``peak_limit``: the budget in bytes, everywhere."""
        self.reference = reference
        self.order, self.position = reference.order, reference.position
        self.profile = RangeMax(reference.profile)
        self.peak_limit = peak_limit
        self.steps = 0
        self.first = 0
        self.has_run = [False] * len(self.order)
        self.live_bytes, self.peak_bytes = reference.live_ranges.input_bytes, 0
        self.updates = 0
        self.use = [node.use for node in reference.problem.nodes]
        self.users, self.freed_size = reference.users, reference.live_ranges.freed_size
        self.alloc_bytes, self.kept_bytes = reference.live_ranges.alloc_bytes, reference.live_ranges.kept_bytes
        self.open_users = [len(users) for users in self.users]
        self.last = [len(users) - 1 for users in self.users]  # index of the last user still open

    def deaths(self, v: NodeId) -> list[tuple[int, int]]:
        """Storages that end sooner if v runs now: (last other open user's position or -1, bytes)."""
        at, result = self.position[v], []
        for s in self.use[v]:
            size, users, k = self.freed_size[s], self.users[s], self.last[s]
            if size == 0 or users[k] != at:
                continue
            k -= 1
            while k >= 0 and self.has_run[self.order[users[k]]]:
                k -= 1
            result.append((users[k] if k >= 0 else -1, size))
        return result

    def room_bytes(self) -> int:
        """Return how much the next step may allocate."""
        return 0 if self.steps == len(self.order) else self._step_limit() - self.live_bytes

    def _step_limit(self) -> int:
        """The budget of the next step."""
        return self.peak_limit

    def admits(self, v: NodeId) -> bool:
        """May v run now?"""
        return self.obstacle_of(v) is None

    def obstacle_of(self, v: NodeId) -> Obstacle | None:
        """Find what stands against running v now; ``None``: nothing, it may run."""
        if self.position[v] == self.first:
            return None
        obstacle = self._ahead(v)
        if obstacle is not None:
            return obstacle
        # asked last: what changes with every step is a poor obstacle
        missing = self.alloc_bytes[v] - self.room_bytes()
        return Obstacle(missing, THIS_STEP) if missing > 0 else None

    def _ahead(self, v: NodeId) -> Obstacle | None:
        """The last position ahead of which v may not run."""
        first, at, rise = self.first, self.position[v], self.kept_bytes[v]
        if rise and self.profile.max(first, at) > self.peak_limit - rise:
            self.updates += 1
            deaths = self.deaths(v)
            end, room = at, self.peak_limit - rise + sum(size for _, size in deaths)
            for p, size in sorted(deaths, reverse=True):  # from the right: ever less of v's has died
                begin = max(p + 1, first)
                if begin < end and (obstacle := self._stands(begin, end, room)) is not None:
                    return obstacle
                end, room = min(begin, end), room - size
            if first < end and (obstacle := self._stands(first, end, room)) is not None:
                return obstacle
        return None

    def _stands(self, begin: int, end: int, room: int) -> Obstacle | None:
        """The last position of a range that is too high: it stands longest."""
        at = self.profile.last_above(begin, end, room)
        return Obstacle(self.profile[at] - room, at) if at >= 0 else None

    def _excess(self, v: NodeId) -> npt.NDArray[np.int64]:
        """Bytes above the budget at each position from the first open one to v's own, if v ran now."""
        first = self.first
        excess = self._above(first, self.position[v]) + self.kept_bytes[v]
        for p, size in self.deaths(v):
            excess[max(p + 1 - first, 0) :] -= size
        return excess

    def _above(self, first: Position, at: Position) -> npt.NDArray[np.int64]:
        """Bytes above the budget at each position of a range."""
        return self.profile.array(first, at) - self.peak_limit

    def refusal(self, v: NodeId, obstacle: Obstacle) -> Refusal:
        """Why v is refused, for people."""
        over_bytes, at = obstacle
        if at == THIS_STEP:
            return Refusal(over_bytes, self.order[self.first])
        excess = self._excess(v)
        worst = int(excess.argmax())
        return Refusal(int(excess[worst]), self.order[self.first + worst])

    def run(self, v: NodeId) -> list[tuple[int, int]]:
        """Run v now (it must be ready; ``admits`` is not asked again).

        Returns:
            Ranges of reference positions, end excluded, where the profile went down.
        """
        first, at, has_run, open_users = self.first, self.position[v], self.has_run, self.open_users
        lowered = self._run_ahead(v) if at != first else []
        self.profile.drop(at)
        has_run[v] = True
        self.steps += 1
        if self.live_bytes + self.alloc_bytes[v] > self.peak_bytes:
            self.peak_bytes = self.live_bytes + self.alloc_bytes[v]
        self.live_bytes += self.kept_bytes[v]
        for s in self.use[v]:
            open_users[s] -= 1
            if open_users[s] == 0:
                self.live_bytes -= self.freed_size[s]
            elif self.users[s][self.last[s]] == at:
                users, k = self.users[s], self.last[s]
                while has_run[self.order[users[k]]]:
                    k -= 1
                self.last[s] = k
        if at == first:
            order, n, first = self.order, len(has_run), first + 1
            while first < n and has_run[order[first]]:
                first += 1
            self.first = first
        return lowered

    def _run_ahead(self, v: NodeId) -> list[tuple[int, int]]:
        """The profile as v runs before others that come first in the reference order."""
        first, at, kept_bytes, lowered = self.first, self.position[v], self.kept_bytes[v], []
        if kept_bytes:
            self.profile.add(first, at, kept_bytes)
        for p, size in self.deaths(v):
            begin = max(p + 1, first)
            if begin < at:
                self.profile.add(begin, at, -size)
                lowered.append((begin, at))
        self.updates += len(lowered) + 1
        return lowered


class PositionalProfile(CompletionProfile):
    """The same with a budget of its own at each position. O(n) per query.

    Attributes:
        step_of: Where each open position will run.
    """

    def __init__(self, reference: Reference, limit: npt.NDArray[np.int64]) -> None:
        """Start with nothing run; ``limit``: the budget in bytes at each position."""
        super().__init__(reference, int(limit.max(initial=0)))
        self.limit, self.step_of = limit, np.arange(len(self.order))
        # bytes above the budget at each open position if one more node ran ahead of it; and what comes on top when it
        # has, as the budget is that of the step behind. No node runs ahead of the last position
        behind = np.append(limit[1:], [0, 0])
        self._over, self._narrows = reference.profile - behind[:-1], behind[:-1] - behind[1:]

    def _step_limit(self) -> int:
        return int(self.limit[self.steps])

    def _above(self, first: Position, at: Position) -> npt.NDArray[np.int64]:
        return self._over[first:at]

    def _ahead(self, v: NodeId) -> Obstacle | None:
        first, at = self.first, self.position[v]
        if self._over[first:at].max() <= -self.kept_bytes[v]:
            return None
        excess = self._excess(v)
        over = np.flatnonzero(excess > 0)
        return Obstacle(int(excess[over[-1]]), first + int(over[-1])) if len(over) else None

    def _run_ahead(self, v: NodeId) -> list[tuple[int, int]]:
        first, at = self.first, self.position[v]
        lowered, step_of = super()._run_ahead(v), self.step_of[first:at]
        self._over[first:at] += self.kept_bytes[v] + self._narrows[step_of]
        self._over[at] = LOWEST
        step_of += 1
        for p, size in self.deaths(v):
            self._over[max(p + 1, first) : at] -= size
        return lowered


def completion_profile(reference: Reference, limit: npt.NDArray[np.int64]) -> CompletionProfile:
    """The profile of a run that has not begun; ``limit``: the budget in bytes, one value or one per position."""
    return PositionalProfile(reference, limit) if limit.ndim else CompletionProfile(reference, int(limit))

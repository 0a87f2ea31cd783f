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
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import NodeId, Position
from overlap_sched.scheduler.task import Reference, Refusal

LOWEST = -(2**62)
"""The profile where a node has run: below anything, whatever is added to it."""

THIS_STEP = -1


class Obstacle(NamedTuple):
    """What stands against a node: so many bytes above the budget at a reference position, or at ``THIS_STEP``."""

    over_bytes: int
    position: Position


class CompletionProfile:
    """The completion profile of one scheduling run, and the admission rule on it.

    With k storages that v uses, ``admits``, ``obstacle_of`` and ``run`` take O(k) vector operations on the positions
    between the first open one and that of v.

    Attributes:
        order: The reference order. position: its inverse, per node id.
        profile: Bytes per reference position.
        first: The first reference position whose node is still open.
        live_bytes: Bytes live now, between steps. peak_bytes: the most that have been live at a step so far.
        kept_bytes: Per node id, what it allocates that outlives its own step.
        step_of: Where each open position will run; ``None``: the budget is the same everywhere.
        updates: Range updates and queries so far: the work done, for tests and benchmarks.
    """

    def __init__(self, reference: Reference, limit: npt.NDArray[np.int64]) -> None:
        """Start with nothing run; ``limit``: the budget in bytes, one value or one per position."""
        ranges, count = reference.live_ranges, len(reference.order)
        self.reference = reference
        self.order, self.position = reference.order, reference.position
        self.profile = reference.profile.copy()
        self.limit = np.append(np.broadcast_to(limit, count), 0)
        self.step_of = np.arange(count) if limit.ndim else None
        self.steps = self.first = self.updates = 0
        self.has_run = [False] * count
        self.live_bytes, self.peak_bytes = ranges.input_bytes, 0
        self.users, self.dying = reference.users, ranges.dying
        self.alloc_bytes, self.kept_bytes = ranges.alloc_bytes, ranges.kept_bytes
        self.open_users = ranges.uses_left()
        self.last = [len(users) - 1 for users in self.users]  # index of the last user still open

    def deaths(self, v: NodeId) -> list[tuple[Position, int]]:
        """Storages that end sooner if v runs now: (last other open user's position or -1, bytes)."""
        at, result = self.position[v], []
        for s, size in self.dying[v]:
            users, k = self.users[s], self.last[s]
            if users[k] == at:
                k -= 1
                while k >= 0 and self.has_run[self.order[users[k]]]:
                    k -= 1
                result.append((users[k] if k >= 0 else -1, size))
        return result

    def room_bytes(self) -> int:
        """Return how much the next step may allocate."""
        return int(self.limit[self.steps]) - self.live_bytes

    def admits(self, v: NodeId) -> bool:
        """May v run now?"""
        return self.obstacle_of(v) is None

    def obstacle_of(self, v: NodeId) -> Obstacle | None:
        """Find what stands against running v now, the last position first: it stands longest; ``None``: nothing."""
        if self.position[v] == self.first:
            return None
        if (self.kept_bytes[v] or self.step_of is not None) and self._excess(v).max() > 0:
            self.updates += 1
            excess = self._excess(v, self.deaths(v))
            over = np.flatnonzero(excess > 0)
            if len(over):
                return Obstacle(int(excess[over[-1]]), self.first + int(over[-1]))
        # asked last: what changes with every step is a poor obstacle
        missing = self.alloc_bytes[v] - self.room_bytes()
        return Obstacle(missing, THIS_STEP) if missing > 0 else None

    def _excess(self, v: NodeId, deaths: Sequence[tuple[Position, int]] = ()) -> npt.NDArray[np.int64]:
        """Bytes above the budget from the first open position to v's own, if v ran now and these storages ended."""
        first, at = self.first, self.position[v]
        limit = self.limit[0] if self.step_of is None else self.limit[self.step_of[first:at] + 1]
        excess: npt.NDArray[np.int64] = self.profile[first:at] - (limit - self.kept_bytes[v])
        for p, size in deaths:
            excess[max(p + 1 - first, 0) :] -= size
        return excess

    def refusal(self, v: NodeId, obstacle: Obstacle) -> Refusal:
        """Why v is refused, for people."""
        over_bytes, at = obstacle
        if at == THIS_STEP:
            return Refusal(over_bytes, self.order[self.first])
        excess = self._excess(v, self.deaths(v))
        worst = int(excess.argmax())
        return Refusal(int(excess[worst]), self.order[self.first + worst])

    def run(self, v: NodeId) -> list[tuple[Position, Position]]:
        """Run v now (it must be ready; ``admits`` is not asked again).

        Returns:
            Ranges of reference positions, end excluded, where the profile went down.
        """
        first, at, lowered = self.first, self.position[v], []
        if at != first:  # ahead of others
            self.profile[first:at] += self.kept_bytes[v]
            for p, size in self.deaths(v):
                if (begin := max(p + 1, first)) < at:
                    self.profile[begin:at] -= size
                    lowered.append((begin, at))
            if self.step_of is not None:
                self.step_of[first:at] += 1
            self.updates += len(lowered) + 1
        self.profile[at] = LOWEST
        self.has_run[v] = True
        self.steps += 1
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + self.alloc_bytes[v])
        self.live_bytes += self.kept_bytes[v]
        for s, size in self.dying[v]:
            self.open_users[s] -= 1
            users, k = self.users[s], self.last[s]
            if self.open_users[s] == 0:
                self.live_bytes -= size
            elif users[k] == at:
                while self.has_run[self.order[users[k]]]:
                    k -= 1
                self.last[s] = k
        while self.first < len(self.order) and self.has_run[self.order[self.first]]:
            self.first += 1
        return lowered

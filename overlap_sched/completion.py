"""The completion profile: memory, exactly, if the rest of the graph ran in the reference order.

At any moment some nodes have run. Keep, for every reference position that is still open, the bytes that would
be live there *if all open nodes ran in reference order from here*. Running node ``v`` now, ahead of its place
``q``, changes that profile only between the first open position and ``q``::

    reference position   first open ......... p' ......... q ............
    what v allocates         +  +  +  +  +  + + + + + + +  (was live from q on anyway)
    v was its last user                         - - - - -   (now dies at p', its last user still open,
                                                             or with this step where there is none)

Budget: ``admits(v)`` says whether every one of these positions, and this very step, stays within it. Since
the reference order itself is within the budget, **the first open node is always admitted**: from every state
there is a completion within the budget, so no order that comes out of here can exceed it.

Cost of a query or an update: the storages of ``v`` times a range of the profile, in NumPy.
"""

import numpy as np
import numpy.typing as npt

from overlap_sched.reference import Reference

THIS_STEP = -1

GONE = -(2**62)
"""Profile value of a position whose node has run: below anything, whatever is added to it."""


class CompletionProfile:
    """The completion profile of one scheduling run, and the admission rule on it.

    Attributes:
        order: The reference order. position: its inverse, per node id.
        first: The first reference position whose node is still open.
        live_bytes: Bytes live now, between steps. peak_bytes: the most that have been live at a step so far.
        kept_bytes: Per node id, what it allocates that outlives its own step.
        refused: After ``admits`` said no: (bytes above the budget, reference position where); the position is
            ``THIS_STEP`` where the step itself does not fit.
        updates: Range updates and queries so far: the work done, for tests and benchmarks.
    """

    def __init__(self, reference: Reference, limit: npt.NDArray[np.int64]) -> None:
        """Start with nothing run; ``limit``: the budget in bytes at each position, or one value for all."""
        self.reference = reference
        self.order, self.position = reference.order, reference.position
        self.profile = reference.profile.copy()
        self.limit = limit
        self.flat = limit.ndim == 0
        self.peak_limit = int(limit) if self.flat else 0
        self.step_of = np.arange(len(self.order))  # where each open position will run, for a positional limit
        self.steps = 0
        self.first = 0
        self.has_run = [False] * len(self.order)
        self.live_bytes, self.peak_bytes = reference.input_bytes, 0
        self.refused = (0, THIS_STEP)
        self.updates = 0
        self.use = [node.use for node in reference.problem.nodes]
        self.users, self.freed_size = reference.users, reference.freed_size
        self.alloc_bytes, self.kept_bytes = reference.alloc_bytes, reference.kept_bytes
        self.open_users = [len(users) for users in self.users]
        self.last = [len(users) - 1 for users in self.users]  # index of the last user still open

    def deaths(self, v: int) -> list[tuple[int, int]]:
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
        """What the next step may allocate."""
        if self.steps == len(self.order):
            return 0
        return (self.peak_limit if self.flat else int(self.limit[self.steps])) - self.live_bytes

    def admits(self, v: int) -> bool:
        """May v run now? Else ``refused`` says by how many bytes not, and where."""
        first, at = self.first, self.position[v]
        if at == first:
            return True
        missing = self.alloc_bytes[v] - self.room_bytes()
        if missing > 0:
            self.refused = (missing, THIS_STEP)
            return False
        rise = self.kept_bytes[v]
        if self.flat:
            if rise == 0:
                return True
            excess = self.profile[first:at] - (self.peak_limit - rise)
            if excess.max() <= 0:
                return True
            self.updates += 1
        else:
            excess = self.profile[first:at] - self.limit[self.step_of[first:at] + 1] + rise
        for p, size in self.deaths(v):
            excess[max(p + 1 - first, 0) :] -= size
        worst = int(excess.argmax())
        if excess[worst] <= 0:
            return True
        self.refused = (int(excess[worst]), first + worst)
        return False

    def run(self, v: int) -> list[tuple[int, int]]:
        """Run v now (it must be ready; ``admits`` is not asked again).

        Returns:
            Ranges of reference positions, end excluded, where the profile went down.
        """
        first, at, has_run, open_users = self.first, self.position[v], self.has_run, self.open_users
        lowered = []
        if at != first:
            if self.kept_bytes[v]:
                self.profile[first:at] += self.kept_bytes[v]
            for p, size in self.deaths(v):
                begin = max(p + 1, first)
                if begin < at:
                    self.profile[begin:at] -= size
                    lowered.append((begin, at))
            self.updates += len(lowered) + 1
            if not self.flat:
                self.step_of[first:at] += 1
        self.profile[at] = GONE
        has_run[v] = True
        self.steps += 1
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + self.alloc_bytes[v])
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

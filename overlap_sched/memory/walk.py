"""Run nodes one by one, from the start or backward from the end, and know what each next step would cost.

Both directions look alike. From a state with ``live_bytes`` between two steps, a ready node ``v`` would take the
memory up to ``live_bytes + rise[v]`` while it runs and leave ``live_bytes + net[v]``::

    Forward    rise: what v makes                       net: that, less what has v as its last user
    Backward   rise: what v uses and nobody later does   net: that, less what v makes

Backward, a *ready* node is one all of whose successors have run (it goes last of what is left). Every step and every
undo costs the node's edges and storages (backward: also the users of what it brings to life, once per storage).

**Safe steps.** A ready node with ``net <= 0`` that fits under the limit may be run at once: no order of the rest is
spoilt. In any completion that runs it later, move it to the front: until its old place memory is lower by at least
``-net``, behind it nothing changes, and its own step fits. So only nodes with ``net > 0`` are worth a choice.
"""

from collections.abc import Iterable
from typing import Protocol

from overlap_sched.memory.flow import Flow


class Walk(Protocol):
    """What :class:`Forward` and :class:`Backward` have in common.

    Attributes:
        live_bytes: Live between steps. rise, net: see above; right for every node that is ready.
        ready: Nodes that may run next (a dictionary without values: sets have no order).
        steps: Steps and undos so far: the work done.
    """

    live_bytes: int
    rise: list[int]
    net: list[int]
    ready: dict[int, None]
    steps: int

    def run(self, v: int) -> list[int]:
        """Run a ready node; returns the nodes that became ready or whose cost changed."""

    def undo(self, v: int) -> None:
        """Take back the last node run."""


class Forward:
    """From the start on. The inputs have run when it is made."""

    def __init__(self, flow: Flow) -> None:
        n = len(flow.makes)
        self.flow = flow
        self.steps = 0
        self.live_bytes = flow.always_bytes + sum(flow.size[s] for s in flow.given)
        made = [sum(flow.size[s] for s in makes) for makes in flow.makes]
        self.rise = [made[v] + flow.passing_bytes[v] for v in range(n)]
        self.net = made
        self.left = [len(users) for users in flow.users]
        self.whose = [0] * len(flow.users)  # exclusive or of the users left: of one left, that one
        for s, users in enumerate(flow.users):
            for v in users:
                self.whose[s] ^= v
            if len(users) == 1:
                self.net[users[0]] -= flow.size[s]
        self.missing = [len(before) for before in flow.before]
        self.ready = {v: None for v in range(n) if not self.missing[v]}
        for v in flow.first:
            self.run(v)
        self.steps = 0

    def run(self, v: int) -> list[int]:
        """See :class:`Walk`."""
        size, left, whose, net, missing = self.flow.size, self.left, self.whose, self.net, self.missing
        touched = []
        del self.ready[v]
        self.live_bytes += net[v]
        self.steps += 1
        for s in self.flow.uses[v]:
            left[s] -= 1
            whose[s] ^= v
            if left[s] == 1:
                net[whose[s]] -= size[s]
                touched.append(whose[s])
        for w in self.flow.after[v]:
            missing[w] -= 1
            if not missing[w]:
                self.ready[w] = None
                touched.append(w)
        return touched

    def undo(self, v: int) -> None:
        """See :class:`Walk`."""
        size, left, whose, net, missing = self.flow.size, self.left, self.whose, self.net, self.missing
        self.steps += 1
        for w in self.flow.after[v]:
            if not missing[w]:
                del self.ready[w]
            missing[w] += 1
        for s in self.flow.uses[v]:
            if left[s] == 1:
                net[whose[s]] += size[s]
            left[s] += 1
            whose[s] ^= v
        self.live_bytes -= net[v]
        self.ready[v] = None


class Backward:
    """From the end back: what is run here comes last in the order."""

    def __init__(self, flow: Flow) -> None:
        n = len(flow.makes)
        self.flow = flow
        self.steps = 0
        self.live_bytes = flow.always_bytes + sum(flow.size[s] for s in flow.kept)
        made = [sum(flow.size[s] for s in makes) for makes in flow.makes]
        brings = [sum(flow.size[s] for s in uses) for uses in flow.uses]
        self.rise = [brings[v] + flow.passing_bytes[v] for v in range(n)]
        self.net = [brings[v] - made[v] for v in range(n)]
        self.open_users = [0] * len(flow.users)  # users run so far: alive while there are any
        first = set(flow.first)
        self.missing = [len(after) for after in flow.after]
        self.ready = {v: None for v in reversed(range(n)) if not self.missing[v] and v not in first}
        self.fixed = first

    def run(self, v: int) -> list[int]:
        """See :class:`Walk`."""
        size, users, seen, rise, net = self.flow.size, self.flow.users, self.open_users, self.rise, self.net
        touched = []
        del self.ready[v]
        self.live_bytes += net[v]
        self.steps += 1
        for s in self.flow.uses[v]:
            if not seen[s]:
                for w in users[s]:
                    rise[w] -= size[s]
                    net[w] -= size[s]
                    touched.append(w)
            seen[s] += 1
        for u in self.flow.before[v]:
            self.missing[u] -= 1
            if not self.missing[u] and u not in self.fixed:
                self.ready[u] = None
                touched.append(u)
        return touched

    def undo(self, v: int) -> None:
        """See :class:`Walk`."""
        size, users, seen, rise, net = self.flow.size, self.flow.users, self.open_users, self.rise, self.net
        self.steps += 1
        for u in self.flow.before[v]:
            if not self.missing[u] and u not in self.fixed:
                del self.ready[u]
            self.missing[u] += 1
        for s in self.flow.uses[v]:
            seen[s] -= 1
            if not seen[s]:
                for w in users[s]:
                    rise[w] += size[s]
                    net[w] += size[s]
        self.live_bytes -= net[v]
        self.ready[v] = None


def run_all(walk: Walk, nodes: Iterable[int]) -> int:
    """Run these nodes in this order; returns the most bytes live at one of the steps (0: no step)."""
    peak = 0
    for v in nodes:
        peak = max(peak, walk.live_bytes + walk.rise[v])
        walk.run(v)
    return peak

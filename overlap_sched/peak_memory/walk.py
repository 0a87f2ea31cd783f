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

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from overlap_sched.peak_memory.memory_graph import MemoryGraph

_Edges = Sequence[Sequence[int]]


class Walk(ABC):
    """Nodes run one by one, and taken back: precedence. Which storages come and go is up to the direction.

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

    def __init__(self, graph: MemoryGraph, needs: _Edges, next_: _Edges, never: Iterable[int] = ()) -> None:
        """Per node, what must have run before it in this direction, and what it comes before; who never gets ready."""
        self.graph = graph
        self.steps = 0
        self._next, self._never = next_, frozenset(never)
        self._missing = [len(others) for others in needs]
        self.ready = {v: None for v, missing in enumerate(self._missing) if not missing and v not in self._never}

    def run(self, v: int) -> list[int]:
        """Run a ready node; returns the nodes that became ready or whose cost changed."""
        missing = self._missing
        del self.ready[v]
        self.live_bytes += self.net[v]
        self.steps += 1
        touched = self._use(v)
        for w in self._next[v]:
            missing[w] -= 1
            if not missing[w] and w not in self._never:
                self.ready[w] = None
                touched.append(w)
        return touched

    def undo(self, v: int) -> None:
        """Take back the last node run."""
        missing = self._missing
        self.steps += 1
        for w in self._next[v]:
            if not missing[w] and w not in self._never:
                del self.ready[w]
            missing[w] += 1
        self._unuse(v)
        self.live_bytes -= self.net[v]
        self.ready[v] = None

    @abstractmethod
    def _use(self, v: int) -> list[int]:
        """A node has run: what it uses costs others something else now; those others."""

    @abstractmethod
    def _unuse(self, v: int) -> None:
        """Take back :meth:`_use`."""


class Forward(Walk):
    """From the start on. The inputs have run when it is made."""

    def __init__(self, graph: MemoryGraph) -> None:
        super().__init__(graph, needs=graph.before, next_=graph.after)
        self.live_bytes = graph.always_bytes + sum(graph.size[s] for s in graph.given)
        made = _bytes(graph, graph.makes)
        self.rise = [made[v] + passing for v, passing in enumerate(graph.passing_bytes)]
        self.net = made
        self._left = [len(users) for users in graph.users]
        self._whose = [0] * len(graph.users)  # exclusive or of the users left: of one left, that one
        for s, users in enumerate(graph.users):
            for v in users:
                self._whose[s] ^= v
            if len(users) == 1:
                self.net[users[0]] -= graph.size[s]
        for v in graph.first:
            self.run(v)
        self.steps = 0

    def _use(self, v: int) -> list[int]:
        size, left, whose, net = self.graph.size, self._left, self._whose, self.net
        touched = []
        for s in self.graph.uses[v]:
            left[s] -= 1
            whose[s] ^= v
            if left[s] == 1:
                net[whose[s]] -= size[s]
                touched.append(whose[s])
        return touched

    def _unuse(self, v: int) -> None:
        size, left, whose, net = self.graph.size, self._left, self._whose, self.net
        for s in self.graph.uses[v]:
            if left[s] == 1:
                net[whose[s]] += size[s]
            left[s] += 1
            whose[s] ^= v


class Backward(Walk):
    """From the end back: what is run here comes last in the order. The inputs never run."""

    def __init__(self, graph: MemoryGraph) -> None:
        super().__init__(graph, needs=graph.after, next_=graph.before, never=graph.first)
        self.ready = dict.fromkeys(reversed(self.ready))
        self.live_bytes = graph.always_bytes + sum(graph.size[s] for s in graph.kept)
        made, brings = _bytes(graph, graph.makes), _bytes(graph, graph.uses)
        self.rise = [brings[v] + passing for v, passing in enumerate(graph.passing_bytes)]
        self.net = [brings[v] - made[v] for v in range(len(made))]
        self._seen = [0] * len(graph.users)  # per storage, users run so far: alive while there are any

    def _use(self, v: int) -> list[int]:
        size, users, seen, rise, net = self.graph.size, self.graph.users, self._seen, self.rise, self.net
        touched = []
        for s in self.graph.uses[v]:
            if not seen[s]:
                for w in users[s]:
                    rise[w] -= size[s]
                    net[w] -= size[s]
                    touched.append(w)
            seen[s] += 1
        return touched

    def _unuse(self, v: int) -> None:
        size, users, seen, rise, net = self.graph.size, self.graph.users, self._seen, self.rise, self.net
        for s in self.graph.uses[v]:
            seen[s] -= 1
            if not seen[s]:
                for w in users[s]:
                    rise[w] += size[s]
                    net[w] += size[s]


def _bytes(graph: MemoryGraph, storages: _Edges) -> list[int]:
    """Per node, the bytes of its storages together."""
    return [sum(graph.size[s] for s in own) for own in storages]


def run_all(walk: Walk, nodes: Iterable[int]) -> int:
    """Run these nodes in this order; returns the most bytes live at one of the steps (0: no step)."""
    peak = 0
    for v in nodes:
        peak = max(peak, walk.live_bytes + walk.rise[v])
        walk.run(v)
    return peak

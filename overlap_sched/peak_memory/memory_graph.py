"""A problem as the memory searches see it: which bytes come and go with which node, and what must run first.

Storages sort into four kinds by the rules of :mod:`overlap_sched.judge.validate`:

    always    inputs that are pinned or that nothing uses: live in every order, one constant
    passing   made by a node and used by nobody: there for that step only, part of its transient
    kept      pinned, or made by an output node: from their maker to the end; who uses them does not matter
    freeable  all others: gone once their last user has run

Ids are those of the problem; inputs without predecessors run first and cost nothing.

A *walk* runs nodes one by one, from the start or backward from the end, and knows what each next step would cost. Both
directions look alike. From a state with ``live_bytes`` between two steps, a ready node ``v`` would take the memory up
to ``live_bytes + rise[v]`` while it runs and leave ``live_bytes + net[v]``::

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
from dataclasses import dataclass
from functools import cached_property

from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.problem.precedence import Preserve, launch_pairs, neighbours


@dataclass(frozen=True)
class MemoryGraph:
    """Bytes and precedence of a problem, ready to be walked in either direction.

    Attributes:
        problem: Where it comes from.
        always_bytes: Live whatever the order.
        size: Bytes per storage.
        makes: Per node, the kept and freeable storages that it brings to life (inputs: none).
        uses: Per node, the freeable storages that it uses, without repeats.
        passing_bytes: Per node, what is live for its own step only.
        users: Per freeable storage its users, ascending; empty for all others.
        kept: Storages that stay to the end once made. given: freeable inputs, live from the start.
        before, after: Per node, what must run before and after it: the problem's rules, and the launch order of
            collectives where it is to be preserved.
        first: Inputs, which every order starts with.
    """

    problem: Problem
    always_bytes: int
    size: tuple[int, ...]
    makes: tuple[tuple[int, ...], ...]
    uses: tuple[tuple[int, ...], ...]
    passing_bytes: tuple[int, ...]
    users: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    given: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]

    @cached_property
    def maker(self) -> tuple[int, ...]:
        """Per storage, who brings it to life; -1 for what is there from the start."""
        maker = [-1] * len(self.size)
        for v, made in enumerate(self.makes):
            for s in made:
                maker[s] = v
        return tuple(maker)

    @cached_property
    def rest(self) -> tuple[int, ...]:
        """All nodes but :attr:`first`, in the original order."""
        first = set(self.first)
        return tuple(v for v in range(len(self.makes)) if v not in first)


def memory_graph_of(problem: Problem, preserve: Preserve = "none") -> MemoryGraph:
    """Build the memory graph; ``preserve`` as in :attr:`~overlap_sched.options.Options.preserve_collective_order`."""
    nodes, storages = problem.nodes, problem.storages
    users: list[list[int]] = [[] for _ in storages]
    for v, node in enumerate(nodes):
        for s in dict.fromkeys(node.use):
            users[s].append(v)
    always, kept, given = 0, [], []
    passing = [0] * len(nodes)
    makes: list[tuple[int, ...]] = []
    freeable = [False] * len(storages)
    for v, node in enumerate(nodes):
        made = []
        for s in node.alloc:
            size, pinned = storages[s]
            if node.kind is Kind.INPUT:
                if pinned or not users[s]:
                    always += size
                else:
                    given.append(s)
                    freeable[s] = True
            elif not users[s] and node.kind is not Kind.OUTPUT:
                passing[v] += size
            else:
                made.append(s)
                if pinned or not users[s]:
                    kept.append(s)
                else:
                    freeable[s] = True
        makes.append(tuple(made))
    before, after = neighbours(problem, launch_pairs(problem, problem.original_order, preserve))
    return MemoryGraph(
        problem=problem,
        always_bytes=always,
        size=tuple(storage.bytes for storage in storages),
        makes=tuple(makes),
        uses=tuple(tuple(s for s in dict.fromkeys(node.use) if freeable[s]) for node in nodes),
        passing_bytes=tuple(passing),
        users=tuple(tuple(u) if freeable[s] else () for s, u in enumerate(users)),
        kept=tuple(kept),
        given=tuple(given),
        before=tuple(before),
        after=tuple(after),
        first=tuple(v for v, node in enumerate(nodes) if node.kind is Kind.INPUT and not before[v]),
    )


def lead_with_inputs(graph: MemoryGraph, order: Iterable[int]) -> Order:
    """An order of :attr:`MemoryGraph.rest` made one of all nodes."""
    return (*graph.first, *order)


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

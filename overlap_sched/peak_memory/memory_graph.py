"""A problem as the memory searches see it: which bytes come and go with which node, and what must run first.

A storage is live from the first to the last of the nodes that *touch* it, its maker and its users; what is there from
the start is live before them, what stays to the end after them. The rules are :mod:`overlap_sched.judge.validate`'s:

    from the start   inputs' storages
    to the end       pinned ones that somebody uses; of the others, those of inputs and outputs that nobody uses

Ids are those of the problem; inputs without predecessors run first and cost nothing.

A *walk* runs nodes one by one and knows what each next step would cost: from a state with ``live_bytes`` between two
steps, a ready node ``v`` takes the memory up to ``live_bytes + rise[v]`` while it runs and leaves ``live_bytes +
net[v]``: ``rise`` is what it makes, ``net`` that less what it is the last to touch. Every step and every undo costs the
node's edges and storages.

**Safe steps.** A ready node with ``net <= 0`` that fits under the limit may be run at once: no order of the rest is
spoilt. In any completion that runs it later, move it to the front: until its old place memory is lower by at least
``-net``, behind it nothing changes, and its own step fits. So only nodes with ``net > 0`` are worth a choice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import compress
from operator import xor

from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.problem.precedence import Preserve, launch_pairs, neighbours


@dataclass(frozen=True)
class MemoryGraph:
    """Bytes and precedence of a problem, ready to be walked in either direction.

    Attributes:
        problem: Where it comes from.
        size: Bytes per storage.
        touches: Per node, the storages that it makes or uses, without repeats.
        touchers: Per storage, the nodes that touch it, its maker first.
        from_start, to_end: Per storage, whether it is live before its maker runs, and after its last user.
        before, after: Per node, what must run before and after it: the problem's rules, and the launch order of
            collectives where it is to be preserved.
        first: Inputs, which every order starts with.
    """

    problem: Problem
    size: tuple[int, ...]
    touches: tuple[tuple[int, ...], ...]
    touchers: tuple[tuple[int, ...], ...]
    from_start: tuple[bool, ...]
    to_end: tuple[bool, ...]
    before: Sequence[tuple[int, ...]]
    after: Sequence[tuple[int, ...]]
    first: tuple[int, ...]

    @cached_property
    def rest(self) -> tuple[int, ...]:
        """All nodes but :attr:`first`, in the original order."""
        first = set(self.first)
        return tuple(v for v in range(len(self.touches)) if v not in first)


def memory_graph_of(problem: Problem, preserve: Preserve = "none") -> MemoryGraph:
    """Build the memory graph; ``preserve`` as in :attr:`~overlap_sched.options.Options.preserve_collective_order`."""
    nodes, storages = problem.nodes, problem.storages
    used = {s for node in nodes for s in node.use}
    touches = tuple(tuple(dict.fromkeys((*node.alloc, *node.use))) for node in nodes)
    touchers: list[list[int]] = [[] for _ in storages]
    for v, touched in enumerate(touches):
        for s in touched:
            touchers[s].append(v)
    makers = [nodes[v].kind if v >= 0 else None for v in problem.maker]
    ends = (Kind.INPUT, Kind.OUTPUT)
    before, after = neighbours(problem, launch_pairs(problem, problem.original_order, preserve))
    return MemoryGraph(
        problem=problem,
        size=tuple(storage.bytes for storage in storages),
        touches=touches,
        touchers=tuple(map(tuple, touchers)),
        from_start=tuple(kind is Kind.INPUT for kind in makers),
        to_end=tuple(storages[s].pinned if s in used else kind in ends for s, kind in enumerate(makers)),
        before=before,
        after=after,
        first=tuple(v for v, node in enumerate(nodes) if node.kind is Kind.INPUT and not before[v]),
    )


def lead_with_inputs(graph: MemoryGraph, order: Iterable[int]) -> Order:
    """An order of :attr:`MemoryGraph.rest` made one of all nodes."""
    return (*graph.first, *order)


class Walk:
    """Nodes run one by one, and taken back; inputs, and ``done``, have run when it is made.

    Attributes:
        live_bytes: Live between steps. rise, net: see above; right for every node that is ready.
        ready: Nodes that may run next (a dictionary without values: sets have no order).
        steps: Steps and undos so far: the work done.
    """

    def __init__(self, graph: MemoryGraph, done: Iterable[int] = ()) -> None:
        self.graph, self.steps, size = graph, 0, graph.size
        self.live_bytes = sum(compress(size, graph.from_start))
        self._left = [len(own) + 2 * stays for own, stays in zip(graph.touchers, graph.to_end, strict=True)]
        self._whose = [reduce(xor, own, 0) for own in graph.touchers]  # exclusive or of those left: of one, that one
        self.rise = [
            sum(size[s] for s in own if graph.touchers[s][0] == v and not graph.from_start[s])
            for v, own in enumerate(graph.touches)
        ]
        self.net = [
            rise - sum(size[s] for s in own if self._left[s] == 1)
            for rise, own in zip(self.rise, graph.touches, strict=True)
        ]
        self._missing = [len(before) for before in graph.before]
        self.ready = {v: None for v, missing in enumerate(self._missing) if not missing}
        for v in (*graph.first, *done):
            self.run(v)
        self.steps = 0

    def run(self, v: int) -> list[int]:
        """Run a ready node; returns the nodes that became ready or whose cost changed."""
        left, whose, missing, touched = self._left, self._whose, self._missing, list[int]()
        del self.ready[v]
        self.live_bytes += self.net[v]
        for s in self.graph.touches[v]:
            left[s] -= 1
            whose[s] ^= v
            if left[s] == 1:
                self.net[whose[s]] -= self.graph.size[s]
                touched.append(whose[s])
        for w in self.graph.after[v]:
            missing[w] -= 1
            if not missing[w]:
                self.ready[w] = None
                touched.append(w)
        self.steps += 1
        return touched

    def undo(self, v: int) -> None:
        """Take back the last node run."""
        left, whose, missing = self._left, self._whose, self._missing
        for w in self.graph.after[v]:
            if not missing[w]:
                del self.ready[w]
            missing[w] += 1
        for s in self.graph.touches[v]:
            if left[s] == 1:
                self.net[whose[s]] += self.graph.size[s]
            left[s] += 1
            whose[s] ^= v
        self.live_bytes -= self.net[v]
        self.ready[v] = None
        self.steps += 1

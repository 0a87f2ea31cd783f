"""Give a traced graph more layers: find the part that repeats, and repeat it further.

::

    inputs   w0 w1 w2 w3                    inputs   w0 w1 w1.1 w1.2 w2 w3
    body     head |L0|L1|L2|L3| tail   ->   body     head |L0|L1|L1.1|L1.2|L2|L3| tail

Two nodes one period apart do the same if all but their names and what they refer to is equal. What they refer to is
then one period apart as well, or the same for all layers (a rotation table), or one input of each layer (a weight):
so copies know what they refer to. Pure data, no torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from overlap_sched.errors import ProblemError
from overlap_sched.problem import Kind, Node, Problem

SHORTEST = 20
"""A layer has at least so many nodes."""

Copied = tuple[int, int]
"""A node or storage of the traced graph, and which copy of it; 0 is the traced one."""


@dataclass(frozen=True)
class Layers:
    """Where the layers of a traced graph are.

    Attributes:
        problem: The traced graph.
        begin, period: The layer that is copied: its first node, and how many nodes it has.
        next: Per node in a layer or input of one, the node that does the same in the next layer.
    """

    problem: Problem
    begin: int
    period: int
    next: dict[int, int]

    @property
    def end(self) -> int:
        """The node behind the layer that is copied."""
        return self.begin + self.period

    @cached_property
    def inputs(self) -> frozenset[int]:
        """Inputs that belong to the layer that is copied, and not to the one before it."""
        nodes, maker = self.problem.nodes, self.problem.maker
        named = {u for v in range(self.begin, self.end) for u in _referred(nodes[v], maker)}
        layered = {u for u in named if nodes[u].kind is Kind.INPUT and self.next.get(u, u) != u}
        return frozenset(u for u in layered if self.next[u] not in layered)

    def copied(self, v: int) -> bool:
        """Does every new layer have its own v?"""
        return self.begin <= v < self.end or v in self.inputs

    def seen_from(self, u: int, copy: int) -> Copied:
        """What a copy of the layer has where the traced layer refers to u."""
        while copy and not self.copied(u):
            u, copy = self.next.get(u, u), copy - 1
            if self.next.get(u, u) == u:
                return u, 0
        return u, copy


def find_layers(problem: Problem) -> Layers:
    """The layers of a graph that has at least four equal ones (the first and the last may differ a little).

    Raises:
        ProblemError: Nothing repeats.
    """
    nodes = problem.nodes
    seen = [_facts(problem, node) for node in nodes]
    body = next((v for v, node in enumerate(nodes) if node.kind is not Kind.INPUT), 0)
    for period in range(SHORTEST, (len(nodes) - body) // 3):
        first, length = _longest_run(seen, body, period)
        if length >= 2 * period + period // 2:
            return Layers(problem, first + period, period, _next(problem, first, length, period))
    raise ProblemError(
        f"problem {problem.name!r}: no four layers of {SHORTEST} nodes or more repeat, so no more can be added. "
        "Trace more layers, or a model whose layers are alike."
    )


def _facts(problem: Problem, node: Node) -> tuple[object, ...]:
    made = tuple(problem.storages[s] for s in node.alloc)
    facts = (node.kind, node.op, node.time_us, node.flops, node.bytes, node.group)
    return *facts, len(node.deps), len(node.use), made


def _longest_run(seen: Sequence[object], body: int, period: int) -> tuple[int, int]:
    """Start and length of the longest run of nodes that are equal to those one period later."""
    best = (body, 0)
    start = body
    for v in range(body, len(seen) - period):
        if seen[v] != seen[v + period]:
            start = v + 1
        elif v + 1 - start > best[1]:
            best = (start, v + 1 - start)
    return best


def _referred(node: Node, maker: Sequence[int]) -> Iterator[int]:
    yield from node.deps
    for s in node.use:
        yield maker[s]


def _next(problem: Problem, first: int, length: int, period: int) -> dict[int, int]:
    nodes, maker = problem.nodes, problem.maker
    result = {v: v + period for v in range(first, first + length)}
    for v in range(first, first + length):
        pairs = zip(_referred(nodes[v], maker), _referred(nodes[v + period], maker), strict=True)
        for u, w in pairs:
            known = result.setdefault(u, w)
            if known != w:
                raise ProblemError(
                    f"problem {problem.name!r}: {nodes[v].name!r} and {nodes[v + period].name!r} are alike, but not "
                    f"what they refer to: where one has {nodes[u].name!r}, the other has {nodes[w].name!r}, "
                    f"and elsewhere it is {nodes[known].name!r}. Its layers cannot be repeated."
                )
    return result


@dataclass(frozen=True)
class Repeated:
    """A traced graph with ``more`` layers added.

    Attributes:
        problem: The longer graph.
        layers: Of the traced one.
        ids: New ids of the traced nodes; of those copied, of copy 0.
    """

    problem: Problem
    layers: Layers
    more: int
    ids: tuple[int, ...]

    def id_of(self, node: Copied) -> int:
        """The new id of a copy."""
        v, copy = node
        return self.ids[v] + copy * (self.layers.period if v >= self.layers.begin else 1)


def repeat(layers: Layers, more: int) -> Repeated:
    """Add ``more`` layers behind the one that is copied."""
    return _Repeat(layers, more).run()


class _Repeat:
    def __init__(self, layers: Layers, more: int) -> None:
        self.layers, self.more, self.old = layers, more, layers.problem
        self.sequence = list(self._sequence())
        ids = [0] * len(self.old.nodes)
        for at, (v, copy) in enumerate(self.sequence):
            if copy == 0:
                ids[v] = at
        self.done = Repeated(self.old, layers, more, tuple(ids))
        copied = [s for s, v in enumerate(self.old.maker) if v >= 0 and layers.copied(v)]
        self.rank = {s: k for k, s in enumerate(copied)}
        self.copied_storages = copied

    def _sequence(self) -> Iterator[Copied]:
        layers, v = self.layers, 0
        while v < len(self.old.nodes):
            if v == layers.begin:
                yield from ((w, copy) for copy in range(self.more + 1) for w in range(v, layers.end))
                v = layers.end
            else:
                yield from ((v, copy) for copy in range(self.more + 1 if v in layers.inputs else 1))
                v += 1

    def run(self) -> Repeated:
        storages = [*self.old.storages, *[self.old.storages[s] for s in self.copied_storages] * self.more]
        nodes = tuple(self.node(v, copy) for v, copy in self.sequence)
        problem = Problem(self.old.name, nodes, tuple(storages), self.old.groups, self.old.memory_model)
        return Repeated(problem, self.layers, self.more, self.done.ids)

    def node(self, v: int, copy: int) -> Node:
        node = self.old.nodes[v]
        return node._replace(
            name=f"{node.name}.{copy}" if copy else node.name,
            deps=tuple(self.done.id_of(to) for u in node.deps for to in self.refers(v, copy, u)),
            alloc=tuple(self.storage(s, copy) for s in node.alloc),
            use=tuple(self.storage(s, to[1], to[0]) for s in node.use for to in self.refers_storage(v, copy, s)),
            collective=None if node.collective is None else self.done.id_of(self.seen(v, copy, node.collective)),
        )

    def refers(self, v: int, copy: int, u: int) -> Iterator[Copied]:
        """What (v, copy) has where v refers to u: an output, all copies of it."""
        if self.old.nodes[v].kind is Kind.OUTPUT and self.layers.copied(u):
            yield from ((u, k) for k in range(self.more + 1))
        else:
            yield self.seen(v, copy, u)

    def seen(self, v: int, copy: int, u: int) -> Copied:
        if v >= self.layers.end and self.layers.copied(u):
            return u, self.more  # behind the layers, the last of them is the one next to it
        return self.layers.seen_from(u, copy)

    def refers_storage(self, v: int, copy: int, s: int) -> Iterator[Copied]:
        return self.refers(v, copy, self.old.maker[s])

    def storage(self, s: int, copy: int, maker: int | None = None) -> int:
        """The copy of s; ``maker`` is who allocates that, where it is not the maker of s."""
        old = self.old.maker[s]
        if maker is not None and maker != old:  # the same storage of a later layer
            s = self.old.nodes[maker].alloc[self.old.nodes[old].alloc.index(s)]
        return s if copy == 0 else len(self.old.storages) + (copy - 1) * len(self.copied_storages) + self.rank[s]

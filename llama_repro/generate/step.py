"""A whole training step as one problem: forward and backward graphs of every micro-batch, gradients added up.

::

    forward 0 | backward 0 | forward 1 | backward 1 | ...      gradient accumulation (one stage)
    forward 0 | forward 1 | backward 0 | forward 2 | ...       of several stages the first, one forward one backward
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from llama_repro.generate.repeat import Repeated
from overlap_sched.cost import Compute, Roofline
from overlap_sched.problem import Group, Kind, Node, Problem, Storage

FORWARD, BACKWARD = "pp_forward", "pp_backward"
"""Names of the process groups between stages: what forward sends on, and what backward does."""

Value = tuple[int, tuple[int, ...]]
"""A node and the storages that its value stands for."""

_NONE: Mapping[int, int] = {}


def saved_in_forward(forward: Repeated, backward: Repeated) -> dict[int, int]:
    """Per input of the backward graph that the forward graph has too, that one's id there.

    Traced graphs share names: what is saved is called as where it was made. Copies are matched by layer: backward
    runs from the last layer to the first.
    """
    by_name = {node.name: v for v, node in enumerate(forward.layers.problem.nodes)}
    steps = forward.layers.next
    result = {}
    for v, node in enumerate(backward.layers.problem.nodes):
        if node.kind is not Kind.INPUT or node.name not in by_name:
            continue
        family, rank = _family(by_name[node.name], steps)
        copied = next((k for k, u in enumerate(family) if forward.layers.copied(u)), None)
        if copied is None:  # belongs to no layer
            result[backward.ids[v]] = forward.ids[by_name[node.name]]
            continue
        earlier = _earlier(v, backward)
        for copy in range(backward.more + 1 if backward.layers.copied(v) else 1):
            layer = rank + (0 if earlier else backward.more) - copy
            if layer <= copied:
                made = forward.id_of((family[layer], 0))
            elif layer <= copied + forward.more:
                made = forward.id_of((family[copied], layer - copied))
            else:
                made = forward.id_of((family[layer - forward.more], 0))
            result[backward.id_of((v, copy))] = made
    return result


def _family(v: int, following: dict[int, int]) -> tuple[list[int], int]:
    """The nodes that do in each layer what v does in its own, first layer first; and which of them v is."""
    before = {w: u for u, w in following.items() if w != u}
    first = v
    while first in before:
        first = before[first]
    family = [first]
    while following.get(family[-1], family[-1]) != family[-1]:
        family.append(following[family[-1]])
    return family, family.index(v)


def _earlier(v: int, backward: Repeated) -> bool:
    """Is v of a layer of the model before the one that backward copies, so that backward comes to it later?"""
    family, rank = _family(v, backward.layers.next)
    return any(backward.layers.copied(u) for u in family[:rank])


@dataclass(frozen=True)
class Step:
    """What a training step is made of.

    Attributes:
        forward, backward: Graphs of one micro-batch.
        saved: Per input of ``backward`` that comes from ``forward``, its node there.
        micro_batches: How many there are.
        stages: Of pipeline parallelism; 1: none. Activations then come from one neighbouring stage and go to the other,
            their gradients the other way.
    """

    forward: Problem
    backward: Problem
    saved: dict[int, int]
    micro_batches: int = 1
    stages: int = 1

    def problem(self, name: str) -> Problem:
        """All of it as one problem, micro-batches in the order of one forward, one backward."""
        return _Builder(self).run(name)


@dataclass
class _Builder:
    step: Step
    nodes: list[Node] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    shared: dict[str, tuple[int, int]] = field(default_factory=dict)  # inputs by name: node, storage
    gradients: dict[int, Value] = field(default_factory=dict)  # by position among backward's outputs
    losses: list[Value] = field(default_factory=list)
    transfers: dict[str, int] = field(default_factory=dict)  # by group, the last launch

    def run(self, name: str) -> Problem:
        made: dict[int, tuple[list[int], list[int]]] = {}
        for forward, m in _one_forward_one_backward(self.step.micro_batches, self.step.stages):
            if forward:
                made[m] = self.forward(m)
            else:
                self.backward(m, *made.pop(m))
        ends = [*self.losses, *(self.gradients[k] for k in sorted(self.gradients))]
        deps = tuple(dict.fromkeys(v for v, _ in ends))
        uses = tuple(dict.fromkeys(s for _, used in ends for s in used))
        self.nodes.append(Node("output", Kind.OUTPUT, deps, (), uses))
        groups = dict(self.step.forward.groups) | dict(self.step.backward.groups)
        if self.step.stages > 1:
            groups |= {FORWARD: Group(2, intra_node=False), BACKWARD: Group(2, intra_node=False)}
        return Problem(name, tuple(self.nodes), tuple(self.storages), groups, self.step.forward.memory_model)

    def forward(self, m: int) -> tuple[list[int], list[int]]:
        graph = self.step.forward
        first, last = _ends(graph, _activation_bytes(graph))
        received = self.receive(f"f{m}", FORWARD)
        ids, storages = self.copy(graph, f"f{m}", {}, {}, {first: received} if received else {})
        self.send(f"f{m}", FORWARD, ids[last], storages[graph.nodes[last].alloc[0]])
        loss = graph.nodes[-1].deps[0]
        self.losses.append((ids[loss], tuple(storages[s] for s in _value(graph, loss))))
        return ids, storages

    def backward(self, m: int, ids: list[int], storages: list[int]) -> None:
        forward, graph = self.step.forward, self.step.backward
        known: dict[int, int] = {}
        held: dict[int, int] = {}
        for v, u in self.step.saved.items():
            known[v] = ids[u]
            for s in graph.nodes[v].alloc:
                held[s] = storages[_kept(forward, u, graph.storages[s].bytes)]
        first, last = _ends(graph, _activation_bytes(forward))
        received = self.receive(f"b{m}", BACKWARD)
        sums = {u: k for k, u in enumerate(graph.nodes[-1].deps)}
        new, made_storages = self.copy(graph, f"b{m}", known, held, {first: received} if received else {}, sums)
        self.send(f"b{m}", BACKWARD, new[last], made_storages[graph.nodes[last].alloc[0]])

    def receive(self, prefix: str, group: str) -> Value | None:
        """What the neighbouring stage sends, waited for; ``None`` where there is none."""
        if self.step.stages == 1:
            return None
        s = self.fresh(Storage(_activation_bytes(self.step.forward)))
        return self.transfer(f"{prefix}.recv", "recv", group, (), (s,), ())

    def send(self, prefix: str, group: str, v: int, s: int) -> None:
        if self.step.stages > 1:
            self.transfer(f"{prefix}.send", "send", group, (v,), (), (s,))

    def transfer(
        self, name: str, op: str, group: str, deps: tuple[int, ...], alloc: tuple[int, ...], use: tuple[int, ...]
    ) -> Value:
        """A send or a receive, and its wait. Those of one group keep their order, as the neighbour's do."""
        size = self.storages[(*alloc, *use)[0]].bytes
        us = Roofline().network.across_nodes.latency_us + size / Roofline().network.across_nodes.bytes_per_s * 1e6
        deps += (self.transfers[group],) if group in self.transfers else ()
        v = self.transfers[group] = len(self.nodes)
        self.nodes.append(Node(name, Kind.COLLECTIVE, deps, alloc, use, us, op, group, bytes=size))
        self.nodes.append(Node(f"{name}.wait", Kind.WAIT, (v,), (), (*alloc, *use), collective=v))
        return v + 1, alloc

    def gradient(self, name: str, k: int, value: Value) -> None:
        """A gradient is there: the first is the total, others are added to it in place."""
        if k not in self.gradients:
            self.gradients[k] = value
            return
        v, total = self.gradients[k]
        moved = 3 * sum(self.storages[s].bytes for s in value[1])
        us = Roofline().compute_us(Compute("aten.add_.Tensor", 0, moved))
        uses = (*total, *value[1])
        self.gradients[k] = len(self.nodes), total
        self.nodes.append(
            Node(f"{name}.sum", Kind.COMPUTE, (v, value[0]), (), uses, us, "aten.add_.Tensor", bytes=moved)
        )

    def copy(
        self,
        graph: Problem,
        prefix: str,
        known: Mapping[int, int],
        held: Mapping[int, int],
        received: Mapping[int, Value],
        sums: Mapping[int, int] = _NONE,
    ) -> tuple[list[int], list[int]]:
        """Append a graph without its output.

        Args:
            graph: What to copy.
            prefix: Of the names.
            known: Nodes that are there already.
            held: Storages that are.
            received: What a node of the graph takes besides its inputs.
            sums: Which of the graph's nodes are gradients, and which.

        Returns:
            New ids of its nodes and storages.
        """
        ids, storages = [-1] * len(graph.nodes), [-1] * len(graph.storages)
        for s, at in held.items():
            storages[s] = at
        fresh = self.fresh
        for v, node in enumerate(graph.nodes[:-1]):
            if v in known:
                ids[v] = known[v]
            elif node.kind is Kind.INPUT:
                ids[v] = self.input(graph, node, storages)
            else:
                for s in node.alloc:
                    storages[s] = fresh(graph.storages[s])
                ids[v] = len(self.nodes)
                deps = tuple([ids[u] for u in node.deps])
                use = tuple(dict.fromkeys([storages[s] for s in node.use]))  # two saved values may share a storage
                if v in received:
                    deps, use = (*deps, received[v][0]), (*use, *received[v][1])
                alloc = tuple([storages[s] for s in node.alloc])
                launch = None if node.collective is None else ids[node.collective]
                facts = (node.time_us, node.op, node.group, launch, node.flops, node.bytes)
                self.nodes.append(Node(f"{prefix}.{node.name}", node.kind, deps, alloc, use, *facts))
            if v in sums:
                value = ids[v], tuple(storages[s] for s in _value(graph, v))
                self.gradient(f"{prefix}.{node.name}", sums[v], value)
        return ids, storages

    def fresh(self, storage: Storage) -> int:
        self.storages.append(storage)
        return len(self.storages) - 1

    def input(self, graph: Problem, node: Node, storages: list[int]) -> int:
        """An input that all micro-batches share, made when it is first met."""
        if node.name not in self.shared:
            (s,) = node.alloc
            self.shared[node.name] = len(self.nodes), self.fresh(graph.storages[s]._replace(pinned=True))
            self.nodes.append(node._replace(alloc=(self.shared[node.name][1],)))
        v, at = self.shared[node.name]
        storages[node.alloc[0]] = at
        return v


def _one_forward_one_backward(micro_batches: int, stages: int) -> Iterator[tuple[bool, int]]:
    """(is it forward, micro-batch) as the first of so many stages runs them (Narayanan et al., PipeDream, 2019)."""
    ahead = min(stages, micro_batches)
    yield from ((True, m) for m in range(ahead))
    for m in range(micro_batches):
        yield False, m
        if m + ahead < micro_batches:
            yield True, m + ahead


def _kept(graph: Problem, v: int, size: int) -> int:
    """Of what a node's value may stand for (one part of several results uses all of them), the storage of that size."""
    node = graph.nodes[v]
    return next(s for s in (*_value(graph, v), *node.use) if graph.storages[s].bytes == size)


def _value(graph: Problem, v: int) -> tuple[int, ...]:
    """The storages that a node's value stands for."""
    node = graph.nodes[v]
    if node.alloc:
        return node.alloc
    if node.collective is not None:
        return tuple(s for s in node.use if s in graph.nodes[node.collective].alloc)
    return node.use[:1]


def _activation_bytes(forward: Problem) -> int:
    """What one layer hands to the next: as large as what the embedding returns."""
    embedding = next(node for node in forward.nodes if node.op.startswith("aten.embedding"))
    return forward.storages[embedding.alloc[0]].bytes


def _ends(graph: Problem, activation_bytes: int) -> tuple[int, int]:
    """The first and the last compute node that return something of an activation's size."""
    storages = graph.storages
    fits = [
        v
        for v, node in enumerate(graph.nodes)
        if node.kind is Kind.COMPUTE and [storages[s].bytes for s in node.alloc] == [activation_bytes]
    ]
    return fits[0], fits[-1]

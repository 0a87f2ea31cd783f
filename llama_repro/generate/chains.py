"""Problems of several chains that need little of each other, and the orders in which they may be listed.

The halves of a batch, or the forward pass of one micro-batch beside the backward pass of another: while one chain waits
for its collective, another can compute. How such a graph is listed says nothing of how it should run::

    one by one        a0 a1 a2 a3 | b0 b1 b2 b3
    lock-step         a0 b0 a1 b1 a2 b2 a3 b3               node by node: both reach their collectives together
    stage by stage    a0 a1 | b0 b1 | a2 a3 | b2 b3         each up to its next collective
    merged            a0 a1 b0 a2 b1 b2 b3 a3               chains in turn by chance
    shuffled                                                any node that can run, by chance

Pure data, no torch.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from overlap_sched.analysis.relabel import relabelled
from overlap_sched.problem import Kind, Node, Order, Problem, Storage

SHARED = -1
"""The chain of a node that all chains need."""


@dataclass(frozen=True)
class Chains:
    """Several chains as one problem; in every listing of it the inputs come first.

    Attributes:
        problem: Its nodes are listed one chain after the other, inputs too; what is shared where it is first needed.
        chain: Per node id which chain it belongs to, or :data:`SHARED`.
        rank: Per node id its position in the graph that its chain is a copy of.
        stage: Per node id how many collectives that carry activations are launched before it in that graph.
    """

    problem: Problem
    chain: tuple[int, ...]
    rank: tuple[int, ...]
    stage: tuple[int, ...]

    def one_by_one(self) -> Problem:
        """The first chain, then the second."""
        return self._listed(lambda v: (v,))

    def lock_step(self) -> Problem:
        """A node of the first chain, a node of the second, and so on."""
        return self._listed(lambda v: (self.rank[v], self.chain[v]))

    def stage_by_stage(self) -> Problem:
        """The first chain up to its next collective, then the second, and so on."""
        return self._listed(lambda v: (self.stage[v], self.chain[v], self.rank[v]))

    def merged(self, seed: int) -> Problem:
        """Each chain in its order; which one goes on is drawn for every node."""
        rng = random.Random(seed)
        drawn: dict[int, list[float]] = {}
        for c, number in ((c, self.chain.count(c)) for c in sorted({*self.chain})):
            drawn[c] = sorted(rng.random() for _ in range(number))
        key = {v: drawn[c].pop(0) for v, c in enumerate(self.chain)}
        return self._listed(lambda v: (key[v], v))

    def shuffled(self, seed: int) -> Problem:
        """Of the nodes that can run any, drawn anew for every step; inputs first, as in every graph."""
        rng = random.Random(seed)
        key = [rng.random() for _ in self.chain]
        return self._listed(lambda v: (key[v], v))

    def _listed(self, key: Callable[[int], tuple[float, ...]]) -> Problem:
        """Inputs, then of the nodes that can run always the one with the smallest key."""
        nodes, before, after = self.problem.nodes, self.problem.predecessors, self.problem.successors
        front = [v for v, node in enumerate(nodes) if node.kind is Kind.INPUT]
        left = [sum(nodes[u].kind is not Kind.INPUT for u in before[v]) for v in range(len(nodes))]
        ready = [
            (key(v), v) for v, node in enumerate(nodes) if left[v] == 0 and node.kind not in (Kind.INPUT, Kind.OUTPUT)
        ]
        heapify(ready)
        order = front
        while ready:
            _, v = heappop(ready)
            order.append(v)
            for w in after[v]:
                left[w] -= 1
                if left[w] == 0 and nodes[w].kind is not Kind.OUTPUT:
                    heappush(ready, (key(w), w))
        order += [v for v, node in enumerate(nodes) if node.kind is Kind.OUTPUT]
        return relabelled(self.problem, order)


def halves(problem: Problem, parts: int = 2, *, gathers_shared: bool = True) -> Chains:
    """A forward graph with its tokens in several parts: half the time and half the bytes each, of two.

    What depends on one input alone (a weight, its cast, its gather) keeps its size; of all else there is one per part.

    Args:
        problem: The forward graph of one batch.
        parts: How many parts.
        gathers_shared: Is what depends on one input alone shared? Else every part gathers its weights for itself.
    """
    whole = _of_one_input(problem)
    part = _scaled(problem, whole, 1 / parts)
    shared = [(w and gathers_shared) or node.kind is Kind.INPUT for w, node in zip(whole, problem.nodes, strict=True)]
    return _joined(f"{problem.name}_{parts}_parts", [part] * parts, [shared] * parts)


def beside(*problems: Problem) -> Chains:
    """Graphs side by side that share nothing but their streams: forward of one micro-batch, backward of another."""
    name = "_beside_".join(problem.name for problem in problems)
    return _joined(name, problems, [[False] * len(problem.nodes) for problem in problems])


def _of_one_input(problem: Problem) -> list[bool]:
    """Per node id: does it depend on one input, or on none?"""
    inputs: list[frozenset[int]] = []
    for v, before in enumerate(problem.predecessors):
        mine = frozenset({v} if problem.nodes[v].kind is Kind.INPUT else ())
        for u in before:
            mine = mine if inputs[u] <= mine else mine | inputs[u]
            if len(mine) > 1:
                break
        inputs.append(mine if len(mine) < 2 else frozenset(sorted(mine)[:2]))
    return [len(mine) < 2 for mine in inputs]


def _scaled(problem: Problem, keep: Sequence[bool], factor: float) -> Problem:
    """The same graph, with less time and fewer bytes for what is not to be kept."""
    storages = list(problem.storages)
    nodes = list(problem.nodes)
    for v, node in enumerate(problem.nodes):
        if not keep[v]:
            nodes[v] = node._replace(time_us=node.time_us * factor, bytes=round(node.bytes * factor))
            for s in node.alloc:
                storages[s] = Storage(round(storages[s].bytes * factor), storages[s].pinned)
    return replace(problem, nodes=tuple(nodes), storages=tuple(storages))


def _joined(name: str, problems: Sequence[Problem], shared: Sequence[Sequence[bool]]) -> Chains:
    """One problem of several; what is shared must be the same in all of them and comes from the first."""
    nodes: list[Node] = []
    storages: list[Storage] = []
    facts: list[tuple[int, int, int]] = []
    ends: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    first: tuple[dict[int, int], dict[int, int]] = {}, {}  # new ids of the first graph's nodes and storages
    for c, (problem, of_all) in enumerate(zip(problems, shared, strict=True)):
        ids: dict[int, int] = {}
        held: dict[int, int] = {}
        stages = _stages(problem)
        for v, node in enumerate(problem.nodes):
            if node.kind is Kind.OUTPUT:
                ends.append((tuple(ids[u] for u in node.deps), tuple(held[s] for s in node.use)))
                continue
            if of_all[v] and c:
                ids[v] = first[0][v]
                held.update((s, first[1][s]) for s in node.alloc)
                continue
            for s in node.alloc:
                held[s] = len(storages)
                storages.append(problem.storages[s])
            ids[v] = len(nodes)
            nodes.append(_renamed(node, f"{node.name}.{c}" if not of_all[v] else node.name, ids, held))
            facts.append((SHARED if of_all[v] else c, v, stages[v]))
        if c == 0:
            first = ids, held
    deps = tuple(dict.fromkeys(v for made, _ in ends for v in made))
    uses = tuple(dict.fromkeys(s for _, held_on in ends for s in held_on))
    nodes.append(Node("output", Kind.OUTPUT, deps, (), uses))
    facts.append((SHARED, len(nodes), len(nodes)))
    groups = {group: facts_of for problem in problems for group, facts_of in problem.groups.items()}
    chain, rank, stage = (tuple(column) for column in zip(*facts, strict=True))
    return Chains(Problem(name, tuple(nodes), tuple(storages), groups, problems[0].memory_model), chain, rank, stage)


def _renamed(node: Node, name: str, ids: Mapping[int, int], held: Mapping[int, int]) -> Node:
    return node._replace(
        name=name,
        deps=tuple(ids[u] for u in node.deps),
        alloc=tuple(held[s] for s in node.alloc),
        use=tuple(held[s] for s in node.use),
        collective=None if node.collective is None else ids[node.collective],
    )


def _stages(problem: Problem) -> Order:
    """Per node id, how many collectives that depend on several inputs are launched before it."""
    whole, stage, stages = _of_one_input(problem), 0, []
    for v, node in enumerate(problem.nodes):
        stages.append(stage)
        stage += node.kind is Kind.COLLECTIVE and not whole[v]
    return tuple(stages)

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from overlap_sched.problem import Kind, Order, Problem, Storage
from overlap_sched.problem.parts import JoinedProblem, join_beside, join_problems


@dataclass(frozen=True)
class Chains:
    """Several chains as one problem; in every listing of it the inputs come first.

    Attributes:
        problem: Its nodes are listed one chain after the other, inputs too; what is shared where it is first needed.
        chain: Per node id which chain it belongs to, or :data:`~overlap_sched.problem.parts.SHARED`.
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
        return self.problem.renumbered(tuple(order))


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
    return _chains(join_problems(f"{problem.name}_{parts}_parts", [part] * parts, [shared] * parts), [part] * parts)


def side_by_side(*problems: Problem) -> Chains:
    """Graphs side by side that share nothing but their streams: forward of one micro-batch, backward of another."""
    return _chains(join_beside(*problems), problems)


def _chains(found: JoinedProblem, problems: Sequence[Problem]) -> Chains:
    stages = [_stages(problem) for problem in problems]
    stage = [stages[max(c, 0)][v] for c, v in zip(found.part[:-1], found.rank[:-1], strict=True)]
    return Chains(found.problem, found.part, found.rank, (*stage, len(found.part)))


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


def _stages(problem: Problem) -> Order:
    """Per node id, how many collectives that depend on several inputs are launched before it."""
    whole, stage, stages = _of_one_input(problem), 0, []
    for v, node in enumerate(problem.nodes):
        stages.append(stage)
        stage += node.kind is Kind.COLLECTIVE and not whole[v]
    return tuple(stages)

"""What fused prices are worth to an order: orders of single nodes, replayed with each kernel as one step.

An order of single nodes becomes one of kernels as Inductor makes it: a kernel stands where the first of its nodes is,
and all that it needs comes before it.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import fx

from overlap_sched import Kind, Node, Options, Problem, schedule
from overlap_sched.fx import lift
from overlap_sched.fx.lifting import Lifted
from overlap_sched.judge.replay import replay
from scripts.studies.fusion.graphs import llama_graphs


@dataclass(frozen=True)
class Worth:
    """Steps of one graph, microseconds, replayed with kernels as single steps.

    Attributes:
        name: Of the graph.
        original_us: Of its own order. by: per way to price nodes, of the order that was found with those prices.
    """

    name: str
    original_us: float
    by: dict[str, float]


def worths(llama: str, layers: int) -> Iterator[Worth]:
    """Both graphs of a Llama; kernels as for a GPU, 1 GiB of headroom."""
    for name, graph in llama_graphs(llama, layers, "cuda"):
        yield worth(name, graph)


def worth(name: str, graph: fx.GraphModule) -> Worth:
    """Orders of one graph by four ways to price its nodes."""
    fused = lift(graph, fusion="inductor")
    kernels = Kernels(fused)
    priced = {
        "divided": fused.problem,
        "all on the last": _gathered(fused, -1),
        "all on the first": _gathered(fused, 0),
        "node by node": lift(graph).problem,
    }
    options = Options(headroom="1GiB")
    steps = {way: kernels.step_us(schedule(problem, options).order) for way, problem in priced.items()}
    return Worth(name, kernels.step_us(fused.problem.original_order), steps)


def _stored(lifted: Lifted) -> dict[str, list[int]]:
    """Per kernel of several nodes, those that have a share of its time."""
    found: dict[str, list[int]] = {}
    for v, (node, price) in enumerate(zip(lifted.problem.nodes, lifted.prices, strict=True)):
        if price.part_of and node.time_us:
            found.setdefault(price.part_of, []).append(v)
    return found


def _gathered(lifted: Lifted, which: int) -> Problem:
    """The problem with a kernel's whole time on one of its nodes."""
    nodes = list(lifted.problem.nodes)
    for members in _stored(lifted).values():
        total = sum(nodes[v].time_us for v in members)
        for v in members:
            nodes[v] = nodes[v]._replace(time_us=total if v == members[which] else 0.0)
    return replace(lifted.problem, nodes=tuple(nodes))


class Kernels:
    """A problem whose nodes are kernels, and how an order of single nodes is one of kernels."""

    def __init__(self, lifted: Lifted) -> None:
        nodes = lifted.problem.nodes
        self._kernel_of: dict[int, int] = {}
        for v, node in enumerate(nodes):
            if node.kind is not Kind.COMPUTE or node.time_us:
                self._kernel_of[v] = v
        for members in _stored(lifted).values():
            self._kernel_of.update(dict.fromkeys(members, members[-1]))
        needs: list[set[int]] = []  # views and inlined nodes looked through
        self._after: dict[int, set[int]] = {kernel: set() for kernel in self._kernel_of.values()}
        for v, node in enumerate(nodes):
            known = self._kernel_of
            needs.append({u for d in node.deps for u in ((d,) if d in known else needs[d])})
            if v in known:
                self._after[known[v]] |= {known[u] for u in needs[v]} - {known[v]}
        self._us = dict.fromkeys(self._after, 0.0)
        for v, kernel in self._kernel_of.items():
            self._us[kernel] += nodes[v].time_us
        self._problem = lifted.problem

    def step_us(self, order: Sequence[int]) -> float:
        """The step of an order of single nodes."""
        sequence = self._sequence(order)
        at = {kernel: k for k, kernel in enumerate(sequence)}
        nodes = []
        for kernel in sequence:
            node = self._problem.nodes[kernel]
            collective = None if node.collective is None else at[node.collective]
            deps = tuple(sorted(at[u] for u in self._after[kernel]))
            nodes.append(Node(node.name, node.kind, deps, (), (), self._us[kernel], node.op, node.group, collective))
        problem = Problem(self._problem.name, tuple(nodes), (), self._problem.groups, self._problem.memory_model)
        return replay(problem, problem.original_order).step_us

    def _sequence(self, order: Sequence[int]) -> list[int]:
        place: dict[int, int] = {}
        for position, v in enumerate(order):
            if v in self._kernel_of:
                place.setdefault(self._kernel_of[v], position)
        missing = {kernel: len(after) for kernel, after in self._after.items()}
        users: dict[int, list[int]] = {kernel: [] for kernel in self._after}
        for kernel, after in self._after.items():
            for u in sorted(after):
                users[u].append(kernel)
        ready = [(place[kernel], kernel) for kernel, count in missing.items() if not count]
        heapq.heapify(ready)
        sequence = []
        while ready:
            _, kernel = heapq.heappop(ready)
            sequence.append(kernel)
            for user in users[kernel]:
                missing[user] -= 1
                if not missing[user]:
                    heapq.heappush(ready, (place[user], user))
        return sequence

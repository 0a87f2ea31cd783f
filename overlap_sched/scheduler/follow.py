"""One rank's order, followed on a graph that is not quite the same: another launch sequence, but one for all ranks.

Ranks whose graphs differ may not each choose a launch sequence, but they may all take that of one of them. What it has
shown (:class:`Proposal`) is laid over the graph at hand::

    proposal    mm  gather_1  mm  scatter_0  gather_2          in its own original order, and in its new one
                 |     |       |      |         |              alike: one operator, between the same launches
    here        mm  gather_1  mm pad scatter_0 gather_2        pad, which it has not, goes behind what it needs

Nodes run in the order of their likes, as the rules of this graph and the launch sequence admit. Where that takes more
memory than there is, the order with the lowest peak that keeps the sequence is where runs of the list scheduler start.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise

from overlap_sched.peak_memory.best import best_order
from overlap_sched.peak_memory.memory_graph import lead_with_inputs, memory_graph_of
from overlap_sched.peak_memory.repair import judged
from overlap_sched.peak_memory.windows import lower_to
from overlap_sched.problem import NodeId, Order, Problem
from overlap_sched.problem.pins import pin_pairs
from overlap_sched.problem.precedence import Pair, by_key, launched_on, positions
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.device import DeviceLimit
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.stage import Context, Stages

STEPS = 2_000_000
"""Of the search for an order that needs less: a second or two."""


@dataclass(frozen=True)
class Proposal:
    """An order that other ranks may follow.

    Attributes:
        calls: Per node, its kind and operator.
        launches: The nodes that launch, in the original order.
        order: Node ids.
    """

    calls: tuple[str, ...]
    launches: tuple[NodeId, ...]
    order: Order

    @classmethod
    def of(cls, problem: Problem, order: Order) -> "Proposal":
        """Return what a rank shows of an order of its own."""
        return cls(_calls(problem), _launches(problem), order)

    @property
    def sequence(self) -> tuple[int, ...]:
        """The launches in their new order, each by its place in the original one."""
        position = positions(self.order)
        return tuple(sorted(range(len(self.launches)), key=lambda k: position[self.launches[k]]))


def followed(problem: Problem, proposal: Proposal, pairs: Sequence[Pair] = ()) -> Order | None:
    """A valid order with the launches of a proposal, as near to it as may be; ``None``: there is none.

    Whether it stays within a budget, and how long it takes, is for others to see. ``pairs`` of nodes keep their order.
    """
    calls, launches = _calls(problem), _launches(problem)
    if [calls[v] for v in launches] != [proposal.calls[v] for v in proposal.launches]:
        return None
    position, key = positions(proposal.order), [-1.0] * len(problem.nodes)
    for here, there in _alike(calls, launches, proposal):
        key[here] = float(position[there])
    for v, before in enumerate(problem.predecessors):
        if key[v] < 0:
            key[v] = max([key[u] for u in before], default=0.0) + 0.5
    chain = [launches[k] for k in proposal.sequence]
    return by_key(problem, [*pairwise(chain), *pairs], key)


def _calls(problem: Problem) -> tuple[str, ...]:
    return tuple(f"{node.kind.value} {node.op}" for node in problem.nodes)


def _launches(problem: Problem) -> tuple[NodeId, ...]:
    return tuple(v for v, node in enumerate(problem.nodes) if launched_on(node))


def _alike(calls: Sequence[str], launches: Sequence[NodeId], proposal: Proposal) -> Iterator[tuple[NodeId, NodeId]]:
    """Nodes here, and those that they are like: between the same two launches, in the same order."""
    yield from zip(launches, proposal.launches, strict=True)
    here = pairwise((-1, *launches, len(calls)))
    there = pairwise((-1, *proposal.launches, len(proposal.calls)))
    for (a, b), (c, d) in zip(here, there, strict=True):
        mine, theirs = calls[a + 1 : b], proposal.calls[c + 1 : d]
        if mine == theirs:
            yield from zip(range(a + 1, b), range(c + 1, d), strict=True)
            continue
        for i, j, size in SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks():
            yield from ((a + 1 + i + k, c + 1 + j + k) for k in range(size))


def best_like(task: Task, proposal: Proposal, stages: Stages) -> Candidate | None:
    """The best order found with the launches of a proposal, within the budget and ``Options.memory_limit``.

    Args:
        task: What is asked for.
        proposal: Of another rank, or of this one.
        stages: All that is done.

    Returns:
        ``None``: there is no such order, or it would take longer than the original one.
    """
    order = followed(task.problem, proposal, pin_pairs(task.problem, task.options.pins))
    if order is None or task.options.concurrent_groups != "any":
        return None
    task = replace(task, like=order)
    best = _within_budget(task, order, stages)
    if best is None or best.step_us > task.measured(task.problem.original_order).step_us:
        return None
    device = DeviceLimit.of(task)
    return best if device is None or device.runs(task.live_ranges, best.order) else None


def _within_budget(task: Task, order: Order, stages: Stages) -> Candidate | None:
    """The order itself; else that with less in flight where too much is live, and what runs make from there."""
    if task.within_budget(order):
        return replace(task.measured(order), reasons=dict.fromkeys(task.problem.collectives, "reference"))
    for low in _lower(task.problem.renumbered(order, task.pairs), int(task.limit.min())):
        start = tuple(order[k] for k in low)
        if task.within_budget(start):
            context = Context(task, Reference(task.problem, start, task.live_ranges))
            return stages.run(context, task.measured(start))
    return None


def _lower(problem: Problem, limit_bytes: int) -> Iterator[Order]:
    """Orders with the launches of the original one: that with less live where it is too much, then the lowest found."""
    graph = memory_graph_of(problem, "all")
    low, _ = lower_to(graph, judged(graph, graph.rest), limit_bytes, STEPS)
    yield tuple(lead_with_inputs(graph, low.order))
    yield best_order(problem, "all", 1).order

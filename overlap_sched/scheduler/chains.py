"""Several chains at once: a reference order that goes from chain to chain, whatever the original order was like.

A chain is compute and communication that need each other in turn. One pass of one model is one chain, with short
branches; two halves of a batch, or two micro-batches, are two::

    a0 -> launch -> wait -> a1 -> launch -> wait -> a2         one stage: what a chain computes between two collectives
    b0 -> launch -> wait -> b1 -> launch -> wait -> b2

What nothing that takes long comes before (a cast, the gather of a weight) belongs to no chain: it can run at any time.

Two halves of a batch, or the forward pass of one micro-batch beside the backward pass of another: while one chain waits
for its collective, the other can compute. A list scheduler that advances both evenly cannot see that, since both then
reach their collectives together; nor can one that starts from an order in which they come one after the other::

    in lock-step   compute |= a =|= b =|...............|= a =|= b =|          both stall
                   stream              |== a ==|== b ==|

    interleaved    compute |= a =|= b =|..|= a =|= b =|                       a computes while b communicates
                   stream        |== a ==|== b ==|== a ==|

So this order is made without regard for the original one, in simulated time:

1. a wait for what has completed runs at once, as it lets go of memory;
2. what has just become ready goes on, the longest path first: a chain is left only where all of it waits for a
   collective, with what else it had to do (weight gradients) done, or where it has gone on for longer than a stage;
3. then the node with the largest part of its chain still ahead of it: another chain, mostly, and all end together;
4. what can run at any time (a cast, the gather of a weight) runs when it is first needed. Runs of the list scheduler
   that start from here launch it sooner.

Where that takes more memory than there is, the same rules choose among the nodes that the completion profile admits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from overlap_sched.problem import Kind, NodeId, Order, Problem
from overlap_sched.problem.precedence import Neighbours, neighbours
from overlap_sched.scheduler.admission import CompletionProfile
from overlap_sched.scheduler.task import TUNING, Reference, Task
from overlap_sched.simulate.clock import PlainClock


@dataclass(frozen=True)
class Chains:
    """Per node id; times without contention, and without waiting for one's stream.

    Attributes:
        on_demand: Does nothing that takes long come before it, and does it take no longer than a cast itself?
        begins: Does it take long, and nothing that does comes before it (a layer computed again)?
        ahead: What part of its chain is ahead of it, in time. Weight gradients are where they can run at the earliest,
            what begins something is where it must run at the latest.
        stage_us: Not per node: about how long the stages are; infinite where no chain has a collective.
    """

    on_demand: list[bool]
    begins: list[bool]
    ahead: list[float]
    stage_us: float


def has_chains(problem: Problem) -> bool:
    """Is there a second long path that shares no node with the longest one?

    Only what has compute both before and behind it counts: not the weight gradient of a large last layer.
    """
    inner = _between_compute(problem)
    longest_us, path = _longest_path(problem, inner)
    for v in path:
        inner[v] = False
    beside_us, _ = _longest_path(problem, inner)
    return beside_us >= TUNING.second_path * longest_us > 0


def chains(reference: Reference, before: Sequence[Sequence[NodeId]]) -> Chains:
    """Where each node is; ``before``: what must run before each, the problem's rules and more."""
    priorities, us = reference.priorities(), reference.problem.compute_us
    follows, on_demand = [False] * len(before), [False] * len(before)
    for v in reference.order:
        follows[v] = any(not on_demand[u] for u in before[v])
        on_demand[v] = not follows[v] and us[v] <= TUNING.cheap * priorities.total_us
    return Chains(
        on_demand=on_demand,
        begins=[not one and not other for one, other in zip(follows, on_demand, strict=True)],
        ahead=_ahead(reference, before, follows, on_demand),
        stage_us=_stage_us(reference, before, on_demand),
    )


def _ahead(
    reference: Reference, before: Sequence[Sequence[NodeId]], follows: Sequence[bool], on_demand: Sequence[bool]
) -> list[float]:
    nodes, order, level_us = reference.problem.nodes, reference.order, reference.priorities().bottom_level_us
    begin_us, done_us = [0.0] * len(nodes), [0.0] * len(nodes)
    for v in order:
        begin_us[v] = max([done_us[u] for u in before[v]], default=0.0)
        done_us[v] = begin_us[v] + (0.0 if nodes[v].kind is Kind.WAIT else nodes[v].time_us)
    path_us = [begin + level for begin, level in zip(begin_us, level_us, strict=True)]  # the longest that v is on,
    for v in reversed(order):
        if nodes[v].kind is not Kind.OUTPUT:
            for u in before[v]:
                path_us[u] = max(path_us[u], path_us[v])  # or that what needs v is on,
    ahead = [0.0] * len(nodes)
    for v in order:
        if follows[v]:  # or that what v follows on is on
            path_us[v] = max([path_us[v], *(path_us[u] for u in before[v] if not on_demand[u])])
        left_us = path_us[v] - begin_us[v] if follows[v] else level_us[v]
        ahead[v] = left_us / path_us[v] if path_us[v] else 0.0
    return ahead


def _stage_us(reference: Reference, before: Sequence[Sequence[NodeId]], on_demand: Sequence[bool]) -> float:
    """Nine of ten stages take less: twice their longest path, since there may be branches."""
    nodes, inner = reference.problem.nodes, _between_compute(reference.problem)
    since_us, stages = [0.0] * len(nodes), []  # compute on the longest path since the last wait
    for v in reference.order:
        kind = nodes[v].kind
        if on_demand[v] or kind in (Kind.WAIT, Kind.OUTPUT):
            continue
        follows_wait = any(nodes[u].kind is Kind.WAIT and not on_demand[u] for u in before[v])
        path_us = 0.0 if follows_wait else max([since_us[u] for u in before[v]], default=0.0)
        if kind is not Kind.COLLECTIVE:
            since_us[v] = path_us + nodes[v].time_us
        elif inner[v]:
            stages.append(path_us)
    return 2 * sorted(stages)[len(stages) * 9 // 10] if stages else math.inf


def _between_compute(problem: Problem) -> list[bool]:
    """Per node: does it follow on compute that takes time, and does such compute follow on it?"""
    busy = [us > 0 for us in problem.compute_us]
    follows, followed = [False] * len(busy), [False] * len(busy)
    for v, before in enumerate(problem.predecessors):
        if problem.nodes[v].kind is not Kind.OUTPUT:
            follows[v] = any(follows[u] or busy[u] for u in before)
    for v in range(len(busy) - 1, -1, -1):
        if followed[v] or busy[v]:
            for u in problem.predecessors[v]:
                followed[u] = True
    return [one and other for one, other in zip(follows, followed, strict=True)]


def _longest_path(problem: Problem, inner: Sequence[bool]) -> tuple[float, list[NodeId]]:
    """Time, communication included, and nodes of a longest path of inner nodes."""
    done_us, last = [0.0] * len(problem.nodes), [-1] * len(problem.nodes)
    for v, node in enumerate(problem.nodes):
        if inner[v]:
            for u in problem.predecessors[v]:
                if done_us[u] > done_us[v]:
                    done_us[v], last[v] = done_us[u], u
            done_us[v] += node.time_us if node.kind is not Kind.WAIT else 0.0
    v = max(range(len(done_us)), key=done_us.__getitem__)
    length_us, path = done_us[v], []
    while v >= 0:
        path.append(v)
        v = last[v]
    return length_us, path


_Ranked = tuple[float, NodeId]
"""A node in a heap, behind what it is ranked by."""


def interleaved(task: Task, reference: Reference) -> Order:
    """The order; from a reference within the budget one within the budget. O(n log n) for n nodes, but for memory."""
    rules = neighbours(task.problem, task.pairs)
    where = chains(reference, rules[0])
    order = _Interleaver(reference, rules, where, None).run()
    if task.within_budget(order):
        return order
    return _Interleaver(reference, rules, where, CompletionProfile(reference, task.limit)).run()


class _Interleaver:
    """One order in the making; without contention, and with gathers of weights taken to be hidden."""

    def __init__(
        self, reference: Reference, rules: Neighbours, where: Chains, memory: CompletionProfile | None
    ) -> None:
        """Nothing has run; ``memory``: what admits nodes, ``None``: all are."""
        self.nodes, self.reference, self.memory, self.chains = reference.problem.nodes, reference, memory, where
        self.before, self.after = rules
        self.level_us = reference.priorities().bottom_level_us
        self.open_before = [sum(not where.on_demand[u] for u in before) for before in self.before]
        self.has_run = [False] * len(self.nodes)
        self.order = list[NodeId]()
        self.clock, self.since_us = PlainClock(reference.times), 0.0  # compute since a chain was last left
        # heaps: what goes on, by path; what could begin or go on again, by part of its chain; waits that would stall
        self.at_hand, self.ready, self.in_flight = list[_Ranked](), list[_Ranked](), list[_Ranked]()
        self.refused = list[NodeId]()

    def run(self) -> Order:
        for v in self.reference.order:
            if self.nodes[v].kind is not Kind.INPUT:
                break
            self._run(v)  # inputs that lead the order go on to lead it
        for v, begins in enumerate(self.chains.begins):
            if begins:
                self._make_ready(v)
        while (chosen := self._next()) is not None:
            if self._run_with_needs(chosen):
                self._return_refused()
            else:
                self._refuse(chosen)
        for v in self.reference.order:  # outputs, and what nobody needs
            if not self.has_run[v]:
                self._run(v)
        return tuple(self.order)

    def _make_ready(self, v: NodeId) -> None:
        heappush(self.ready, (-self.chains.ahead[v], v))

    def _next(self) -> NodeId | None:
        """The node to run next, taken out; ``None``: all that is left is outputs and what nobody needs."""
        while True:
            for heap in (self.at_hand, self.ready, self.in_flight):
                while heap and self.has_run[heap[0][1]]:
                    heappop(heap)
            if self.in_flight and self.in_flight[0][0] <= self.clock.clock_us:
                return heappop(self.in_flight)[1]
            if self.at_hand:
                return heappop(self.at_hand)[1]
            if self.ready and not self._too_early(self.ready[0][1]):
                self.since_us = 0.0
                return heappop(self.ready)[1]
            if not self.in_flight:
                return self.refused.pop() if self.refused else None
            self.clock.clock_us = self.in_flight[0][0]

    def _too_early(self, v: NodeId) -> bool:
        """Does v begin something new, of which what is in flight is not in need yet? Memory is not spent on it."""
        ahead = self.chains.ahead
        return self.chains.begins[v] and max([ahead[w] for _, w in self.in_flight], default=0.0) > ahead[v]

    def _run_with_needs(self, v: NodeId) -> bool:
        """Run v behind what it needs of what runs on demand; ``False``: memory refused a part of it."""
        todo = [v]
        while todo:
            u = todo[-1]
            needed = [w for w in self.before[u] if not self.has_run[w]]
            todo += reversed(needed)
            if needed:
                continue
            todo.pop()
            if self.has_run[u]:
                continue
            if self.memory is not None and not self.memory.admits(u):
                return False
            self._run(u)
        return True

    def _refuse(self, v: NodeId) -> None:
        """The reference order has its way."""
        self.refused.append(v)
        if self.memory is not None:
            self._run(self.memory.order[self.memory.first])
            self._return_refused()

    def _return_refused(self) -> None:
        for v in self.refused:
            self._make_ready(v)
        self.refused.clear()

    def _run(self, v: NodeId) -> None:
        node, on_demand = self.nodes[v], self.chains.on_demand[v]
        self.has_run[v] = True
        self.order.append(v)
        if self.memory is not None:
            self.memory.run(v)
        if node.kind is Kind.COLLECTIVE and on_demand:
            self.clock.finish_us[v] = 0.0
        else:
            self.clock.run((v,))
        self.since_us += self.reference.problem.compute_us[v]
        if on_demand:
            return
        goes_on = node.kind is not Kind.WAIT and self.since_us <= self.chains.stage_us
        for w in self.after[v]:  # what needs nothing else is ready, and at hand if the chain goes on
            self.open_before[w] -= 1
            if self.open_before[w] or self.nodes[w].kind is Kind.OUTPUT:
                continue
            completed_us = self.clock.finish_us.get(self.nodes[w].collective, 0.0)  # type: ignore[arg-type]
            if completed_us > self.clock.clock_us:
                heappush(self.in_flight, (completed_us, w))
            elif goes_on:
                heappush(self.at_hand, (-self.level_us[w], w))
            else:
                self._make_ready(w)

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
from overlap_sched.scheduler.task import TUNING, Priorities, Reference, Task


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
    longest_us, path = _longest_path(problem, inner, frozenset())
    beside_us, _ = _longest_path(problem, inner, frozenset(path))
    return beside_us >= TUNING.second_path * longest_us > 0


def chains(problem: Problem, priorities: Priorities, before: Sequence[Sequence[NodeId]]) -> Chains:
    """Where each node is; ``before``: what must run before each, the problem's rules and more."""
    follows, on_demand = [False] * len(before), [False] * len(before)
    for v, nodes in enumerate(before):
        follows[v] = any(not on_demand[u] for u in nodes)
        on_demand[v] = not follows[v] and priorities.compute_us[v] <= TUNING.cheap * priorities.total_us
    return Chains(
        on_demand=on_demand,
        begins=[not one and not other for one, other in zip(follows, on_demand, strict=True)],
        ahead=_ahead(problem, priorities, before, follows, on_demand),
        stage_us=_stage_us(problem, before, on_demand),
    )


def _ahead(
    problem: Problem,
    priorities: Priorities,
    before: Sequence[Sequence[NodeId]],
    follows: Sequence[bool],
    on_demand: Sequence[bool],
) -> list[float]:
    nodes, level_us = problem.nodes, priorities.bottom_level_us
    begin_us, done_us = [0.0] * len(nodes), [0.0] * len(nodes)
    for v, node in enumerate(nodes):
        begin_us[v] = max([done_us[u] for u in before[v]], default=0.0)
        done_us[v] = begin_us[v] + (node.time_us if node.kind is Kind.COLLECTIVE else priorities.compute_us[v])
    path_us = [begin + level for begin, level in zip(begin_us, level_us, strict=True)]  # the longest that v is on,
    for v in range(len(nodes) - 1, -1, -1):
        if nodes[v].kind is not Kind.OUTPUT:
            for u in before[v]:
                path_us[u] = max(path_us[u], path_us[v])  # or that what needs v is on,
    ahead = []
    for v, path in enumerate(path_us):
        if follows[v]:  # or that what v follows on is on
            path_us[v] = path = max(path, *(path_us[u] for u in before[v] if not on_demand[u]))
        left_us = path - begin_us[v] if follows[v] else level_us[v]
        ahead.append(left_us / path if path else 0.0)
    return ahead


def _stage_us(problem: Problem, before: Sequence[Sequence[NodeId]], on_demand: Sequence[bool]) -> float:
    """Nine of ten stages take less: twice their longest path, since there may be branches."""
    nodes, us, inner = problem.nodes, problem.compute_us, _between_compute(problem)
    since_us, stages = [0.0] * len(nodes), []  # compute on the longest path since the last wait
    for v, node in enumerate(nodes):
        if on_demand[v] or node.kind in (Kind.WAIT, Kind.OUTPUT):
            continue
        follows_wait = any(nodes[u].kind is Kind.WAIT and not on_demand[u] for u in before[v])
        path_us = 0.0 if follows_wait else max([since_us[u] for u in before[v]], default=0.0)
        if node.kind is not Kind.COLLECTIVE:
            since_us[v] = path_us + us[v]
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
    return [both == (True, True) for both in zip(follows, followed, strict=True)]


def _longest_path(problem: Problem, inner: Sequence[bool], without: frozenset[NodeId]) -> tuple[float, list[NodeId]]:
    """Time, communication included, and nodes of a longest path of inner nodes that avoids some of them."""
    done_us, last = [0.0] * len(problem.nodes), [-1] * len(problem.nodes)
    for v, node in enumerate(problem.nodes):
        if v in without or not inner[v]:
            continue
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
    where = chains(task.problem, reference.priorities(), rules[0])
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
        problem, priorities = reference.problem, reference.priorities()
        self.nodes, self.reference, self.memory = problem.nodes, reference, memory
        self.before, self.after = rules
        self.us, self.level_us = priorities.compute_us, priorities.bottom_level_us
        self.chains = where
        self.on_demand, self.ahead = self.chains.on_demand, self.chains.ahead
        self.open_before = [sum(not self.on_demand[u] for u in before) for before in self.before]
        self.has_run = [False] * len(self.nodes)
        self.order: list[NodeId] = []
        self.clock_us = 0.0
        self.since_us = 0.0  # compute since a chain was last left
        self.free_us = dict.fromkeys(problem.groups, 0.0)
        self.finish_us: dict[NodeId, float] = {}
        # heaps: what goes on, by path; what could begin or go on again, by part of its chain; waits that would stall
        self.at_hand: list[_Ranked] = []
        self.ready: list[_Ranked] = []
        self.in_flight: list[_Ranked] = []
        self.refused: list[NodeId] = []

    def run(self) -> Order:
        for v in self.reference.order:
            if self.nodes[v].kind is not Kind.INPUT:
                break
            self._run(v)  # inputs that lead the order go on to lead it
        for v, begins in enumerate(self.chains.begins):
            if begins:
                heappush(self.ready, (-self.ahead[v], v))
        while (chosen := self._next()) is not None:
            if self._admitted(chosen):
                self._return_refused()
            else:
                self._refuse(chosen)
        for v in self.reference.order:  # outputs, and what nobody needs
            if not self.has_run[v]:
                self._run(v)
        return tuple(self.order)

    def _next(self) -> NodeId | None:
        """The node to run next, taken out; ``None``: all that is left is outputs and what nobody needs."""
        while True:
            for heap in (self.at_hand, self.ready, self.in_flight):
                while heap and self.has_run[heap[0][1]]:
                    heappop(heap)
            if self.in_flight and self.in_flight[0][0] <= self.clock_us:
                return heappop(self.in_flight)[1]
            if self.at_hand:
                return heappop(self.at_hand)[1]
            if self.ready and not self._too_early(self.ready[0][1]):
                self.since_us = 0.0
                return heappop(self.ready)[1]
            if not self.in_flight:
                return self.refused.pop() if self.refused else None
            self.clock_us = self.in_flight[0][0]

    def _too_early(self, v: NodeId) -> bool:
        """Does v begin something new, of which what is in flight is not in need yet? Memory is not spent on it."""
        if not self.chains.begins[v] or not self.in_flight:
            return False
        return max(self.ahead[w] for _, w in self.in_flight) > self.ahead[v]

    def _admitted(self, v: NodeId) -> bool:
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
        """Try others; after a few of them the reference order has its way."""
        self.refused.append(v)
        if self.memory is not None and (len(self.refused) >= TUNING.refused_nodes or not (self.at_hand or self.ready)):
            self._run(self.memory.order[self.memory.first])
            self._return_refused()

    def _return_refused(self) -> None:
        for v in self.refused:
            heappush(self.ready, (-self.ahead[v], v))
        self.refused.clear()

    def _run(self, v: NodeId) -> None:
        node = self.nodes[v]
        self.has_run[v] = True
        self.order.append(v)
        if self.memory is not None:
            self.memory.run(v)
        if node.kind is Kind.COLLECTIVE:
            group, hidden = node.group or "", self.on_demand[v]
            self.finish_us[v] = 0.0 if hidden else max(self.clock_us, self.free_us[group]) + node.time_us
            self.free_us[group] = max(self.free_us[group], self.finish_us[v])
        elif node.kind is Kind.WAIT:
            self.clock_us = max(self.clock_us, self._completed_us(v))
        else:
            self.clock_us += self.us[v]
            self.since_us += self.us[v]
        if not self.on_demand[v]:
            self._release(v, goes_on=node.kind is not Kind.WAIT and self.since_us <= self.chains.stage_us)

    def _release(self, v: NodeId, goes_on: bool) -> None:
        """Node v has run: what needs nothing else is ready, and at hand if the chain goes on."""
        for w in self.after[v]:
            self.open_before[w] -= 1
            if self.open_before[w] or self.nodes[w].kind is Kind.OUTPUT:
                continue
            completed_us = self._completed_us(w)
            if completed_us > self.clock_us:
                heappush(self.in_flight, (completed_us, w))
            elif goes_on:
                heappush(self.at_hand, (-self.level_us[w], w))
            else:
                heappush(self.ready, (-self.ahead[w], w))

    def _completed_us(self, v: NodeId) -> float:
        """Return when the collective of a wait is finished; 0 for other nodes."""
        collective = self.nodes[v].collective
        return 0.0 if collective is None else self.finish_us.get(collective, 0.0)

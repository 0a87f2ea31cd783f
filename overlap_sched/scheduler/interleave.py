"""Several chains at once: a reference order that goes from chain to chain, whatever the original order was like.

Two halves of a batch, or the forward pass of one micro-batch beside the backward pass of another: while one chain waits
for its collective, the other can compute. A list scheduler that advances both evenly cannot see that, since both then
reach their collectives together; nor can one that starts from an order in which they come one after the other::

    in lock-step   compute |= a =|= b =|...............|= a =|= b =|          both stall
                   stream              |== a ==|== b ==|

    interleaved    compute |= a =|= b =|..|= a =|= b =|                       a computes while b communicates
                   stream        |== a ==|== b ==|== a ==|

So this order is made without regard for the original one, in simulated time:

1. what has just become ready goes on, the longest path first: a chain is left only where all of it waits for a
   collective, with what else it had to do (weight gradients) done;
2. then the node with the longest path to the end: another chain, mostly;
3. what nothing that takes long comes before (a cast, the gather of a weight) runs when it is first needed. Runs of the
   list scheduler that start from here launch it sooner.

Where that takes more memory than there is, the same rules choose among the nodes that the completion profile admits.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from overlap_sched.problem import Kind, NodeId, Order, Problem
from overlap_sched.problem.precedence import neighbours
from overlap_sched.scheduler.admission import CompletionProfile
from overlap_sched.scheduler.candidate import Task
from overlap_sched.scheduler.priority import CHEAP
from overlap_sched.scheduler.reference import Reference

SECOND_PATH = 0.25
"""There are several chains if the longest path beside the longest path is at least this part of it."""

_LOOK = 4
"""So many nodes may be refused before the reference order has its way for one node."""

_Ranked = tuple[float, NodeId]
"""A node by its longest path to the end: minus its bottom level."""


def has_chains(problem: Problem) -> bool:
    """Is there a second long path that shares no node with the longest one? In one pass of one model there is none."""
    longest_us, path = _longest_path(problem, frozenset())
    beside_us, _ = _longest_path(problem, frozenset(path))
    return beside_us >= SECOND_PATH * longest_us > 0


def _longest_path(problem: Problem, without: frozenset[NodeId]) -> tuple[float, list[NodeId]]:
    """Length, communication included, and nodes of a longest path that avoids some nodes."""
    done_us, last = [0.0] * len(problem.nodes), [-1] * len(problem.nodes)
    for v, node in enumerate(problem.nodes):
        if v in without or node.kind is Kind.OUTPUT:
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


def interleaved(task: Task, reference: Reference) -> Order:
    """The order; a reference within the budget gives one within the budget."""
    order = _Interleaver(task, reference, None).run()
    if task.within_budget(order):
        return order
    return _Interleaver(task, reference, CompletionProfile(reference, task.limit)).run()


class _Interleaver:
    """One order in the making; without contention, and with gathers of weights taken to be hidden."""

    def __init__(self, task: Task, reference: Reference, memory: CompletionProfile | None) -> None:
        """Nothing has run; ``memory``: what admits nodes, ``None``: all are."""
        problem, priorities = task.problem, reference.priorities()
        self.nodes, self.reference, self.memory = problem.nodes, reference, memory
        self.before, self.after = neighbours(problem, task.pairs)
        self.us, self.level_us = priorities.compute_us, priorities.bottom_level_us
        self.follows, self.on_demand = self._sources(CHEAP * priorities.total_us)
        self.open_before = [sum(not self.on_demand[u] for u in before) for before in self.before]
        self.has_run = [False] * len(self.nodes)
        self.order: list[NodeId] = []
        self.clock_us = 0.0
        self.free_us = dict.fromkeys(problem.groups, 0.0)
        self.finish_us: dict[NodeId, float] = {}
        # heaps of nodes: made ready since the chain was last left; ready before; waits that would stall
        self.at_hand: list[_Ranked] = []
        self.ready: list[_Ranked] = []
        self.in_flight: list[_Ranked] = []  # by when they are finished
        self.refused: list[NodeId] = []

    def _sources(self, cheap_us: float) -> tuple[list[bool], list[bool]]:
        """Per node: does it follow on something that takes long? And: does it neither, nor take long itself?"""
        follows, on_demand = [False] * len(self.nodes), [False] * len(self.nodes)
        for v, before in enumerate(self.before):
            follows[v] = any(not on_demand[u] for u in before)
            on_demand[v] = not follows[v] and self.us[v] <= cheap_us
        return follows, on_demand

    def run(self) -> Order:
        for v in self.reference.order:
            if self.nodes[v].kind is not Kind.INPUT:
                break
            self._run(v)  # inputs that lead the order go on to lead it
        for v, count in enumerate(self.open_before):
            if count == 0 and not self.on_demand[v]:
                heappush(self.ready, (-self.level_us[v], v))
        while (v := self._next()) is not None:
            if self._admitted(v):
                self._return_refused()
            else:
                self._refuse(v)
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
            while self.in_flight and self.in_flight[0][0] <= self.clock_us:
                v = heappop(self.in_flight)[1]
                heappush(self.ready, (-self.level_us[v], v))
            if self.at_hand:
                return heappop(self.at_hand)[1]
            if self.ready and not self._too_early(self.ready[0][1]):
                return heappop(self.ready)[1]
            if not self.in_flight:
                return self.refused.pop() if self.refused else None
            self.clock_us = self.in_flight[0][0]

    def _too_early(self, v: NodeId) -> bool:
        """Does v begin something new (a layer computed again) of which what is in flight is not in need yet?"""
        if self.follows[v] or not self.in_flight:
            return False
        return max(self.level_us[w] for _, w in self.in_flight) > self.level_us[v]

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
        if self.memory is not None and (len(self.refused) >= _LOOK or not (self.at_hand or self.ready)):
            self._run(self.memory.order[self.memory.first])
            self._return_refused()

    def _return_refused(self) -> None:
        for v in self.refused:
            heappush(self.ready, (-self.level_us[v], v))
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
        if not self.on_demand[v]:
            self._release(self.after[v])

    def _release(self, after: Sequence[NodeId]) -> None:
        """A node that these need has run: those that need no other are ready."""
        for v in after:
            self.open_before[v] -= 1
            if self.open_before[v] or self.nodes[v].kind is Kind.OUTPUT:
                continue
            completed_us = self._completed_us(v)
            if completed_us > self.clock_us:
                heappush(self.in_flight, (completed_us, v))
            else:
                heappush(self.at_hand, (-self.level_us[v], v))

    def _completed_us(self, v: NodeId) -> float:
        """Of a wait, when its collective is finished; else 0."""
        collective = self.nodes[v].collective
        return 0.0 if collective is None else self.finish_us.get(collective, 0.0)

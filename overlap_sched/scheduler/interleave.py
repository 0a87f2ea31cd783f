"""Several chains at once: a reference order that goes from chain to chain, whatever the original order was like.

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
   collective, with what else it had to do (weight gradients) done;
3. then the node with the largest part of its chain still ahead of it: another chain, mostly, and all end together;
4. what nothing that takes long comes before (a cast, the gather of a weight) runs when it is first needed. Runs of the
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

SECOND_PATH = 0.08
"""There are several chains if the longest path beside the longest path is at least this part of it."""

_LOOK = 4
"""So many nodes may be refused before the reference order has its way for one node."""

_Ranked = tuple[float, NodeId]
"""A node by how much is ahead of it: minus its bottom level, or minus the part of its chain."""


def has_chains(problem: Problem) -> bool:
    """Is there a second long path that shares no node with the longest one? In one pass of one model there is none.

    Only what has compute both before and behind it counts: not the weight gradient of a large last layer.
    """
    inner = _between_compute(problem)
    longest_us, path = _longest_path(problem, inner, frozenset())
    beside_us, _ = _longest_path(problem, inner, frozenset(path))
    return beside_us >= SECOND_PATH * longest_us > 0


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
        self.ahead = self._parts_ahead()
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

    def _parts_ahead(self) -> list[float]:
        """Per node, its bottom level as a part of the longest path that it is on, or what needs it is."""
        done_us, path_us = [0.0] * len(self.nodes), [0.0] * len(self.nodes)
        for v, node in enumerate(self.nodes):
            begin_us = max([done_us[u] for u in self.before[v]], default=0.0)
            done_us[v] = begin_us + (node.time_us if node.kind is Kind.COLLECTIVE else self.us[v])
            path_us[v] = begin_us + self.level_us[v]
        for v in range(len(self.nodes) - 1, -1, -1):
            if self.nodes[v].kind is not Kind.OUTPUT:
                for u in self.before[v]:
                    path_us[u] = max(path_us[u], path_us[v])
        return [level / path if path else 0.0 for level, path in zip(self.level_us, path_us, strict=True)]

    def run(self) -> Order:
        for v in self.reference.order:
            if self.nodes[v].kind is not Kind.INPUT:
                break
            self._run(v)  # inputs that lead the order go on to lead it
        for v, count in enumerate(self.open_before):
            if count == 0 and not self.on_demand[v]:
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
                return heappop(self.ready)[1]
            if not self.in_flight:
                return self.refused.pop() if self.refused else None
            self.clock_us = self.in_flight[0][0]

    def _too_early(self, v: NodeId) -> bool:
        """Does v begin something new (a layer computed again) of which what is in flight is not in need yet?"""
        if self.follows[v] or not self.in_flight:
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
        if self.memory is not None and (len(self.refused) >= _LOOK or not (self.at_hand or self.ready)):
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
        if not self.on_demand[v]:
            self._release(self.after[v], goes_on=node.kind is not Kind.WAIT)

    def _release(self, after: Sequence[NodeId], goes_on: bool) -> None:
        """A node that these need has run: those that need no other are ready, at once if the chain goes on."""
        for v in after:
            self.open_before[v] -= 1
            if self.open_before[v] or self.nodes[v].kind is Kind.OUTPUT:
                continue
            completed_us = self._completed_us(v)
            if completed_us > self.clock_us:
                heappush(self.in_flight, (completed_us, v))
            elif goes_on:
                heappush(self.at_hand, (-self.level_us[v], v))
            else:
                heappush(self.ready, (-self.ahead[v], v))

    def _completed_us(self, v: NodeId) -> float:
        """Of a wait, when its collective is finished; else 0."""
        collective = self.nodes[v].collective
        return 0.0 if collective is None else self.finish_us.get(collective, 0.0)

"""Where a run stands, and what running a node does to it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind
from overlap_sched.scheduler.admission import CompletionProfile
from overlap_sched.scheduler.priority import Keys
from overlap_sched.scheduler.ready_list import Ready
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.result import Reason, Work
from overlap_sched.scheduler.streams import Streams


class State:
    """Simulated time, memory, and the nodes that could run now.

    Attributes:
        done: Nodes that have run, in order.
        clock_us: Simulated time on the compute stream. computed_us: compute done so far, the clock without the stalls.
        memory, ready, streams, keys: The parts, each with its own module.
        reasons: Per collective launched: why there.
        refusals: Per collective that the budget ever refused, the first time: (bytes above, node at whose step).
    """

    def __init__(
        self, reference: Reference, keys: Keys, limit: npt.NDArray[np.int64], chains: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Nothing has run; the arguments are those of ``list_schedule``, and its keys."""
        problem = reference.problem
        self.nodes = problem.nodes
        self.successors: list[tuple[int, ...]] | tuple[tuple[int, ...], ...] = problem.successors
        self.keys = keys
        self.memory = CompletionProfile(reference, limit)
        self.ready = Ready(reference, keys, self.memory)
        self.done: list[int] = []
        self.clock_us = 0.0
        self.computed_us = 0.0
        self.streams = Streams(problem, keys, self.memory.has_run)
        self.reasons: dict[int, Reason] = {}
        self.refusals: dict[int, tuple[int, int]] = {}
        self.blockers = [len(before) for before in problem.predecessors]
        if chains:
            self.successors = list(self.successors)
            for u, v in chains:
                self.successors[u] = (*self.successors[u], v)
                self.blockers[v] += 1
        for v in reference.order:
            if self.blockers[v] == 0:
                self._add(v)

    def work(self) -> Work:
        """What it took so far."""
        return Work(1, self.ready.rescored, self.memory.updates, self.streams.looked)

    def may_run(self, v: int) -> bool:
        """Does the budget admit v? Else it is held."""
        memory = self.memory
        if memory.admits(v):
            return True
        if self.nodes[v].kind is Kind.COLLECTIVE and v not in self.refusals:
            self.refusals[v] = memory.refusal(v)
        self.ready.hold(v)
        return False

    def run(self, v: int, reason: Reason) -> None:
        """Run v now: advance time, memory, and the nodes that become ready."""
        node, ready, blockers = self.nodes[v], self.ready, self.blockers
        ready.remove(v)
        self.done.append(v)
        if node.kind is Kind.COLLECTIVE:
            self.streams.launch(v, self.clock_us)
            self.reasons[v] = "reference" if self.memory.position[v] == self.memory.first else reason
        elif node.kind is Kind.WAIT:
            self.clock_us = self.streams.wait(v, self.clock_us)
        else:
            self.clock_us = self.streams.compute(node.time_us, self.clock_us)
            self.computed_us += node.time_us
        lowered = self.memory.run(v)
        if ready.flying:
            for w in ready.landed(self.clock_us):
                self._add(w)  # under contention some fly on
        if ready.held or ready.held_now:
            for w in ready.freed(lowered):
                self._add(w)
        for w in self.successors[v]:
            blockers[w] -= 1
            if blockers[w] == 0:
                self._add(w)

    def _add(self, v: int) -> None:
        finish_us = self.streams.finished_us(v) if self.nodes[v].kind is Kind.WAIT else 0.0
        if finish_us > self.clock_us:
            self.ready.fly(v, finish_us)
        else:
            self.ready.add(v)

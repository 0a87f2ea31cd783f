"""Where a run of the list scheduler stands: simulated time, memory, and the nodes that could run now."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, NodeId
from overlap_sched.problem.precedence import Pair, neighbours
from overlap_sched.scheduler.admission import Refusal, completion_profile
from overlap_sched.scheduler.priority import Priorities
from overlap_sched.scheduler.ready_list import ReadyList
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.result import Reason, Work
from overlap_sched.scheduler.streams import Streams, StreamTimes


class SchedulerState:
    """Where a run stands: simulated time, memory, and the nodes that could run now.

    Attributes:
        order: Nodes that have run.
        clock_us: Simulated time on the compute stream. computed_us: compute done so far, the clock without the stalls.
        memory, ready, streams, priorities: The parts, each with its own module.
        reasons, refusals: As in :class:`~overlap_sched.scheduler.candidate.Candidate`.
    """

    def __init__(
        self,
        reference: Reference,
        limit: npt.NDArray[np.int64],
        priorities: Priorities,
        pairs: Sequence[Pair],
        times: StreamTimes | None = None,
    ) -> None:
        """Nothing has run."""
        problem = reference.problem
        self.nodes, self.priorities = problem.nodes, priorities
        self.memory = completion_profile(reference, limit)
        self.ready = ReadyList(reference, priorities, self.memory)
        self.streams = Streams(problem, priorities, self.memory.has_run, times)
        self.order: list[int] = []
        self.clock_us = self.computed_us = 0.0
        self.reasons: dict[int, Reason] = {}
        self.refusals: dict[int, Refusal] = {}
        before, self._after = neighbours(problem, pairs)
        self._open_before = [len(nodes) for nodes in before]
        for v in reference.order:
            if self._open_before[v] == 0:
                self._add(v)

    def admit_or_block(self, v: NodeId) -> bool:
        """Say whether memory admits v; else v is out of all sets until what stands against it is gone."""
        obstacle = self.memory.obstacle_of(v)
        if obstacle is None:
            return True
        if self.nodes[v].kind is Kind.COLLECTIVE and v not in self.refusals:
            self.refusals[v] = self.memory.refusal(v, obstacle)
        self.ready.block(v, obstacle)
        return False

    def run(self, v: NodeId, reason: Reason) -> None:
        """Run v now: advance time, memory, and the nodes that become ready."""
        node, ready = self.nodes[v], self.ready
        ready.remove(v)
        self.order.append(v)
        if node.kind is Kind.COLLECTIVE:
            self.streams.launch(v, self.clock_us)
            self.reasons[v] = "reference" if self.memory.position[v] == self.memory.first else reason
        elif node.kind is Kind.WAIT:
            self.clock_us = self.streams.wait(v, self.clock_us)
        else:
            self.clock_us = self.streams.compute(v, self.clock_us)
            self.computed_us += node.time_us
        lowered = self.memory.run(v)
        if ready.in_flight:
            for w in ready.completed(self.clock_us):
                self._add(w)  # under contention some are still in flight
        if ready.blocked or ready.blocked_now:
            for w in ready.unblocked(lowered):
                self._add(w)
        for w in self._after[v]:
            self._open_before[w] -= 1
            if self._open_before[w] == 0:
                self._add(w)

    def earliest_end_us(self) -> float:
        """When the step ends at the earliest: the clock, and the compute that is left."""
        return self.clock_us + self.priorities.total_us - self.computed_us

    def least_end_us(self) -> float:
        """No sooner: by compute, by streams, by the longest path from what is ready."""
        paths = self.ready.paths
        path_us = self.clock_us - paths[0].minus_bottom_level_us if paths else 0.0
        return max(self.earliest_end_us(), self.streams.least_end_us, path_us)

    def work(self) -> Work:
        """Return the work so far."""
        return Work(1, self.ready.rescored, self.memory.updates, self.streams.looked)

    def _add(self, v: NodeId) -> None:
        completed_us = self.streams.completed_us(v) if self.nodes[v].kind is Kind.WAIT else 0.0
        if completed_us > self.clock_us:
            self.ready.add_in_flight(v, completed_us)
        else:
            self.ready.add(v)

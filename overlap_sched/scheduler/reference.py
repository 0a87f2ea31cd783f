"""A reference order with all that follows from it alone: made once, used by every run that starts from it."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, Problem
from overlap_sched.scheduler.priority import Priorities, frees_memory, priorities


class Reference:
    """A valid order; runs are scheduled from it and fall back on it.

    Attributes:
        live_ranges: What its memory shares with all other orders.
        problem: What is scheduled.
        order: Node ids. position: its inverse, per node id.
        users: Per storage, the positions of the nodes that use it, ascending.
    """

    def __init__(self, problem: Problem, order: Sequence[int], live_ranges: LiveRanges | None = None) -> None:
        """Index an order that is known to be valid; ``live_ranges``: those of the problem, if already made."""
        self.live_ranges = live_ranges or LiveRanges(problem)
        self.problem = problem
        self.order = list(order)
        self.position = [0] * len(self.order)
        for at, v in enumerate(self.order):
            self.position[v] = at
        self.users: list[list[int]] = [[] for _ in problem.storages]
        for at, v in enumerate(self.order):
            for s in problem.nodes[v].use:
                self.users[s].append(at)
        self._priorities: dict[bool, Priorities] = {}

    @cached_property
    def profile(self) -> npt.NDArray[np.int64]:
        """Bytes live at each position."""
        return self.live_ranges.profile(self.order)

    def priorities(self, prepares: bool = True) -> Priorities:
        """How urgent each node is along this order, with cheap compute moved to prepare launches or without."""
        if prepares not in self._priorities:
            self._priorities[prepares] = priorities(self.problem, self.order, self.frees, prepares)
        return self._priorities[prepares]

    @cached_property
    def launches(self) -> list[bool]:
        """Per node id: is it a collective?"""
        return [node.kind is Kind.COLLECTIVE for node in self.problem.nodes]

    @cached_property
    def frees(self) -> list[bool]:
        """Per node id: is it a collective that frees memory once it has completed?"""
        return [frees_memory(self.problem, v) for v in range(len(self.problem.nodes))]

    @cached_property
    def costs(self) -> list[bool]:
        """Per node id: does running it take time on some stream, or memory? Views and waits do not."""
        return [
            launch or us > 0 or (kept > 0 and node.kind is not Kind.WAIT)
            for launch, us, kept, node in zip(
                self.launches, self.problem.compute_us, self.live_ranges.kept_bytes, self.problem.nodes, strict=True
            )
        ]

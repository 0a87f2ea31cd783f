"""A reference order with all that follows from it alone: made once, used by every run that starts from it."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from overlap_sched.priority import Keys, frees, keys
from overlap_sched.problem import Kind, Problem


class Reference:
    """A valid order; runs are scheduled from it and fall back on it.

    Attributes:
        problem: What is scheduled.
        order: Node ids. position: its inverse, per node id.
        users: Per storage, the positions of the nodes that use it, ascending.
        alloc_bytes: Per node id, all that its step brings to life (0 for inputs: they are live from the start).
        kept_bytes: The part of it that outlives the step.
        freed_size: Per storage, bytes that go when its last user is done (0 where it is pinned).
        input_bytes: Bytes of all inputs: live from the start.
    """

    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self.problem = problem
        self.order = list(order)
        self.position = [0] * len(self.order)
        for at, v in enumerate(self.order):
            self.position[v] = at
        nodes, storages = problem.nodes, problem.storages
        self.freed_size = [0 if storage.pinned else storage.bytes for storage in storages]
        self.users: list[list[int]] = [[] for _ in storages]
        for at, v in enumerate(self.order):
            for s in nodes[v].use:
                self.users[s].append(at)
        self.alloc_bytes = [0] * len(nodes)
        self.kept_bytes = [0] * len(nodes)
        self.input_bytes = 0
        for v, node in enumerate(nodes):
            if node.kind is Kind.INPUT:
                self.input_bytes += sum(storages[s].bytes for s in node.alloc)
            elif node.alloc:
                self.alloc_bytes[v] = sum(storages[s].bytes for s in node.alloc)
                keeps = node.kind is Kind.OUTPUT
                self.kept_bytes[v] = sum(storages[s].bytes for s in node.alloc if keeps or self.users[s])

    @cached_property
    def profile(self) -> npt.NDArray[np.int64]:
        """Bytes live at each position, from births and deaths."""
        nodes, position = self.problem.nodes, self.position
        change = [0] * (len(nodes) + 1)
        for v, node in enumerate(nodes):
            for s in node.alloc:
                size, pinned = self.problem.storages[s]
                users = self.users[s]
                born = 0 if node.kind is Kind.INPUT else position[v]
                if pinned if users else node.kind in (Kind.INPUT, Kind.OUTPUT):
                    last = len(nodes) - 1
                else:
                    last = users[-1] if users else born
                change[born] += size
                change[last + 1] -= size
        return np.cumsum(np.array(change[:-1], dtype=np.int64))

    @cached_property
    def keys(self) -> Keys:
        """How urgent each node is, along this order."""
        return keys(self.problem, self.order)

    @cached_property
    def launches(self) -> list[bool]:
        """Per node id: is it a collective?"""
        return [node.kind is Kind.COLLECTIVE for node in self.problem.nodes]

    @cached_property
    def frees(self) -> list[bool]:
        """Per node id: is it a collective that frees memory once it is done?"""
        return [launch and frees(self.problem, v) for v, launch in enumerate(self.launches)]

    @cached_property
    def costs(self) -> list[bool]:
        """Per node id: does running it take time on some stream, or memory? Views and waits do not."""
        return [
            launch or us > 0 or (kept > 0 and node.kind is not Kind.WAIT)
            for launch, us, kept, node in zip(
                self.launches, self.keys.compute_us, self.kept_bytes, self.problem.nodes, strict=True
            )
        ]

    @cached_property
    def coming(self) -> dict[str | None, list[int]]:
        """Per group its collectives by latest start."""
        due_us, result = self.keys.due_us, dict[str | None, list[int]]()
        for v in sorted(self.problem.collectives, key=due_us.__getitem__):
            result.setdefault(self.problem.nodes[v].group, []).append(v)
        return result

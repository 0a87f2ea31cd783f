"""Measure one graph for the memory tables."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from overlap_sched.judge.validate import peak_memory
from overlap_sched.peak_memory.addresses import plan_addresses
from overlap_sched.peak_memory.best import best_order, lpmf
from overlap_sched.peak_memory.memory_graph import lead_with_inputs, memory_graph_of
from overlap_sched.problem import Problem
from overlap_sched.simulate.allocator import replay_allocator

T = TypeVar("T")


@dataclass(frozen=True)
class ZooRow:
    """One graph; bytes, seconds; peaks in the ``runtime`` model, all simulated.

    Attributes:
        model: Its name. batch: the batch size. update: whether the step ends with SGD.
        nodes: Of the graph.
        original_bytes: Peak of the order as traced. lpmf_bytes: of torch's, the lowest of its three here.
        peak_bytes: Of ours. bound_bytes: no order's peak is lower. found_by: what found ours.
        arena_bytes: One arena for our order, aligned to 512 bytes. fragmentation: the part of it above the peak.
        original_reserved_bytes, reserved_bytes: What torch's allocator reserves for the original order and for ours.
        order_s, addresses_s: Processor time of both searches.
    """

    model: str
    batch: int
    update: bool
    nodes: int
    original_bytes: int
    lpmf_bytes: int
    peak_bytes: int
    bound_bytes: int
    found_by: str
    arena_bytes: int
    fragmentation: float
    original_reserved_bytes: int
    reserved_bytes: int
    order_s: float
    addresses_s: float

    @property
    def saved_percent(self) -> float:
        """Of the original peak."""
        return 100 * (1 - self.peak_bytes / self.original_bytes)

    @property
    def gap_percent(self) -> float:
        """How far ours is above the bound at most."""
        return 100 * (self.peak_bytes / self.bound_bytes - 1)


def zoo_row(model: str, batch: int, update: bool, problem: Problem) -> ZooRow:
    """All figures of one step."""
    graph = memory_graph_of(problem, "group")
    lpmf_bytes, _ = peak_memory(problem, lead_with_inputs(graph, lpmf(graph)))
    plan, order_s = timed(lambda: best_order(problem, "group"))
    addresses, addresses_s = timed(lambda: plan_addresses(problem, plan.order))
    return ZooRow(
        model=model,
        batch=batch,
        update=update,
        nodes=len(problem.nodes),
        original_bytes=plan.original_bytes,
        lpmf_bytes=lpmf_bytes,
        peak_bytes=plan.peak_bytes,
        bound_bytes=plan.bound_bytes,
        found_by=plan.found_by,
        arena_bytes=addresses.arena_bytes,
        fragmentation=addresses.fragmentation,
        original_reserved_bytes=replay_allocator(problem, problem.original_order).reserved_bytes,
        reserved_bytes=replay_allocator(problem, plan.order).reserved_bytes,
        order_s=order_s,
        addresses_s=addresses_s,
    )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What the work returns, and the processor seconds of this process that it took: others' load is not in them."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began

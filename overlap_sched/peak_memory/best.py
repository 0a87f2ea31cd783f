"""The order with the lowest peak found, never above the original; and how far it is from what no order can beat.

    original, lpmf, bfs, dfs, eager (forward, backward)   ->  the lowest
      -> repair at the peak by minimum cuts               ->  lower, or proven there
      -> search in windows around the peak                ->  lower
      -> search everywhere                                ->  lower, or proven

Everything is counted, nothing timed: the same problem and effort give the same order on every rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

from overlap_sched.errors import OptionsError, VerificationError
from overlap_sched.judge.validate import launch_violation, memory_profile, violation
from overlap_sched.peak_memory.cut import floor_bytes
from overlap_sched.peak_memory.descend import eager
from overlap_sched.peak_memory.memory_graph import MemoryGraph, lead_with_inputs, memory_graph_of
from overlap_sched.peak_memory.published import bfs, dfs, lpmf
from overlap_sched.peak_memory.repair import Incumbent, judged, repair
from overlap_sched.peak_memory.windows import lower_to, search_everywhere
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.precedence import Preserve

ORDERS: Mapping[str, Callable[[MemoryGraph], list[int]]] = {
    "lpmf": lpmf,
    "bfs": bfs,
    "dfs": dfs,
    "eager": lambda graph: eager(graph, graph.rest),
    "late": lambda graph: eager(graph, graph.rest, backward=True),
    "eager segments": lambda graph: eager(graph, graph.rest, segments=True),
    "late segments": lambda graph: eager(graph, graph.rest, backward=True, segments=True),
}
"""The simple orders by name, near-linear each. ``lpmf``, ``bfs``, ``dfs``: torch's. ``eager``, ``late``: the original,
but what frees memory as soon, what takes it as late as it can; ``segments``: with short climbs that pay off."""

ROUNDS, ARCS, STEPS = 30, 1_000_000, 20_000
"""A unit of effort: repairs, arcs looked at in their cuts, steps of each kind of search."""

LARGE, CLOSE = 2_000, 1e-6
"""Graphs of more nodes are not searched for less than this share of the peak: a few bytes would cost seconds."""


@dataclass(frozen=True)
class MemoryPlan:
    """An order with a low peak, checked by the validator.

    Attributes:
        problem: What was ordered.
        order: Node ids in the order to run; the original one where no lower peak was found.
        original_bytes, peak_bytes: Peak of the original order and of ``order``.
        bound_bytes: No order's peak is lower.
        found_by: What found the order.
        tried: Peaks of the simple orders, by name; ``original`` among them.
        work: Arcs of cuts and steps of searches, counted: the same on every machine.
    """

    problem: Problem
    order: Order
    original_bytes: int
    peak_bytes: int
    bound_bytes: int
    found_by: str
    tried: Mapping[str, int]
    work: int

    @property
    def optimal(self) -> bool:
        """Tell whether no order has a lower peak: proven."""
        return self.peak_bytes == self.bound_bytes

    @property
    def gap(self) -> float:
        """How far the peak may be above the best there is: 0.01 for one percent."""
        return self.peak_bytes / self.bound_bytes - 1 if self.bound_bytes else 0.0


def best_order(problem: Problem, preserve_collective_order: Preserve = "none", effort: int = 2) -> MemoryPlan:
    """The order with the lowest peak found.

    Args:
        problem: What to order; memory is counted in its own model (:data:`overlap_sched.problem.MemoryModel`).
        preserve_collective_order: As in :class:`~overlap_sched.options.Options`: ``"none"`` (default), ``"group"``,
            ``"all"`` or ``"waits"``.
        effort: How much is tried: 0: the simple orders only; each unit more doubles repairs and searches.

    Raises:
        OptionsError: ``preserve_collective_order`` or ``effort`` is not one of these.
        VerificationError: The order that came out is not valid: a bug.
    """
    check_arguments(preserve_collective_order, effort)
    graph = memory_graph_of(problem, preserve_collective_order)
    original = judged(graph, graph.rest)
    original_bytes = max(memory_profile(problem, problem.original_order))
    tried = {"original": original_bytes}
    best, found_by = original, "original"
    bound = floor_bytes(graph)
    for name, make in ORDERS.items():
        other = judged(graph, make(graph))
        tried[name] = other.score[0]
        if other.score[0] < best.score[0]:
            best, found_by = other, name
        if best.score[0] <= bound:
            break
    work = 0
    if effort:
        best, bound, found_by, work = _improved(graph, best, bound, found_by, 2 ** (effort - 1))
    order = lead_with_inputs(graph, best.order)
    if best.score[0] >= original_bytes:
        order, found_by = problem.original_order, "original"
    checked(problem, order, preserve_collective_order)
    peak = max(memory_profile(problem, order))
    return MemoryPlan(problem, order, original_bytes, peak, min(bound, peak), found_by, tried, work)


def _improved(
    graph: MemoryGraph, best: Incumbent, bound: int, found_by: str, units: int
) -> tuple[Incumbent, int, str, int]:
    arcs, window_steps, steps = ARCS * units, STEPS * units, STEPS * units
    whole, before = arcs + window_steps + steps, best.score[0]
    best, bound, arcs = repair(graph, best, bound, ROUNDS * units, arcs)
    if best.score[0] < before:
        before, found_by = best.score[0], "repair"
    if not _close(graph, before, bound):
        best, window_steps = lower_to(graph, best, bound, window_steps, any_lower=True)
        if best.score[0] < before:
            before, found_by = best.score[0], "windows"
    if not _close(graph, before, bound):
        best, bound, steps = search_everywhere(graph, best, bound, steps)
        if best.score[0] < before:
            found_by = "search"
    return best, bound, found_by, whole - arcs - window_steps - steps


def _close(graph: MemoryGraph, peak: int, bound: int) -> bool:
    return peak - bound <= (CLOSE * peak if len(graph.rest) > LARGE else 0)


def check_arguments(preserve_collective_order: str, effort: int) -> None:
    """Raise for values that these arguments cannot have."""
    if preserve_collective_order not in get_args(Preserve):
        known = ", ".join(map(repr, get_args(Preserve)))
        raise OptionsError(f"preserve_collective_order is {preserve_collective_order!r}; it is one of {known}.")
    if isinstance(effort, bool) or not isinstance(effort, int) or effort < 0:
        raise OptionsError(f"effort is {effort!r}; it is a whole number, 0 or more.")


def checked(problem: Problem, order: Order, preserve: Preserve) -> None:
    """Raise unless the order can run and keeps the launch order asked for.

    Raises:
        VerificationError: It does not.
    """
    broken = violation(problem, order) or launch_violation(problem, order, preserve)
    if broken is not None:
        raise VerificationError(
            f"the memory order of {problem.name!r} is not valid: {broken}. This is a bug: please report it."
        )

"""Several runs, the best one kept.

A run is fast and greedy; which lead and slack suit a graph is known only afterwards. So: runs from the original
order, one per policy, then runs from the best order so far (it is itself a valid reference within the budget).
How many is counted, never timed: every rank gets the same order.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from overlap_sched.completion import reference_profile
from overlap_sched.liveness import peak_memory
from overlap_sched.options import Options, headroom_bytes
from overlap_sched.problem import MAX_TOTAL_BYTES, Kind, Problem
from overlap_sched.run import Policy, Run, list_schedule

POLICIES = (
    Policy(lead=0.02, slack=0.01),  # launches early, the critical path a little ahead: best on most graphs
    Policy(lead=0.10, slack=-0.03),  # network-bound: launches very early, compute nearly in reference order
    Policy(lead=0.02, slack=0.03),  # compute-bound with a long tail: weight gradients far behind the critical path
    Policy(lead=0.02, slack=-0.03),  # network-bound on one stream: early gathers would crowd it
)
"""In the order in which they are tried."""

CLOSED = 1.001
"""A step within 0.1 % of the simple bound is not improved further."""

SAME_STEP = 1e-9
"""Relative: steps closer than this differ by rounding, and the lower peak decides."""


def best_run(problem: Problem, options: Options, step_us: float, peak_bytes: int) -> Run | None:
    """The best run by (step, peak), or ``None`` where none beats the original order.

    Args:
        problem: What to schedule.
        options: Budget, launch order to keep, and effort: the number of runs.
        step_us: Step of the original order.
        peak_bytes: Its peak.
    """
    limit = budget(problem, options, peak_bytes)
    chains = launch_chains(problem, options)
    goal_us = CLOSED * simple_bound_us(problem)
    best: Run | None = None
    for k in range(options.effort):
        if step_us <= goal_us:
            break
        reference = problem.original_order if best is None or k < len(POLICIES) else best.order
        run = list_schedule(problem, reference, limit, POLICIES[k % len(POLICIES)], chains)
        run_peak, _ = peak_memory(problem, run.order)
        shorter = run.step_us < step_us * (1 - SAME_STEP)
        if shorter or (run.step_us <= step_us * (1 + SAME_STEP) and run_peak < peak_bytes):
            best, step_us, peak_bytes = run, run.step_us, run_peak
    return best


def budget(problem: Problem, options: Options, peak_bytes: int) -> npt.NDArray[np.int64]:
    """The budget in bytes: one value, or one per position (``options.budget``)."""
    headroom = min(headroom_bytes(options.headroom, peak_bytes), MAX_TOTAL_BYTES)
    if options.budget == "profile":
        return reference_profile(problem, problem.original_order) + headroom
    return np.array(peak_bytes + headroom, dtype=np.int64)


def launch_chains(problem: Problem, options: Options) -> tuple[tuple[int, int], ...]:
    """Pairs of collectives whose launches must keep their order (``options.preserve_collective_order``)."""
    return tuple(_chains(problem, options)) if options.preserve_collective_order != "none" else ()


def _chains(problem: Problem, options: Options) -> Iterator[tuple[int, int]]:
    last: dict[str | None, int] = {}
    for v in problem.collectives:
        key = problem.nodes[v].group if options.preserve_collective_order == "group" else None
        if key in last:
            yield last[key], v
        last[key] = v


def simple_bound_us(problem: Problem) -> float:
    """All compute, or all time of one group, whichever is longer: the part of the bound that costs nothing."""
    compute_us, stream_us = 0.0, dict.fromkeys(problem.groups, 0.0)
    for node in problem.nodes:
        if node.kind is Kind.COLLECTIVE and node.group is not None:
            stream_us[node.group] += node.time_us
        elif node.kind is not Kind.WAIT:
            compute_us += node.time_us
    return max(compute_us, *stream_us.values()) if stream_us else compute_us

"""Several runs, the best one kept.

A run is fast and greedy; which lead and slack suit a graph is known only afterwards. So: runs from the original
order, one per policy, then runs from the best order so far (it is itself a valid reference within the budget).
How many is counted, never timed: every rank gets the same order.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from overlap_sched.completion import reference_profile
from overlap_sched.options import Options, headroom_bytes
from overlap_sched.problem import MAX_TOTAL_BYTES, Kind, Problem
from overlap_sched.result import Work
from overlap_sched.run import Policy, Run, list_schedule

FIRST = Policy(lead=0.02, slack=0.01)  # launches early, the critical path a little ahead: best on most graphs
EXTREMES = (  # small graphs are anything; these three find most of what the others miss there
    Policy(lead=1.0, slack=-0.03),  # every collective as soon as memory allows
    Policy(lead=0.005, slack=-1.0),  # reference order, come what may
    Policy(lead=1.0, slack=1.0),  # the longest path first, come what may
)
TAIL_STANDS = (  # compute ends too soon: keep weight gradients for the end, behind the critical path
    FIRST,
    Policy(lead=0.02, slack=0.08),
    Policy(lead=0.02, slack=0.03),
    Policy(lead=0.05, slack=0.05),
    *EXTREMES,
)
MIDDLE_STANDS = (  # the critical path was moved ahead of its gathers, or early gathers took another's memory
    FIRST,
    Policy(lead=0.02, slack=-0.03),
    Policy(lead=0.0, slack=0.01),
    Policy(lead=0.02, slack=0.03),
    *EXTREMES,
)
NETWORK_BOUND = (  # communication is longer than all compute
    FIRST,
    Policy(lead=0.1, slack=-0.03),  # launches very early, compute nearly in reference order
    Policy(lead=0.005, slack=0.03),  # the longest path first, communication included
    Policy(lead=0.1, slack=-0.01),
    *EXTREMES,
)
"""In the order in which they are tried; which of the three, the first run tells."""

RUN_NODES, MOST_RUNS = 10_000, 8
"""A unit of effort is one run on a graph of this many nodes, and more runs, up to so many, on a smaller one."""

GOAL_PERCENT = 2.0
"""Runs end once the step is within this, divided by the effort, of the simple bound: estimates are not that exact."""

SAME_STEP = 1e-9
"""Relative: steps closer than this differ by rounding, and the lower peak decides."""


def best_run(problem: Problem, options: Options, step_us: float, peak_bytes: int) -> tuple[Run | None, Work]:
    """The best run by (step, peak), or ``None`` where none beats the original order; and the work of all.

    Args:
        problem: What to schedule.
        options: Budget, launch order to keep, and effort: the number of runs.
        step_us: Step of the original order.
        peak_bytes: Its peak.
    """
    limit = budget(problem, options, peak_bytes)
    chains = launch_chains(problem, options)
    compute_us, stream_us = simple_bounds_us(problem)
    bound_us = max(compute_us, stream_us)
    close = 1 + GOAL_PERCENT / 100 / max(options.effort, 1)
    best, work = None, Work()
    policies: tuple[Policy, ...] = TAIL_STANDS
    for k in range(options.effort * min(max(RUN_NODES // len(problem.nodes), 1), MOST_RUNS)):
        if step_us <= bound_us * (close if k else 1):  # an original order is left alone only at the bound itself
            break
        reference = problem.original_order if best is None or k < len(policies) else best.order
        run = list_schedule(problem, reference, limit, policies[k % len(policies)], chains)
        bound_us = max(bound_us, run.longest_us)
        if k == 0:
            policies = _what_stands(run, compute_us, bound_us)
        work = Work(*map(sum, zip(work, run.work, strict=True)))
        shorter = run.step_us < step_us * (1 - SAME_STEP)
        if shorter or (run.step_us <= step_us * (1 + SAME_STEP) and run.peak_bytes < peak_bytes):
            best, step_us, peak_bytes = run, run.step_us, run.peak_bytes
    return best, work


def _what_stands(run: Run, compute_us: float, bound_us: float) -> tuple[Policy, ...]:
    """What to try after a first run, by where its compute stream stood still."""
    if bound_us > compute_us:
        return NETWORK_BOUND
    return TAIL_STANDS if 2 * run.tail_us > run.step_us - compute_us else MIDDLE_STANDS


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


def simple_bounds_us(problem: Problem) -> tuple[float, float]:
    """All compute, and all time of the busiest group: the part of the bound that costs nothing."""
    compute_us, stream_us = 0.0, dict.fromkeys(problem.groups, 0.0)
    for node in problem.nodes:
        if node.kind is Kind.COLLECTIVE and node.group is not None:
            stream_us[node.group] += node.time_us
        elif node.kind is not Kind.WAIT:
            compute_us += node.time_us
    return compute_us, max(stream_us.values(), default=0.0)

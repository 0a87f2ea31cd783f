"""Several runs, the best one kept.

A run is fast and greedy, and which policy suits a graph is known only afterwards. So: runs from the original order, one
per policy (:mod:`overlap_sched.scheduler.policies`); with more effort, runs from the order with the lowest peak, then
again and again from the best so far (both are valid references within the budget); on a small graph a beam search. How
much is counted, never timed: every rank gets the same order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from overlap_sched.judge.replay import replay
from overlap_sched.options import Options, headroom_bytes
from overlap_sched.problem import MAX_TOTAL_BYTES, Order, Problem
from overlap_sched.problem.contention import NO_CONTENTION
from overlap_sched.scheduler.beam_search import beam_search
from overlap_sched.scheduler.fill_tail import shorter_tail
from overlap_sched.scheduler.policies import policies_for
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.result import Reason, Work
from overlap_sched.scheduler.run import Run, list_schedule
from overlap_sched.scheduler.shift import widened

if TYPE_CHECKING:
    from overlap_sched.peak_memory.best import MemoryPlan

RUN_NODES = 15_000
"""A unit of effort is one run on a graph of up to so many nodes, less on a larger one."""

GOAL_PERCENT = 1.5
"""Runs end once the step is within this, divided by the effort, of the simple bound: estimates are not that exact."""

MEMORY_EFFORT = 2
"""Most effort that goes into the order with the lowest peak (:func:`overlap_sched.peak_memory.best_order`)."""

LOOKS, MOST_WIDE, LEAST_WIDE = 1_000, 64, 32
"""States that a unit of effort may look at in a beam search, its widest beam, and the narrowest that is worth it."""

SAME_STEP = 1e-9
"""Relative: steps closer than this differ by rounding, and the lower peak decides."""


def best_run(
    problem: Problem, options: Options, step_us: float, peak_bytes: int, base: Order, base_bytes: int
) -> tuple[Run | None, Work]:
    """The best run by (step, peak), or ``None`` where none beats the original order; and the work of all.

    Args:
        problem: What to schedule.
        options: Budget, launch order to keep, and effort: the number of runs.
        step_us: Step of the original order.
        peak_bytes: Its peak.
        base: The order to start from.
        base_bytes: The peak that headroom is counted from.
    """
    reference = Reference(problem, base)
    limit = budget(reference, options, base_bytes)
    chains = launch_chains(problem, options)
    best, work = _best_of_runs(reference, options, limit, chains, step_us, peak_bytes)
    if problem.contention:  # widened, it could be slower
        return _better_blind(reference, options, limit, chains, step_us, best, work)
    if best is None:
        return None, work
    # what the step does not need is given to collectives that take longer than predicted
    most, lives = np.minimum(limit, max(best.peak_bytes, base_bytes)), reference.lives
    wider = partial(widened, lives, limit=most, chains=chains)
    if chains:
        return replace(best, order=wider(best.order)), work
    order, put_off = shorter_tail(lives, best.order, most, wider)
    reasons = best.reasons | dict.fromkeys(put_off.intersection(problem.collectives), "put off")
    return replace(best, order=order, reasons=reasons), work


def _better_blind(
    reference: Reference,
    options: Options,
    limit: npt.NDArray[np.int64],
    chains: Sequence[tuple[int, int]],
    step_us: float,
    best: Run | None,
    work: Work,
) -> tuple[Run | None, Work]:
    """The best run, or one made as if there were no contention where that is shorter: lists are greedy either way."""
    problem = reference.problem
    blind = replace(problem, contention=NO_CONTENTION)
    blind_us = replay(blind, blind.original_order).step_us
    other, more = _best_of_runs(Reference(blind, reference.order, reference.lives), options, limit, chains, blind_us, 0)
    if other is not None:
        other = replace(other, step_us=replay(problem, other.order).step_us)
        if other.step_us < (step_us if best is None else best.step_us) * (1 - SAME_STEP):
            best = other
    return best, _sum(work, more)


def _best_of_runs(
    reference: Reference,
    options: Options,
    limit: npt.NDArray[np.int64],
    chains: Sequence[tuple[int, int]],
    step_us: float,
    peak_bytes: int,
) -> tuple[Run | None, Work]:
    problem = reference.problem
    compute_us, stream_us = busy_us(problem)
    bound_us, policies = max(compute_us, stream_us), policies_for(compute_binds=compute_us >= stream_us)
    close = 1 + GOAL_PERCENT / 100 / max(options.effort, 1)
    best, work, start = None, Work(), reference
    for k in range(runs(options.effort, len(problem.nodes))):
        if step_us <= bound_us * (close if k else 1):  # an original order is left alone only at the bound itself
            return best, work
        if k == len(policies) and options.base == "original" and options.budget == "peak":
            start = Reference(problem, lowest_peak(problem, options).order, reference.lives)
        elif k > len(policies) and k % len(policies) == 0 and best is not None:
            start = Reference(problem, best.order, reference.lives)
        run = list_schedule(start, limit, policies[k % len(policies)], chains, step_us * (1 + SAME_STEP))
        work = _sum(work, run if isinstance(run, Work) else run.work)
        if isinstance(run, Work):
            continue
        bound_us = max(bound_us, run.longest_us)
        shorter = run.step_us < step_us * (1 - SAME_STEP)
        if shorter or (run.step_us <= step_us * (1 + SAME_STEP) and run.peak_bytes < peak_bytes):
            best, step_us, peak_bytes = run, run.step_us, run.peak_bytes
    width = min(options.effort * LOOKS // len(problem.nodes), MOST_WIDE)
    if width >= LEAST_WIDE and step_us > bound_us * close and not problem.contention:
        found = beam_search(reference, limit, chains, step_us * (1 - SAME_STEP), width)
        work = _sum(work, Work(looked=found.looked))
        if found.order is not None:
            reasons: dict[int, Reason] = dict.fromkeys(problem.collectives, "searched")
            best = Run(found.order, found.step_us, found.peak_bytes, bound_us, reasons, {}, work)
    return best, work


def lowest_peak(problem: Problem, options: Options) -> "MemoryPlan":
    """The order with the lowest peak found; it is within the budget wherever the original order is."""
    from overlap_sched.peak_memory.best import best_order  # not loaded by who does not ask for it

    return best_order(problem, options.preserve_collective_order, min(options.effort, MEMORY_EFFORT))


def runs(effort: int, nodes: int) -> int:
    """How many runs an effort is worth on a graph of so many nodes: one at least, none for no effort."""
    return max(effort * RUN_NODES // max(nodes, RUN_NODES), min(effort, 1))


def _sum(one: Work, other: Work) -> Work:
    return Work(*map(sum, zip(one, other, strict=True)))


def budget(base: Reference, options: Options, peak_bytes: int) -> npt.NDArray[np.int64]:
    """The budget in bytes: one value, or one per position (``options.budget``)."""
    headroom = min(headroom_bytes(options.headroom, peak_bytes), MAX_TOTAL_BYTES)
    if options.budget == "profile":
        return base.profile + headroom
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


def busy_us(problem: Problem) -> tuple[float, float]:
    """All compute, and all time of the busiest group: no step is shorter than either, which costs nothing to know."""
    stream_us = dict.fromkeys(problem.groups, 0.0)
    for v in problem.collectives:
        stream_us[problem.nodes[v].group or ""] += problem.nodes[v].time_us
    return sum(problem.compute_us), max(stream_us.values(), default=0.0)

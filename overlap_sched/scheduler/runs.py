"""Several runs of the list scheduler, the best one kept.

A run is fast and greedy, and which policy suits a graph is known only afterwards. So: runs from the order given, one
per policy (they are listed below in the order in which they are
tried); with more effort, runs from the order with the lowest peak, then
again and again from the best so far (both are valid references within the budget). Where one run is not enough on a
graph of several chains, the next ones start from an order that goes from chain to chain
(:mod:`overlap_sched.scheduler.chains`), as many again. Where the best is near the bound, another policy that ends
at the same step ends it: the graph sets that end, not the policy. How much is counted, never timed: every rank gets the
same order.
"""

from dataclasses import replace

from overlap_sched.peak_memory.best import MemoryPlan, best_order
from overlap_sched.problem import Problem
from overlap_sched.scheduler.chains import has_chains, interleaved
from overlap_sched.scheduler.list_scheduler import Policy, list_schedule
from overlap_sched.scheduler.task import SAME_STEP, TUNING, Candidate, Priorities, Reference, Task

FAR, NEAR, NEXT = TUNING.windows

IN_ORDER = Policy(0.005, -1.0, FAR)
"""Reference order, come what may."""
FAR_AHEAD = Policy(0.005, 0.12, FAR)
"""The critical path far ahead, weight gradients behind it."""
WHILE_STALLED = Policy(0.02, -0.03, NEAR, prepares=False)
"""Compute stalls often enough to prepare launches meanwhile."""
EARLY = Policy(0.1, -0.03, FAR)
"""Launches very early."""

LAST = (
    Policy(1.0, -0.03, FAR),  # every collective as soon as memory allows
    IN_ORDER,
    Policy(1.0, 1.0, FAR),  # the longest path first, come what may
)
"""Graphs of a few layers are anything; these find most of what the others miss there."""

COMPUTE_BINDS = (
    FAR_AHEAD,
    Policy(0.02, -0.03, NEAR),  # the critical path only when it is late: memory binds
    Policy(0.0, -0.03, FAR),  # the same, launches at their latest start: memory binds more
    Policy(0.01, -0.03, NEAR),
    *LAST,
)
NETWORK_BINDS = (
    WHILE_STALLED,
    Policy(-0.02, -0.03, NEXT, prepares=False),  # launches late, next to nothing far ahead: memory binds too
    EARLY,
    Policy(0.02, -0.03, NEAR),
    FAR_AHEAD,
    *LAST,
)
BESIDE = TUNING.beside

CONTENDED_LAST = tuple(replace(policy, beside=BESIDE) for policy in LAST)
CONTENDED_COMPUTE_BINDS = (  # launches at their latest start, or where they cost nothing, come first
    *(replace(COMPUTE_BINDS[k], beside=BESIDE) for k in (2, 1, 0, 3)),
    *CONTENDED_LAST,
)
CONTENDED_NETWORK_BINDS = (
    Policy(0.02, -0.03, NEAR, prepares=False, beside=BESIDE),
    Policy(0.6, -0.03, FAR, keeps_busy=True, beside=BESIDE),  # launches very early: a link that is shared never rests
    Policy(0.4, -0.03, FAR, keeps_busy=True, beside=BESIDE, again=True),
    Policy(0.0, -0.03, FAR, beside=BESIDE),
    Policy(0.02, -0.03, NEAR, beside=BESIDE),
    Policy(0.1, -0.03, FAR),
    *CONTENDED_LAST,
)
# the order given first, come what may: it goes from chain to chain already
INTERLEAVED = tuple(replace(one, keeps_busy=True) for one in (IN_ORDER, COMPUTE_BINDS[1], LAST[0], FAR_AHEAD))
"""For runs from an order of several chains (:mod:`overlap_sched.scheduler.chains`)."""


def first_run(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """The stage: one run; an order that is at the bound itself is left alone."""
    if not _count(task) or best.step_us <= _bound_us(task, reference):
        return best
    return _run(task, reference, _policies(task)[0], best)[0]


def of_chains(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """The stage: the best of as many runs from an order that goes from chain to chain, until a step is short enough."""
    count, enough_us = _count(task), _enough_us(task, reference)
    if count < 2 or best.step_us <= enough_us or not has_chains(task.problem):
        return best
    start = reference.reordered(interleaved(task, reference))
    for policy in INTERLEAVED[: 1 if best.step_us <= near_us(task, reference) else count]:
        best, _ = _run(task, start, policy, best)
        if best.step_us <= enough_us:
            break
    return best


def more_runs(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """The stage: runs with other policies, from other orders, as many as effort is worth."""
    options, policies, start = task.options, _policies(task), reference
    enough_us, enough_for_one_us = _enough_us(task, reference), near_us(task, reference)
    for k in range(1, _count(task)):
        if best.step_us <= enough_us:
            break
        if k == len(policies) and options.base == "original" and options.budget == "peak":
            start = reference.reordered(lowest_peak(task).order)
        elif k > len(policies) and k % len(policies) == 0 and best.reasons:
            start = reference.reordered(best.order)
        policy, made_by_us = policies[k % len(policies)], bool(best.reasons)
        begin = reference.reordered(best.order) if policy.again and made_by_us else start
        best, as_long = _run(task, begin, policy, best)
        if as_long and made_by_us and best.step_us <= enough_for_one_us:
            break
    return best


def count_rounds(task: Task) -> int:
    """How many rounds effort is worth: one a unit on a graph of up to 15,000 nodes, less on a larger one."""
    return task.options.effort * TUNING.run_nodes // max(len(task.problem.nodes), TUNING.run_nodes)


def _count(task: Task) -> int:
    """How many runs: one at least, none for no effort."""
    return max(count_rounds(task), min(task.options.effort, 1))


def _bound_us(task: Task, reference: Reference) -> float:
    return simple_bound_us(task.problem, reference.priorities(_policies(task)[0].prepares))


def _enough_us(task: Task, reference: Reference) -> float:
    return _bound_us(task, reference) * close_enough(task)


def _policies(task: Task) -> tuple[Policy, ...]:
    compute_us, stream_us = busy_us(task.problem)
    if task.problem.contention:
        return CONTENDED_COMPUTE_BINDS if compute_us >= stream_us else CONTENDED_NETWORK_BINDS
    return COMPUTE_BINDS if compute_us >= stream_us else NETWORK_BINDS


def _run(task: Task, start: Reference, policy: Policy, best: Candidate) -> tuple[Candidate, bool]:
    """The result of one more run, or the best before it; and whether the run's step is as long as that one's."""
    run = list_schedule(start, task.limit, policy, task.pairs, best.step_us * (1 + SAME_STEP))
    if run.made is None:
        return replace(best, work=best.work.plus(run.work)), False
    as_long = abs(run.made.step_us - best.step_us) <= SAME_STEP * best.step_us
    return best.or_better(run.made, run.work), as_long


def near_us(task: Task, reference: Reference) -> float:
    """Below this step in microseconds, little is left to find."""
    bound_us = max(_bound_us(task, reference), streams_bound_us(reference.priorities(_policies(task)[0].prepares)))
    return bound_us * (1 + TUNING.near_goals * (close_enough(task) - 1))


def simple_bound_us(problem: Problem, priorities: Priorities) -> float:
    """No step is shorter than all compute, the busiest stream, or the longest path; linear."""
    return max(*busy_us(problem), priorities.critical_path_us)


def streams_bound_us(priorities: Priorities) -> float:
    """No step is shorter than all of a stream and the least path that is behind any of it."""
    behind_us = priorities.behind_us
    return max([us + behind_us[group] for group, us in priorities.stream_us.items() if us], default=0.0)


def close_enough(task: Task) -> float:
    """A step within this factor of the bound is good enough for the effort asked for."""
    return 1 + TUNING.goal_percent / 100 / max(task.options.effort, 1)


def lowest_peak(task: Task) -> MemoryPlan:
    """The order with the lowest peak found; it is within the budget wherever the original order is."""
    options, effort = task.options, min(task.options.effort, TUNING.memory_effort)
    if task.like is None and not task.pins:
        return best_order(task.problem, options.preserve_collective_order, effort)
    start = task.nearest
    plan = best_order(task.problem.renumbered(start, task.pairs), effort=effort)
    return replace(plan, problem=task.problem, order=tuple(start[k] for k in plan.order))


def busy_us(problem: Problem) -> tuple[float, float]:
    """All compute, and all time of the busiest group."""
    stream_us = dict.fromkeys(problem.groups, 0.0)
    for v in problem.collectives:
        stream_us[problem.nodes[v].group or ""] += problem.nodes[v].time_us
    return sum(problem.compute_us), max(stream_us.values(), default=0.0)

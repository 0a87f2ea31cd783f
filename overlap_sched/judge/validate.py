"""Is an order allowed? Brute force on purpose; shares no code with the scheduler.

It reads the nodes' own fields only, rebuilds every rule from them, and returns the first one that is
broken in words, since a user may read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.judge.liveness import memory_profile
from overlap_sched.judge.pins import pin_violation
from overlap_sched.judge.replay import Replay, replay
from overlap_sched.judge.together import together_violation
from overlap_sched.options import Options, headroom_bytes
from overlap_sched.problem import ANY_GROUP, Kind, Problem
from overlap_sched.problem.precedence import Preserve

REPLAY_TOLERANCE = 1e-9
"""Relative: sums of the same times in another order differ by rounding."""


def violation(problem: Problem, order: Sequence[int]) -> str | None:
    """The first rule of the graph that the order breaks, or ``None`` if it can run.

    A permutation; every dependency; no storage used before it is allocated; no wait before its collective;
    an output behind everything listed before it.
    """
    nodes = problem.nodes
    position = [-1] * len(nodes)
    for at, v in enumerate(order):
        if not 0 <= v < len(nodes):
            return f"position {at} holds id {v}, which is not a node of the problem"
        if position[v] >= 0:
            return f"{nodes[v].name} runs twice, at positions {position[v]} and {at}"
        position[v] = at
    if len(order) != len(nodes):
        return f"{nodes[position.index(-1)].name} never runs"

    allocated_at = {s: position[v] for v, node in enumerate(nodes) if node.kind is not Kind.INPUT for s in node.alloc}
    listed_before = -1  # the last position of any node listed before the one at hand
    for v, node in enumerate(nodes):
        at = position[v]
        for u in node.deps:
            if position[u] > at:
                return f"{node.name} runs before {nodes[u].name}, on which it depends"
        if node.collective is not None and position[node.collective] > at:
            return f"{node.name} waits for {nodes[node.collective].name} before it is launched"
        for s in node.use:
            if allocated_at.get(s, -1) > at:
                return f"{node.name} uses storage {s} before it is allocated"
        if node.kind is Kind.OUTPUT and listed_before > at:
            return f"{node.name} runs before {nodes[order[listed_before]].name}, which must not follow an output"
        listed_before = max(listed_before, at)
    return None


@dataclass(frozen=True)
class JudgedOrder:
    """An order as the judges see it: its timeline, and the bytes live at each position."""

    order: Sequence[int]
    timeline: Replay
    profile: Sequence[int]


def measure(problem: Problem, order: Sequence[int]) -> JudgedOrder:
    """Replay a valid order and count its memory."""
    return JudgedOrder(order, replay(problem, order), memory_profile(problem, order))


def broken_promise(
    problem: Problem, original: JudgedOrder, scheduled: JudgedOrder, options: Options, base_bytes: int | None = None
) -> str | None:
    """The first promise of the options that a valid order breaks against the original one, or ``None``.

    Peak (or every position of the profile) within the original plus headroom; step not longer than the
    original; launch order kept where asked for, process groups apart, and pins kept.

    Args:
        problem: What was scheduled.
        original: The original order.
        scheduled: The one that came out.
        options: What was asked for.
        base_bytes: The peak that headroom is counted from, where that is not the original's.
    """
    order, reference = scheduled.order, original.profile
    peak = max(reference) if base_bytes is None else base_bytes
    headroom = headroom_bytes(options.headroom, peak)
    for at, live in enumerate(scheduled.profile):
        limit = (peak if options.budget == "peak" else reference[at]) + headroom
        if live > limit:
            name = problem.nodes[order[at]].name
            return f"{live} bytes are live at position {at} ({name}), {live - limit} above the {options.budget} budget"

    before_us, after_us = original.timeline.step_us, scheduled.timeline.step_us
    if after_us > before_us * (1 + REPLAY_TOLERANCE):
        return f"the step takes {after_us} us, longer than the original's {before_us} us"

    return (
        launch_violation(problem, order, options.preserve_collective_order)
        or together_violation(problem, order, options.concurrent_groups)
        or pin_violation(problem, order, options.pins)
    )


def launch_violation(problem: Problem, order: Sequence[int], preserve: Preserve) -> str | None:
    """The first launch of a valid order that is not in the order asked for, or wait in front of one, or ``None``."""
    last: dict[str | None, int] = {}
    to_come = {v for v, node in enumerate(problem.nodes) if node.kind is Kind.COLLECTIVE or node.launches}
    for v in order if preserve != "none" else ():
        node = problem.nodes[v]
        on = [node.group] if node.kind is Kind.COLLECTIVE else list(node.launches)
        if not on:
            if preserve == "waits" and node.kind is Kind.WAIT and (first := min(to_come, default=v)) < v:
                return f"{node.name} waits before {problem.nodes[first].name} is launched, unlike originally"
            continue
        to_come.discard(v)
        every = preserve in ("all", "waits") or ANY_GROUP in on
        later = max((u for group, u in last.items() if every or group in (*on, ANY_GROUP)), default=-1)
        if later > v:
            return f"{problem.nodes[later].name} is launched before {node.name}, unlike originally"
        last.update(dict.fromkeys(on, v))
    return None

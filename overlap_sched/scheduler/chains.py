"""Where a graph has several chains, and where on its chain each node is: what depends on no order.

A chain is compute and communication that need each other in turn. One pass of one model is one chain, with short
branches; two halves of a batch, or two micro-batches, are two::

    a0 -> launch -> wait -> a1 -> launch -> wait -> a2         one stage: what a chain computes between two collectives
    b0 -> launch -> wait -> b1 -> launch -> wait -> b2

What nothing that takes long comes before (a cast, the gather of a weight) belongs to no chain: it can run at any time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.problem import Kind, NodeId, Problem
from overlap_sched.scheduler.priority import CHEAP, Priorities

SECOND_PATH = 0.08
"""There are several chains if the longest path beside the longest path is at least this part of it."""


@dataclass(frozen=True)
class Chains:
    """Per node id; times without contention, and without waiting for one's stream.

    Attributes:
        on_demand: Does nothing that takes long come before it, and does it take no longer than a cast itself?
        begins: Does it take long, and nothing that does comes before it (a layer computed again)?
        ahead: What part of its chain is ahead of it, in time. Weight gradients are where they can run at the earliest,
            what begins something is where it must run at the latest.
        stage_us: Not per node: about how long the stages are; infinite where no chain has a collective.
    """

    on_demand: list[bool]
    begins: list[bool]
    ahead: list[float]
    stage_us: float


def has_chains(problem: Problem) -> bool:
    """Is there a second long path that shares no node with the longest one?

    Only what has compute both before and behind it counts: not the weight gradient of a large last layer.
    """
    inner = _between_compute(problem)
    longest_us, path = _longest_path(problem, inner, frozenset())
    beside_us, _ = _longest_path(problem, inner, frozenset(path))
    return beside_us >= SECOND_PATH * longest_us > 0


def chains(problem: Problem, priorities: Priorities, before: Sequence[Sequence[NodeId]]) -> Chains:
    """Where each node is; ``before``: what must run before each, the problem's rules and more."""
    follows, on_demand = [False] * len(before), [False] * len(before)
    for v, nodes in enumerate(before):
        follows[v] = any(not on_demand[u] for u in nodes)
        on_demand[v] = not follows[v] and priorities.compute_us[v] <= CHEAP * priorities.total_us
    return Chains(
        on_demand=on_demand,
        begins=[not one and not other for one, other in zip(follows, on_demand, strict=True)],
        ahead=_ahead(problem, priorities, before, follows, on_demand),
        stage_us=_stage_us(problem, before, on_demand),
    )


def _ahead(
    problem: Problem,
    priorities: Priorities,
    before: Sequence[Sequence[NodeId]],
    follows: Sequence[bool],
    on_demand: Sequence[bool],
) -> list[float]:
    nodes, level_us = problem.nodes, priorities.bottom_level_us
    begin_us, done_us = [0.0] * len(nodes), [0.0] * len(nodes)
    for v, node in enumerate(nodes):
        begin_us[v] = max([done_us[u] for u in before[v]], default=0.0)
        done_us[v] = begin_us[v] + (node.time_us if node.kind is Kind.COLLECTIVE else priorities.compute_us[v])
    path_us = [begin + level for begin, level in zip(begin_us, level_us, strict=True)]  # the longest that v is on,
    for v in range(len(nodes) - 1, -1, -1):
        if nodes[v].kind is not Kind.OUTPUT:
            for u in before[v]:
                path_us[u] = max(path_us[u], path_us[v])  # or that what needs v is on,
    ahead = []
    for v, path in enumerate(path_us):
        if follows[v]:  # or that what v follows on is on
            path_us[v] = path = max(path, *(path_us[u] for u in before[v] if not on_demand[u]))
        left_us = path - begin_us[v] if follows[v] else level_us[v]
        ahead.append(left_us / path if path else 0.0)
    return ahead


def _stage_us(problem: Problem, before: Sequence[Sequence[NodeId]], on_demand: Sequence[bool]) -> float:
    """Nine of ten stages take less: twice their longest path, since there may be branches."""
    nodes, us, inner = problem.nodes, problem.compute_us, _between_compute(problem)
    since_us, stages = [0.0] * len(nodes), []  # compute on the longest path since the last wait
    for v, node in enumerate(nodes):
        if on_demand[v] or node.kind in (Kind.WAIT, Kind.OUTPUT):
            continue
        follows_wait = any(nodes[u].kind is Kind.WAIT and not on_demand[u] for u in before[v])
        path_us = 0.0 if follows_wait else max([since_us[u] for u in before[v]], default=0.0)
        if node.kind is not Kind.COLLECTIVE:
            since_us[v] = path_us + us[v]
        elif inner[v]:
            stages.append(path_us)
    return 2 * sorted(stages)[len(stages) * 9 // 10] if stages else math.inf


def _between_compute(problem: Problem) -> list[bool]:
    """Per node: does it follow on compute that takes time, and does such compute follow on it?"""
    busy = [us > 0 for us in problem.compute_us]
    follows, followed = [False] * len(busy), [False] * len(busy)
    for v, before in enumerate(problem.predecessors):
        if problem.nodes[v].kind is not Kind.OUTPUT:
            follows[v] = any(follows[u] or busy[u] for u in before)
    for v in range(len(busy) - 1, -1, -1):
        if followed[v] or busy[v]:
            for u in problem.predecessors[v]:
                followed[u] = True
    return [both == (True, True) for both in zip(follows, followed, strict=True)]


def _longest_path(problem: Problem, inner: Sequence[bool], without: frozenset[NodeId]) -> tuple[float, list[NodeId]]:
    """Time, communication included, and nodes of a longest path of inner nodes that avoids some of them."""
    done_us, last = [0.0] * len(problem.nodes), [-1] * len(problem.nodes)
    for v, node in enumerate(problem.nodes):
        if v in without or not inner[v]:
            continue
        for u in problem.predecessors[v]:
            if done_us[u] > done_us[v]:
                done_us[v], last[v] = done_us[u], u
        done_us[v] += node.time_us if node.kind is not Kind.WAIT else 0.0
    v = max(range(len(done_us)), key=done_us.__getitem__)
    length_us, path = done_us[v], []
    while v >= 0:
        path.append(v)
        v = last[v]
    return length_us, path

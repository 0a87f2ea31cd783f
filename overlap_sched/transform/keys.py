"""Which collectives may go together: those of one key, without a path between them.

Besides operator, group and what else must be alike, a key has a *level*: of what gathers, how many collectives lie on
the longest path before it; of what reduces, behind it. Two collectives of one level have no path between them, and
buckets of one level never wait for each other in a ring: what gathers a parameter has level 0, as what reduces its
gradient has, while activations that are gathered layer by layer have a level each::

    gather w -> mm -> gather (tp) -> mm -> reduce (tp) -> wgrad -> scatter dw
    level 0           level 1              level 1                 level 0
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from overlap_sched.errors import RewriteError
from overlap_sched.problem import Kind, Node, NodeId, Problem
from overlap_sched.problem.node import OF_HOST
from overlap_sched.transform.draft import Alike, Draft
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import BUCKETED

SMALL_BYTES, LARGE_BYTES = 2**16, 2**28
"""What a collective of so few bytes takes is latency; what one of so many takes has next to none in it."""


class Key(NamedTuple):
    """What members of a bucket share."""

    op: str
    group: str
    alike: str
    level: int


BatchTime = Callable[[Key, int], float]
"""Microseconds of a collective of a key and so many bytes."""


def keys_of(problem: Problem, alike: Alike | None, ops: Sequence[str] = BUCKETED) -> Mapping[NodeId, Key]:
    """Per collective that can be a member: its key. Linear.

    Args:
        problem: What they are of.
        alike: Only those that are in it can; ``None``: it is not known, and all can.
        ops: Operators that may be bucketed.
    """
    draft = Draft(problem, problem.original_order)
    before, behind = _levels(problem)
    keys = {}
    for v in problem.collectives:
        node = problem.nodes[v]
        if node.op not in ops or (alike is not None and node.name not in alike):
            continue
        try:
            draft.single(node.name)
        except RewriteError:
            continue
        level = before[v] if "gather" in node.op else behind[v]
        keys[v] = Key(node.op, node.group or "", "" if alike is None else alike[node.name], level)
    return keys


def _levels(problem: Problem) -> tuple[list[int], list[int]]:
    """Per node, how many collectives lie on the longest path before it, and behind it."""
    launches = [node.kind is Kind.COLLECTIVE for node in problem.nodes]
    before, behind = [0] * len(launches), [0] * len(launches)
    for v, needs in enumerate(problem.predecessors):
        before[v] = max([before[u] + launches[u] for u in needs], default=0)
    for v in range(len(launches) - 1, -1, -1):
        behind[v] = max([behind[w] + launches[w] for w in problem.successors[v]], default=0)
    return before, behind


def batch_time(problem: Problem, prices: Prices) -> BatchTime:
    """Times of batches, each asked for once."""
    known: dict[tuple[str, str, int], float] = {}

    def time_us(key: Key, nbytes: int) -> float:
        of = (key.op, key.group, nbytes)
        if of not in known:
            known[of] = prices.collective_us(key.op, nbytes, problem.groups[key.group])
        return known[of]

    return time_us


def added_us(node: Node, key: Key, time_us: BatchTime) -> float:
    """Return what a collective of a key adds to a large batch."""
    return min(node.time_us, time_us(key, LARGE_BYTES) / LARGE_BYTES * node.bytes)


def latency_us(problem: Problem, keys: Mapping[NodeId, Key], time_us: BatchTime) -> float:
    """Return what all collectives that may go together with another one take beyond what each adds to a large batch.

    No buckets take more off the shortest step: put every collective back to its own time, and nothing that comes after
    it is later by more than the difference.
    """
    mates, nodes = mates_in(keys), problem.nodes
    pairs = [(nodes[v], key) for v, key in keys.items() if v in mates]
    return sum(node.time_us - added_us(node, key, time_us) for node, key in pairs)


def mates_in(keys: Mapping[NodeId, Key]) -> frozenset[NodeId]:
    """Collectives that may go together with another one."""
    shared = Counter(keys.values())
    return frozenset(v for v, key in keys.items() if shared[key] > 1)


def host_times(problem: Problem) -> Mapping[NodeId, float]:
    """Per collective what launching it and ending its waits takes of the compute stream, if anything. Linear."""
    nodes, times = problem.nodes, defaultdict[NodeId, float](float)
    for v, node in enumerate(nodes):
        of = v if node.kind is Kind.COLLECTIVE else node.collective
        if of is not None:
            for u in node.deps:
                if nodes[u].op in OF_HOST:
                    times[of] += nodes[u].time_us
    return dict(times)


def host_us(times: Mapping[NodeId, float], merged: Iterable[NodeId]) -> float:
    """Buckets of these collectives take no more off all compute: of each, one launch and one wait are left."""
    return sum(times.get(v, 0.0) for v in merged)


def without_latency(problem: Problem, keys: Mapping[NodeId, Key], time_us: BatchTime) -> Problem:
    """The problem with each collective at what it adds to a large batch: how urgent it is once many go together."""
    nodes = list(problem.nodes)
    for v, key in keys.items():
        node = nodes[v]
        nodes[v] = node._replace(time_us=added_us(node, key, time_us))
    return Problem(
        problem.name, tuple(nodes), problem.storages, problem.groups, problem.memory_model, problem.contention
    )

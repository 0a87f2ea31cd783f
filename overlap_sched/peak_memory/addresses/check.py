"""Do the addresses of an order hold? Brute force on purpose; shares no code with the planner.

At every step of the order, what is live is found anew from the nodes' own fields, sorted by offset, and each
neighbour held against the next.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from overlap_sched.problem import Kind, Problem


def address_violation(
    problem: Problem, order: Sequence[int], offsets: Mapping[int, int], align_bytes: int = 1
) -> str | None:
    """The first thing wrong with the offsets in words, or ``None``: missing, negative, unaligned, overlapping."""
    nodes, storages = problem.nodes, problem.storages
    for node in nodes:
        for s in node.alloc:
            if s not in offsets:
                return f"storage {s} of {node.name} has no offset"
            if offsets[s] < 0 or offsets[s] % align_bytes:
                return f"storage {s} of {node.name} lies at {offsets[s]}, which is not a multiple of {align_bytes}"
    users_left = dict.fromkeys(offsets, 0)
    for node in nodes:
        for s in set(node.use):
            users_left[s] += 1
    used = {s for s, count in users_left.items() if count}
    live = {s for node in nodes if node.kind is Kind.INPUT for s in node.alloc}
    for at, v in enumerate(order):
        node = nodes[v]
        if node.kind is not Kind.INPUT:
            live.update(node.alloc)
        if at == 0 or (node.alloc and node.kind is not Kind.INPUT):  # only then can anything new overlap
            broken = _overlap(storages, live, offsets)
            if broken is not None:
                a, b = broken
                return f"storages {a} and {b} overlap while {node.name} runs"
        for s in set(node.use):
            users_left[s] -= 1
            if not users_left[s] and not storages[s].pinned:
                live.discard(s)
        if node.kind not in (Kind.INPUT, Kind.OUTPUT):
            live.difference_update([s for s in node.alloc if s not in used])
    return None


def _overlap(
    storages: Sequence[tuple[int, bool]], live: set[int], offsets: Mapping[int, int]
) -> tuple[int, int] | None:
    here = sorted((offsets[s], s) for s in live if storages[s][0])
    for (low, a), (high, b) in pairwise(here):
        if low + storages[a][0] > high:
            return a, b
    return None

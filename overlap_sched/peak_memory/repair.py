"""Lower an order's peak where it stands, again and again, until the peak is proven or does not move.

At the peak's node ``v``, the minimum cut (:mod:`overlap_sched.peak_memory.cut`) says the least that can be live while
``v`` runs, and which nodes have run then. If that is no less than the peak, the peak is *optimal*: no order gets past
``v`` with less. Else the order is split there::

    [what the cut has before v, in the order so far]  v  [the rest, in the order so far]

and both sides improve by :func:`overlap_sched.peak_memory.descend.eager`, the front backward from ``v`` and the back
forward from it: seen from a peak, both ways lead down, where free moves are found. The best variant is taken if it
is lower, or as low with fewer steps at the peak; then its own peak is looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.judge.validate import memory_profile
from overlap_sched.peak_memory.cut import MinimumCut, cheapest_state
from overlap_sched.peak_memory.descend import eager
from overlap_sched.peak_memory.memory_graph import MemoryGraph, lead_with_inputs
from overlap_sched.peak_memory.walk import Backward, Forward, run_all

Score = tuple[int, int]
"""Peak in bytes, and at how many steps it is reached: lower is better."""


@dataclass
class Incumbent:
    """The best order so far, behind the inputs.

    Attributes:
        order: Nodes of :attr:`MemoryGraph.rest`.
        score: See :data:`Score`.
        peak_node: The first node at which the peak is.
    """

    order: list[int]
    score: Score
    peak_node: int


def judged(graph: MemoryGraph, order: Sequence[int]) -> Incumbent:
    """An order with its score."""
    profile = memory_profile(graph.problem, lead_with_inputs(graph, order))
    peak = max(profile)
    at = profile.index(peak) - len(graph.first)
    return Incumbent(list(order), (peak, profile.count(peak)), order[at] if at >= 0 else -1)


def repair(graph: MemoryGraph, best: Incumbent, bound_bytes: int, rounds: int, work: int) -> tuple[Incumbent, int, int]:
    """Repair up to so many times, within so many arcs of cuts.

    Returns:
        The best order, the best lower bound on any peak, and the arcs left.
    """
    tried: set[tuple[int, int]] = set()
    for _ in range(rounds):
        peak = best.score[0]
        if bound_bytes >= peak or best.peak_node < 0 or (best.peak_node, peak) in tried:
            break
        tried.add((best.peak_node, peak))
        cut = cheapest_state(graph, best.peak_node, work)
        if cut is None:
            return best, bound_bytes, 0
        work -= cut.work
        bound_bytes = max(bound_bytes, cut.live_bytes)
        if cut.live_bytes >= peak:
            break
        variants = [judged(graph, order) for order in split_at(graph, best.order, cut, peak - 1)]
        better = min(variants, key=lambda it: it.score)
        if better.score < best.score:
            best = better
    return best, bound_bytes, work


def split_at(graph: MemoryGraph, order: Sequence[int], cut: MinimumCut, limit: int) -> list[list[int]]:
    """The order with the cut's nodes before its node, plain and with both sides polished."""
    v = cut.node
    front = [u for u in order if u in cut.before]
    back = [u for u in order if u != v and u not in cut.before]
    forward, backward = Forward(graph), Backward(graph)
    run_all(forward, [*front, v])
    run_all(backward, [*reversed(back), v])
    down = eager(graph, back, limit=limit, segments=True, walk=forward)
    up = eager(graph, front, backward=True, limit=limit, segments=True, walk=backward)
    return [[*front, v, *back], [*front, v, *down], [*up, v, *back], [*up, v, *down]]

"""Search where an order's peak is: in windows around it that begin and end where little is live, then everywhere.

A window's ends are *waists*: of the steps within reach, those after which the least is live, so that few paths
cross them (Serenity divides there; ROAM and MAGIS schedule piece by piece, too). Windows double in length until
one of them brings the peak down or the work is used up; the last of them is the whole graph, and with that
the answer is exact: a lower peak, or the proof that there is none.
"""

from collections.abc import Sequence

from overlap_sched.peak_memory.memory_graph import MemoryGraph
from overlap_sched.peak_memory.repair import Incumbent, judged
from overlap_sched.peak_memory.search import SearchResult, search
from overlap_sched.peak_memory.walk import Forward

SHORTEST_WINDOW = 16
STEPS_PER_WINDOW = 4_000
"""Of the walk, for each direction; a search that needs more seldom ends."""


def lower_to(
    graph: MemoryGraph, best: Incumbent, goal_bytes: int, steps: int, any_lower: bool = False
) -> tuple[Incumbent, int]:
    """Bring the peak down window by window, moving only what lies near steps above the goal.

    Args:
        graph: What is ordered.
        best: Where to start.
        goal_bytes: A peak that is low enough.
        steps: Of the walk, at most.
        any_lower: Whether any lower peak of a window is taken, or only what meets the goal.

    Returns:
        The order, above the goal where no window was large enough or the steps ran out; and the steps left.
    """
    length, n = SHORTEST_WINDOW, len(best.order)
    while best.score[0] > goal_bytes and best.peak_node >= 0 and steps > 0:
        begin, end = window_at_peak(graph, best, length)
        limit = best.score[0] - 1 if any_lower else goal_bytes
        result, order, used = _both_ways(graph, best.order, begin, end, limit, min(STEPS_PER_WINDOW, steps))
        steps -= used
        if result.answer == "found":
            best, length = judged(graph, order), SHORTEST_WINDOW
        elif end - begin >= n:
            break
        else:
            length *= 2
    return best, steps


def search_everywhere(graph: MemoryGraph, best: Incumbent, bound_bytes: int, steps: int) -> tuple[Incumbent, int, int]:
    """Search the whole graph for ever lower peaks: at the bound, which rises as it is refuted; halfway; below the peak.

    Returns:
        The best order; a lower bound on every peak, equal to its peak where the search came to an end; steps left.
    """
    hopeless = 0
    while best.score[0] > bound_bytes and best.peak_node >= 0 and steps > 0 and hopeless < 3:
        peak = best.score[0]
        limit = (bound_bytes, (bound_bytes + peak) // 2, peak - 1)[hopeless]
        result, order, used = _both_ways(graph, best.order, 0, len(best.order), limit, max(steps // 4, 1))
        steps -= used
        if result.answer == "found":
            best = judged(graph, order)
        elif result.answer == "none":
            bound_bytes = min(result.refused_bytes, peak)
        else:
            hopeless += 1
    return best, bound_bytes, steps


def window_at_peak(graph: MemoryGraph, best: Incumbent, length: int) -> tuple[int, int]:
    """Around the peak, from waist to waist, at least half and at most twice as long as asked for."""
    order, n = best.order, len(best.order)
    at = order.index(best.peak_node)
    live = _live_between(graph, order)
    begin = min(range(max(at - length, 0), max(at - length // 2, 0) + 1), key=lambda p: (live[p], -p))
    end = min(range(min(at + 1 + length // 2, n), min(at + 1 + length, n) + 1), key=lambda p: (live[p], p))
    return begin, end


def _live_between(graph: MemoryGraph, order: Sequence[int]) -> list[int]:
    """Bytes live before each step, and at the end."""
    walk = Forward(graph)
    live = [walk.live_bytes]
    for v in order:
        walk.run(v)
        live.append(walk.live_bytes)
    return live


def _both_ways(
    graph: MemoryGraph, order: Sequence[int], begin: int, end: int, limit: int, steps: int
) -> tuple[SearchResult, list[int], int]:
    """Forward and backward until one of them has an answer: it, the whole order, and the steps of both."""
    used = 0
    for backward in (False, True):
        result = search(graph, order, begin, end, limit, steps, backward)
        used += result.steps
        if result.answer != "gave up":
            break
    return result, [*order[:begin], *result.order, *order[end:]], used

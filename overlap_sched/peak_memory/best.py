"""The order with the lowest peak found, never above the original; and how far it is from what no order can beat.

    original, lpmf, bfs, dfs, eager (forward, backward)   ->  the lowest
      -> repair at the peak by minimum cuts               ->  lower, or proven there
      -> search in windows around the peak                ->  lower
      -> search everywhere                                ->  lower, or proven

Everything is counted, nothing timed: the same problem and effort give the same order on every rank.

**Repair.** At the peak's node ``v``, the minimum cut (:mod:`overlap_sched.peak_memory.cut`) says the least that can be
live while ``v`` runs, and which nodes have run then. If that is no less than the peak, the peak is *optimal*. Else the
order is split there::

    [what the cut has before v, in the order so far]  v  [the rest, in the order so far]

and both sides improve by :func:`~overlap_sched.peak_memory.simple_orders.eager`, the front backward from ``v`` and the
back forward from it: seen from a peak, both ways lead down. The best variant is taken if it is lower, or as low with
fewer steps at the peak; then its own peak is looked at.

**Search.** Is there an order under a limit? Depth first, each set of nodes visited once; exact unless it gives up. What
has run, not in which order, decides what can follow: so the states are sets, as in dynamic programming over downsets
(Serenity; arXiv 2003.02369), and one visited without success is never entered again. Three things keep them few:

    limit     no step above it, so a smaller limit is a smaller search
    safe      a node that lowers memory and fits runs at once, without a choice
    chains    so does a run of nodes, each ready only because of the one before, that ends no higher than it began:
              all sets between are on the way itself, and memory, a cut function, is submodular: for any completion
              S1, S2, ... the sets X + S1, X + S2, ... have no more, where X is the least of all sets between

A *window* is a stretch of an order: what is before and behind it stays, and memory outside does not change. Its ends
are *waists*: of the steps within reach, those after which the least is live, so that few paths cross them (Serenity
divides there; ROAM and MAGIS schedule piece by piece, too). Windows double in length until one of them brings the peak
down or the work is used up; the last of them is the whole graph.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from overlap_sched.errors import OptionsError, VerificationError
from overlap_sched.judge.validate import launch_violation, memory_profile, violation
from overlap_sched.peak_memory.cut import MinimumCut, cheapest_state, floor_bytes
from overlap_sched.peak_memory.memory_graph import (
    Backward,
    Forward,
    MemoryGraph,
    Walk,
    lead_with_inputs,
    memory_graph_of,
    run_all,
)
from overlap_sched.peak_memory.simple_orders import UNLIMITED, bfs, dfs, eager, lpmf
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.precedence import Preserve

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


LONGEST_CHAIN = 16

Answer = Literal["found", "none", "gave up"]


@dataclass(frozen=True)
class SearchResult:
    """What a search found: an order of the window, that there is none under the limit, or neither.

    Attributes:
        answer: See above. order: the window's nodes in running order where found.
        refused_bytes: The lowest step that was above the limit: where there is no order under the limit, there is
            none under this either (every search with a limit between would have gone the same way).
        steps: Steps and undos of the walk.
    """

    answer: Answer
    order: tuple[int, ...]
    refused_bytes: int
    steps: int


def search(
    graph: MemoryGraph, order: Sequence[int], begin: int, end: int, limit: int, most_steps: int, backward: bool = False
) -> SearchResult:
    """Look for an order of ``order[begin:end]`` with no step above the limit.

    Args:
        graph: What is ordered.
        order: An order of :attr:`MemoryGraph.rest`; outside the window it stays.
        begin: First position of the window.
        end: The position behind its last.
        limit: Bytes.
        most_steps: Give up after so many steps of the walk.
        backward: Walk from the window's end.
    """
    walk: Walk
    if backward:
        walk = Backward(graph)
        run_all(walk, reversed(order[end:]))
    else:
        walk = Forward(graph)
        run_all(walk, order[:begin])
    walk.steps = 0
    window = list(order[begin:end])
    edges = graph.before if backward else graph.after
    dive = _DepthFirst(walk, edges, window[::-1] if backward else window, limit, most_steps)
    answer, found = dive.answer()
    return SearchResult(answer, tuple(found[::-1] if backward else found), dive.refused, walk.steps)


class _DepthFirst:
    """One depth-first search over the nodes of a window, the reference breaking ties."""

    def __init__(
        self, walk: Walk, follows: Sequence[Sequence[int]], window: Sequence[int], limit: int, most_steps: int
    ) -> None:
        self.walk, self.follows, self.limit, self.most_steps = walk, follows, limit, most_steps
        self.place = {v: at for at, v in enumerate(window)}
        self.path: list[int] = []
        self.mask = 0
        self.goal = (1 << len(window)) - 1
        self.visited: set[int] = set()
        self.refused = UNLIMITED

    def run(self, v: int) -> list[int]:
        touched = self.walk.run(v)
        self.path.append(v)
        self.mask |= 1 << self.place[v]
        return touched

    def undo_to(self, length: int) -> None:
        while len(self.path) > length:
            v = self.path.pop()
            self.walk.undo(v)
            self.mask ^= 1 << self.place[v]

    def answer(self) -> tuple[Answer, list[int]]:
        branches: list[tuple[int, list[int]]] = []  # (length of the path there, nodes still to try, the last first)
        self.down([])
        while True:
            if self.mask == self.goal:
                return "found", self.path
            if self.walk.steps > self.most_steps:
                return "gave up", []
            if self.mask in self.visited:
                choices = []
            else:
                self.visited.add(self.mask)
                choices = self.choices()
            branches.append((len(self.path), choices))
            while branches and not branches[-1][1]:
                branches.pop()
            if not branches:
                return "none", []
            length, left = branches[-1]
            self.undo_to(length)
            self.down(self.run(left.pop()))

    def fits(self, v: int) -> bool:
        if v not in self.place:
            return False
        step = self.walk.live_bytes + self.walk.rise[v]
        if step > self.limit:
            self.refused = min(self.refused, step)
        return step <= self.limit

    def choices(self) -> list[int]:
        """Ready nodes that fit, the cheapest last."""
        found = [v for v in self.walk.ready if self.fits(v)]
        return sorted(found, key=lambda v: (self.walk.net[v], self.place[v]), reverse=True)

    def down(self, touched: Sequence[int]) -> None:
        """Run what is safe, and safe chains, until there are none; ``touched``: what may have become safe."""
        pending = list(touched)
        while True:
            while pending:
                v = pending.pop()
                if v in self.walk.ready and self.walk.net[v] <= 0 and self.fits(v):
                    pending += self.run(v)
            ready = sorted((v for v in self.walk.ready if self.fits(v)), key=self.place.__getitem__)
            pending = [v for v in reversed(ready) if self.walk.net[v] <= 0]
            if not pending and not any(self.chain(v) for v in ready):
                return

    def chain(self, start: int) -> bool:
        """Follow nodes that become ready one by one; stay at the end if it is no higher than here, else come back."""
        walk, base, length, v = self.walk, self.walk.live_bytes, len(self.path), start
        while self.fits(v) and len(self.path) - length < LONGEST_CHAIN:
            self.run(v)
            if walk.live_bytes <= base:
                return True
            fresh = [w for w in self.follows[v] if w in walk.ready and w in self.place]
            if not fresh:
                break
            v = min(fresh, key=lambda w: (walk.net[w], self.place[w]))
        self.undo_to(length)
        return False


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


ORDERS: Mapping[str, Callable[[MemoryGraph], list[int]]] = {
    "lpmf": lpmf,
    "bfs": bfs,
    "dfs": dfs,
    "eager": lambda graph: eager(graph, graph.rest),
    "late": lambda graph: eager(graph, graph.rest, backward=True),
    "eager segments": lambda graph: eager(graph, graph.rest, segments=True),
    "late segments": lambda graph: eager(graph, graph.rest, backward=True, segments=True),
}
"""The simple orders by name, near-linear each. ``lpmf``, ``bfs``, ``dfs``: torch's. ``eager``, ``late``: the original,
but what frees memory as soon, what takes it as late as it can; ``segments``: with short climbs that pay off."""

ROUNDS, ARCS, STEPS = 30, 1_000_000, 20_000
"""A unit of effort: repairs, arcs looked at in their cuts, steps of each kind of search."""

LARGE, CLOSE = 2_000, 1e-6
"""Graphs of more nodes are not searched for less than this share of the peak: a few bytes would cost seconds."""


@dataclass(frozen=True)
class MemoryPlan:
    """An order with a low peak, checked by the validator.

    Attributes:
        problem: What was ordered.
        order: Node ids in the order to run; the original one where no lower peak was found.
        original_bytes, peak_bytes: Peak of the original order and of ``order``.
        bound_bytes: No order's peak is lower.
        found_by: What found the order.
        tried: Peaks of the simple orders, by name; ``original`` among them.
        work: Arcs of cuts and steps of searches, counted: the same on every machine.
    """

    problem: Problem
    order: Order
    original_bytes: int
    peak_bytes: int
    bound_bytes: int
    found_by: str
    tried: Mapping[str, int]
    work: int

    @property
    def optimal(self) -> bool:
        """Tell whether no order has a lower peak: proven."""
        return self.peak_bytes == self.bound_bytes

    @property
    def gap(self) -> float:
        """How far the peak may be above the best there is: 0.01 for one percent."""
        return self.peak_bytes / self.bound_bytes - 1 if self.bound_bytes else 0.0


def best_order(problem: Problem, preserve_collective_order: Preserve = "none", effort: int = 2) -> MemoryPlan:
    """The order with the lowest peak found.

    Args:
        problem: What to order; memory is counted in its own model (:data:`overlap_sched.problem.MemoryModel`).
        preserve_collective_order: As in :class:`~overlap_sched.options.Options`: ``"none"`` (default), ``"group"``,
            ``"all"`` or ``"waits"``.
        effort: How much is tried: 0: the simple orders only; each unit more doubles repairs and searches.

    Raises:
        OptionsError: ``preserve_collective_order`` or ``effort`` is not one of these.
        VerificationError: The order that came out is not valid: a bug.
    """
    check_arguments(preserve_collective_order, effort)
    graph = memory_graph_of(problem, preserve_collective_order)
    original = judged(graph, graph.rest)
    original_bytes = max(memory_profile(problem, problem.original_order))
    tried = {"original": original_bytes}
    best, found_by = original, "original"
    bound = floor_bytes(graph)
    for name, make in ORDERS.items():
        other = judged(graph, make(graph))
        tried[name] = other.score[0]
        if other.score[0] < best.score[0]:
            best, found_by = other, name
        if best.score[0] <= bound:
            break
    work = 0
    if effort:
        best, bound, found_by, work = _improved(graph, best, bound, found_by, 2 ** (effort - 1))
    order = lead_with_inputs(graph, best.order)
    if best.score[0] >= original_bytes:
        order, found_by = problem.original_order, "original"
    checked(problem, order, preserve_collective_order)
    peak = max(memory_profile(problem, order))
    return MemoryPlan(problem, order, original_bytes, peak, min(bound, peak), found_by, tried, work)


def _improved(
    graph: MemoryGraph, best: Incumbent, bound: int, found_by: str, units: int
) -> tuple[Incumbent, int, str, int]:
    arcs, window_steps, steps = ARCS * units, STEPS * units, STEPS * units
    whole, before = arcs + window_steps + steps, best.score[0]
    best, bound, arcs = repair(graph, best, bound, ROUNDS * units, arcs)
    if best.score[0] < before:
        before, found_by = best.score[0], "repair"
    if not _close(graph, before, bound):
        best, window_steps = lower_to(graph, best, bound, window_steps, any_lower=True)
        if best.score[0] < before:
            before, found_by = best.score[0], "windows"
    if not _close(graph, before, bound):
        best, bound, steps = search_everywhere(graph, best, bound, steps)
        if best.score[0] < before:
            found_by = "search"
    return best, bound, found_by, whole - arcs - window_steps - steps


def _close(graph: MemoryGraph, peak: int, bound: int) -> bool:
    return peak - bound <= (CLOSE * peak if len(graph.rest) > LARGE else 0)


def check_arguments(preserve_collective_order: str, effort: int) -> None:
    """Raise for values that these arguments cannot have."""
    if preserve_collective_order not in get_args(Preserve):
        known = ", ".join(map(repr, get_args(Preserve)))
        raise OptionsError(f"preserve_collective_order is {preserve_collective_order!r}; it is one of {known}.")
    if isinstance(effort, bool) or not isinstance(effort, int) or effort < 0:
        raise OptionsError(f"effort is {effort!r}; it is a whole number, 0 or more.")


def checked(problem: Problem, order: Order, preserve: Preserve) -> None:
    """Raise unless the order can run and keeps the launch order asked for.

    Raises:
        VerificationError: It does not.
    """
    broken = violation(problem, order) or launch_violation(problem, order, preserve)
    if broken is not None:
        raise VerificationError(
            f"the memory order of {problem.name!r} is not valid: {broken}. This is a bug: please report it."
        )

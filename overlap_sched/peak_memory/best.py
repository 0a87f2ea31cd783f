"""The order with the lowest peak found, never above the original; and how far it is from what no order can beat.

    original, lpmf                       ->  the lower
      -> minimum cut at the peak         ->  proven there, or a bound
      -> search in windows around it     ->  lower; cut again; proven, where the last is the whole graph

Everything is counted, nothing timed: the same problem and effort give the same order on every rank. torch's other two
simple orders (breadth first, depth first), greedy descents in both directions, and splits of the order where a cut says
so were tried, too: on the graphs of scripts/studies/memory_zoo they lower no peak that these do not.

**The bound** is the most that some node must have live beside it, whatever the order
(:mod:`overlap_sched.peak_memory.cut`). Where the peak is no more, it is *optimal*.

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

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from overlap_sched.errors import OptionsError, VerificationError
from overlap_sched.judge.validate import launch_violation, memory_profile, violation
from overlap_sched.peak_memory.cut import least_live
from overlap_sched.peak_memory.memory_graph import MemoryGraph, Walk, lead_with_inputs, memory_graph_of
from overlap_sched.peak_memory.tuning import TUNING
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.precedence import Preserve


class Incumbent(NamedTuple):
    """The best order so far, behind the inputs.

    Attributes:
        order: Nodes of :attr:`MemoryGraph.rest`.
        peak_bytes: Its peak.
        peak_node: The first node at which the peak is; -1: it is at an input.
    """

    order: list[int]
    peak_bytes: int
    peak_node: int


def judged(graph: MemoryGraph, order: Sequence[int]) -> Incumbent:
    """An order with its peak."""
    profile = memory_profile(graph.problem, lead_with_inputs(graph, order))
    at = profile.index(max(profile)) - len(graph.first)
    return Incumbent(list(order), max(profile), order[at] if at >= 0 else -1)


def lpmf(graph: MemoryGraph) -> list[int]:
    """Least peak memory first, as in ``torch/_inductor/memory.py`` (2.13); the nodes behind the inputs.

    Of the ready nodes whose step stays below the most memory so far, the one that leaves the least behind; if
    there is none, the one with the smallest step. Ties go to the earlier in the original order. (Mentioned by torch:
    "Buffer memory optimization for video codec application modeled in Simulink", DAC 2006.) torch looks at every ready
    node at every step; here two heaps find the same one, so that it stays near-linear: ``fitting`` by what is left
    behind, ``waiting`` by the size of the step. A node changes heaps only when the gap crosses its size.
    """
    walk, outputs = Walk(graph), graph.problem.nodes[-1].use
    at_end = sum(size for s, size in enumerate(graph.size) if graph.to_end[s] or s in outputs)
    most, order, waiting = max(walk.live_bytes, at_end), list[int](), list[tuple[int, int, int]]()
    fitting = [(walk.net[v], v) for v in walk.ready]
    heapq.heapify(fitting)
    while walk.ready:
        gap = most - walk.live_bytes
        while waiting and waiting[0][0] <= gap:
            heapq.heappush(fitting, heapq.heappop(waiting)[1:])
        while True:
            rise, (net, v) = (-1, heapq.heappop(fitting)) if fitting else ((one := heapq.heappop(waiting))[0], one[1:])
            if v not in walk.ready or net != walk.net[v]:
                continue  # it has run, or stands there again with its new cost
            if rise >= 0 or walk.rise[v] <= max(gap, 0):
                break
            heapq.heappush(waiting, (walk.rise[v], net, v))
        most = max(most, walk.live_bytes + walk.rise[v])
        order.append(v)
        for w in walk.run(v):
            if w in walk.ready:
                heapq.heappush(fitting, (walk.net[w], w))
    return order


class SearchResult(NamedTuple):
    """What a search found: an order of the window, that there is none under the limit, or neither.

    Attributes:
        answer: See above. order: the whole order, with that of the window, where found.
        steps: Steps and undos of the walk.
    """

    answer: Literal["found", "none", "gave up"]
    order: list[int]
    steps: int


def search(graph: MemoryGraph, order: Sequence[int], begin: int, end: int, limit: int, most_steps: int) -> SearchResult:
    """Look for an order of ``order[begin:end]`` with no step above the limit.

    Args:
        graph: What is ordered.
        order: An order of :attr:`MemoryGraph.rest`; outside the window it stays.
        begin: First position of the window.
        end: The position behind its last.
        limit: Bytes.
        most_steps: Give up after so many steps of the walk.
    """
    dive = _DepthFirst(Walk(graph, order[:begin]), order[begin:end], limit)
    answer = dive.answer(most_steps)
    return SearchResult(answer, [*order[:begin], *dive.path, *order[end:]], dive.walk.steps)


class _DepthFirst:
    """One depth-first search over the nodes of a window, their order so far breaking ties."""

    def __init__(self, walk: Walk, window: Sequence[int], limit: int) -> None:
        self.walk, self.limit = walk, limit
        self.place = {v: at for at, v in enumerate(window)}
        self.path: list[int] = []
        self.mask = 0

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

    def answer(self, most_steps: int) -> Literal["found", "none", "gave up"]:
        branches: list[tuple[int, list[int]]] = []  # (length of the path there, nodes still to try, the last first)
        visited = set[int]()
        self.down([])
        while len(self.path) < len(self.place):
            if self.walk.steps > most_steps:
                return "gave up"
            if self.mask not in visited:
                visited.add(self.mask)
                fitting = [v for v in self.walk.ready if self.fits(v)]
                branches.append((len(self.path), sorted(fitting, key=self.cost, reverse=True)))
            while branches and not branches[-1][1]:
                branches.pop()
            if not branches:
                return "none"
            length, left = branches[-1]
            self.undo_to(length)
            self.down(self.run(left.pop()))
        return "found"

    def cost(self, v: int) -> tuple[int, int]:
        return self.walk.net[v], self.place[v]

    def fits(self, v: int) -> bool:
        return v in self.place and self.walk.live_bytes + self.walk.rise[v] <= self.limit

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
        while self.fits(v):
            self.run(v)
            if walk.live_bytes <= base:
                return True
            fresh = [w for w in walk.graph.after[v] if w in walk.ready and w in self.place]
            if not fresh:
                break
            v = min(fresh, key=self.cost)
        self.undo_to(length)
        return False


def lower_to(
    graph: MemoryGraph, best: Incumbent, goal_bytes: int, steps: int, any_lower: bool = False
) -> tuple[Incumbent, bool]:
    """Bring the peak down window by window, moving only what lies near steps above the goal.

    Args:
        graph: What is ordered.
        best: Where to start.
        goal_bytes: A peak that is low enough.
        steps: Of the walk, at most.
        any_lower: Whether any lower peak of a window is taken, or only what meets the goal.

    Returns:
        The order, above the goal where no window was large enough or the steps ran out; and whether it is proven that
        the whole graph has no order within the last limit.
    """
    n = len(best.order)
    length = shortest = math.isqrt(n)
    while best.peak_bytes > goal_bytes and best.peak_node >= 0 and steps > 0:
        begin, end = window_at_peak(graph, best, length)
        limit, whole = best.peak_bytes - 1 if any_lower else goal_bytes, end - begin == n
        most = steps if whole and any_lower else min(TUNING.window_steps, steps)
        result = search(graph, best.order, begin, end, limit, most)
        steps -= result.steps
        if result.answer == "found":
            best, length = judged(graph, result.order), shortest
        elif whole:
            return best, result.answer == "none"
        else:
            length *= 2
    return best, False


def window_at_peak(graph: MemoryGraph, best: Incumbent, length: int) -> tuple[int, int]:
    """Around the peak, from waist to waist, at least half and at most twice as long as asked for."""
    n, at, walk = len(best.order), best.order.index(best.peak_node), Walk(graph)
    live = [walk.live_bytes]  # before each step, and at the end
    for v in best.order:
        walk.run(v)
        live.append(walk.live_bytes)
    begin = min(range(max(at - length, 0), max(at - length // 2, 0) + 1), key=lambda p: (live[p], -p))
    end = min(range(min(at + 1 + length // 2, n), min(at + 1 + length, n) + 1), key=lambda p: (live[p], p))
    return begin, end


@dataclass(frozen=True)
class MemoryPlan:
    """An order with a low peak, checked by the validator.

    Attributes:
        problem: What was ordered.
        order: Node ids in the order to run; the original one where no lower peak was found.
        original_bytes, peak_bytes: Peak of the original order and of ``order``.
        bound_bytes: No order's peak is lower.
        found_by: What found the order: ``original``, ``lpmf``, ``windows`` or ``cp-sat``.
    """

    problem: Problem
    order: Order
    original_bytes: int
    peak_bytes: int
    bound_bytes: int
    found_by: str

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
        effort: How much is tried: 0: no search; each unit more doubles it.

    Raises:
        OptionsError: ``preserve_collective_order`` or ``effort`` is not one of these.
        VerificationError: The order that came out is not valid: a bug.
    """
    if preserve_collective_order not in get_args(Preserve):
        known = ", ".join(map(repr, get_args(Preserve)))
        raise OptionsError(f"preserve_collective_order is {preserve_collective_order!r}; it is one of {known}.")
    if isinstance(effort, bool) or not isinstance(effort, int) or effort < 0:
        raise OptionsError(f"effort is {effort!r}; it is a whole number, 0 or more.")
    graph = memory_graph_of(problem, preserve_collective_order)
    original_bytes = max(memory_profile(problem, problem.original_order))
    found = {"original": judged(graph, graph.rest), "lpmf": judged(graph, lpmf(graph))}
    best = min(found.values(), key=lambda one: one.peak_bytes)
    steps = TUNING.steps * 2**effort // 2 if effort else 0
    bound = max(least_live(graph, v) for v in (len(problem.nodes) - 1, best.peak_node))
    if best.peak_bytes > bound:
        best, proven = lower_to(graph, best, bound, steps, any_lower=True)
        found["windows"] = best
        bound = best.peak_bytes if proven else max(bound, least_live(graph, best.peak_node))
    found_by, best = min(found.items(), key=lambda one: one[1].peak_bytes)
    order = lead_with_inputs(graph, best.order)
    if best.peak_bytes >= original_bytes:
        order, found_by = problem.original_order, "original"
    check_order(problem, order, preserve_collective_order)
    peak = max(memory_profile(problem, order))
    return MemoryPlan(problem, order, original_bytes, peak, min(bound, peak), found_by)


def check_order(problem: Problem, order: Order, preserve: Preserve) -> None:
    """Raise unless the order can run and keeps the launch order asked for.

    Raises:
        VerificationError: It does not.
    """
    broken = violation(problem, order) or launch_violation(problem, order, preserve)
    if broken is not None:
        raise VerificationError(
            f"the memory order of {problem.name!r} is not valid: {broken}. This is a bug: please report it."
        )

"""Is there an order under a limit? Depth first, each set of nodes visited once; exact unless it gives up.

What has run, not in which order, decides what can follow: so the states are sets, as in dynamic programming over
downsets (Serenity; arXiv 2003.02369), and one visited without success is never entered again. Three things keep them
few:

    limit     no step above it, so a smaller limit is a smaller search
    safe      a node that lowers memory and fits runs at once, without a choice (:mod:`overlap_sched.peak_memory.walk`)
    chains    so does a run of nodes, each ready only because of the one before, that ends no higher than it began:
              all sets between are on the way itself, and memory, a cut function, is submodular: for any completion
              S1, S2, ... the sets X + S1, X + S2, ... have no more, where X is the least of all sets between

A *window* is a stretch of an order: what is before and behind it stays, and memory outside does not change. The
search walks forward or backward; which is quicker depends on the graph (hills are climbed best from their top).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from overlap_sched.peak_memory.descend import UNLIMITED
from overlap_sched.peak_memory.memory_graph import MemoryGraph
from overlap_sched.peak_memory.walk import Backward, Forward, Walk, run_all

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

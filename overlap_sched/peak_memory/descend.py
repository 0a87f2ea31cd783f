"""Go down where it is free: run whatever lowers memory, at once; climb only as far as a valley behind pays for it.

Two kinds of move, in either direction (:mod:`overlap_sched.peak_memory.walk`):

    safe     one ready node with net <= 0
    segment  a ready node with net > 0, then the cheapest of what it made ready, and so on, until memory is back to
             where it was or lower: a hill with a valley behind (Liu, "An application of generalized tree pebbling to
             sparse matrix factorization", 1987, cuts trees into such segments; here a graph has no such
             optimality, and only short ones are looked for)

:func:`eager` is the order that results where the next node of a reference order runs whenever neither is left.
"""

import heapq
from collections.abc import Collection, Sequence

from overlap_sched.peak_memory.memory_graph import MemoryGraph
from overlap_sched.peak_memory.walk import Backward, Forward, Walk

UNLIMITED = 2**62
"""A memory limit that is none."""

LONGEST_SEGMENT, MOST_STARTS = 24, 12
"""How far a segment is followed, and from how many ready nodes one is looked for."""


class Descent:
    """A walk that takes free moves, with a heap of ready nodes by (net, place in the reference order).

    Args:
        walk: The walk, in any state.
        limit: No step may have more bytes live.
        place: Per node, its place in the reference order: breaks ties (negated when walking backward).
        banned: Nodes not to run.
        segments: Whether to look for segments, too.
    """

    def __init__(
        self, walk: Walk, limit: int, place: Sequence[int], banned: Collection[int] = (), segments: bool = True
    ) -> None:
        self.walk, self.limit, self.banned, self.segments = walk, limit, banned, segments
        sign = -1 if isinstance(walk, Backward) else 1
        self.place = [sign * p for p in place]
        self.heap: list[tuple[int, int, int]] = []
        self.failed_at: dict[int, int] = {}  # start of a segment that was not found -> its net then
        self.note(walk.ready)

    def note(self, nodes: Collection[int]) -> None:
        """These are ready or have another cost now."""
        walk = self.walk
        for v in nodes:
            if v in walk.ready and v not in self.banned:
                heapq.heappush(self.heap, (walk.net[v], self.place[v], v))

    def run(self, v: int) -> None:
        """Run a node that this descent did not choose itself."""
        self.note(self.walk.run(v))

    def down(self) -> list[int]:
        """Take free moves until there are none; the nodes run."""
        done: list[int] = []
        while True:
            found = self._safe()
            moved = [found] if found is not None else (self._segment() if self.segments else [])
            if not moved:
                return done
            if found is not None:
                self.run(found)
            done += moved

    def _safe(self) -> int | None:
        """The ready node that lowers memory most, among those that fit under the limit."""
        walk, late = self.walk, []
        found = None
        while self.heap and self.heap[0][0] <= 0:
            entry = heapq.heappop(self.heap)
            net, _, v = entry
            if v not in walk.ready or net != walk.net[v]:
                continue
            if walk.live_bytes + walk.rise[v] <= self.limit:
                found = v
                break
            late.append(entry)  # it fits later, when there is less
        for entry in late:
            heapq.heappush(self.heap, entry)
        return found

    def _starts(self) -> list[int]:
        """The cheapest ready nodes, each once; the heap loses what is out of date."""
        walk = self.walk
        starts: list[int] = []
        kept: list[tuple[int, int, int]] = []
        while self.heap and len(starts) < MOST_STARTS:
            entry = heapq.heappop(self.heap)
            net, _, v = entry
            if v in walk.ready and net == walk.net[v] and v not in starts:
                starts.append(v)
                kept.append(entry)
        for entry in kept:
            heapq.heappush(self.heap, entry)
        return starts

    def _segment(self) -> list[int]:
        """Run the segment with the lowest hill, if any start has one; the nodes run."""
        best: tuple[int, int, list[int]] | None = None
        for v in self._starts():
            if self.failed_at.get(v) == self.walk.net[v]:
                continue
            found = self._follow(v)
            if found is None:
                self.failed_at[v] = self.walk.net[v]
            elif best is None or found[:2] < best[:2]:
                best = found
        if best is None:
            return []
        for v in best[2]:
            self.run(v)
        self.failed_at.clear()
        return best[2]

    def _follow(self, start: int) -> tuple[int, int, list[int]] | None:
        """(height of the hill, what is left behind, nodes) from this start, all undone again; ``None``: too long."""
        walk, base = self.walk, self.walk.live_bytes
        run: list[int] = []
        near, hill = {start: None}, 0
        found = None
        while near and len(run) < LONGEST_SEGMENT:
            v = min(near, key=lambda w: (walk.net[w], self.place[w]))
            del near[v]
            if walk.live_bytes + walk.rise[v] > self.limit:
                continue
            hill = max(hill, walk.live_bytes + walk.rise[v] - base)
            touched = walk.run(v)
            run.append(v)
            if walk.live_bytes <= base:
                found = (hill, walk.live_bytes - base, list(run))
                break
            for w in touched:
                if w in walk.ready and w not in self.banned:
                    near[w] = None
        for v in reversed(run):
            walk.undo(v)
        return found


def eager(
    graph: MemoryGraph,
    reference: Sequence[int],
    backward: bool = False,
    limit: int = UNLIMITED,
    segments: bool = False,
    walk: Walk | None = None,
) -> list[int]:
    """The reference order, but what lowers memory (backward: raises it) runs as soon as it can (as late as it can).

    Args:
        graph: What is ordered.
        reference: Nodes still to run, in an order that can run from the state of ``walk``.
        backward: Walk from the end; the result is in running order all the same.
        limit: Free moves keep to it; the reference order need not.
        segments: Take segments too, not only safe nodes.
        walk: Where to start; default: with nothing run.
    """
    place = [0] * len(graph.makes)
    for at, v in enumerate(reference):
        place[v] = at
    walk = walk or (Backward(graph) if backward else Forward(graph))
    descent = Descent(walk, limit, place, segments=segments)
    queue = list(reversed(reference)) if backward else list(reference)
    order = descent.down()
    done = set(order)
    for v in queue:
        if v not in done:
            descent.run(v)
            moved = [v, *descent.down()]
            order += moved
            done.update(moved)
    return order[::-1] if backward else order

"""Simple orders: torch's ``lpmf``, ``bfs``, ``dfs``, and *eager*, which goes down where it is free.

The first three are those of ``torch/_inductor/memory.py`` (2.13), read there and written anew for our problems;
differences are named below. Each returns the nodes behind the inputs; none promises anything about the peak.

:func:`eager` runs whatever lowers memory, at once, and climbs only as far as a valley behind pays for it. Two kinds of
move, in either direction (:mod:`overlap_sched.peak_memory.memory_graph`):

    safe     one ready node with net <= 0
    segment  a ready node with net > 0, then the cheapest of what it made ready, and so on, until memory is back to
             where it was or lower: a hill with a valley behind (Liu, "An application of generalized tree pebbling to
             sparse matrix factorization", 1987, cuts trees into such segments; here a graph has no such
             optimality, and only short ones are looked for)
"""

import heapq
from collections.abc import Collection, Sequence

from overlap_sched.peak_memory.memory_graph import Backward, Forward, MemoryGraph, Walk

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


def lpmf(graph: MemoryGraph) -> list[int]:
    """Least peak memory first.

    Of the ready nodes whose step stays below the most memory so far, the one that leaves the least behind; if
    there is none, the one with the smallest step. Ties go to the earlier in the original order. (Mentioned by torch:
    "Buffer memory optimization for video codec application modeled in Simulink", DAC 2006.) torch looks at every ready
    node at every step; here two heaps find the same one, so that it stays near-linear: ``fitting`` by what is left
    behind, ``waiting`` by the size of the step. A node changes heaps only when the gap crosses its size.
    """
    walk = Forward(graph)
    most = max(walk.live_bytes, _output_bytes(graph))
    fitting: list[tuple[int, int]] = [(walk.net[v], v) for v in walk.ready]
    heapq.heapify(fitting)
    waiting: list[tuple[int, int, int]] = []
    order = []
    while walk.ready:
        gap = most - walk.live_bytes
        while waiting and waiting[0][0] <= gap:
            _, _, v = heapq.heappop(waiting)
            heapq.heappush(fitting, (walk.net[v], v))
        v = _first_fitting(walk, fitting, waiting, gap)
        if v < 0:
            v = _smallest(walk, waiting)
        most = max(most, walk.live_bytes + walk.rise[v])
        order.append(v)
        for w in walk.run(v):
            if w in walk.ready:
                heapq.heappush(fitting, (walk.net[w], w))
    return order


def _first_fitting(walk: Forward, fitting: list[tuple[int, int]], waiting: list[tuple[int, int, int]], gap: int) -> int:
    while fitting:
        net, v = heapq.heappop(fitting)
        if v in walk.ready and net == walk.net[v]:  # else it has run, or stands there again with its new cost
            if walk.rise[v] <= max(gap, 0):
                return v
            heapq.heappush(waiting, (walk.rise[v], net, v))
    return -1


def _smallest(walk: Forward, waiting: list[tuple[int, int, int]]) -> int:
    while True:
        _, net, v = heapq.heappop(waiting)
        if v in walk.ready and net == walk.net[v]:
            return v


def _output_bytes(graph: MemoryGraph) -> int:
    """Count the bytes live at the end: torch starts from it where it is more than what is live at the start."""
    outputs = graph.problem.nodes[-1].use if graph.problem.nodes else ()
    return graph.always_bytes + sum(graph.size[s] for s in {*graph.kept, *(s for s in outputs if graph.users[s])})


def bfs(graph: MemoryGraph) -> list[int]:
    """First in, first out: of the ready nodes the one whose predecessors ran the earliest, compared as sorted lists."""
    ran_at = dict.fromkeys(graph.first, -1)
    missing = [len(before) for before in graph.before]
    for v in graph.first:
        for w in graph.after[v]:
            missing[w] -= 1
    heap: list[tuple[list[int], int]] = [([], v) for v in graph.rest if not missing[v]]
    order: list[int] = []
    while heap:
        _, v = heapq.heappop(heap)
        ran_at[v] = len(order)
        order.append(v)
        for w in graph.after[v]:
            missing[w] -= 1
            if not missing[w]:
                heapq.heappush(heap, (sorted({ran_at[u] for u in graph.before[w]} - {-1}), w))
    return order


def dfs(graph: MemoryGraph) -> list[int]:
    """Depth first: nodes by the bytes they read and write, the least first, each behind all that it needs, likewise."""
    size = graph.size
    bytes_of = [sum(size[s] for s in (*made, *used)) for made, used in zip(graph.makes, graph.uses, strict=True)]
    seen = set(graph.first)
    order: list[int] = []
    for root in sorted(graph.rest, key=lambda v: (bytes_of[v], v)):
        stack = [(root, False)]
        while stack:
            v, needs_are_met = stack.pop()
            if needs_are_met:
                order.append(v)
            elif v not in seen:
                seen.add(v)
                stack.append((v, True))
                needs = (u for u in graph.before[v] if u not in seen)
                stack += [(u, False) for u in sorted(needs, key=lambda u: (bytes_of[u], u), reverse=True)]
    return order

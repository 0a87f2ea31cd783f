"""The least that can be live while one node runs, over all orders, and which nodes run before it then: a minimum cut.

Whatever has run before ``v`` is a set ``D`` of nodes that holds ``v``'s ancestors, none of its descendants, and with
each node all that must run before it. Live while ``v`` runs: what ``D`` has made and not all of whose users are in
``D``, and what ``v`` adds. Making ``D`` cheapest is a minimum cut::

    source side = D          maker --bytes--> storage --inf--> each user        cut: made, and somebody still needs it
                             node  --inf--> each of its predecessors            D holds these, too

so the least over all orders is known exactly, for one ``v`` at a time: the largest of these values over any nodes
is a lower bound on every peak. Only nodes that are neither ancestors nor descendants of ``v`` are variables. Maximum
flow by Dinic's algorithm (1970), pure Python.

The *floor* is a bound for all nodes at once, and never above that: while ``v`` runs, these are live in every order:
what is always; what ``v`` uses and makes; and each storage whose maker cannot come after ``v`` (it is ``v``, before it,
or an input) while some user cannot come before it. It ignores that two storages may exclude each other's absence. The
bytes live at the very start count, too, and those at the end. One bit per pair of nodes: 12 MiB and well under a second
for ten thousand nodes.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlap_sched.peak_memory.memory_graph import Backward, Forward, MemoryGraph
from overlap_sched.problem.precedence import find_reachable

INF = 2**62
SOURCE, SINK = 0, 1


@dataclass(frozen=True)
class MinimumCut:
    """The cheapest state in which a node can run.

    Attributes:
        node: The node.
        live_bytes: Live while it runs: no order has less there.
        before: What has run then, inputs included; the smallest such set.
        work: Arcs looked at.
    """

    node: int
    live_bytes: int
    before: frozenset[int]
    work: int


def cheapest_state(graph: MemoryGraph, v: int, most_work: int = INF) -> MinimumCut | None:
    """The minimum cut at a node; ``None`` where it takes more than ``most_work`` arcs."""
    descendants = find_reachable([v], graph.after.__getitem__) | {v}
    ancestors = (find_reachable([v], graph.before.__getitem__) | set(graph.first)) - descendants
    net = FlowNetwork()
    ids = {u: net.node() for u in range(len(graph.makes)) if u not in ancestors and u not in descendants}

    def end(u: int) -> int:
        return SOURCE if u in ancestors else SINK if u in descendants else ids[u]

    for u, at in ids.items():
        for w in graph.before[u]:
            if w in ids:
                net.arc(at, ids[w], INF)
    live = graph.always_bytes + graph.passing_bytes[v] + sum(graph.size[s] for s in graph.makes[v])
    kept = set(graph.kept)
    for s, size in enumerate(graph.size):
        maker, users = graph.maker[s], graph.users[s]
        if not size or (not users and s not in kept) or maker == v:
            continue
        ends = {SINK} if s in kept else {end(u) for u in users}
        start = SOURCE if maker < 0 else end(maker)
        if start == SINK:
            continue
        if start == SOURCE and SINK in ends:
            live += size
        elif SINK in ends:
            net.arc(start, SINK, size)
        elif ends != {SOURCE}:
            between = net.node()
            net.arc(start, between, size)
            for at in sorted(ends - {SOURCE}):
                net.arc(between, at, INF)
    bytes_cut = net.maximum_flow(most_work)
    if bytes_cut is None:
        return None
    inside = net.source_side()
    before = ancestors | {u for u, at in ids.items() if at in inside}
    return MinimumCut(v, live + bytes_cut, frozenset(before), net.work)


class FlowNetwork:
    """A flow network: arcs in pairs (an arc and its reverse), in lists."""

    def __init__(self) -> None:
        self.out: list[list[int]] = [[], []]
        self.to: list[int] = []
        self.room: list[int] = []
        self.work = 0

    def node(self) -> int:
        """A new node's id."""
        self.out.append([])
        return len(self.out) - 1

    def arc(self, a: int, b: int, room: int) -> None:
        """An arc with so much room, and its reverse without."""
        for here, there, left in ((a, b, room), (b, a, 0)):
            self.out[here].append(len(self.to))
            self.to.append(there)
            self.room.append(left)

    def maximum_flow(self, most_work: int) -> int | None:
        """Return the maximum flow from source to sink; ``None`` where it takes more than ``most_work`` arcs."""
        total = 0
        while True:
            level = self._levels()
            if level[SINK] < 0:
                return total
            total += self._blocking_flow(level)
            if self.work > most_work:
                return None

    def source_side(self) -> set[int]:
        """After :meth:`maximum_flow`: what the source still reaches, the smallest source side of a minimum cut."""
        return {at for at, depth in enumerate(self._levels()) if depth >= 0}

    def _levels(self) -> list[int]:
        level = [-1] * len(self.out)
        level[SOURCE] = 0
        queue = deque([SOURCE])
        while queue:
            a = queue.popleft()
            self.work += len(self.out[a])
            for e in self.out[a]:
                b = self.to[e]
                if self.room[e] and level[b] < 0:
                    level[b] = level[a] + 1
                    queue.append(b)
        return level

    def _blocking_flow(self, level: list[int]) -> int:
        """Depth first without recursion: a path of arcs, given up arc by arc."""
        to, room, out = self.to, self.room, self.out
        next_arc = [0] * len(out)
        path: list[int] = []
        total, a = 0, SOURCE
        while True:
            if a == SINK:
                least = min(room[e] for e in path)
                total += least
                self.work += len(path)
                for e in path:
                    room[e] -= least
                    room[e ^ 1] += least
                cut = next(k for k, e in enumerate(path) if not room[e])
                a = to[path[cut] ^ 1]
                del path[cut:]
            while next_arc[a] < len(out[a]):
                e = out[a][next_arc[a]]
                self.work += 1
                if room[e] and level[to[e]] == level[a] + 1:
                    break
                next_arc[a] += 1
            else:
                if a == SOURCE:
                    return total
                e = path.pop()
                a = to[e ^ 1]
                next_arc[a] += 1
                continue
            path.append(e)
            a = to[e]


def floor_profile(graph: MemoryGraph) -> npt.NDArray[np.int64]:
    """Bytes that must be live while each node runs, by node id (inputs: 0)."""
    n = len(graph.makes)
    up, down = _closure(graph.before, range(n)), _closure(graph.after, reversed(range(n)))
    floor = np.full(n, graph.always_bytes, dtype=np.int64) + np.array(graph.passing_bytes, dtype=np.int64)
    kept = set(graph.kept)
    for s, size in enumerate(graph.size):
        maker = graph.maker[s]
        if size and (graph.users[s] or s in kept):
            bits = np.full(up.shape[1], 255, np.uint8) if maker < 0 else down[maker].copy()
            if s not in kept:
                bits &= np.bitwise_or.reduce(up[list(graph.users[s])], axis=0)
            floor += np.unpackbits(bits, count=n).astype(np.int64) * size
    floor[list(graph.first)] = 0
    return floor


def floor_bytes(graph: MemoryGraph) -> int:
    """No order's peak is lower."""
    ends = max(Forward(graph).live_bytes, Backward(graph).live_bytes)
    return max(int(floor_profile(graph).max()), ends)


def _closure(edges: tuple[tuple[int, ...], ...], order: Iterable[int]) -> npt.NDArray[np.uint8]:
    """One row of bits per node: itself and all that its edges reach, which ``order`` lists before it."""
    n = len(edges)
    rows = np.zeros((n, (n + 7) // 8), np.uint8)
    for v in order:
        row = rows[v]
        if edges[v]:
            np.bitwise_or.reduce(rows[list(edges[v])], axis=0, out=row)
        row[v >> 3] |= 128 >> (v & 7)
    return rows

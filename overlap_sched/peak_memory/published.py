"""The three orders of torch's Inductor: ``lpmf``, ``bfs``, ``dfs``, as ``torch/_inductor/memory.py`` (2.13) has them.

Read there and written anew for our problems; differences are named below. Each returns the nodes behind the inputs.
None promises anything about the peak: take the best of them and the original order, as torch does
(:func:`overlap_sched.peak_memory.best.best_order`).
"""

import heapq

from overlap_sched.peak_memory.memory_graph import MemoryGraph
from overlap_sched.peak_memory.walk import Forward


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

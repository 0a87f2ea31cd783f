"""The least that can be live while one node runs, over all orders: a minimum cut.

Whatever has run before ``v`` is a set ``D`` of nodes that holds ``v``'s ancestors, none of its descendants, and with
each node all that must run before it. Live while ``v`` runs: what ``D`` has made and not all of whose users are in
``D``, and what ``v`` adds. Making ``D`` cheapest is a minimum cut::

    source side = D          maker --bytes--> storage --inf--> each user        cut: made, and somebody still needs it
                             node  --inf--> each of its predecessors            D holds these, too

so the least over all orders is known exactly, for one ``v`` at a time, and no order's peak is lower. Only nodes that
are neither ancestors nor descendants of ``v`` are variables. Maximum flow by Dinic's algorithm (1970), pure Python.
"""

from itertools import compress, pairwise

from overlap_sched.peak_memory.memory_graph import MemoryGraph
from overlap_sched.problem.precedence import find_reachable

INF = 2**62
SOURCE, SINK = 0, 1
Room = list[dict[int, int]]
"""Per vertex and neighbour, what may still flow there."""


def least_live(graph: MemoryGraph, v: int) -> int:
    """Return the bytes that every order has live while a node runs; of -1, no node: at its start or end."""
    at_ends = max(sum(compress(graph.size, live)) for live in (graph.from_start, graph.to_end))
    if v < 0:
        return at_ends
    sides = dict.fromkeys(find_reachable([v], graph.after.__getitem__) | {v}, SINK)
    sides = dict.fromkeys((*graph.first, *find_reachable([v], graph.before.__getitem__)), SOURCE) | sides
    room: Room = [{}, {}]
    for u in range(len(graph.touches)):
        if u not in sides:
            sides[u] = len(room)
            room.append({})
    for u, at in sides.items():
        for w in graph.before[u] if at > SINK else ():
            if sides[w] > SINK:
                add_arc(room, at, sides[w], INF)
    live = 0
    for size, touchers, given, stays in zip(graph.size, graph.touchers, graph.from_start, graph.to_end, strict=True):
        if not touchers or not size:
            continue
        start = SOURCE if given or touchers[0] == v else sides[touchers[0]]
        users = ({SINK} if stays else {sides[u] for u in touchers}) - {start}
        if start == SOURCE and SINK in users:
            live += size
        elif SINK in users:
            add_arc(room, start, SINK, size)
        elif users:
            room.append({})
            add_arc(room, start, len(room) - 1, size)
            for at in sorted(users):
                add_arc(room, len(room) - 1, at, INF)
    return max(at_ends, live + maximum_flow(room))


def add_arc(room: Room, a: int, b: int, capacity: int) -> None:
    """Let more flow from a vertex to another."""
    room[a][b] = room[a].get(b, 0) + capacity
    room[b].setdefault(a, 0)


def maximum_flow(room: Room) -> int:
    """Return the flow from source to sink; ``room`` is afterwards what is left of it."""
    flow = 0
    while True:
        level, queue = {SOURCE: 0}, [SOURCE]
        for a in queue:  # which grows meanwhile
            for b, left in room[a].items():
                if left and b not in level:
                    level[b] = level[a] + 1
                    queue.append(b)
        if SINK not in level:
            return flow
        path, arcs = [SOURCE], {a: list(room[a]) for a in queue}
        while path:  # depth first, an arc given up once it leads nowhere
            a = path[-1]
            if a == SINK:
                least = min(room[a][b] for a, b in pairwise(path))
                flow += least
                for a, b in pairwise(path):
                    room[a][b] -= least
                    room[b][a] += least
                del path[next(k for k, (a, b) in enumerate(pairwise(path)) if not room[a][b]) + 1 :]
                continue
            while arcs[a] and not (room[a][arcs[a][-1]] and level.get(arcs[a][-1]) == level[a] + 1):
                arcs[a].pop()
            if arcs[a]:
                path.append(arcs[a][-1])
            else:
                path.pop()
                if path:
                    arcs[path[-1]].pop()

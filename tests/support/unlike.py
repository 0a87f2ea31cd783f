"""The graph of a rank that differs, but launches alike: as where rows do not divide by the ranks."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from overlap_sched.problem import Kind, Node, Problem, Storage


def unlike(problem: Problem, random: Random, every: int, larger: Sequence[float], pad_us: float) -> Problem:
    """A problem with a node more in front of some collectives, which copies what is sent, and other sizes.

    Args:
        problem: That of another rank.
        random: Draws which.
        every: One collective in so many has such a node.
        larger: Each storage is larger by one of these parts.
        pad_us: Time of such a node.
    """
    nodes, new = list[Node](), dict[int, int]()
    storages = [Storage(int(s.bytes * (1 + random.choice(larger))), s.pinned) for s in problem.storages]
    for v, node in enumerate(problem.nodes):
        collective = None if node.collective is None else new[node.collective]
        moved = node._replace(deps=tuple(new[u] for u in node.deps), collective=collective)
        if node.kind is Kind.COLLECTIVE and node.use and random.randrange(every) == 0:
            sent, *rest = node.use
            storages.append(Storage(storages[sent].bytes, False))
            pad = Node(f"pad_{v}", Kind.COMPUTE, op="pad", time_us=pad_us, alloc=(len(storages) - 1,), use=(sent,))
            nodes.append(pad)
            moved = moved._replace(use=(len(storages) - 1, *rest))
        new[v] = len(nodes)
        nodes.append(moved)
    return replace(problem, nodes=tuple(nodes), storages=tuple(storages))

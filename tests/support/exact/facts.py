"""A small graph as bit sets (a node's id is its bit), from the fields of its nodes alone."""

from typing import NamedTuple

from overlap_sched.problem import Kind, Problem


class Facts(NamedTuple):
    """What the search asks.

    Attributes:
        need: Per node, what must have run before it.
        takes_bytes: Per node, what its step brings to life.
        keeps_bytes: Per node, the part of it that outlives the step.
        dying: (all users, bytes) of each storage that dies once they have run.
        inputs_bytes: Live from the start.
        bottom_level_us: Per node, the longest path from its begin to the end; of a collective, through its waits.
        launched_us: Per node, the same from its launch through what needs its launch only; 0 for all but collectives.
        waits: Per node, its waits if it is a collective.
    """

    need: list[int]
    takes_bytes: list[int]
    keeps_bytes: list[int]
    dying: list[tuple[int, int]]
    inputs_bytes: int
    bottom_level_us: list[float]
    launched_us: list[float]
    waits: list[int]


def facts_of(problem: Problem) -> Facts:
    """All of it."""
    nodes, storages = problem.nodes, problem.storages
    maker, users, waits = [0] * len(storages), [0] * len(storages), [0] * len(nodes)
    for v, node in enumerate(nodes):
        for s in node.alloc:
            maker[s] = v
        for s in node.use:
            users[s] |= 1 << v
        if node.collective is not None:
            waits[node.collective] |= 1 << v
    need, takes, keeps = [], [], []
    inputs_bytes = 0
    for v, node in enumerate(nodes):
        before = (1 << v) - 1 if node.kind is Kind.OUTPUT else 0
        for u in (*node.deps, *(maker[s] for s in node.use), *(() if node.collective is None else (node.collective,))):
            before |= 1 << u
        need.append(before & ~(1 << v))
        brought = sum(storages[s].bytes for s in node.alloc)
        stays = node.kind is Kind.OUTPUT
        if node.kind is Kind.INPUT:
            inputs_bytes += brought
        takes.append(0 if node.kind is Kind.INPUT else brought)
        kept = sum(storages[s].bytes for s in node.alloc if stays or users[s])
        keeps.append(0 if node.kind is Kind.INPUT else kept)
    dying = [(users[s], size) for s, (size, pinned) in enumerate(storages) if users[s] and not pinned]
    return Facts(need, takes, keeps, dying, inputs_bytes, *_bottom_levels(problem, need), waits)


def _bottom_levels(problem: Problem, need: list[int]) -> tuple[list[float], list[float]]:
    """Whoever waits for a collective begins to end when it does; others that need it need its launch only."""
    nodes = problem.nodes
    bottom, launched = [0.0] * len(nodes), [0.0] * len(nodes)
    for v in range(len(nodes) - 1, -1, -1):
        node = nodes[v]
        bottom[v] = 0.0 if node.kind is Kind.WAIT else node.time_us
        for w in range(v + 1, len(nodes)):
            if need[w] >> v & 1:
                after = max(bottom[w], launched[w])
                if node.kind is Kind.COLLECTIVE and nodes[w].collective != v:
                    launched[v] = max(launched[v], after)
                else:
                    bottom[v] = max(bottom[v], after if node.kind is Kind.WAIT else node.time_us + after)
    return bottom, launched

"""A run that repeats steps, as a problem: what recomputation makes of a graph, for our judge to measure."""

from collections.abc import Sequence

from overlap_sched.problem import Kind, Node, NodeId, Problem, Storage


def repeated(problem: Problem, run: Sequence[NodeId]) -> Problem:
    """The problem whose original order is ``run``.

    A node that runs again gets another name (``mm`` becomes ``mm.again1``) and storages of its own, and whoever comes
    later uses these: what the earlier run made dies at its last use before that::

        run   relu  mm  relu  relu_backward         relu's first output dies after mm, its second after relu_backward

    Args:
        problem: Without collectives: only compute may run again.
        run: All nodes at least once, each behind what it needs.
    """
    nodes: list[Node] = []
    storages: list[Storage] = []
    newest: dict[int, int] = {}  # per storage, the id of its newest copy
    latest: dict[NodeId, int] = {}  # per node, the id of its latest run
    times = [0] * len(problem.nodes)
    for v in run:
        node = problem.nodes[v]
        assert not times[v] or node.kind is Kind.COMPUTE, "only compute runs again"
        alloc = tuple(range(len(storages), len(storages) + len(node.alloc)))
        storages += [problem.storages[s] for s in node.alloc]
        use = tuple(newest[s] for s in node.use if s not in node.alloc)
        newest.update(zip(node.alloc, alloc, strict=True))
        use += tuple(newest[s] for s in node.use if s in node.alloc)
        name = f"{node.name}.again{times[v]}" if times[v] else node.name
        nodes.append(node._replace(name=name, deps=tuple(latest[u] for u in node.deps), alloc=alloc, use=use))
        latest[v] = len(nodes) - 1
        times[v] += 1
    assert all(times), "every node runs"
    return Problem(problem.name, tuple(nodes), tuple(storages), problem.groups, problem.memory_model)

"""Waits of several collectives at once, in problems where each wait has one.

torch 2.15 has ``wait_tensors``: the compute stream stands still until all collectives that its tensors come from have
finished. Mostly that is one collective with several outputs. Where there are several, the wait gets company: one more
wait for each of the others, in front of it, which hold no memory and take no time. A replay stands still at each of
them in turn, and so until the last has finished; in any order it predicts at least the time that the program takes,
and exactly that where nothing runs between them.
"""

from collections.abc import Mapping, Sequence

from overlap_sched.problem import Kind, Node


def one_collective_each(
    nodes: Sequence[Node], ends: Mapping[int, Sequence[int]]
) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Nodes in which every wait has one collective, and per node the index of the one that it stands for.

    Args:
        nodes: In their original order; of a wait of several collectives, ``collective`` is one of them.
        ends: Per wait (its index) the indices of all collectives that it waits for.
    """
    more = {v: [u for u in ends[v] if u != nodes[v].collective] for v in sorted(ends)}
    if not any(more.values()):
        return tuple(nodes), tuple(range(len(nodes)))
    result: list[Node] = []
    stands_for: list[int] = []
    ids: list[int] = []  # per old index
    for v, node in enumerate(nodes):
        company = range(len(result), len(result) + len(more.get(v, ())))
        for u in more.get(v, ()):
            name = f"{node.name}.{nodes[u].name}"
            result.append(Node(name, node.kind, deps=(ids[u],), op=node.op, collective=ids[u]))
            stands_for.append(v)
        ids.append(len(result))
        stands_for.append(v)
        deps = (*(ids[u] for u in node.deps), *company)
        result.append(
            node._replace(
                deps=deps if node.kind is Kind.OUTPUT else tuple(sorted(deps)),
                collective=None if node.collective is None else ids[node.collective],
            )
        )
    return tuple(result), tuple(stands_for)

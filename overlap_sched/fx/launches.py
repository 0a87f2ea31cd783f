"""What launching collectives takes of the compute stream, in problems where a launch itself takes nothing.

On a GPU the host launches ahead of time. On a CPU the thread that computes launches, too, and over gloo that takes it
50 to 1,000 us. A cost model that knows so (``launch_us``) gives each collective a *launch node*: a compute node in
front of it, which holds no memory and takes that long::

    compute       | mm |launch|     mm      |wait|
    fsdp                      |== gather ===|

Both stand for one node of the graph, which is where the collective is. Without such a model no node is added.
"""

from collections.abc import Mapping, Sequence

from overlap_sched.cost import Collective, CostModel
from overlap_sched.cost.model import LaunchingModel
from overlap_sched.problem import Group, Kind, Node
from overlap_sched.problem.node import LAUNCH


def launch_times(nodes: Sequence[Node], groups: Mapping[str, Group], model: CostModel | None) -> dict[int, float]:
    """Per collective (its index) what launching it takes, where that is not nothing."""
    if not isinstance(model, LaunchingModel):
        return {}
    works = {
        v: Collective(node.op, node.bytes, groups[node.group])
        for v, node in enumerate(nodes)
        if node.kind is Kind.COLLECTIVE and node.group is not None
    }
    return {v: us for v, work in works.items() if (us := model.launch_us(work)) > 0.0}


def with_launches(nodes: Sequence[Node], launch_us: Mapping[int, float]) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Nodes with a launch node before each collective that has one, and per node the index of what it stands for.

    Args:
        nodes: In their original order.
        launch_us: Per collective (its index) the time of its launch node.
    """
    if not launch_us:
        return tuple(nodes), tuple(range(len(nodes)))
    result: list[Node] = []
    stands_for: list[int] = []
    ids: list[int] = []  # per old index
    for v, node in enumerate(nodes):
        deps = tuple(sorted(ids[u] for u in node.deps))
        if v in launch_us:
            result.append(Node(f"{node.name}.{LAUNCH}", Kind.COMPUTE, deps, time_us=launch_us[v], op=LAUNCH))
            stands_for.append(v)
            deps = (*deps, len(result) - 1)
        ids.append(len(result))
        stands_for.append(v)
        collective = None if node.collective is None else ids[node.collective]
        result.append(node._replace(deps=deps, collective=collective))
    return tuple(result), tuple(stands_for)

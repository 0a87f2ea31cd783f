"""What launching and awaiting collectives takes of the compute stream, in problems where neither takes anything.

On a GPU the host launches ahead of time. On a CPU the thread that computes launches, too, and over gloo that takes it
50 to 1,000 us. A cost model that knows so (``launch_us``) gives each collective a *launch node*: a compute node in
front of it, which holds no memory and takes that long::

    compute       | mm |launch|     mm      |finish|wait|
    fsdp                      |== gather ===|

A wait for a collective that is done takes time, too (gloo copies what a reduce_scatter has summed up). Where the model
knows that (``finish_us``), a *finish node* stands in front of the wait. Each stands for the same node of the graph as
the collective or wait behind it. Without such a model no node is added.
"""

from collections.abc import Mapping, Sequence

from overlap_sched.cost import Collective, CostModel
from overlap_sched.cost.model import FinishingModel, LaunchingModel
from overlap_sched.problem import Group, Kind, Node
from overlap_sched.problem.node import FINISH, LAUNCH


def launch_times(nodes: Sequence[Node], groups: Mapping[str, Group], model: CostModel | None) -> dict[int, float]:
    """Per collective and wait (its index) what launching or finishing takes, where that is not nothing."""
    if not isinstance(model, LaunchingModel):
        return {}
    works = {
        v: Collective(node.op, node.bytes, groups[node.group])
        for v, node in enumerate(nodes)
        if node.kind is Kind.COLLECTIVE and node.group is not None
    }
    times = {v: model.launch_us(work) for v, work in works.items()}
    if isinstance(model, FinishingModel):
        waits = {v: node.collective for v, node in enumerate(nodes) if node.kind is Kind.WAIT}
        times |= {v: model.finish_us(works[u]) for v, u in waits.items() if u is not None}
    return {v: us for v, us in times.items() if us > 0.0}


def with_launches(nodes: Sequence[Node], launch_us: Mapping[int, float]) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Nodes with a launch or finish node before each that has one, and per node the index of what it stands for."""
    if not launch_us:
        return tuple(nodes), tuple(range(len(nodes)))
    result: list[Node] = []
    stands_for: list[int] = []
    ids: list[int] = []  # per old index
    for v, node in enumerate(nodes):
        deps = tuple(ids[u] for u in node.deps)
        deps = deps if node.kind is Kind.OUTPUT else tuple(sorted(deps))
        if v in launch_us:
            op = FINISH if node.kind is Kind.WAIT else LAUNCH
            result.append(Node(f"{node.name}.{op}", Kind.COMPUTE, deps, time_us=launch_us[v], op=op))
            stands_for.append(v)
            deps = (*deps, len(result) - 1)
        ids.append(len(result))
        stands_for.append(v)
        collective = None if node.collective is None else ids[node.collective]
        result.append(node._replace(deps=deps, collective=collective))
    return tuple(result), tuple(stands_for)

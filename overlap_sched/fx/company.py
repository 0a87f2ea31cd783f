"""Nodes of a problem that stand for no node of the graph by themselves: further waits, launches, finishes.

A problem has one collective per wait, and only waits wait. torch 2.15 has ``wait_tensors``: the compute stream stands
still until all collectives that its tensors come from have finished. Mostly that is one collective with several
outputs. Where there are several, the wait gets company: one more wait for each of the others, in front of it, which
hold no memory and take no time. A replay stands still at each of them in turn, and so until the last has finished; in
any order it predicts at least the time that the program takes, and exactly that where nothing runs between them. What
communicates on the compute stream has them, too, as it runs when the streams of its groups are free, behind all that
was launched there; and so has a sub-graph that waits for what it is given::

    compute       | mm |.........|part|== all_reduce in a sub-graph ==|
    fsdp               |== gather ====|

On a GPU the host launches ahead of time. On a CPU the thread that computes launches, too, and over gloo that takes it
50 to 1,000 us. A cost model that knows so (``launch_us``) gives each collective a *launch node*: a compute node in
front of it, which holds no memory and takes that long::

    compute       | mm |launch|     mm      |finish|wait|
    fsdp                      |== gather ===|

A wait for a collective that is done takes time, too (gloo copies what a reduce_scatter has summed up). Where the model
knows that (``finish_us``), a *finish node* stands in front of the wait. Without such a model no node is added.
"""

from collections.abc import Collection, Mapping, Sequence

from overlap_sched.cost import Collective, CostModel
from overlap_sched.cost.model import FinishingModel, LaunchingModel
from overlap_sched.problem import FINISH, LAUNCH, PART, Group, Kind, Node


def one_collective_each(
    nodes: Sequence[Node], ends: Mapping[int, Sequence[int]], outside: Collection[int] = ()
) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Nodes in which every wait has one collective, and per node the index of the one that it stands for.

    Args:
        nodes: In their original order; of a wait of several collectives, ``collective`` is one of them. What
            communicates on the compute stream depends on what was launched before on its groups.
        ends: Per node that waits (its index) the indices of all collectives that it waits for.
        outside: Nodes that wait for what this graph does not launch.
    """
    company: dict[int, list[Node]] = {}
    for v, node in enumerate(nodes):
        if not (v in ends or node.launches or v in outside):
            continue
        found = dict.fromkeys([*ends.get(v, ()), *(u for u in node.deps if nodes[u].group in node.launches)])
        others = [(nodes[u].name, u) for u in found if u != node.collective]
        company[v] = [Node(f"{node.name}.{name}", Kind.WAIT, (u,), op=PART, collective=u) for name, u in others]
        if v in outside and node.kind is Kind.COMPUTE and not others:
            company[v] = [Node(f"{node.name}.wait", Kind.WAIT, op=PART)]
    return _with_company(nodes, company)


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
        waits = {v: node.collective for v, node in enumerate(nodes) if node.kind is Kind.WAIT and node.op != PART}
        parts = {v: node.collective for v, node in enumerate(nodes) if node.op == PART}
        waits |= {v: u for v, u in parts.items() if u not in waits.values()}
        times |= {v: model.finish_us(works[u]) for v, u in waits.items() if u is not None}
    return {v: us for v, us in times.items() if us > 0.0}


def with_launches(nodes: Sequence[Node], launch_us: Mapping[int, float]) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Nodes with a launch or finish node before each that has one, and per node the index of what it stands for."""
    company = {}
    for v, us in launch_us.items():
        op = FINISH if nodes[v].kind is Kind.WAIT else LAUNCH
        company[v] = [Node(f"{nodes[v].name}.{op}", Kind.COMPUTE, nodes[v].deps, time_us=us, op=op)]
    return _with_company(nodes, company)


def _with_company(
    nodes: Sequence[Node], company: Mapping[int, Sequence[Node]]
) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Nodes behind others that they must come after (by old indices), and per node the old index that it stands for."""
    if not any(company.values()):
        return tuple(nodes), tuple(range(len(nodes)))
    result: list[Node] = []
    stands_for: list[int] = []
    ids: list[int] = []  # per old index
    for v, node in enumerate(nodes):
        first = len(result)
        for one in (*company.get(v, ()), node):
            deps = [ids[u] for u in one.deps]
            deps = deps if one.kind is Kind.OUTPUT else sorted(deps)
            before = range(first, len(result)) if one is node else ()
            collective = None if one.collective is None else ids[one.collective]
            result.append(one._replace(deps=(*deps, *before), collective=collective))
            stands_for.append(v)
        ids.append(len(result) - 1)
    return tuple(result), tuple(stands_for)

"""On which nodes the ranks of process groups are: from the ranks, else from the mesh, else by a stated assumption.

A mesh numbers its ranks row by row, the innermost dimension fastest. With nodes of 8, sizes (4, 8) and names
("fsdp", "tp"), rank 0 shares ``tp`` with ranks 0 to 7, which fill its node, and ``fsdp`` with ranks 0, 8, 16 and 24,
each on another node. That a group has no more ranks than a node says nothing about where they are.

Which groups shard parameters: they gather what goes into the graph and reduce what comes out of it. FSDP gathers a
parameter that at most a cast has touched, and its reduce_scatter of a gradient goes straight to an output. Tensor and
expert parallel collectives stand between matmuls. So a group counts as one that shards if at least half of its
collectives have no other collective and only a short path of compute on their outer side.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from overlap_sched.cost.cluster import Cluster, MeshDimension
from overlap_sched.errors import CostError
from overlap_sched.problem import Group


class Facts(NamedTuple):
    """What is known of a process group.

    Attributes:
        size: Its number of ranks.
        ranks: Which; empty: not known.
        shards: Whether its collectives gather parameters and reduce gradients, not activations: a data dimension.
    """

    size: int
    ranks: tuple[int, ...] = ()
    shards: bool = False


class Nodes(NamedTuple):
    """The machines that ranks are put on.

    Attributes:
        ranks_per_node: Ranks of a node.
        single: There is one node only.
        mesh: Dimensions of the device mesh, outermost first; empty: not known.
    """

    ranks_per_node: int
    single: bool = False
    mesh: tuple[MeshDimension, ...] = ()


def nodes_of_ranks(cluster: Cluster | None, ranks_per_node: int, mesh: Sequence[MeshDimension] = ()) -> Nodes:
    """The machines of a cluster, or without one such of so many ranks; ``mesh`` goes before the cluster's own."""
    if cluster is None:
        return Nodes(ranks_per_node, mesh=tuple(mesh))
    return Nodes(cluster.ranks_per_node, cluster.across is None, tuple(mesh) or cluster.mesh)


class Placement(NamedTuple):
    """Where a process group is. ``assumed``: what was assumed, in words; ``""``: nothing was."""

    group: Group
    assumed: str = ""


def place(groups: Mapping[str, Facts], on: Nodes) -> dict[str, Placement]:
    """Place all process groups of a graph.

    Ranks that are known decide. Else the mesh, if there is one. Else groups are taken to be dimensions of a mesh whose
    ranks are numbered in the usual way: what passes activations (tensor, expert parallel) innermost, what shards
    parameters outside of it; among those, torch numbers groups from the outermost dimension on. A group that is as
    large as neighbours together is taken for these flattened.

    Raises:
        CostError: A group has more ranks than the only node, or none of the mesh's dimensions fits it.
    """
    for name, facts in groups.items():
        if on.single and facts.size > on.ranks_per_node:
            raise CostError(
                f"process group {name!r} has {facts.size} ranks, but the cluster is one node of {on.ranks_per_node}. "
                "Choose a cluster with several (--cluster), or give [across] in its file."
            )
    strides = {} if on.mesh else _strides(groups)
    return {name: _placed(name, facts, on, strides) for name, facts in groups.items()}


def _placed(name: str, facts: Facts, on: Nodes, strides: Mapping[str, int]) -> Placement:
    size = facts.size
    if facts.ranks:
        known = math.prod(d.size for d in on.mesh) if on.mesh else on.ranks_per_node if on.single else math.inf
        if max(facts.ranks) >= known:
            raise CostError(
                f"process group {name!r} has rank {max(facts.ranks)}, but the {'mesh' if on.mesh else 'cluster'} has "
                f"ranks 0 to {known - 1}. Correct --group or --mesh, or choose a larger cluster (--cluster)."
            )
        return _on(size, len({rank // on.ranks_per_node for rank in facts.ranks}))
    if on.single or size == 1:
        return _on(size, 1)
    if on.mesh:
        return _in_mesh(name, facts, on)
    nodes = _spanned(size, strides[name], on.ranks_per_node)
    said = f"process group {name!r} ({size} ranks): its ranks are not known, assumed {_where(size, nodes)}"
    return _on(size, nodes, f"{said}; say otherwise with --group {name}=RANK,RANK,... or --mesh NAME=SIZE,...")


def _on(size: int, nodes: int, assumed: str = "") -> Placement:
    return Placement(Group(size, True) if nodes == 1 else Group(size, False, nodes), assumed)


def _spanned(size: int, stride: int, ranks_per_node: int) -> int:
    """Nodes of ranks 0, stride, 2 * stride, ..."""
    if stride >= ranks_per_node and stride % ranks_per_node == 0:
        return size
    return (size - 1) * stride // ranks_per_node + 1 if stride <= ranks_per_node else size


def ranks_along(mesh: Sequence[MeshDimension], dimension: str) -> tuple[int, ...]:
    """Ranks of rank 0's group along a dimension of a mesh, or along neighbours joined by ``+``: ``"fsdp+tp"``."""
    runs = _runs(mesh)
    if dimension not in runs:
        shown = ", ".join(f"{one.name}={one.size}" for one in mesh) or "not given (--mesh NAME=SIZE,...)"
        raise CostError(
            f"the mesh is {shown}: it has no {dimension!r}. Name a dimension, or neighbours joined by +, outermost "
            "first."
        )
    first, end = runs[dimension]
    stride = math.prod(one.size for one in mesh[end:])
    return tuple(range(0, stride * math.prod(one.size for one in mesh[first:end]), stride))


def _runs(mesh: Sequence[MeshDimension]) -> dict[str, tuple[int, int]]:
    return {"+".join(d.name for d in mesh[i:j]): (i, j) for j in range(len(mesh) + 1) for i in range(j)}


def _in_mesh(name: str, facts: Facts, on: Nodes) -> Placement:
    runs = _runs(on.mesh)
    fits = {run: at for run, at in runs.items() if math.prod(d.size for d in on.mesh[slice(*at)]) == facts.size}
    shown = ", ".join(f"{dimension.name}={dimension.size}" for dimension in on.mesh)
    if not fits:
        raise CostError(
            f"process group {name!r} has {facts.size} ranks, but no dimension of the mesh {shown}, nor neighbours "
            f"together, has as many. Correct --mesh, or give its ranks: --group {name}=RANK,RANK,..."
        )
    short = sorted(fits, key=lambda run: (fits[run][1] - fits[run][0], fits[run][0]))
    like = [run for run in short if run.count("+") == short[0].count("+")]
    chosen = like[0] if facts.shards else like[-1]
    nodes = _spanned(facts.size, math.prod(d.size for d in on.mesh[fits[chosen][1] :]), on.ranks_per_node)
    said = (
        f"process group {name!r} ({facts.size} ranks) may be {' or '.join(fits)} of the mesh: taken as {chosen}, "
        f"{_where(facts.size, nodes)}; say otherwise with --group {name}=DIMENSION"
    )
    return _on(facts.size, nodes, said if len(fits) > 1 else "")


def _strides(groups: Mapping[str, Facts]) -> dict[str, int]:
    """Per group the distance of its ranks, taking groups for dimensions of a mesh, innermost first."""
    # torch names groups by a counter; others keep their order of first use
    numbers = {name: int(name) if name.isdecimal() and len(name) < 19 else k for k, name in enumerate(groups)}
    order = sorted(groups, key=lambda name: (groups[name].shards, -numbers[name], name))
    strides, stride = dict.fromkeys(order, 1), 1
    for name in order:
        others = [groups[other].size for other in order if other != name]
        products = zip(accumulate(others, mul), others, strict=True)
        if not any(
            count and size > 1 and product == groups[name].size for count, (product, size) in enumerate(products)
        ):
            strides[name], stride = stride, stride * groups[name].size  # else it is neighbours together, flattened
    return strides


def _where(size: int, nodes: int) -> str:
    if nodes == 1:
        return "inside one node"
    return f"on {nodes} nodes, {-(-size // nodes)} rank{'' if size <= nodes else 's'} on each"


SHORT = 6
"""Compute steps on a path that still counts as none: casts, padding, copies."""
_FAR = 1 << 30


class DataflowNode(NamedTuple):
    """A node of a graph: what it takes, whether it does anything, and, of a collective, its operator and group."""

    inputs: Sequence[int]
    works: bool
    op: str = ""
    group: str = ""


def sharding_groups(steps: Sequence[DataflowNode]) -> set[str]:
    """Names of the groups; the steps in an order in which inputs come first. Linear."""
    before = _depths(steps, range(len(steps)), [step.inputs for step in steps])
    users: list[list[int]] = [[] for _ in steps]
    for v, step in enumerate(steps):
        for u in step.inputs:
            users[u].append(v)
    after = _depths(steps, range(len(steps) - 1, -1, -1), users)
    outer: dict[str, list[bool]] = {}
    for v, step in enumerate(steps):
        if step.group:
            depths = [before[u] for u in step.inputs] if "gather" in step.op else [after[u] for u in users[v]]
            short = ("gather" in step.op or "reduce" in step.op) and max(depths, default=0) <= SHORT
            outer.setdefault(step.group, []).append(short)
    return {group for group, found in outer.items() if 2 * sum(found) >= len(found)}


def _depths(steps: Sequence[DataflowNode], order: Iterable[int], before: Sequence[Sequence[int]]) -> list[int]:
    depths = [0] * len(steps)
    for v in order:
        own = _FAR if steps[v].group else int(steps[v].works)
        depths[v] = min(max((depths[u] for u in before[v]), default=0) + own, _FAR)
    return depths

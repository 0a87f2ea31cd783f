"""Process groups of a graph's collectives: who they are, how many ranks, inside a node or across."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import fx

from overlap_sched.cost.cluster.placement import Facts, Nodes, Placement, place
from overlap_sched.cost.cluster.sharding_groups import DataflowNode, sharding_groups
from overlap_sched.fx.collectives import Role, names_a_group
from overlap_sched.fx.operator_traits import NO_CALL, arguments_of
from overlap_sched.fx.reading import Reading
from overlap_sched.fx.wrappers import call_of
from overlap_sched.problem import Group
from overlap_sched.transform.host import OUT

SHARED = {"ao": OUT, "dc": "dc"}
"""By namespace of operators that name no process group: how theirs is called."""
GROUPS_KEY = "overlap_sched_groups"
"""Key of ``gm.meta`` under which a graph read from a file carries its process groups:
``{name: (size, ranks or None)}``."""


def groups_of(
    reading: Reading, launches: Sequence[int], given: Mapping[str, Group], carried: Mapping[str, Facts], nodes: Nodes
) -> tuple[dict[int, str], dict[str, Placement]]:
    """Per collective the name of its group, and per name, of those in sub-graphs, too, its size and where it is.

    A group's size is the one in ``given`` or ``carried``; else that in its collectives' arguments; else that of the
    live process group; else the ratio of output to input; else that of the world (counted in the notes as
    ``group_size_guessed``). Where it is: as ``given`` says, else by its ranks where they can be known, else by
    :func:`overlap_sched.cost.cluster.placement.place`.

    Raises:
        CostError: A group does not fit the ranks.
    """
    name_of: dict[int, str] = {}
    members: dict[str, list[_Site]] = {}
    ranks: dict[str, list[int] | None] = {}
    for site in (*((reading, v) for v in launches), *_inside(reading)):
        node = site[0].nodes[site[1]]
        name, live = name_and_group(node)
        if site[0] is reading:
            name_of[site[1]] = name
        members.setdefault(name, []).append(site)
        if name not in ranks:
            ranks[name] = _listed_ranks(node) or (
                None if name in given or name in carried else live_ranks(name if live is None else live)
            )
    open_names = [name for name in members if name not in given]
    facts = {name: carried.get(name) or _facts(members[name], ranks[name], nodes) for name in open_names}
    if any(not one.ranks for one in facts.values()):
        shards = sharding_groups(_steps(reading, name_of))
        facts = {name: one._replace(shards=name in shards) for name, one in facts.items()}
    placed = place(facts, nodes)
    found = {name: one._replace(group=one.group._replace(ranks=facts[name].ranks)) for name, one in placed.items()}
    return name_of, {name: found[name] if name in found else Placement(given[name]) for name in members}


_Site = tuple[Reading, int]
"""A collective: in which graph, and where."""


def _inside(reading: Reading) -> Iterator[_Site]:
    """Yield the collectives in sub-graphs, at every depth."""
    for inner in dict.fromkeys(one for readings in reading.inner.values() for one in readings):
        yield from ((inner, v) for v, traits in enumerate(inner.traits) if traits.role in (Role.LAUNCH, Role.BLOCKING))
        yield from _inside(inner)


def carried_facts(graph: fx.Graph) -> dict[str, Facts]:
    """The groups that a loaded dump carries along; none for other graphs."""
    carried = getattr(graph.owning_module, "meta", {}).get(GROUPS_KEY, {})
    return {name: Facts(size, tuple(ranks or ())) for name, (size, ranks) in carried.items()}


def _steps(reading: Reading, name_of: Mapping[int, str]) -> list[DataflowNode]:
    return [
        DataflowNode(
            reading.inputs[v],
            not traits.free and traits is not NO_CALL and traits.comm is None,
            "" if traits.comm is None else traits.comm.op,
            name_of.get(v, ""),
        )
        for v, traits in enumerate(reading.traits)
    ]


def _facts(members: list[_Site], ranks: list[int] | None, nodes: Nodes) -> Facts:
    size = next((n for r, v in members if (n := _argument(r.nodes[v], "group_size")) is not None), None)
    if ranks is not None and size in (None, len(ranks)):
        return Facts(len(ranks), tuple(ranks))
    size = size or _size_from_values(members)
    if size is None:
        size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else nodes.ranks_per_node
        members[0][0].notes["group_size_guessed"] += 1
    return Facts(int(size))


def _argument(node: fx.Node, name: str) -> Any:
    """A collective's argument by the name that its schema gives it; ``None`` where it has no such one."""
    call = call_of(node)
    return arguments_of(call.target, call.args, call.kwargs).get(name)


def name_and_group(node: fx.Node) -> tuple[str, Any]:
    """The name of a collective's group; with the process group itself where the graph carries it.

    Of a copy to or from the host, and of DeepSpeed's collectives, which name none: the one that all of them share.
    """
    shared = SHARED.get(getattr(node.target, "namespace", ""))
    if shared is not None:
        return shared, None
    call = call_of(node)
    given = arguments_of(call.target, call.args, call.kwargs)
    named = (given.get(a.name) for a in call.target._schema.arguments if names_a_group(a))
    value = next((value for value in named if value is not None), None)
    if value is None:
        ranks = _listed_ranks(node)
        return (f"{_argument(node, 'tag') or ''}:{ranks}" if ranks else str(node.target)), None
    return group_of(value) or ((value if isinstance(value, fx.Node) else node).name, None)


def group_of(value: Any) -> tuple[str, Any] | None:
    """The name of the process group that an argument is, or names; with the group itself where the graph carries it."""
    if isinstance(value, fx.Node):  # torch 2.13: the node that looks the group up in its mesh
        value = value.meta.get("val")
    if isinstance(value, str):
        return value, None
    for candidate in (value, getattr(value, "real_obj", None), getattr(value, "wrapped_obj", None)):
        name = getattr(candidate, "group_name", None)
        if isinstance(name, str):
            return name, candidate
    return None


def _listed_ranks(node: fx.Node) -> list[int] | None:
    """The ranks that the older collectives name in their arguments."""
    ranks = _argument(node, "ranks")
    return list(ranks) if ranks else None


def live_ranks(group: Any) -> list[int] | None:
    """Ranks of a process group of this process, by name or itself; ``None`` where there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    from torch.distributed import distributed_c10d as c10d

    resolve: Any = c10d._resolve_process_group
    try:
        return list(c10d.get_process_group_ranks(resolve(group) if isinstance(group, str) else group))
    except Exception:  # torch raises several types for "no such group"
        return None


def _size_from_values(members: list[_Site]) -> int | None:
    """How much larger one side of a gather or scatter is than the other."""
    for reading, v in members:
        into = sum(reading.value_bytes[u] for u in reading.inputs[v])
        out, traits = reading.value_bytes[v], reading.traits[v]
        op = traits.comm.op if traits.comm else ""
        small, large = (into, out) if "gather" in op else (out, into) if "scatter" in op else (0, 0)
        if 0 < small <= large and large % small == 0:
            return large // small
    return None

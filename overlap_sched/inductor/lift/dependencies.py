"""What must keep its order among scheduler nodes: torch's own dependencies, and hazards found from the storages.

torch chains all collectives in the order of the FX graph by dependencies that carry no data; since a wait renames what
it waits for, each launch even comes after the wait of the one before, and nothing can overlap. These alone are left
out; whatever they may have covered besides is found again from the storages: read after write, write after read, write
after write, as they are in the order given.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.calls import Communication, joined
from overlap_sched.fx.hazards import (
    Launch,
    add_hazards,
    blocking_hazards,
    chain_hazards,
    impurity_hazards,
    launch_chains,
    storage_hazards,
)
from overlap_sched.fx.operators import Ordering
from overlap_sched.fx.reading import Reading
from overlap_sched.inductor.lift.buffers import Buffers
from overlap_sched.inductor.lift.costs import KernelCosts
from overlap_sched.inductor.lift.data_flow import DataFlow
from overlap_sched.inductor.private import V, WeakDep, members, runs
from overlap_sched.problem import Kind


def dependencies(
    snodes: Sequence[Any],
    buffers: Buffers,
    flow: DataFlow,
    reading: Reading,
    costs: KernelCosts,
    notes: Counter[str],
) -> dict[int, set[int]]:
    """Per scheduler node, the positions of those that must run before it; all arguments are of the same graph.

    Counts ``comm_order``, ``hazard`` and ``point_to_point`` in ``notes``.

    Raises:
        UnsupportedError: A dependency names nothing, or comes later.
    """
    after = {at: _of_torch(at, snode, buffers, flow, notes) for at, snode in enumerate(snodes)}
    known = sum(map(len, after.values()))
    unseen = [flow.takes[at] if _writes_unseen(snode, reading, costs) else () for at, snode in enumerate(snodes)]
    writes = [(*said, *more) for said, more in zip(flow.writes, unseen, strict=True)]
    add_hazards(after, storage_hazards(zip(range(len(snodes)), flow.takes, writes, strict=True)))
    add_hazards(after, impurity_hazards(_impure(snodes, flow, reading, costs)))
    chains = launch_chains(_launches(snodes, flow, reading, costs))
    notes["point_to_point"] = sum(map(len, chains))
    add_hazards(after, chain_hazards(chains))
    add_hazards(after, blocking_hazards(_launch_steps(snodes, flow, reading, costs)))
    notes["hazard"] = sum(map(len, after.values())) - known
    return after


def _writes_unseen(snode: Any, reading: Reading, costs: KernelCosts) -> bool:
    """Tell whether a node writes something that it takes, although no schema says so: Inductor does not know."""
    return any(v in reading.unseen for one in members(snode) if one.is_extern() for v in costs.origins(one))


def _of_torch(at: int, snode: Any, buffers: Buffers, flow: DataFlow, notes: Counter[str]) -> set[int]:
    before: set[int] = set()
    chain = _comm_chain(snode) if flow.launches[at] else None
    for dep in snode.unmet_dependencies:
        u = buffers.producer.get(dep.name)
        if u is None:
            if dep.name in V.graph.removed_buffers or dep.name in V.graph.graph_inputs:
                continue
            raise UnsupportedError(
                f"{snode.get_name()!r} depends on {dep.name!r}, which nothing in this graph produces."
            )
        if u == at:
            continue
        if isinstance(dep, WeakDep) and dep.is_fake and chain == dep.mutating_buf:
            notes["comm_order"] += 1  # torch's pass for CUDA graphs does not keep to it either
            continue
        if u > at:
            raise UnsupportedError(f"{snode.get_name()!r} runs before {dep.name!r}, on which it depends.")
        before.add(u)
    return before


def _comm_chain(snode: Any) -> str | None:
    """The name by which ``decide_global_ordering_of_comms`` marks the dependencies that it gives to this collective."""
    return next(iter(snode.get_buffer_names()), None)


def _impure(
    snodes: Sequence[Any], flow: DataFlow, reading: Reading, costs: KernelCosts
) -> Iterator[tuple[int, Ordering]]:
    """Yield what draws random numbers, has effects or communicates.

    Communication is ordered against barriers, and where the FX graph says that it has effects, among those.
    """
    for at, snode in enumerate(snodes):
        if flow.launches[at] or flow.waits[at]:
            found = [v for member in members(snode) if member.is_extern() for v in costs.origins(member)]
            effect = any(reading.ordering.get(v, Ordering.NONE) >= Ordering.EFFECT for v in found)
            yield at, Ordering.EFFECT if effect else Ordering.NONE
        elif (ordering := _ordering_of(snode, reading, costs)) is not Ordering.NONE:
            yield at, ordering


def _ordering_of(snode: Any, reading: Reading, costs: KernelCosts) -> Ordering:
    ordering = Ordering.NONE
    for member in members(snode):
        if member.node is None or not (member.is_extern() or member.has_side_effects()):
            continue
        if getattr(member.node, "subgraphs", None) or getattr(member.node, "subgraph", None):
            return Ordering.BARRIER
        ordering = max([ordering, *(reading.ordering.get(v, Ordering.NONE) for v in costs.origins(member))])
        if member.has_side_effects():
            ordering = max(ordering, Ordering.EFFECT)
    if ordering is Ordering.FENCE:
        raise UnsupportedError(
            f"{snode.get_name()!r} changes the mode in which later nodes run (streams, autograd mode)."
        )
    return ordering


def _launches(snodes: Sequence[Any], flow: DataFlow, reading: Reading, costs: KernelCosts) -> Iterator[Launch]:
    for at, launches in enumerate(flow.launches):
        origins = [v for member in members(snodes[at]) for v in costs.origins(member)] if launches else []
        comms = [(costs.group_of[v], reading.traits[v].comm) for v in origins if v in costs.group_of]
        if comms:
            yield Launch(at, comms[-1][0], any(comm is not None and comm.point_to_point for _, comm in comms))


def _launch_steps(
    snodes: Sequence[Any], flow: DataFlow, reading: Reading, costs: KernelCosts
) -> list[tuple[int, tuple[str, ...], bool]]:
    """As :func:`overlap_sched.fx.hazards.launch_steps`, of scheduler nodes."""
    launches = {launch.at: (launch.group,) for launch in _launches(snodes, flow, reading, costs)}
    steps: list[tuple[int, tuple[str, ...], bool]] = []
    for at, snode in enumerate(snodes):
        inside = communication(snode, reading, costs)
        if at in launches:
            steps.append((at, launches[at], False))
        elif inside is not None and (groups := inside.groups if launches else inside.kept):
            steps.append((at, groups, True))
    return steps


def waits_inside(
    snodes: Sequence[Any], flow: DataFlow, reading: Reading, costs: KernelCosts
) -> tuple[dict[int, list[int]], list[int]]:
    """Return the nodes whose sub-graphs wait, with the launches that they wait for; and those that wait for others."""
    every = [[v for member in members(snode) if runs(member) for v in costs.origins(member)] for snode in snodes]
    launched = {v: at for at, origins in enumerate(every) if flow.launches[at] for v in origins}
    ends, outside = dict[int, list[int]](), list[int]()
    for at, origins in enumerate(every):
        inside = [v for v in origins if v in reading.inner and flow.kinds[at] is Kind.COMPUTE]
        if any(v in reading.outside for v in inside):
            outside.append(at)
        if found := [launched[u] for v in inside for u in reading.ends.get(v, ()) if u in launched]:
            ends[at] = found
    return ends, outside


def communication(snode: Any, reading: Reading, costs: KernelCosts) -> Communication | None:
    """Return what a scheduler node communicates, or may, that is no collective on a stream of its own."""
    origins = [v for member in members(snode) if runs(member) for v in costs.origins(member)]
    found = [reading.communicates[v] for v in origins if v in reading.communicates]
    return joined(found) if found else None

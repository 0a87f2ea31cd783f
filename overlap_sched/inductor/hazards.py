"""What must keep its order among scheduler nodes: torch's own dependencies, and hazards found from the storages.

torch chains all collectives in the order of the FX graph by dependencies that carry no data; since a wait renames what
it waits for, each launch even comes after the wait of the one before, and nothing can overlap. These alone are left
out; whatever they may have covered besides is found again from the storages: read after write, write after read, write
after write, as they are in the order given.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from overlap_sched.errors import NotUnderstoodError
from overlap_sched.fx.hazards import chained
from overlap_sched.fx.operator_traits import Keeps
from overlap_sched.fx.reading import Reading
from overlap_sched.inductor.buffers import Buffers
from overlap_sched.inductor.costs import KernelCosts
from overlap_sched.inductor.flow import Flow
from overlap_sched.inductor.private import V, WeakDep, members


def dependencies(
    snodes: Sequence[Any],
    buffers: Buffers,
    flow: Flow,
    reading: Reading,
    costs: KernelCosts,
    notes: Counter[str],
) -> list[set[int]]:
    """Per scheduler node, the positions of those that must run before it.

    Args:
        snodes: In the order in which they would run.
        buffers: Theirs.
        flow: What they are, read and write.
        reading: Of the FX graph.
        costs: Of the same.
        notes: Counts ``comm_order``, ``hazard`` and ``point_to_point``.

    Raises:
        NotUnderstoodError: A dependency names nothing, or comes from behind.
    """
    after = [_of_torch(at, snode, buffers, flow, notes) for at, snode in enumerate(snodes)]
    known = sum(map(len, after))
    _keep_storages(flow.takes, flow.writes, after)
    for at, before in chained(_impure(snodes, flow, reading, costs)):
        after[at].add(before)
    _keep_point_to_point(snodes, flow, reading, costs, after, notes)
    notes["hazard"] = sum(map(len, after)) - known
    return after


def _of_torch(at: int, snode: Any, buffers: Buffers, flow: Flow, notes: Counter[str]) -> set[int]:
    before: set[int] = set()
    chain = _comm_chain(snode) if flow.launches[at] else None
    for dep in snode.unmet_dependencies:
        u = buffers.producer.get(dep.name)
        if u is None:
            if dep.name in V.graph.removed_buffers or dep.name in V.graph.graph_inputs:
                continue
            raise NotUnderstoodError(
                f"{snode.get_name()!r} depends on {dep.name!r}, which nothing in this graph gives."
            )
        if u == at:
            continue
        if u > at:
            raise NotUnderstoodError(f"{snode.get_name()!r} runs before {dep.name!r}, on which it depends.")
        if isinstance(dep, WeakDep) and dep.is_fake and chain == dep.mutating_buf:
            notes["comm_order"] += 1
            continue
        before.add(u)
    return before


def _comm_chain(snode: Any) -> str | None:
    """The name by which ``decide_global_ordering_of_comms`` marks the dependencies that it gives to this collective."""
    return next(iter(snode.get_buffer_names()), None)


def _keep_storages(takes: Sequence[Sequence[str]], writes: Sequence[Sequence[str]], after: list[set[int]]) -> None:
    written = {s for roots in writes for s in roots}
    last_write: dict[str, int] = {}
    readers: dict[str, list[int]] = defaultdict(list)
    for at, roots in enumerate(takes):
        for s in roots:
            if s in written:
                if s in last_write:
                    after[at].add(last_write[s])
                readers[s].append(at)
        for s in writes[at]:
            after[at].update(readers.pop(s, ()))
            if s in last_write:
                after[at].add(last_write[s])
            last_write[s] = at
        after[at].discard(at)


def _impure(snodes: Sequence[Any], flow: Flow, reading: Reading, costs: KernelCosts) -> Iterator[tuple[int, Keeps]]:
    """What draws random numbers, acts or communicates; of communication, barriers alone keep their side."""
    for at, snode in enumerate(snodes):
        if flow.launches[at] or flow.waits[at]:
            yield at, Keeps.NOTHING
        elif (keeps := _keeps(snode, reading, costs)) is not Keeps.NOTHING:
            yield at, keeps


def _keeps(snode: Any, reading: Reading, costs: KernelCosts) -> Keeps:
    keeps = Keeps.NOTHING
    for member in members(snode):
        if member.node is None or not (member.is_extern() or member.has_side_effects()):
            continue
        if getattr(member.node, "subgraphs", None) or getattr(member.node, "subgraph", None):
            return Keeps.BARRIER
        keeps = max([keeps, *(reading.keeps.get(v, Keeps.NOTHING) for v in costs.origins(member))])
        if member.has_side_effects():
            keeps = max(keeps, Keeps.EFFECT)
    if keeps is Keeps.FENCE:
        raise NotUnderstoodError(f"{snode.get_name()!r} changes how what follows it runs (streams, autograd mode).")
    return keeps


def _keep_point_to_point(
    snodes: Sequence[Any],
    flow: Flow,
    reading: Reading,
    costs: KernelCosts,
    after: list[set[int]],
    notes: Counter[str],
) -> None:
    """Sends and receives must meet their partners, whose graphs differ: groups that have any keep their order."""
    group_at: dict[int, str] = {}
    frozen: set[str] = set()
    for at in (at for at, launches in enumerate(flow.launches) if launches):
        for member in members(snodes[at]):
            for v in costs.origins(member):
                comm = reading.facts[v].comm
                if v in costs.group_of and comm is not None:
                    group_at[at] = costs.group_of[v]
                    if comm.point_to_point:
                        frozen.add(costs.group_of[v])
    last: dict[str, int] = {}
    for at, group in group_at.items():
        if group in frozen:
            notes["point_to_point"] += 1
            if group in last:
                after[at].add(last[group])
            last[group] = at

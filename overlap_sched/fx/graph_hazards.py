"""What an FX graph does at each node, for the rules of :mod:`~overlap_sched.fx.hazards`.

A collective in flight reads its inputs and writes its outputs until its wait, so its wait counts as reading the former
and (where something else looks at the latter) writing the latter. What a collective reads that an earlier graph has
launched, nothing shows: its wait counts as reading all inputs. Copies between devices that need not be finished when
they return are finished at the next node where the host waits for the device: that node counts as writing them.
"""

from collections.abc import Iterator, Mapping

from overlap_sched.fx.collectives import Role
from overlap_sched.fx.hazards import (
    Launch,
    Ordering,
    add_hazards,
    blocking_hazards,
    chain_hazards,
    fence_hazards,
    impurity_hazards,
    launch_chains,
    storage_hazards,
)
from overlap_sched.fx.reading import Reading

Access = tuple[int, list[int], list[int]]
"""A node, the storages that it reads, and those that it writes."""


def graph_hazards(reading: Reading, group_of: Mapping[int, str]) -> dict[int, set[int]]:
    """Per node that writes or has any: the earlier nodes that it must come after, besides those whose values it takes.

    Linear in the graph and its hazards; most graphs have few. ``group_of``: per collective, its process group.
    """
    accesses = list(_accesses(reading))
    after: dict[int, set[int]] = {v: set() for v, _, writes in accesses if writes}
    impure = sorted({*reading.ordering, *reading.writes, *reading.syncs})
    add_hazards(after, impurity_hazards((v, reading.ordering.get(v, Ordering.NONE)) for v in impure))
    add_hazards(after, storage_hazards(accesses))
    if Ordering.FENCE in reading.ordering.values():
        add_hazards(after, list(fence_hazards(_sides(reading, after))))
    chains = launch_chains(_launches(reading, group_of))
    reading.notes["point_to_point"] = sum(map(len, chains))
    add_hazards(after, chain_hazards(chains))
    add_hazards(after, blocking_hazards(launch_steps(reading, group_of)))
    return after


def launch_steps(r: Reading, group_of: Mapping[int, str]) -> Iterator[tuple[int, tuple[str, ...], bool]]:
    """Yield the steps that launch, for :func:`~overlap_sched.fx.hazards.blocking_hazards`.

    Ranks do not agree on the order of a graph that launches no collective: there all that may communicate counts.
    """
    launches = {v: (group,) for v, group in group_of.items() if v not in r.communicates}
    certain = bool(launches)
    for v in sorted({*launches, *r.communicates}):
        if v in launches:
            yield v, launches[v], False
        elif groups := r.communicates[v].groups if certain else r.communicates[v].kept:
            yield v, groups, True


def _accesses(r: Reading) -> Iterator[Access]:
    shared = _shared(r)
    inputs = _inputs(r) if r.outside else []
    unfinished: dict[int, None] = {}  # copies between devices
    for v, takes in enumerate(r.takes):
        writes = list(r.writes.get(v, ()))
        stops = bool(unfinished) and (v in r.syncs or r.ordering.get(v, Ordering.NONE) >= Ordering.EFFECT)
        if not (writes or stops or v in r.launch_of) and shared.isdisjoint(takes):
            continue
        reads, more = _reads_and_writes(r, v, shared)
        if v in r.outside:
            reads += [s for s in inputs if s in shared and s not in reads]
        writes += more
        if stops:  # later readers of the copies must come after it
            writes += [s for s in unfinished if s not in writes]
        if v in r.syncs:  # now they are finished
            unfinished.clear()
        yield v, reads, writes
        unfinished.update(dict.fromkeys(r.transfers.get(v, ())))


def _shared(r: Reading) -> set[int]:
    """The storages whose readers and writers must be kept in order; all others are written once, by their maker."""
    shared = set(r.peeked)
    shared.update(s for roots in (*r.writes.values(), *r.transfers.values()) for s in roots)
    return shared


def _inputs(r: Reading) -> list[int]:
    """The storages that were there before the graph ran."""
    outs = (r.outs[v] for v, node in enumerate(r.nodes) if node.op in ("placeholder", "get_attr"))
    return list(dict.fromkeys(s for roots in outs for s in roots))


def _reads_and_writes(r: Reading, v: int, shared: set[int]) -> tuple[list[int], list[int]]:
    """Return what a node reads of the shared storages, and what it writes without its schema saying so."""
    traits = r.traits[v]
    reads = [s for s in (r.outs[v] if traits.selects else r.takes[v]) if s in shared]
    for launch in r.ends.get(v, ()):
        reads += [s for s in r.held_in_flight(launch) if s in shared and s not in reads]
    return reads, [s for s in r.takes[v] if s in shared] if traits.role is Role.WAIT else []


def _sides(r: Reading, after: Mapping[int, set[int]]) -> Iterator[tuple[int, bool, set[int]]]:
    for v, node in enumerate(r.nodes):
        if node.op not in ("placeholder", "get_attr"):
            yield v, r.ordering.get(v) is Ordering.FENCE, {*r.inputs[v], *after.get(v, ())}


def _launches(r: Reading, group_of: Mapping[int, str]) -> Iterator[Launch]:
    for v, group in group_of.items():
        comm = r.traits[v].comm
        if comm is not None:
            yield Launch(v, group, comm.point_to_point)

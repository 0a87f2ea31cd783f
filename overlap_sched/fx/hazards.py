"""What must keep its order although no data flows: the rules, and what an FX graph does at each node.

The rules take pure data. Both front ends, FX graphs and Inductor's scheduler nodes, say what happens at each position
of the original order; the rules answer with pairs ``(later, earlier)`` of positions: the first must come after the
second. Each rule gives only the pairs from which the others follow.

A collective in flight reads its inputs and writes its outputs until its wait, so its wait counts as reading the former
and (where something else looks at the latter) writing the latter. What a collective reads that an earlier graph has
launched, nothing shows: its wait counts as reading all inputs. Copies between devices that need not be finished when
they return are finished at the next node where the host waits for the device: that node counts as writing them.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from overlap_sched.fx.operators import Ordering, Role
from overlap_sched.fx.reading import Reading
from overlap_sched.problem import ANY_GROUP

Pair = tuple[int, int]
"""A position, and an earlier one that it must come after."""

S = TypeVar("S", bound=Hashable)
"""How a front end names a storage."""


def storage_hazards(accesses: Iterable[tuple[int, Iterable[S], Iterable[S]]]) -> Iterator[Pair]:
    """Read after write, write after read and write after write, per storage.

    Args:
        accesses: In order: a position, the storages that it reads and those that it writes. What reads and writes a
            storage in one step reads it first.
    """
    last_write: dict[S, int] = {}
    readers: dict[S, list[int]] = defaultdict(list)  # since the last write
    for at, reads, writes in accesses:
        for s in reads:
            if s in last_write:
                yield at, last_write[s]
            readers[s].append(at)
        for s in writes:
            yield from ((at, reader) for reader in readers.pop(s, ()) if reader != at)
            if last_write.get(s, at) != at:
                yield at, last_write[s]
            last_write[s] = at


def impurity_hazards(impure: Iterable[tuple[int, Ordering]]) -> Iterator[Pair]:
    """Random numbers among themselves, effects among themselves; barriers against both and against all the others.

    Args:
        impure: In order: what draws random numbers, has effects, writes or communicates, and its constraint. Those
            with ``Ordering.NONE`` are ordered against barriers alone.
    """
    last: dict[Ordering, int] = {}
    since: list[int] = []  # the last barrier
    for at, ordering in impure:
        if Ordering.BARRIER in last:
            yield at, last[Ordering.BARRIER]
        if ordering >= Ordering.BARRIER:
            yield from ((at, before) for before in since)
            since.clear()
            last = {Ordering.BARRIER: at}
            continue
        if ordering in last:
            yield at, last[ordering]
        if ordering is not Ordering.NONE:
            last[ordering] = at
        since.append(at)


def fence_hazards(nodes: Iterable[tuple[int, bool, Collection[int]]]) -> Iterator[Pair]:
    """Everything stays on its side of a fence.

    Args:
        nodes: In order: a position, whether it is a fence, and all that it must come after already.
    """
    fence: int | None = None
    ends: set[int] = set()  # since the last fence, those that nothing must come after yet
    for at, is_fence, before in nodes:
        ends.difference_update(before)
        if is_fence:
            yield from ((at, end) for end in sorted(ends))
            ends.clear()
        if fence is not None and not any(u >= fence for u in before):
            yield at, fence
        if is_fence:
            fence = at
        else:
            ends.add(at)


def blocking_hazards(steps: Iterable[tuple[int, Sequence[str], bool]]) -> Iterator[Pair]:
    """All launches of a process group stay on their side of what communicates on the compute stream there.

    Args:
        steps: In order: a position, the process groups on which it launches (``ANY_GROUP``: not known, so each), and
            whether it communicates on the compute stream: such ones keep their order among themselves.
    """
    blocking: dict[str, int] = {}  # the last of each group; ANY_GROUP: of those on any
    since: dict[str, list[int]] = defaultdict(list)  # that one, what was launched on the group
    for at, groups, blocks in steps:
        if not blocks:
            for group in groups:
                if (last := max(blocking.get(group, -1), blocking.get(ANY_GROUP, -1))) >= 0:
                    yield at, last
                since[group].append(at)
            continue
        if ANY_GROUP in groups:
            groups = [*since, *blocking, ANY_GROUP]
        before = {u for group in groups for u in since.pop(group, ())}
        before.update(blocking[group] for group in (*groups, ANY_GROUP) if group in blocking)
        yield from ((at, u) for u in sorted(before))
        blocking.update(dict.fromkeys(groups, at))


class Launch(NamedTuple):
    """A collective: where it is launched, its process group, and whether it sends or receives."""

    at: int
    group: str
    point_to_point: bool


def chain_hazards(launches: Iterable[Launch], notes: Counter[str]) -> list[Pair]:
    """The collectives of each process group with sends or receives are launched in this order.

    Sends and receives must meet their partners on other ranks, whose graphs differ from this one. Counts these
    collectives in ``notes``, as ``point_to_point``.
    """
    chains: dict[str, list[int]] = defaultdict(list)
    frozen: dict[str, list[int]] = {}
    for at, group, point_to_point in launches:
        chains[group].append(at)
        if point_to_point:
            frozen[group] = chains[group]
    notes["point_to_point"] = sum(map(len, frozen.values()))
    return [(at, before) for chain in frozen.values() for before, at in pairwise(chain)]


def add_hazards(after: dict[int, set[int]], pairs: Iterable[Pair]) -> None:
    """Add pairs to a table: per position, those that it must come after."""
    for at, before in pairs:
        after.setdefault(at, set()).add(before)


def graph_hazards(reading: Reading, group_of: Mapping[int, str]) -> dict[int, set[int]]:
    """Per node that writes or has any: the earlier nodes that it must come after, besides those whose values it takes.

    Linear in the graph and its hazards; most graphs have few. ``group_of``: per collective, its process group.
    """
    accesses = list(_accesses(reading))
    after: dict[int, set[int]] = {v: set() for v, _, writes in accesses if writes}
    impure, ordering = sorted({*reading.ordering, *reading.writes, *reading.syncs}), reading.ordering
    add_hazards(after, impurity_hazards((v, ordering.get(v, Ordering.NONE)) for v in impure))
    add_hazards(after, storage_hazards(accesses))
    if Ordering.FENCE in ordering.values():
        steps = [v for v, node in enumerate(reading.nodes) if node.op not in _GIVEN]
        before = ((v, ordering.get(v) is Ordering.FENCE, {*reading.inputs[v], *after.get(v, ())}) for v in steps)
        add_hazards(after, list(fence_hazards(before)))
    comms = ((v, group, reading.traits[v].comm) for v, group in group_of.items())
    launches = (Launch(v, group, comm.point_to_point) for v, group, comm in comms if comm is not None)
    add_hazards(after, chain_hazards(launches, reading.notes))
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


_GIVEN = ("placeholder", "get_attr")


def _accesses(r: Reading) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield nodes, each with the storages that it reads and those that it writes."""
    # storages whose readers and writers must be kept in order; all others are written once, by their maker
    shared = r.peeked.union(*r.writes.values(), *r.transfers.values())
    given = {s: None for v, node in enumerate(r.nodes) if node.op in _GIVEN for s in r.outs[v] if s in shared}
    unfinished: dict[int, None] = {}  # copies between devices
    for v, takes in enumerate(r.takes):
        writes = dict.fromkeys(r.writes.get(v, ()))
        stops = bool(unfinished) and (v in r.syncs or r.ordering.get(v, Ordering.NONE) >= Ordering.EFFECT)
        if not (writes or stops or v in r.launch_of) and shared.isdisjoint(takes):
            continue
        in_flight = (s for launch in r.ends.get(v, ()) for s in r.held_in_flight(launch))
        reads = dict.fromkeys(s for s in (*(r.outs[v] if r.traits[v].selects else takes), *in_flight) if s in shared)
        if v in r.outside:
            reads |= given
        if r.traits[v].role is Role.WAIT:  # it completes the output, which something else looks at
            writes |= dict.fromkeys(s for s in takes if s in shared)
        if stops:  # later readers of the copies must come after it
            writes |= unfinished
        if v in r.syncs:  # now they are finished
            unfinished.clear()
        yield v, list(reads), list(writes)
        unfinished.update(dict.fromkeys(r.transfers.get(v, ())))

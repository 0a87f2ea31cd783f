"""Hazards: what must keep its order although no data flows, as dependencies.

Per storage: read after write, write after read, write after write. A collective in flight reads its inputs and writes
its outputs until its wait, so its wait counts as reading the former and (where something else looks at the latter)
writing the latter. Besides: random numbers among themselves, effects among themselves, unknown calls against all that
is impure, fences against everything, and readers of a copy that need not be finished behind the host's next stop.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from overlap_sched.fx.collectives import Role
from overlap_sched.fx.operator_traits import Keeps
from overlap_sched.fx.reading import Reading


def hazards(reading: Reading) -> dict[int, set[int]]:
    """Per node that has any: the earlier nodes that it must stay behind, besides those whose values it takes.

    Linear in the graph and its hazards; most graphs have few.
    """
    after: dict[int, set[int]] = defaultdict(set)
    impure = sorted({*reading.keeps, *reading.writes, *reading.syncs})
    for v, before in chained((v, reading.keeps.get(v, Keeps.NOTHING)) for v in impure):
        after[v].add(before)
    _keep_storages(reading, _written_roots(reading), after)
    if Keeps.FENCE in reading.keeps.values():
        _keep_fences(reading, after)
    for v, others in after.items():
        others.discard(v)
    return after


def _written_roots(r: Reading) -> set[int]:
    """The storages whose readers and writers must be told apart; all others are written once, by their maker."""
    written = set(r.peeked)
    written.update(s for roots in (*r.writes.values(), *r.transfers.values()) for s in roots)
    return written


def chained(impure: Iterable[tuple[int, Keeps]]) -> Iterator[tuple[int, int]]:
    """Random numbers among themselves, effects among themselves; barriers against both and against all the others.

    Args:
        impure: In order: positions of what draws, acts, writes or communicates, and what each must keep.

    Yields:
        A position and an earlier one behind which it stays.
    """
    last: dict[Keeps, int] = {}
    since: list[int] = []  # the last barrier
    for v, keeps in impure:
        if Keeps.BARRIER in last:
            yield v, last[Keeps.BARRIER]
        if keeps >= Keeps.BARRIER:
            yield from ((v, before) for before in since)
            since.clear()
            last = {Keeps.BARRIER: v}
            continue
        if keeps in last:
            yield v, last[keeps]
        if keeps is not Keeps.NOTHING:
            last[keeps] = v
        since.append(v)


def _keep_storages(r: Reading, written: set[int], after: dict[int, set[int]]) -> None:
    last_write: dict[int, int] = {}
    readers: dict[int, list[int]] = defaultdict(list)
    unfinished: dict[int, None] = {}
    for v, takes in enumerate(r.takes):
        writes = list(r.writes.get(v, ()))
        stops = bool(unfinished) and (v in r.syncs or r.keeps.get(v, Keeps.NOTHING) >= Keeps.EFFECT)
        if not (writes or stops or v in r.launch_of) and written.isdisjoint(takes):
            continue
        reads, more = _reads_and_writes(r, v, written)
        writes += more
        if stops:  # who reads the copies later must stay behind it
            writes += [s for s in unfinished if s not in writes]
        if v in r.syncs:  # now they are finished
            unfinished.clear()
        for s in reads:
            if s in last_write:
                after[v].add(last_write[s])
            readers[s].append(v)
        for s in writes:
            after[v].update(readers.pop(s, ()))
            if s in last_write:
                after[v].add(last_write[s])
            last_write[s] = v
        unfinished.update(dict.fromkeys(r.transfers.get(v, ())))


def _reads_and_writes(r: Reading, v: int, written: set[int]) -> tuple[list[int], list[int]]:
    """What a node reads of the storages that are ever written, and what it writes without its schema saying so."""
    facts = r.facts[v]
    reads = [s for s in (r.outs[v] if facts.selects else r.takes[v]) if s in written]
    if facts.comm is None or facts.comm.role is not Role.WAIT:
        return reads, []
    for launch in r.ends.get(v, ()):
        reads += [s for s in r.takes[launch] if s in written and s not in reads]
    return reads, [s for s in r.takes[v] if s in written]


def _keep_fences(r: Reading, after: dict[int, set[int]]) -> None:
    """Everything keeps its side of a fence."""
    fence: int | None = None
    ends: set[int] = set()  # since the last fence, what nothing else waits for yet
    for v, node in enumerate(r.nodes):
        if node.op in ("placeholder", "get_attr"):
            continue
        before = {*r.inputs[v], *after.get(v, ())}
        ends -= before
        if r.keeps.get(v) is Keeps.FENCE:
            after[v].update(ends)
            ends.clear()
        if fence is not None and not any(u >= fence for u in before):
            after[v].add(fence)
        if r.keeps.get(v) is Keeps.FENCE:
            fence = v
        else:
            ends.add(v)

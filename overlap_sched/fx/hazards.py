"""The rules of hazards: what must keep its order although no data flows. Pure data in, pairs out; no torch.

Both front ends, FX graphs and Inductor's scheduler nodes, say what happens at each position of the original order; the
rules answer with pairs ``(later, earlier)`` of positions: the first must come after the second. Each rule gives only
the pairs from which the others follow.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple, TypeVar

from overlap_sched.problem import ANY_GROUP


class Ordering(IntEnum):
    """The ordering constraint of an operator, besides its data; the weakest first."""

    NONE = 0
    RANDOM = 1
    """Draws random numbers: ordered among those that do."""
    EFFECT = 2
    """Asserts, prints, reads a value on the host: ordered among those that do."""
    BARRIER = 3
    """Unknown: ordered against everything impure and everything that touches its storages."""
    FENCE = 4
    """Changes how what follows it runs (streams, autograd mode): ordered against everything."""


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
                last = max(blocking.get(group, -1), blocking.get(ANY_GROUP, -1))
                if last >= 0:
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


def launch_chains(launches: Iterable[Launch]) -> list[list[int]]:
    """The collectives of each process group with sends or receives: they must be launched in this order.

    Sends and receives must meet their partners on other ranks, whose graphs differ from this one.
    """
    chains: dict[str, list[int]] = defaultdict(list)
    frozen: set[str] = set()
    for at, group, point_to_point in launches:
        chains[group].append(at)
        if point_to_point:
            frozen.add(group)
    return [chain for group, chain in chains.items() if group in frozen]


def chain_hazards(chains: Iterable[Sequence[int]]) -> Iterator[Pair]:
    """Each of a chain comes after the one before."""
    return ((at, before) for chain in chains for before, at in pairwise(chain))


def add_hazards(after: dict[int, set[int]], pairs: Iterable[Pair]) -> None:
    """Add pairs to a table: per position, those that it must come after."""
    for at, before in pairs:
        after.setdefault(at, set()).add(before)

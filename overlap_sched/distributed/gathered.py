"""Which parameters each rank gathers, by name: where they differ, values are mixed and nothing else tells. No torch.

Ranks that gather different parameters of one shape run the same graph in the same order, so their digests are equal.
Names can be compared between the ranks of one process group only: stages of a pipeline and ranks with other experts
gather other parameters, and rightly so. So a rank shows its groups by their global ranks, and of each group

- what its launch sequence is, hashed: where that differs, launches do not meet as they are numbered, and the names say
  nothing;
- per gather its place in that sequence, its operator and the name of what it gathers.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

SHOWN_BYTES = 20_000
"""So much of names is shown per graph; behind it each name is a hash, which tells that ranks differ and not in what."""
_HASH_DIGITS = 12
SHOWN_RANGES = 8
"""So many runs of ranks are written out; thousands of ranks would hide the message."""
_MEND = (
    "Let all ranks gather the same parameters in the same order: look for a branch that depends on the rank, or a loop "
    "over a set."
)


class RankLaunch(NamedTuple):
    """A launch as this rank sees it.

    Attributes:
        op: The operator.
        ranks: The group's global ranks.
        name: What it gathers; ``""``: nothing that has a name.
    """

    op: str
    ranks: tuple[int, ...]
    name: str = ""


class _Difference(NamedTuple):
    """The first of two ranks of one group; see :func:`mixed`."""

    ranks: tuple[int, int]
    names: tuple[str, str]
    op: str
    place: int
    group: tuple[int, ...]
    others: int


def to_text(launches: Iterable[RankLaunch]) -> str:
    """Return what a rank shows of its launches, in their order; ``""``: nothing in them has a name.

    Groups of the same ranks are one here. Names that do not fit into :data:`SHOWN_BYTES` are hashed.
    """
    groups: dict[tuple[int, ...], list[RankLaunch]] = {}
    for launch in launches:
        groups.setdefault(launch.ranks, []).append(launch)
    rows = []
    for ranks, sequence in groups.items():
        named = [[place, launch.op, launch.name] for place, launch in enumerate(sequence, 1)]
        rows.append([list(ranks), _sha256([launch.op for launch in sequence]), named])
    return _written(rows)


def renamed(text: str, now: Callable[[str], str]) -> str:
    """The same launches under other names.

    Args:
        text: What :func:`to_text` made.
        now: The name instead of a name; ``""``: none.
    """
    rows = json.loads(text)
    return _written([[ranks, of, [[at, op, now(name)] for at, op, name in named]] for ranks, of, named in rows])


def _written(rows: list[Any]) -> str:
    """Without what has no name, and with hashes for names from where they are too long."""
    left, kept = SHOWN_BYTES, []
    for ranks, sequence, named in rows:
        shown = []
        for place, op, name in named:
            if name:
                left -= len(name.encode())
                shown.append([place, op, name if left >= 0 else _hashed(name)])
        if shown:
            kept.append([ranks, sequence, shown])
    return json.dumps(kept, separators=(",", ":")) if kept else ""


def mixed(shown: Mapping[int, str], graph: str = "") -> str:
    """Say what is wrong where ranks of one group gather different parameters, in one line; ``""``: nothing is seen.

    Args:
        shown: Per rank what :func:`to_text` made there.
        graph: What it is called, for people.
    """
    with suppress(Exception):  # a fault of this check is no fault of the job
        found = list(_differences(shown))
        if found:
            return _text(found[0], len(found) - 1, graph)
    return ""


def _differences(shown: Mapping[int, str]) -> Iterator[_Difference]:
    """Per group whose ranks differ, the first launch and the lowest ranks of it."""
    if len(set(shown.values())) == 1:
        return
    read = cache(json.loads)  # most ranks show the same
    members: dict[tuple[tuple[int, ...], str], dict[int, Any]] = {}
    for rank in sorted(shown):
        for ranks, sequence, named in read(shown[rank]) if shown[rank] else ():
            if rank in ranks:
                members.setdefault((tuple(ranks), sequence), {})[rank] = named
    for (group, _), of_rank in sorted(members.items()):
        found = sorted(_places(of_rank))
        if found:
            place, rank, op, name, other = found[0]
            first = min(of_rank)
            others = len({one[0] for one in found}) - 1
            yield _Difference((first, rank), (name, other), op, place, group, others)


def _places(of_rank: Mapping[int, Any]) -> Iterator[tuple[int, int, str, str, str]]:
    """Where a rank gathers something else than the first one of its group: what has no name is like everything."""
    (_, reference), *others = sorted(of_rank.items())
    known = {place: (op, name) for place, op, name in reference}
    for rank, named in others:
        for place, _, other in named:
            op, name = known.get(place, ("", other))
            if not _same(name, other):
                yield place, rank, op, name, other


def _same(name: str, other: str) -> bool:
    """Tell whether two names are the same; one rank may have had less room for it than the other."""
    return name == other or name == _hashed(other) or other == _hashed(name)


def _text(found: _Difference, groups: int, graph: str) -> str:
    (one, another), (this, that) = found.ranks, map(_said, found.names)
    where = f"{found.op}, launch {found.place} of {ranks_text(found.group)}{f' in {graph!r}' if graph else ''}"
    more = [f"{found.others} more gather{'s differ' if found.others > 1 else ' differs'}"] if found.others else []
    more += [f"{groups} more group{'s differ' if groups > 1 else ' differs'}"] if groups else []
    return (
        f"rank {one} gathers {this} where rank {another} gathers {that} ({'; '.join([where, *more])}), so their values "
        f"are mixed, with or without overlap_sched. {_MEND}"
    )


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:SHOWN_RANGES])
    left = sum(b - a + 1 for a, b in runs[SHOWN_RANGES:])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{f' and {left} more' if left else ''}"


def _said(name: str) -> str:
    return f"a parameter that is not named here ({name})" if name.startswith("#") else name


def _hashed(name: str) -> str:
    """Return what stands for a name; names of parameters do not begin like this."""
    return f"#{hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]}"


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]

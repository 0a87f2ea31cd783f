"""The decision of all ranks about one graph, and the words for it. No torch."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from overlap_sched.distributed.digest import LAUNCHES_KEPT, PARTS, Digest
from overlap_sched.options import Options

SHOWN_GRAPHS = 2
SHOWN_RANGES = 8
"""So many runs of ranks are written out; thousands of ranks would hide the message."""
SHOWN_VALUE = 60
"""So many letters of an option."""

Sides = tuple[tuple[int, ...], ...]
"""Ranks that are alike stand together; the largest side first."""

_NAMES = {"operators": "operators", "sizes": "tensor sizes", "options": "options", "costs": "costs", "order": "order"}
_NARROWER = {
    "operators": "dependencies between equal operators, or process groups",
    "sizes": "constants or offsets (no tensor has another size)",
}
"""What is left where the operators by themselves are alike, or the storages."""
_REPAIR = {
    "options": "Give overlap_sched the same options on every rank.",
    "costs": "Let all ranks take measured times from rank 0 (overlap_sched.distributed.broadcast_costs).",
    "order": "The scheduler failed on a rank (see its warnings), or the ranks run different versions of overlap_sched.",
}
"""How to get equal ranks. Other operators and other sizes belong to the model: nobody has made a mistake."""

KEPT = "launch order kept"
_NOT_ALL_LOADED = "not all ranks have found forward and backward in a cache"
_NOT_ALIKE = (
    "Their launch sequences differ too (collectives, groups, or graphs compiled in another order), so each rank keeps "
    "its own, and no wait passes a launch that it followed."
)


@dataclass(frozen=True)
class Verdict:
    """What was decided for one graph: written once, by whoever decided first, and followed by every rank.

    Attributes:
        agreed: All ranks run the new order. Else no rank may launch its collectives in another order than originally.
        reason: Why they do not, and how to mend it; ``None`` if agreed.
        launches_alike: Not agreed, but all ranks have shown one launch sequence: each may use an order that keeps it.
            Else each may use one in which no wait passes a launch that it followed either.
        differs: Per part (see :data:`~overlap_sched.distributed.digest.PARTS`) in which the ranks differ, who is like
            whom.
        missing: Ranks that did not come in time.
        shown: Identities of the digests from which it was made.
        as_before: Nobody knew of the missing ranks what they show: what was decided on the same digest earlier stands.
        again: Nothing is decided: the ranks are alike, but some could take this only together with more, which others
            do not have yet. All ask again, without it.
        negotiable: The ranks launch alike, and nothing has failed: they may still choose one new launch sequence for
            all (:mod:`overlap_sched.distributed.negotiation`).
    """

    agreed: bool
    reason: str | None = None
    launches_alike: bool = False
    differs: Mapping[str, Sides] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    shown: tuple[str, ...] = ()
    as_before: bool = False
    again: bool = False
    negotiable: bool = False

    def followed(self, rank: int) -> str:
        """Say what is done where the ranks have chosen the launch sequence of one of them."""
        return str(self.reason).replace(KEPT, f"all launch as rank {rank} does")

    @property
    def to_mend(self) -> bool:
        """Tell whether the ranks differ in something that somebody can mend: not in what they compile."""
        return any(part in _REPAIR for part in self.differs)

    def to_json(self) -> str:
        """Return what goes into the store."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Verdict":
        """Read what :meth:`to_json` wrote."""
        read = json.loads(text)
        differs = {part: tuple(map(tuple, sides)) for part, sides in read["differs"].items()}
        lists = {name: tuple(read[name]) for name in ("missing", "shown")}
        return cls(**{**read, "differs": differs, **lists})


def judge(digests: Mapping[int, Digest]) -> Verdict:
    """The verdict on the digests of all ranks; a pure function of them."""
    failed = [rank for rank in sorted(digests) if digests[rank].failure]
    shown = {rank: digest for rank, digest in digests.items() if not digest.failure}
    differs = differences(shown)
    if not differs and not failed:
        if len({digest.pair for digest in digests.values()}) > 1:
            return replace(_not_agreed(_NOT_ALL_LOADED, digests, {}), again=True)
        return Verdict(agreed=True, shown=_identities(digests))
    named = {"options": _options(shown)} if "options" in differs else {}
    parts = [f"{_named(part, shown.values())}: {named.get(part) or _sides(sides)}" for part, sides in differs.items()]
    if "operators" in differs:
        parts[0] += _graphs(shown, differs["operators"])
    said = [f"the ranks differ in {'; '.join(parts)}"] if parts else []
    if failed:
        said.append(f"{ranks_text(failed)} could not schedule this graph ({digests[failed[0]].failure})")
    return _not_agreed("; ".join(said), digests, differs)


def elsewhere(digests: Mapping[int, Digest]) -> Verdict:
    """The verdict on digests that are equal but stand under different keys, or in different rounds of one key.

    Graphs with other operators may become one graph after fusion; still, those ranks have not met before.
    """
    sides = _sides_of({rank: digest.key for rank, digest in digests.items()})
    if len(sides) > 1:
        return _not_agreed(f"the ranks differ in operators: {_sides(sides)}", digests, {"operators": sides})
    return _not_agreed("the ranks compile this graph in different orders", digests, {})


def as_before(earlier: Verdict, missing: Sequence[int]) -> Verdict:
    """An earlier verdict on the same digest, without having heard of the missing ranks."""
    return replace(earlier, missing=tuple(missing), as_before=True)


def absent(
    missing: Sequence[int], digests: Mapping[int, Digest], name: str, waited_s: float, limit_s: float
) -> Verdict:
    """The verdict when some ranks did not come within what was waited (seconds), and others did."""
    less = f" (instead of {limit_s:g} s, as not all ranks came the last time)" if waited_s < limit_s else ""
    reason = (
        f"{ranks_text(missing)} did not publish an order for graph {name!r} within {waited_s:g} s{less}. "
        "Such a rank died, compiles other graphs, is slower than that, or has compiled the graph already: see "
        "docs/agreement.md."
    )
    return Verdict(agreed=False, reason=reason, missing=tuple(missing), shown=_identities(digests))


def gone(ranks: Sequence[int], digests: Mapping[int, Digest], name: str, limit_s: float) -> Verdict:
    """The verdict when some ranks came, but were not waiting any more at the limit (seconds)."""
    was, they = ("was", "It") if len(ranks) == 1 else ("were", "They")
    reason = (
        f"{ranks_text(ranks)} {was} no longer waiting for the others {limit_s:g} s after publishing an order for graph "
        f"{name!r}. {they} died, or lost the connection to the store of the process group."
    )
    return Verdict(agreed=False, reason=reason, missing=tuple(ranks), shown=_identities(digests))


def failed(mine: Digest, rank: int, fault: Exception) -> Verdict:
    """The verdict when a rank failed while it was agreeing."""
    reason = f"rank {rank} failed while the ranks were agreeing: {type(fault).__name__}: {fault}"
    return Verdict(agreed=False, reason=reason, shown=(mine.identity,))


def differences(digests: Mapping[int, Digest]) -> dict[str, Sides]:
    """Per part that differs, the ranks that are alike; only causes: costs of different graphs are not compared."""
    found: dict[str, Sides] = {}
    for part in PARTS:
        sides = _sides_of({rank: getattr(digest, part) for rank, digest in digests.items()})
        graph_differs = "operators" in found or "sizes" in found
        explained = {"order": bool(found), "costs": graph_differs, "sizes": graph_differs}.get(part, False)
        if len(sides) > 1 and not explained:
            found[part] = sides
    return found


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


def _sides_of(values: Mapping[int, str]) -> Sides:
    """Ranks with the same value together, the largest side first."""
    sides: dict[str, list[int]] = {}
    for rank in sorted(values):
        sides.setdefault(values[rank], []).append(rank)
    return tuple(tuple(side) for side in sorted(sides.values(), key=lambda side: (-len(side), side[0])))


def _not_agreed(said: str, digests: Mapping[int, Digest], differs: Mapping[str, Sides]) -> Verdict:
    """The ranks do not run one new order; whether they launch alike is seen from what all have shown."""
    launches = {digest.launches for digest in digests.values()}
    alike = len(launches) == 1 and "" not in launches
    repairs = [_REPAIR[part] for part in differs if part in _REPAIR]
    decided = f"{said}; {KEPT}." if alike else f"{said}. {_NOT_ALIKE}"
    whole = not any(digest.failure or digest.order.startswith(LAUNCHES_KEPT) for digest in digests.values())
    negotiable = alike and whole and bool(differs) and not repairs
    reason = " ".join([decided, *repairs])
    return Verdict(False, reason, alike, differs, shown=_identities(digests), negotiable=negotiable)


def _identities(digests: Mapping[int, Digest]) -> tuple[str, ...]:
    """Identify what was shown. Whoever has shown a pair runs the first of it as one who has shown that alone."""
    shown = (one.identity for digest in digests.values() for one in (digest, digest.alone))
    return tuple(dict.fromkeys(shown))


def _named(part: str, digests: Iterable[Digest]) -> str:
    """Name what differs: of operators perhaps only their dependencies, of sizes perhaps none of a storage."""
    known = {"operators": "calls", "sizes": "storages"}.get(part)
    values = set() if known is None else {getattr(digest, known) for digest in digests}
    return _NARROWER[part] if len(values) == 1 and "" not in values else _NAMES[part]


def _graphs(digests: Mapping[int, Digest], sides: Sides) -> str:
    """Say what the first rank of each side compiles, where it has another name or another number of nodes."""
    firsts = {side[0]: digests[side[0]] for side in sides[:SHOWN_GRAPHS]}
    if len({(digest.name, digest.nodes) for digest in firsts.values()}) == 1:
        return ""
    told = (f"rank {rank} compiles {digest.name!r} of {digest.nodes} nodes" for rank, digest in firsts.items())
    return f" ({', '.join(told)})"


def _options(digests: Mapping[int, Digest]) -> str:
    """``headroom is "1GiB" on rank 0 and 0 on rank 1``: the options that differ; ``""``: that is not known."""
    try:
        given = {rank: json.loads(digest.options) for rank, digest in digests.items()}
    except ValueError:
        return ""
    told = []
    for name in sorted(set().union(*given.values())):
        default = getattr(Options(), name, None)
        values = {rank: json.dumps(options.get(name, default))[:SHOWN_VALUE] for rank, options in given.items()}
        sides = _sides_of(values)[:SHOWN_RANGES]
        if len(sides) > 1:
            told.append(f"{name} is {' and '.join(f'{values[side[0]]} on {ranks_text(side)}' for side in sides)}")
    return ", ".join(told)


def _sides(sides: Sides) -> str:
    shown = " against ".join(ranks_text(side) for side in sides[:SHOWN_RANGES])
    return shown + (f" and {len(sides) - SHOWN_RANGES} more kinds" if len(sides) > SHOWN_RANGES else "")

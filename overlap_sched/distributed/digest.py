"""A digest of what a rank is about to run, in parts, and the verdict on those of all ranks. No torch.

Two ranks have the same digest if, and only if, they would run the same order of the same graph. It is SHA-256 over
JSON: the same in every process and on every machine (no ``hash()``, no ids, no order of dictionaries).

What ranks of one job may name differently is left out or renamed: names of nodes and of the problem are for people;
process groups are numbered in the order in which their collectives are listed (on a mesh each rank has other groups);
links are the groups that share them.
"""

import hashlib
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Self

import msgspec

from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.precedence import launched_on

PARTS = ("operators", "sizes", "options", "costs", "order")
"""What is compared, causes first: other operators have other sizes, costs and another order as well."""

LAUNCHES_KEPT = "launches kept: "
"""How the order begins that code from a cache shows where it launches as the original does."""

WAITS_KEPT = f"{LAUNCHES_KEPT}and waits: "
"""The same where no wait passes a launch that stood before it either."""


class StoreText:
    """A dataclass that ranks leave for each other in the store, as one line of JSON."""

    def to_json(self) -> str:
        """Return what :meth:`from_json` reads."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote."""
        return msgspec.json.decode(text, type=cls)


@dataclass(frozen=True)
class Digest(StoreText):
    """SHA-256 of each part, in hexadecimal; options as they are.

    Attributes:
        operators: Nodes with their operators and dependencies, process groups, the memory model.
        sizes: Storages with their bytes, who allocates and uses them, bytes and operations of every node.
        options: See :func:`options_text`.
        costs: Time of every node (microseconds, to the last bit), and contention: slowdowns, and which groups share a
            link.
        order: The order that this rank would run.
        key: Which graph this is: operators and dependencies only, without sizes. Ranks meet under it, so that a
            difference in all else is a difference between ranks and not two graphs.
        launches: The original launch sequence (:func:`launches_of`); ``""``: this rank does not know it. Not compared
            with the rest: where that differs, ranks whose launches are alike may still keep them.
        failure: Why this rank has nothing to show, for people; ``""``: it has.
        name: The problem's name, for people; not compared.
        nodes: How many there are, for people; not compared.
    """

    operators: str = ""
    sizes: str = ""
    options: str = ""
    costs: str = ""
    order: str = ""
    key: str = ""
    launches: str = ""
    failure: str = ""
    name: str = ""
    nodes: int = 0

    @property
    def identity(self) -> str:
        """The same for two digests that differ at most in what is for people: 16 hexadecimal digits."""
        return _sha256((*(getattr(self, part) for part in PARTS), self.key, self.launches, self.failure))[:16]


def digest_of(problem: Problem, options: Options, order: Sequence[int]) -> Digest:
    """The digest of an order that was made from a problem and options; linear in their size.

    Where scheduling failed the order is the original one: ranks then differ in ``order``, and all keep the original.
    """
    launched = [(node.op, group) for node in problem.nodes for group in launched_on(node)]
    number = _numbered(group for _, group in launched)
    skeleton, sizes = [], []
    for node in problem.nodes:
        group = None if node.group is None else number[node.group]
        row = [node.kind.value, node.op, node.deps, group, node.collective]
        skeleton.append([*row, [number[name] for name in node.launches]] if node.launches else row)
        sizes.append([node.alloc, node.use, node.flops, node.bytes])
    # how many nodes it is on: only for prices, which are in costs
    groups = {name: problem.groups[name][:2] if name in problem.groups else () for name in number}
    return Digest(
        operators=_sha256([skeleton, list(groups.values()), problem.memory_model]),
        sizes=_sha256([sizes, problem.storages]),
        options=options_text(options),
        # 40 is 40.0, and -0.0 is 0.0
        costs=_sha256([[float(n.time_us) + 0.0 for n in problem.nodes], *_contention(problem.contention, number)]),
        order=_sha256(list(order)),
        key=_sha256(skeleton),
        launches=launches_of([(op, group, *groups[group]) for op, group in launched]),
        name=problem.name,
        nodes=len(problem.nodes),
    )


def options_text(options: Options, **more: Any) -> str:
    """The options that are not the defaults, as written (``"1GiB"`` is not ``2**30``); and more, by name."""
    given, defaults = asdict(options), asdict(Options())
    return _canonical({name: value for name, value in given.items() if value != defaults[name]} | more)


def launches_of(launches: Sequence[tuple[Any, ...]]) -> str:
    """The digest of a launch sequence: per collective, in order, its operator, its group, and what else is known of it.

    Groups are numbered by first use, so equal sequences launch alike within each group and across groups.
    """
    number = _numbered(group for _, group, *_ in launches)
    return _sha256([[op, number[group], *more] for op, group, *more in launches])


def _numbered(groups: Iterable[str]) -> dict[str, int]:
    """A number for each process group, by first use."""
    return {group: k for k, group in enumerate(dict.fromkeys(groups))}


def _contention(contention: Contention, number: Mapping[str, int]) -> tuple[dict[str, float], list[list[int]]]:
    """Slowdowns, and per link that is shared its groups, by their numbers."""
    groups_of: dict[str, list[int]] = {}  # of each link, by first use
    for name, k in number.items():
        groups_of.setdefault(contention.link_of(name), []).append(k)
    slowdown = {op: float(factor) for op, factor in contention.slowdown.items()}
    if contention.shares:
        slowdown |= {f"bound by {kind}": float(share) for kind, share in contention.shares.items()}
        slowdown["flops per byte"] = float(contention.flops_per_byte)
    return slowdown, [groups for groups in groups_of.values() if len(groups) > 1]


def _sha256(value: Any) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def _canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces; floats as the shortest text that reads back to the same bits."""
    plain = operator.methodcaller("item")  # NumPy's integers, which ``json`` does not know
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=plain)


SHOWN_RANGES = 8
"""So many runs of ranks are written out; thousands of ranks would hide the message."""

Sides = tuple[tuple[int, ...], ...]
"""Ranks that are alike stand together; the largest side first."""

_REPAIR = {
    "options": "Give overlap_sched the same options on every rank.",
    "costs": "Let all ranks take measured times from rank 0 (overlap_sched.distributed.broadcast_costs).",
    "order": "The scheduler failed on a rank (see its warnings), or the ranks run different versions of overlap_sched.",
}
"""How to get equal ranks. Other operators and other sizes belong to the model: nobody has made a mistake."""

KEPT = "launch order kept"
_NOT_ALIKE = (
    "Their launch sequences differ too (collectives, groups, or graphs compiled in another order), so each rank keeps "
    "its own, and no wait passes a launch that it followed."
)


@dataclass(frozen=True)
class Verdict(StoreText):
    """What was decided for one graph: written once, by whoever decided first, and followed by every rank.

    Attributes:
        agreed: All ranks run the new order. Else no rank may launch its collectives in another order than originally.
        reason: Why they do not, and how to repair it; ``None`` if agreed.
        launches_alike: Not agreed, but all ranks have shown one launch sequence: each may use an order that keeps it.
            Else each may use one in which no wait passes a launch that it followed either.
        differs: Per part (see :data:`~overlap_sched.distributed.digest.PARTS`) in which the ranks differ, who is like
            whom.
        missing: Ranks that did not come in time.
        shown: Identities of the digests from which it was made.
        as_before: Nobody knew of the missing ranks what they show: what was decided on the same digest earlier stands.
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
    negotiable: bool = False

    @property
    def meets(self) -> bool:
        """Tell whether all ranks have shown at the same time what they launch, and launch alike."""
        return (self.agreed or self.launches_alike) and not self.missing

    @property
    def to_repair(self) -> bool:
        """Tell whether the ranks differ in something that somebody can repair: not in what they compile."""
        return not self.differs.keys().isdisjoint(_REPAIR)


def judge(digests: Mapping[int, Digest]) -> Verdict:
    """The verdict on the digests of all ranks; a pure function of them."""
    failed = [rank for rank in sorted(digests) if digests[rank].failure]
    shown = {rank: digest for rank, digest in digests.items() if not digest.failure}
    differs = differences(shown)
    if not differs and not failed:
        return Verdict(agreed=True, shown=_identities(digests))
    parts = {part.replace("sizes", "tensor sizes"): _sides(sides) for part, sides in differs.items()}
    if "operators" in parts:
        parts["operators"] += _graphs(shown, differs["operators"])
    if "options" in parts:
        parts["options"] = _options(shown)
    said = [f"the ranks differ in {'; '.join(map(': '.join, parts.items()))}"] if parts else []
    if failed:
        said.append(f"{ranks_text(failed)} could not schedule this graph ({digests[failed[0]].failure})")
    return _not_agreed("; ".join(said), digests, differs)


def elsewhere(digests: Mapping[int, Digest]) -> Verdict:
    """The verdict on digests that are equal but stand under different keys, or in different rounds of one key.

    Graphs with other operators may become one graph after fusion; still, those ranks have not met before.
    """
    sides = _sides_of({rank: digest.key for rank, digest in digests.items()})
    differs = {"operators": sides} if len(sides) > 1 else {}
    return _not_agreed("the ranks compile different graphs, or this one in different orders", digests, differs)


def absent(
    missing: Sequence[int], digests: Mapping[int, Digest], name: str, waited_s: float, limit_s: float
) -> Verdict:
    """The verdict when some ranks did not come within what was waited (seconds), or came and left again.

    ``missing`` have shown nothing, or, where all have shown a digest, are not waiting any more.
    """
    less = f" (instead of {limit_s:g} s, as not all ranks came the last time)" if waited_s < limit_s else ""
    did = "no longer waited with" if set(missing) <= digests.keys() else "did not publish an order for"
    reason = (
        f"{ranks_text(missing)} {did} graph {name!r} within {waited_s:g} s{less}. Such a rank has died, compiles other "
        "graphs, is slower, or has lost the store of the process group: see docs/agreement.md."
    )
    return Verdict(agreed=False, reason=reason, missing=tuple(missing), shown=_identities(digests))


def differences(digests: Mapping[int, Digest]) -> dict[str, Sides]:
    """Per part that differs, the ranks that are alike; only causes: costs of different graphs are not compared."""
    found: dict[str, Sides] = {}
    for part in PARTS:
        sides = _sides_of({rank: getattr(digest, part) for rank, digest in digests.items()})
        causes = {"order": PARTS, "costs": ("operators", "sizes"), "sizes": ("operators",)}.get(part, ())
        if len(sides) > 1 and found.keys().isdisjoint(causes):
            found[part] = sides
    return found


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0-2, 5``."""
    found = groupby(enumerate(sorted(ranks)), key=lambda placed: placed[1] - placed[0])
    runs = [[rank for _, rank in run] for _, run in found]
    shown = ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:SHOWN_RANGES])
    left = sum(map(len, runs[SHOWN_RANGES:]))
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
    return tuple(dict.fromkeys(digest.identity for digest in digests.values()))


def _graphs(digests: Mapping[int, Digest], sides: Sides) -> str:
    """Say what the first rank of each side compiles, where it has another name or another number of nodes."""
    told = {f"{digests[r].name!r} of {digests[r].nodes} nodes": r for r, *_ in reversed(sides[:2])}
    each = [f"rank {rank} compiles {graph}" for graph, rank in reversed(told.items())]
    return f" ({', '.join(each)})" if len(each) > 1 else ""


def _options(digests: Mapping[int, Digest]) -> str:
    """``headroom is "1GiB" on rank 0 and 0 on rank 1``: the options that differ."""
    given = {rank: json.loads(digest.options) for rank, digest in digests.items()}
    told = []
    for name in sorted(set().union(*given.values())):
        default = getattr(Options(), name, None)
        values = {rank: json.dumps(options.get(name, default))[:60] for rank, options in given.items()}
        sides = _sides_of(values)[:SHOWN_RANGES]
        if len(sides) > 1:
            told.append(f"{name} is {' and '.join(f'{values[side[0]]} on {ranks_text(side)}' for side in sides)}")
    return ", ".join(told)


def _sides(sides: Sides) -> str:
    shown = " against ".join(ranks_text(side) for side in sides[:SHOWN_RANGES])
    return shown + (f" and {len(sides) - SHOWN_RANGES} more kinds" if len(sides) > SHOWN_RANGES else "")

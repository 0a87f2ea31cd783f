"""A digest of what a rank is about to run, in parts, so that a difference can be named. No torch.

Two ranks have the same digest if, and only if, they would run the same order of the same graph. It is SHA-256 over
JSON: the same in every process and on every machine (no ``hash()``, no ids, no order of dictionaries).

What ranks of one job may name differently is left out or renamed: names of nodes and of the problem are for people;
process groups are numbered in the order in which their collectives are listed (on a mesh each rank has other groups);
links are the groups that share them.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

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


@dataclass(frozen=True)
class Digest:
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
        calls: The operators alone, and ``storages``: the bytes of storages alone. They say in what operators or sizes
            differ; not compared. ``""``: not known.
        pair: What else this rank has in its hand and can only take together with this, see :meth:`with_rest`; ``""``:
            nothing.
    """

    operators: str
    sizes: str
    options: str
    costs: str
    order: str
    key: str
    launches: str = ""
    failure: str = ""
    name: str = ""
    nodes: int = 0
    calls: str = ""
    storages: str = ""
    pair: str = ""

    @classmethod
    def of_failure(cls, failure: str, key: str, launches: str = "", name: str = "") -> "Digest":
        """Return what a rank shows that has no order of its own: it runs the original one."""
        return cls("", "", "", "", "", key, launches, failure, name)

    @property
    def identity(self) -> str:
        """The same for two digests that differ at most in what is for people: 16 hexadecimal digits."""
        compared = (*(getattr(self, part) for part in PARTS), self.key, self.launches, self.failure)
        return _sha256((*compared, self.pair) if self.pair else compared)[:16]

    @property
    def alone(self) -> "Digest":
        """The same without what can only be taken together with it."""
        return replace(self, pair="") if self.pair else self

    def with_rest(self, rest: Sequence["Digest"]) -> "Digest":
        """The digest of a rank that can run this only together with the rest: a forward loaded with its backward."""
        return replace(self, pair=_sha256([one.identity for one in rest])[:16] if rest else "")

    def to_json(self) -> str:
        """One line of text; :meth:`from_json` reads it. What is stored for the others, or next to a cached graph."""
        return _canonical(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Digest":
        """Read what :meth:`to_json` wrote."""
        return cls(**json.loads(text))


def digest_of(problem: Problem, options: Options, order: Sequence[int]) -> Digest:
    """The digest of an order that was made from a problem and options; linear in their size.

    Where scheduling failed the order is the original one: ranks then differ in ``order``, and all keep the original.
    """
    used = [node for node in problem.nodes if launched_on(node)]
    number = _numbered(group for node in used for group in launched_on(node))
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
        costs=_sha256([_floats(node.time_us for node in problem.nodes), *_contention(problem.contention, number)]),
        order=_sha256(list(order)),
        key=_sha256(skeleton),
        launches=launches_of([(node.op, group, *groups[group]) for node in used for group in launched_on(node)]),
        name=problem.name,
        nodes=len(problem.nodes),
        calls=_sha256([[node.kind.value, node.op] for node in problem.nodes]),
        storages=_sha256([storage.bytes for storage in problem.storages]),
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
    number: dict[str, int] = {}
    for group in groups:
        number.setdefault(group, len(number))
    return number


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


def _floats(times: Iterable[float]) -> list[float]:
    """As floats: 40 is 40.0, and -0.0 is 0.0."""
    return [float(time) + 0.0 for time in times]


def _sha256(value: Any) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def _canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces; floats as the shortest text that reads back to the same bits."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """NumPy's integers, which ``json`` does not know."""
    return value.item()

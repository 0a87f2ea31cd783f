"""Turn the parsed JSON of a problem file into a problem; the format is that of :mod:`overlap_sched.problem.file`."""

import difflib
import json
from collections.abc import Callable
from typing import Any

from overlap_sched.errors import InputTooLargeError, OptionsError, ProblemError
from overlap_sched.problem import Group, Kind, Node, Problem, Storage
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.limits import Limits
from overlap_sched.problem.node import TIMED
from overlap_sched.problem.pins import read_mark
from overlap_sched.problem.quantities import LONGEST_US, MAX_COUNT, check_group, shown, timeless

FORMAT, FORMAT_2 = "overlap-problem/1", "overlap-problem/2"
_KINDS = {kind.value: kind for kind in Kind}
_FILE_KEYS = ("format", "name", "memory_model", "contention", "groups", "storages", "nodes")
_CONTENTION_KEYS = ("slowdown", "links", "stretch", "lanes", "crowding", "shares", "flops_per_byte")
_GROUP_KEYS = ("size", "intra_node", "nodes", "ranks")
_STORAGE_KEYS = ("bytes", "pinned")
_NODE_KEYS = (
    "name",
    "kind",
    "deps",
    "alloc",
    "use",
    "us",
    "op",
    "flops",
    "bytes",
    "group",
    "collective",
    "launches",
    "module",
    "marks",
)


class Reader:
    """Reads one file.

    Args:
        path: Its name, for errors.
        comm_scale: Every collective takes so many times as long.
        limits: How many nodes it may have.
    """

    def __init__(self, path: str, comm_scale: float, limits: Limits) -> None:
        self.path = path
        self.comm_scale = comm_scale
        self.limits = limits

    def problem(self, data: Any) -> Problem:
        """The problem.

        Raises:
            InputTooLargeError, ProblemError: As of ``read_problem``.
        """
        if isinstance(data, list):
            raise ProblemError(
                f"{self.path}: is a list, as an order is, and no problem. Give the problem that it is an order of."
            )
        if not isinstance(data, dict) or data.get("format") not in (FORMAT, FORMAT_2):
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ProblemError(
                f"{self.path}: format is {found!r}; this version reads {FORMAT!r} and {FORMAT_2!r}, no others."
            )
        if data["format"] == FORMAT and "contention" in data:
            raise ProblemError(
                f"{self.path}: has contention, which {FORMAT!r} does not know. Write {FORMAT_2!r} as its format."
            )
        self._known(data, _FILE_KEYS, "the file")
        groups = self._field(data, "groups", dict, "the file", {})
        nodes = self._field(data, "nodes", list, "the file")
        if len(nodes) > self.limits.nodes:
            raise InputTooLargeError(
                f"{self.path}: has {len(nodes):,} nodes, more than the limit of {self.limits.nodes:,}. "
                "Raise the limit (--max-nodes on the command line) if the file is meant to be that large."
            )
        return Problem(
            name=self._field(data, "name", str, "the file"),
            nodes=tuple(self._node(i, d) for i, d in enumerate(nodes)),
            storages=tuple(self._storage(i, d) for i, d in enumerate(self._field(data, "storages", list, "the file"))),
            groups={name: self._group(name, d) for name, d in groups.items()},
            memory_model=self._field(data, "memory_model", str, "the file", "runtime"),
            contention=self._contention(self._field(data, "contention", dict, "the file", {})),
        )

    def _known(self, data: Any, keys: tuple[str, ...], where: str) -> None:
        if not isinstance(data, dict) or data.keys() <= _KEY_SETS[keys]:
            return
        key = next(key for key in data if key not in keys)
        near = difflib.get_close_matches(key, keys, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It may have {', '.join(keys)}."
        raise ProblemError(f"{self.path}: {where} has an unknown key {_shortened(key)!r}. {hint}")

    def _contention(self, data: Any) -> Contention:
        self._known(data, _CONTENTION_KEYS, "contention")

        def table(name: str, read: Callable[[Any, str, str], Any]) -> dict[str, Any]:
            entries = self._field(data, name, dict, "contention", {})
            return {key: read(entries, key, f"contention.{name}") for key in entries}

        return Contention(
            slowdown=table("slowdown", self._number),
            links=table("links", lambda entries, key, where: self._field(entries, key, str, where)),
            stretch=table("stretch", self._number),
            lanes=self._field(data, "lanes", int, "contention", 1),
            crowding=self._number(data, "crowding", "contention") if "crowding" in data else 1.0,
            shares=table("shares", self._number),
            flops_per_byte=self._number(data, "flops_per_byte", "contention"),
        )

    def _group(self, name: str, data: Any) -> Group:
        where = f"groups[{name!r}]"
        self._known(data, _GROUP_KEYS, where)
        size, inside = self._field(data, "size", int, where), self._field(data, "intra_node", bool, where)
        ranks = self._ids(data, "ranks", where) if "ranks" in data else ()
        group = Group(size, inside, self._field(data, "nodes", int, where, 0), ranks)
        check_group(f"{self.path}: {where}", group)
        return group

    def _storage(self, index: int, data: Any) -> Storage:
        where = f"storages[{index}]"
        self._known(data, _STORAGE_KEYS, where)
        return Storage(self._field(data, "bytes", int, where), self._field(data, "pinned", bool, where, False))

    def _node(self, index: int, data: Any) -> Node:
        where = f"nodes[{index}]"
        kind = self._field(data, "kind", str, where)
        if kind not in _KINDS:
            raise ProblemError(f"{self.path}: {where}.kind is {_shortened(kind)!r}; it is one of {', '.join(_KINDS)}.")
        self._known(data, _NODE_KEYS, where)
        time_us = self._number(data, "us", where)
        if time_us and _KINDS[kind] not in TIMED:
            raise timeless(f"{self.path}: {where}.us is", _KINDS[kind], time_us)
        return Node(
            name=self._field(data, "name", str, where),
            kind=_KINDS[kind],
            deps=self._ids(data, "deps", where),
            alloc=self._ids(data, "alloc", where),
            use=self._ids(data, "use", where),
            time_us=time_us * self.comm_scale if kind == "collective" else time_us,
            op=self._field(data, "op", str, where, ""),
            group=self._field(data, "group", str, where) if kind == "collective" else None,
            collective=self._field(data, "collective", int, where) if data.get("collective") is not None else None,
            flops=self._count(data, "flops", where),
            bytes=self._count(data, "bytes", where),
            launches=self._names(data, "launches", where, "groups"),
            module=self._field(data, "module", str, where, ""),
            marks=self._marks(data, where),
        )

    def _field(self, data: Any, name: str, kind: type, where: str, *default: Any) -> Any:
        if not isinstance(data, dict):
            raise ProblemError(f"{self.path}: {where} is {_shown(data)}; it must be an object.")
        if name not in data and default:
            return default[0]
        value = data.get(name)
        if name not in data or not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = f"is {_shown(value)}" if name in data else "is missing"
            raise ProblemError(f"{self.path}: {where}.{name} {found}; it must be {_TYPE_NAMES[kind]}.")
        return value

    def _number(self, data: Any, name: str, where: str) -> float:
        value = data.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ProblemError(f"{self.path}: {where}.{name} is {_shown(value)}; it must be a number.")
        if not 0 <= value <= LONGEST_US:
            raise ProblemError(
                f"{self.path}: {where}.{name} is {shown(value)}: it is finite and 0 or more. Check its cost."
            )
        return value

    def _count(self, data: Any, name: str, where: str) -> int:
        value = self._number(data, name, where)
        if value > MAX_COUNT:
            raise ProblemError(f"{self.path}: {where}.{name} is {shown(value)}: it is below 2**63. Check its cost.")
        return int(value)

    def _names(self, data: Any, name: str, where: str, what: str) -> tuple[str, ...]:
        return self._all(self._field(data, name, list, where, []), str, f"{where}.{name}", f"{what} are named by text")

    def _marks(self, data: Any, where: str) -> tuple[str, ...]:
        marks = self._names(data, "marks", where, "pins")
        for text in marks:
            try:
                read_mark(text)
            except OptionsError as error:
                raise ProblemError(f"{self.path}: {where}.marks: {error}") from None
        return marks

    def _ids(self, data: Any, name: str, where: str) -> tuple[int, ...]:
        return self._all(self._field(data, name, list, where), int, f"{where}.{name}", "ids are integers")

    def _all(self, items: list[Any], kind: type, where: str, meant: str) -> tuple[Any, ...]:
        for item in items:
            if type(item) is not kind:
                raise ProblemError(f"{self.path}: {where} holds {_shown(item)}; {meant}.")
        return tuple(items)


_KEY_SETS: dict[tuple[str, ...], frozenset[str]] = {
    keys: frozenset(keys) for keys in (_FILE_KEYS, _CONTENTION_KEYS, _GROUP_KEYS, _STORAGE_KEYS, _NODE_KEYS)
}
_TYPE_NAMES = {str: "text", int: "an integer", bool: "true or false", list: "a list", dict: "an object"}


def _shown(value: Any) -> str:
    return _shortened(json.dumps(value, default=repr))


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."

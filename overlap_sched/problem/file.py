"""Read and write problems as ``overlap-problem/1`` (with contention: ``/2``): JSON, plain or gzipped.

``name``; ``groups``: {name: {``size``, ``intra_node``}}; ``storages``: list of {``bytes``, ``pinned``}; ``nodes``
in the original order, ids are indices: ``name``, ``kind``, ``deps``, ``alloc``, ``use``, ``us`` (microseconds,
absent: 0), ``op``, ``flops``, ``bytes``, ``group``, ``collective``; optionally ``memory_model`` (absent: ``runtime``).
Version 2 adds ``contention``: ``slowdown`` {operator prefix: factor on compute}, ``links`` {group: link}, see
:mod:`overlap_sched.problem.contention`. Written only where there is any: all else
stays readable to old versions.

Files are not trusted: every field is checked for its type here, for its meaning by :class:`Problem`.
"""

import gzip
import json
import math
import zlib
from pathlib import Path
from typing import Any

from overlap_sched.errors import ProblemFileError, QuantityError
from overlap_sched.problem import Group, Kind, Node, Problem, Storage
from overlap_sched.problem.contention import NO_CONTENTION, Contention

FORMAT, FORMAT_2 = "overlap-problem/1", "overlap-problem/2"
_KINDS = {kind.value: kind for kind in Kind}


def read_problem(path: str | Path, comm_scale: float = 1.0) -> Problem:
    """Read a problem; every collective takes ``comm_scale`` times as long.

    Raises:
        ProblemFileError: The file is missing, cut short, not gzip or JSON, or a field has the wrong type.
        ProblemError: Its content breaks a rule of :mod:`overlap_sched.problem`.
    """
    if not 0 <= comm_scale < math.inf:
        raise QuantityError(f"comm_scale is {comm_scale}: it is a finite factor of 0 or more.")
    data = _load(Path(path))
    return _Reader(str(path), comm_scale).problem(data)


def write_problem(problem: Problem, path: str | Path) -> None:
    """Write a problem; gzipped where the name ends in ``.gz``. The same problem gives the same bytes."""
    contention = problem.contention != NO_CONTENTION
    data: dict[str, Any] = {"format": FORMAT_2 if contention else FORMAT, "name": problem.name}
    if problem.memory_model != "runtime":
        data["memory_model"] = problem.memory_model
    if contention:
        data["contention"] = {
            "slowdown": dict(problem.contention.slowdown),
            "links": dict(problem.contention.links),
        }
    data["groups"] = {name: group._asdict() for name, group in problem.groups.items()}
    data["storages"] = [storage._asdict() for storage in problem.storages]
    data["nodes"] = [_node_fields(node) for node in problem.nodes]
    text = json.dumps(data, separators=(",", ":")).encode()
    Path(path).write_bytes(gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def _node_fields(node: Node) -> dict[str, Any]:
    fields = node._asdict()
    fields["us"] = fields.pop("time_us")
    required = ("name", "kind", "deps", "alloc", "use")
    defaults = {"us": 0.0, "op": "", "group": None, "collective": None, "flops": 0, "bytes": 0}
    return {name: value for name, value in fields.items() if name in required or value != defaults[name]}


def _load(path: Path) -> Any:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ProblemFileError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    if str(path).endswith(".gz") or raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except EOFError:
            raise ProblemFileError(f"{path}: the gzip stream is cut short. Copy or download the file again.") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ProblemFileError(
                f"{path}: is named like gzip but is not ({error}). Rename it to .json or compress it again."
            ) from None
    try:
        return json.loads(raw)
    except UnicodeDecodeError:
        raise ProblemFileError(f"{path}: is not text. A problem is JSON, plain or gzipped.") from None
    except json.JSONDecodeError as error:
        raise ProblemFileError(
            f"{path}: is not JSON at line {error.lineno}, column {error.colno} ({error.msg}). Was it cut short?"
        ) from None
    except (RecursionError, ValueError) as error:
        raise ProblemFileError(f"{path}: cannot be parsed ({error}). A problem is a flat JSON object.") from None


class _Reader:
    """Turns parsed JSON into a problem; knows the file's name for its errors."""

    def __init__(self, path: str, comm_scale: float) -> None:
        self.path = path
        self.comm_scale = comm_scale

    def problem(self, data: Any) -> Problem:
        if not isinstance(data, dict) or data.get("format") not in (FORMAT, FORMAT_2):
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ProblemFileError(
                f"{self.path}: format is {found!r}; this version reads {FORMAT!r} and {FORMAT_2!r}, no others."
            )
        if data["format"] == FORMAT and "contention" in data:
            raise ProblemFileError(
                f"{self.path}: has contention, which {FORMAT!r} does not know. Say {FORMAT_2!r} as its format."
            )
        groups = self.field(data, "groups", dict, "the file", {})
        return Problem(
            name=self.field(data, "name", str, "the file"),
            nodes=tuple(self.node(i, d) for i, d in enumerate(self.field(data, "nodes", list, "the file"))),
            storages=tuple(self.storage(i, d) for i, d in enumerate(self.field(data, "storages", list, "the file"))),
            groups={name: self.group(name, d) for name, d in groups.items()},
            memory_model=self.field(data, "memory_model", str, "the file", "runtime"),
            contention=self.contention(self.field(data, "contention", dict, "the file", {})),
        )

    def contention(self, data: Any) -> Contention:
        slowdown = self.field(data, "slowdown", dict, "contention", {})
        links = self.field(data, "links", dict, "contention", {})
        return Contention(
            {op: self.number(slowdown, op, "contention.slowdown") for op in slowdown},
            {group: self.field(links, group, str, "contention.links") for group in links},
        )

    def group(self, name: str, data: Any) -> Group:
        where = f"groups[{name!r}]"
        return Group(self.field(data, "size", int, where), self.field(data, "intra_node", bool, where))

    def storage(self, index: int, data: Any) -> Storage:
        where = f"storages[{index}]"
        return Storage(self.field(data, "bytes", int, where), self.field(data, "pinned", bool, where, False))

    def node(self, index: int, data: Any) -> Node:
        where = f"nodes[{index}]"
        kind = self.field(data, "kind", str, where)
        if kind not in _KINDS:
            raise ProblemFileError(f"{self.path}: {where}.kind is {kind!r}; it is one of {', '.join(_KINDS)}.")
        time_us = self.number(data, "us", where)
        return Node(
            name=self.field(data, "name", str, where),
            kind=_KINDS[kind],
            deps=self.ids(data, "deps", where),
            alloc=self.ids(data, "alloc", where),
            use=self.ids(data, "use", where),
            time_us=time_us * self.comm_scale if kind == "collective" else time_us,
            op=self.field(data, "op", str, where, ""),
            group=self.field(data, "group", str, where) if kind == "collective" else None,
            collective=self.field(data, "collective", int, where) if data.get("collective") is not None else None,
            flops=int(self.number(data, "flops", where)),
            bytes=int(self.number(data, "bytes", where)),
        )

    def field(self, data: Any, name: str, kind: type, where: str, *default: Any) -> Any:
        if not isinstance(data, dict):
            raise ProblemFileError(f"{self.path}: {where} is {_shown(data)}; it must be an object.")
        if name not in data and default:
            return default[0]
        value = data.get(name)
        if name not in data or not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = f"is {_shown(value)}" if name in data else "is missing"
            raise ProblemFileError(f"{self.path}: {where}.{name} {found}; it must be {_TYPE_NAMES[kind]}.")
        return value

    def number(self, data: Any, name: str, where: str) -> float:
        value = data.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ProblemFileError(f"{self.path}: {where}.{name} is {_shown(value)}; it must be a number.")
        if not 0 <= value < math.inf:
            raise QuantityError(f"{self.path}: {where}.{name} is {value}: it is finite and 0 or more. Check its cost.")
        return value

    def ids(self, data: Any, name: str, where: str) -> tuple[int, ...]:
        value = self.field(data, name, list, where)
        for item in value:
            if type(item) is not int:
                raise ProblemFileError(f"{self.path}: {where}.{name} holds {_shown(item)}; ids are integers.")
        return tuple(value)


_TYPE_NAMES = {str: "text", int: "an integer", bool: "true or false", list: "a list", dict: "an object"}


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 40 else text[:37] + "..."

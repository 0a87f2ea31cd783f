"""Read and write problems as ``overlap-problem/1`` (some as ``/2``): JSON, plain or gzipped.

``name``; ``groups``: {name: {``size``, ``intra_node``, where known ``nodes`` and ``ranks``}};
``storages``: list of {``bytes``, ``pinned``}; ``nodes``
in the original order, ids are indices: ``name``, ``kind``, ``deps``, ``alloc``, ``use``, ``us`` (microseconds,
absent: 0), ``op``, ``flops``, ``bytes``, ``group``, ``collective``, where known ``module``, ``marks`` (pins, see
:mod:`overlap_sched.problem.pins`); optionally ``memory_model`` (absent: ``runtime``).
Version 2 adds the ``launches`` of nodes (process groups on which compute communicates by itself, ``"*"``: any) and
``contention``: ``slowdown`` {operator prefix: factor on compute}, ``links`` {group: link}, where there is any
``stretch`` {operator prefix: factor on collectives} and ``shares`` {"flops" or "bytes": part of a slowdown} with
``flops_per_byte``, with more than one ``lanes`` and ``crowding``, see
:mod:`overlap_sched.problem.contention`. Written only where there is any: all else stays readable to old versions.

Files are not trusted: their size is bounded (a gzip stream of 3 MB can hold 3 GB), types as they are decoded, their
meaning by :class:`Problem`; an unknown key is an error.
"""

import difflib
import errno
import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, get_type_hints

import msgspec
import msgspec.inspect

from overlap_sched.errors import InputTooLargeError, OptionsError, ProblemError
from overlap_sched.problem import ANY_GROUP, Group, Kind, MemoryModel, Node, Problem, Storage
from overlap_sched.problem.contention import NO_CONTENTION, Contention
from overlap_sched.problem.pins import pinned, read_mark

T = TypeVar("T")
PathT = TypeVar("PathT", bound="str | os.PathLike[str]")

FORMAT, FORMAT_2 = "overlap-problem/1", "overlap-problem/2"
GZIP = b"\x1f\x8b"
"""How a gzip stream begins."""
PARTS_PER_NODE = 16
"""JSON objects and lists, at most: a node has four, each storage is one. Parsed, they take far more than their text."""


@dataclass(frozen=True)
class Limits:
    """How large an input may be; larger ones are refused, with the limit in the error.

    Attributes:
        input_bytes: Of a file, once decompressed. Problem files have 150 to 250 bytes per node.
        nodes: Of a problem file or a dump. Each part of an operator's list of results (``unbind``, ``split``) counts.
    """

    input_bytes: int = 2**29
    nodes: int = 2_000_000


DEFAULT_LIMITS = Limits()


def too_large(fault: str, limit: str) -> InputTooLargeError:
    """The error, with the option that raises the limit."""
    remedy = f"Raise the limit (--max-{limit} on the command line) if it is meant to be that large."
    return InputTooLargeError(f"{fault}. {remedy}")


class DamagedError(Exception):
    """What should be a gzip stream is none, or is cut short; the text says so."""


def _struct(kind: Any, defaults: Mapping[str, Any], required: tuple[str, ...] = (), **types: Any) -> Any:
    """The fields of a tuple as an object in a file, which has no others."""
    hints = get_type_hints(kind) | types
    fields = [(name, hint) if name in required else (name, hint, defaults[name]) for name, hint in hints.items()]
    return msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True, rename={"time_us": "us"})


NODE, GROUP = ("name", "kind", "deps", "alloc", "use"), ("size", "intra_node")
"""Fields that are always there."""
_Group: Any = _struct(Group, Group._field_defaults, GROUP)
_Storage: Any = _struct(Storage, Storage._field_defaults, ("bytes",))
_Node: Any = _struct(Node, Node._field_defaults, NODE, flops=int | float, bytes=int | float)
_Contention: Any = _struct(Contention, asdict(NO_CONTENTION))


class _Format(msgspec.Struct):
    format: Any = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["overlap-problem/1", "overlap-problem/2"]
    name: str
    storages: list[_Storage]
    nodes: list[_Node]
    groups: dict[str, _Group] = {}
    memory_model: MemoryModel = "runtime"
    contention: _Contention | None = None


def read_problem(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> Problem:
    """Read a problem.

    Args:
        path: The file, plain or gzipped.
        limits: How large the file may be.

    Raises:
        ProblemError: The file is missing, cut short, not gzip or JSON, has an unknown key or a wrong type, or breaks a
            rule of :mod:`overlap_sched.problem`.
        InputTooLargeError: The file is larger than the limits.
    """
    raw = read_json_text(path, limits, ProblemError)
    if raw.lstrip()[:1] == b"[":
        raise ProblemError(f"{path}: is a list, as an order is. Give the problem that it is an order of.")
    found = decode(raw, _Format, path, ProblemError).format
    if found not in (FORMAT, FORMAT_2):
        raise ProblemError(f"{path}: format is {found!r:.60}; this version reads {FORMAT!r} and {FORMAT_2!r}.")
    file = decode(raw, _File, path, ProblemError)
    if (repeated := _repeated_key(raw)) is not None:
        raise ProblemError(f"{path}: the key {repeated!r:.60} occurs twice in one object. Leave out one of the two.")
    if file.format == FORMAT and file.contention is not None:
        raise ProblemError(f"{path}: has contention, which {FORMAT!r} does not know. Write {FORMAT_2!r} as its format.")
    if len(file.nodes) > limits.nodes:
        raise too_large(f"{path}: has {len(file.nodes):,} nodes, more than the limit of {limits.nodes:,}", "nodes")
    try:
        for text in {text: None for node in file.nodes for text in node.marks}:
            read_mark(text)
        return Problem(
            name=file.name,
            nodes=tuple(_node(Node(*msgspec.structs.astuple(node))) for node in file.nodes),
            storages=tuple(Storage(*msgspec.structs.astuple(storage)) for storage in file.storages),
            groups={name: Group(*msgspec.structs.astuple(group)) for name, group in file.groups.items()},
            memory_model=file.memory_model,
            contention=Contention(**msgspec.structs.asdict(file.contention)) if file.contention else NO_CONTENTION,
        )
    except (OptionsError, ProblemError) as error:
        raise ProblemError(f"{path}: {error}") from None


def _node(node: Node) -> Node:
    """A node as it is read: counts are whole, and only collectives have a group."""
    group = node.group if node.kind is Kind.COLLECTIVE else None
    return node._replace(group=group, flops=int(node.flops), bytes=int(node.bytes))


def write_problem(problem: Problem, path: str | Path) -> None:
    """Write a problem; gzipped where the name ends in ``.gz``."""
    Path(nameable(path)).write_bytes(problem_bytes(problem, gzipped=str(path).endswith(".gz")))


def problem_bytes(problem: Problem, *, gzipped: bool = False) -> bytes:
    """A problem as a file holds it. The same problem gives the same bytes."""
    contention = problem.contention != NO_CONTENTION
    newer = contention or any(node.launches for node in problem.nodes)
    data: dict[str, Any] = {"format": FORMAT_2 if newer else FORMAT, "name": problem.name}
    if problem.memory_model != "runtime":
        data["memory_model"] = problem.memory_model
    if contention:
        defaults = asdict(NO_CONTENTION) | {"slowdown": None, "links": None}
        data["contention"] = {k: v for k, v in asdict(problem.contention).items() if v != defaults[k]}
    data["groups"] = {name: _changed(group, GROUP) for name, group in problem.groups.items()}
    data["storages"] = [storage._asdict() for storage in problem.storages]
    data["nodes"] = [_changed(node, NODE) for node in problem.nodes]
    for fields in data["nodes"]:
        if "time_us" in fields:
            fields["us"] = fields.pop("time_us")
    text = msgspec.json.encode(data)
    return gzip.compress(text, mtime=0) if gzipped else text


def _changed(one: Node | Group, required: tuple[str, ...]) -> dict[str, Any]:
    defaults = one._field_defaults
    return {name: value for name, value in one._asdict().items() if name in required or value != defaults[name]}


def decode(
    data: bytes | Mapping[str, Any],
    kind: type[T],
    where: str | Path,
    error: type[Exception],
    hook: Callable[[type, Any], Any] | None = None,
) -> T:
    """Turn JSON, or what TOML holds, into a value of a type; ``hook`` makes those that msgspec does not know.

    Raises:
        error: It is no JSON, or not of that type; the message begins with ``where``, and names the path inside.
    """
    try:
        if isinstance(data, bytes):
            return msgspec.json.decode(data, type=kind, dec_hook=hook)
        return msgspec.convert(data, kind, dec_hook=hook)
    except msgspec.ValidationError as fault:
        what, _, at = str(fault).partition(" - at `$")
        place, what = at.rstrip("`").lstrip("."), what.replace("`", "").rstrip(".")
        hint = _hint(kind, what, place)
        raise error(f"{where}: {place}{': ' if place else ''}{what[:1].lower()}{what[1:150]}.{hint}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:  # one or the other, by msgspec's version
        raise error(f"{where}: is not JSON ({fault}). Was it cut short?") from None


def _repeated_key(text: bytes) -> str | None:
    """A key that occurs twice in one object of valid JSON; ``None``: none does. msgspec takes the last one."""
    found = list[str]()

    def look(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) != len(dict(pairs)):
            found.append(Counter(key for key, _ in pairs).most_common(1)[0][0])

    json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str)  # numbers may have any number of digits
    return found[0] if found else None


def _hint(kind: Any, what: str, place: str) -> str:
    fields = dict(_fields_inside(msgspec.inspect.type_info(kind)))
    if what.startswith("Object contains unknown field "):
        near = difflib.get_close_matches(name := what.rpartition(" ")[2], fields, 1)
        if near == [name]:
            return " It belongs elsewhere in the file."
        return f" Did you mean {near[0]!r}?" if near else " Leave it out."
    if what == "Expected array, got object":
        return f" In TOML, write [[{place}]] above each."
    if not what.startswith("Invalid enum value"):
        return ""
    found = fields.get(place.rpartition(".")[2])
    allowed = found.cls if isinstance(found, msgspec.inspect.EnumType) else getattr(found, "values", ())
    return f" It is one of {', '.join(repr(str(one)) for one in allowed if one)}."


def _fields_inside(info: Any) -> Iterator[tuple[str, Any]]:
    for one in getattr(info, "fields", ()):
        yield one.encode_name, one.type
        yield from _fields_inside(one.type)
    inside = [getattr(info, name, None) for name in ("type", "item_type", "value_type")]
    for one in (*inside, *getattr(info, "types", ())):
        if one is not None:
            yield from _fields_inside(one)


def read_json_text(path: str | Path, limits: Limits, error: type[Exception]) -> bytes:
    """The text of a JSON file, plain or gzipped, that is not larger than the limits.

    Raises:
        error: It cannot be read.
        InputTooLargeError: It is larger than the limits.
    """
    try:
        raw = read_bytes(path, limits, gzipped=str(path).endswith(".gz"))
    except DamagedError as damage:
        raise error(f"{path}: {damage}") from None
    except OSError as fault:
        raise error(f"{path}: cannot be read ({fault.strerror}). Check the path.") from None
    parts = raw.count(b"{") + raw.count(b"[")
    if parts > PARTS_PER_NODE * limits.nodes:
        most = f"{PARTS_PER_NODE} for each of {limits.nodes:,} nodes"
        raise too_large(f"{path}: has {parts:,} objects and lists, more than {most}", "nodes")
    return raw


def read_bytes(path: str | Path, limits: Limits, *, gzipped: bool = False) -> bytes:
    """The content of a file; decompressed where it begins like gzip, or where ``gzipped`` says that it should be.

    Raises:
        OSError: It cannot be read.
        DamagedError: It is not a whole gzip stream.
        InputTooLargeError: There is more than the limit.
    """
    with open(nameable(path), "rb") as file:
        gzipped = gzipped or file.peek(2)[:2] == GZIP  # a pipe cannot be read twice
        try:
            return _bounded(gzip.GzipFile(fileobj=file) if gzipped else file, path, limits.input_bytes)
        except EOFError:
            raise DamagedError("the gzip stream is cut short. Copy or download the file again.") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DamagedError(f"is not gzip ({error}). Rename it to .json or compress it again.") from None


def _bounded(file: BinaryIO | gzip.GzipFile, path: str | Path, limit: int) -> bytes:
    data = b"".join(islice(iter(partial(file.read, 2**20), b""), min(limit, 2**60) // 2**20 + 1))
    if len(data) > limit:
        when = " once decompressed" if isinstance(file, gzip.GzipFile) else ""
        raise too_large(f"{path}: has more than {limit:,} bytes{when}, which is the limit", "input-bytes")
    return data


def nameable(path: PathT) -> PathT:
    """The path itself.

    Raises:
        OSError: No file can have that name: a NUL character is in it, or half of a surrogate pair. Python raises
            ``ValueError`` for these where all other names give an ``OSError``.
    """
    try:
        if b"\0" not in os.fsencode(path):
            return path
        unusable = "a NUL character"
    except UnicodeEncodeError:
        unusable = "half of a surrogate pair"
    raise OSError(errno.EINVAL, f"no file can have this name: it has {unusable}")


def redact_problem(problem: Problem) -> Problem:
    """The problem without names: what is left is its shape, its sizes and its times, and the order that is found.

    Nodes are ``n0``, ``n1``, ..., groups ``group0``, ..., and so on. Kept are kinds, dependencies, storages, times,
    operations, bytes, sizes of groups, and the operators of collectives (torch's own; contention goes by them).
    """
    links = _renamed("link", problem.contention.links.values())
    named = [name for node in problem.nodes for name in node.launches if name != ANY_GROUP]
    groups = {ANY_GROUP: ANY_GROUP} | _renamed("group", [*problem.groups, *named])
    modules = _renamed("module", [node.module for node in problem.nodes])
    marks = _redacted_marks(problem)
    ops = {problem.nodes[v].op for v in problem.collectives}
    slowdown, stretch = (
        {begin: factor for begin, factor in factors.items() if any(op.startswith(begin) for op in ops)}
        for factors in (problem.contention.slowdown, problem.contention.stretch)  # another one could be anything
    )
    return replace(
        problem,
        name="redacted",
        nodes=tuple(
            node._replace(
                name=f"n{v}",
                op=node.op if node.kind is Kind.COLLECTIVE or not node.op else node.kind.value,
                group=None if node.group is None else groups[node.group],
                launches=tuple(groups[name] for name in node.launches),
                module=modules[node.module] if node.module else "",
                marks=tuple(marks[text] for text in node.marks if text in marks),
            )
            for v, node in enumerate(problem.nodes)
        ),
        groups={groups[name]: group for name, group in problem.groups.items()},
        contention=replace(
            problem.contention,
            slowdown=slowdown,
            links={groups[name]: links[link] for name, link in problem.contention.links.items()},
            stretch=stretch,
        ),
    )


def _redacted_marks(problem: Problem) -> dict[str, str]:
    """Pins of nodes: those that name a module name the node of it that they hold to; without one they mean nothing."""
    renamed = {}
    for one in pinned(problem, ()):
        text, rule = one.pin.text, one.pin.rule
        if rule.startswith("not ") and one.anchors:
            renamed[text] = f"{rule} n{one.anchors[0 if rule == 'not before' else -1]}"
        elif not rule.startswith("not "):
            renamed[text] = text
    return renamed


def _renamed(what: str, names: Iterable[str]) -> dict[str, str]:
    """New names that sort as the old ones do."""
    old = sorted(set(names))
    width = len(str(len(old) - 1))
    return {name: f"{what}{k:0{width}}" for k, name in enumerate(old)}

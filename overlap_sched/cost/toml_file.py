"""TOML files that are not trusted, and the quantities in them: numbers with units, as ``"400Gb/s"`` or ``"12us"``."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from msgspec import Meta, Struct, structs

from overlap_sched.problem.file import decode
from overlap_sched.problem.sizes import MAX_FLOAT, bare_number, size_bytes

T = TypeVar("T")
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)\s*")
_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_DEEPEST = 32
"""Tables inside of each other; no file that is read here has more than four."""
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_DEEP_KEY = re.compile(rf"""(?<![\w"'\\-])(?:{_PART}){{{_DEEPEST}}}""")

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Number = Annotated[float, Meta(ge=0, le=MAX_FLOAT)]
Factor = Annotated[float, Meta(ge=1, le=MAX_FLOAT)]


class Table(Struct, forbid_unknown_fields=True):
    """A table of a file: an unknown key is an error."""


class Quantity(float):
    """A number with a unit: what one of each is, and an example."""

    units: ClassVar[Mapping[str, float]]
    example: ClassVar[str]


class Bandwidth(Quantity):
    """Bytes per second, above 0. ``B`` is a byte, ``b`` or ``bit`` a bit, as the field writes them."""

    units: ClassVar = {f"{prefix}B/s": scale for prefix, scale in _PREFIX.items()} | {
        f"{prefix}{bit}/s": scale / 8 for prefix, scale in _PREFIX.items() for bit in ("b", "bit")
    }
    example = '"50GB/s" or "400Gb/s"'


class Time(Quantity):
    """Microseconds."""

    units: ClassVar = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
    example = '"12us"'


class Rate(Quantity):
    """Operations per second, above 0."""

    units: ClassVar = {
        f"{prefix}{name}": scale for prefix, scale in _PREFIX.items() for name in ("FLOPS", "FLOP/s", "FLOPs/s")
    }
    example = '"990TFLOPS"'


class Bytes(int):
    """A size as people write it: ``"80GB"``."""


def decode_toml(
    text: str, kind: type[T], where: str, error: type[Exception], instead: Mapping[str, Any] | None = None
) -> T:
    """Turn a TOML file into a value of a type.

    Args:
        text: Of the file.
        kind: A :class:`Table`, perhaps with quantities.
        where: How errors name the file.
        error: What is raised.
        instead: Values that take the place of those of the file, by key.

    Raises:
        error: It is not TOML, or not of that type.
    """
    try:
        data = parse_toml(text)
    except ValueError as fault:
        raise error(f"{where}: is not TOML: {fault}.") from None
    return decode({**data, **(instead or {})}, kind, where, error, read_quantity)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML file: integers of 64 bits, tables and lists up to 32 deep.

    Raises:
        ValueError: It is not TOML, or goes beyond that; the message says where.
    """
    deep = _DEEP_KEY.search(text)
    if deep is not None:  # of a key of n parts tomllib makes n ** 2 / 2
        raise ValueError(f"a key has more than {_DEEPEST} parts (at line {_line(text, deep)})")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"a value nests more than {_DEEPEST} deep") from None
    except ValueError as error:
        if isinstance(error, tomllib.TOMLDecodeError):
            raise
        longest = max(re.finditer(r"[\d_]+", text), key=lambda digits: len(digits[0]))  # which int() has not read
        raise ValueError(f"an integer has more than 64 bits (at line {_line(text, longest)})") from None
    todo: list[tuple[str, Any, int]] = [("", data, 0)]
    while todo:
        key, value, depth = todo.pop()
        if depth > _DEEPEST:
            raise ValueError(f"{key!r} nests more than {_DEEPEST} deep")
        if isinstance(value, dict):
            todo += ((name, one, depth + 1) for name, one in value.items())
        elif isinstance(value, list):
            todo += ((key, one, depth + 1) for one in value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{key!r} is an integer of more than 64 bits")
    return data


def _line(text: str, at: re.Match[str]) -> int:
    return text.count("\n", 0, at.start()) + 1


def read_quantity(kind: Any, value: Any) -> Any:
    """A quantity, for msgspec's ``dec_hook``.

    Raises:
        ValueError: It has no unit, another one, or is out of its range; the message says what to write.
    """
    if kind is Bytes:
        return read_size(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in kind.units:
        raise ValueError(f"{value!r:.40} is not a number with a unit that fits. Write {kind.example}")
    found = float(match[1]) * kind.units[match[2]]
    if not (0 <= found < math.inf) or (found == 0 and kind is not Time):
        raise ValueError(f"{value!r:.40} is not a finite number {'of 0 or more' if kind is Time else 'above 0'}")
    return kind(found)


def read_size(value: Any) -> Bytes:
    """A size in bytes.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, str) and (bare := bare_number(value)):
        raise ValueError(f"{value[:40]!r} is {bare}")
    found = None if "%" in str(value) else size_bytes(value, 0)
    if found is None:
        raise ValueError(f'{value!r:.40} is no size. Write "80GB" or "24GiB"')
    return Bytes(found)


def table_data(table: Table) -> dict[str, Any]:
    """A table as a file has it: all but the defaults, quantities as texts that read back as exactly their values."""
    known = ((field, getattr(table, field.name)) for field in structs.fields(table))
    found = {field.encode_name: _data(value, field.type) for field, value in known if value != field.default}
    return {name: data for name, data in found.items() if data != {}}


def _data(value: Any, kind: Any) -> Any:
    if isinstance(value, Table):
        return table_data(value)
    if isinstance(value, tuple) and value and isinstance(value[0], Table):
        return [table_data(one) for one in value]
    if kind not in (Bytes, Time, Bandwidth, Rate):
        return value
    unit = {Bytes: "B", Time: "us", Bandwidth: "B/s", Rate: "FLOPS"}[kind]
    texts = [
        f"{value / _PREFIX[prefix]:.15g}{prefix}{unit}"
        for prefix in "PTGMk"
        if value >= _PREFIX[prefix] and kind in (Bandwidth, Rate)
    ]
    exact = (text for text in texts if read_quantity(kind, text) == value)
    return next(exact, f"{int(value) if kind is Bytes else float(value)!r}{unit}")


def write_toml(data: Mapping[str, Any], name: str = "") -> str:
    """Write TOML: a table's values, then the tables inside it, then those that it has any number of."""
    lines = [f"{_key(key)} = {_toml(value)}" for key, value in data.items() if not _tables(value)]
    for key, value in data.items():
        for table in _tables(value):
            title = f"{name}{_key(key)}"
            lines += [
                "",
                f"[{title}]" if isinstance(value, Mapping) else f"[[{title}]]",
                write_toml(table, f"{title}."),
            ]
    return "\n".join(lines)


def _tables(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        return [value]
    return list(value) if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping) else []


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else _toml(key)


def _toml(value: Any) -> str:
    """A value; texts as in JSON, whose escapes TOML shares."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)

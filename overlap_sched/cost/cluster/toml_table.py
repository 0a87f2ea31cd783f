"""A table of a TOML file whose values are checked as they are taken: each error says what, where and what to write."""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from overlap_sched.errors import CostError
from overlap_sched.problem.sizes import bare_number, size_bytes

_Choice = TypeVar("_Choice", bound=str)
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)\s*")
_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}

BANDWIDTH = {
    **{f"{prefix}B/s": scale for prefix, scale in _PREFIX.items()},
    **{f"{prefix}{bit}/s": scale / 8 for prefix, scale in _PREFIX.items() for bit in ("b", "bit")},
}
"""Bytes per second. ``B`` is a byte, ``b`` or ``bit`` a bit, as the field writes them."""
TIME = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
"""Microseconds."""
RATE = {f"{prefix}{name}": scale for prefix, scale in _PREFIX.items() for name in ("FLOPS", "FLOP/s", "FLOPs/s")}
"""Operations per second."""
_DEEPEST = 32
"""Tables inside of each other; no file that is read here has more than four."""
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_DEEP_KEY = re.compile(rf"""(?<![\w"'\\-])(?:{_PART}){{{_DEEPEST}}}""")
EXAMPLES = {"bandwidth": '"50GB/s" or "400Gb/s"', "time": '"12us"', "rate": '"990TFLOPS"'}
_UNITS = {"bandwidth": BANDWIDTH, "time": TIME, "rate": RATE}


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
            raise ValueError(f"{shown(key)} nests more than {_DEEPEST} deep")
        if isinstance(value, dict):
            todo += ((name, one, depth + 1) for name, one in value.items())
        elif isinstance(value, list):
            todo += ((key, one, depth + 1) for one in value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{shown(key)} is an integer of more than 64 bits")
    return data


def _line(text: str, at: re.Match[str]) -> int:
    return text.count("\n", 0, at.start()) + 1


class TomlTable:
    """One table of the file: its values by key, checked; what nobody asked for when it is done is unknown.

    Every method that takes a value raises :class:`CostError` where it is missing or of another kind.

    Args:
        data: What TOML has made of it.
        where: The file, for errors.
        name: Of the table, with a dot behind it; empty for the whole file.
    """

    def __init__(self, data: Mapping[str, Any], where: str, name: str) -> None:
        self._data, self._where, self._name = data, where, name
        self._asked: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        self._asked[key] = None
        return key in self._data

    def error(self, key: str, problem: str) -> CostError:
        """The error about a key."""
        return CostError(f"{self._where}: {self._name}{key} {problem}")

    def _value(self, key: str, kind: str, default: Any = None, fits: Callable[[Any], bool] = lambda value: True) -> Any:
        """The value of a key, of a kind that ``fits`` tells; ``default`` where the key is missing."""
        if default is not None and key not in self:
            return default
        if key not in self:
            raise self.error(key, f"is missing; it is {kind}.")
        value = self._data[key]
        if not fits(value):
            raise self.error(key, f"is {shown(value)}; it is {kind}.")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Text."""
        return str(self._value(key, "text", default, lambda value: isinstance(value, str)))

    def choice(self, key: str, among: Sequence[_Choice], default: _Choice | None = None) -> _Choice:
        """One of a few words."""
        value = self.text(key, default)
        for one in among:
            if one == value:
                return one
        raise self.error(key, f"is {shown(value)}; it is one of {', '.join(json.dumps(one) for one in among if one)}.")

    def quantity(self, key: str, what: str, default: float | None = None) -> float:
        """A number with its unit, see :func:`quantity`."""
        value = self._value(key, f"a {what} with its unit", default)
        try:
            return quantity(value, what) if key in self else value
        except ValueError as error:
            raise self.error(key, f"is {shown(value)}: it {error}") from None

    def size(self, key: str, default: int | None = None) -> int:
        """A size in bytes, as people write it."""
        value = self._value(key, "a size with its unit", default)
        bare = bare_number(value) if isinstance(value, str) else ""
        if bare:
            raise self.error(key, f"is {shown(value)}, {bare}")
        found = size_bytes(value, 0) if isinstance(value, int) or "%" not in str(value) else None
        if found is None:
            raise self.error(key, f'is {shown(value)}; write a size with its unit: "80GB" or "24GiB".')
        return found

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number, 0 or more."""
        value = self._value(key, "a whole number", default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise self.error(key, f"is {shown(value)}; it is a whole number, 0 or more.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, 0 or more."""
        value = self._value(key, "a number", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.error(key, f"is {shown(value)}; it is a finite number, 0 or more.")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return bool(self._value(key, "true or false", default, lambda value: isinstance(value, bool)))

    def items(self, key: str) -> list[Any]:
        """A list of anything."""
        return list(self._value(key, "a list", fits=lambda value: isinstance(value, list)))

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers, 0 or more."""
        whole = self.listed(key)
        return [whole.number(k) for k in whole.keys]

    def listed(self, key: str) -> "TomlTable":
        """A list as a table, by index."""
        return TomlTable({str(k): one for k, one in enumerate(self.items(key))}, self._where, f"{self._name}{key}.")

    def is_list(self, key: str) -> bool:
        """Tell whether it is a list, where it may be something else, too."""
        return isinstance(self._data.get(key), list)

    def is_text(self, key: str) -> bool:
        """Tell whether it is text, where it may be a table, too."""
        return isinstance(self._data.get(key), str)

    def is_table(self, key: str) -> bool:
        """Tell whether it is a table, where it may be true or false, too."""
        return isinstance(self._data.get(key), dict)

    @property
    def keys(self) -> list[str]:
        """All keys, in the order of the file."""
        return list(self._data)

    def table(self, key: str) -> "TomlTable":
        """A table inside this one."""
        value = self._value(key, "a table", fits=lambda value: isinstance(value, dict))
        return TomlTable(value, self._where, f"{self._name}{key}.")

    def tables(self, key: str) -> list["TomlTable"]:
        """``[[key]]``, any number of times."""
        if key not in self:
            return []
        value = self._data[key]
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.error(key, f"is {shown(value)}; write [[{key}]] above each of its tables.")
        return [TomlTable(one, self._where, f"{self._name}{key}[{k}].") for k, one in enumerate(value)]

    def done(self) -> None:
        """Raise for the first key that was not asked for."""
        for key in self._data:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"It may have {', '.join(self._asked)}."
                where = self._name.removesuffix(".") or "the file"
                raise CostError(f"{self._where}: {where} has an unknown key {shown(key)}. {hint}")


def shown(value: Any) -> str:
    """A value for an error message, at most 40 characters of it."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 40 else text[:37] + "..."


def quantity(text: object, what: str) -> float:
    """The number, in bytes per second, microseconds or operations per second.

    Args:
        text: What is written.
        what: ``"bandwidth"``, ``"time"`` or ``"rate"``.

    Raises:
        ValueError: It is not a number with a unit of that kind, or not 0 or more and finite. The message begins with
            what it is ("has no unit") and says what to write.
    """
    example = f"Write {EXAMPLES[what]}."
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f"has no unit. {example}")
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"is not a number with a unit. {example}")
    number, unit = float(match[1]), match[2]
    if not unit:
        raise ValueError(f"has no unit. {example}")
    if unit not in _UNITS[what]:
        raise ValueError(f"has the unit {unit!r}, which is no unit of {what}. {example}")
    value = number * _UNITS[what][unit]
    if number < 0:
        raise ValueError(f"is negative. {example}")
    if not math.isfinite(value):
        raise ValueError(f"is not finite. {example}")
    return value


def written(value: float, what: str) -> str:
    """The text that :func:`quantity` reads back as exactly this value."""
    if what == "time":
        return f"{value!r}us"
    unit = "B/s" if what == "bandwidth" else "FLOPS"
    for prefix in ("P", "T", "G", "M", "k"):
        text = f"{value / _PREFIX[prefix]:.15g}{prefix}{unit}"
        if value >= _PREFIX[prefix] and quantity(text, what) == value:
            return text
    return f"{value!r}{unit}"

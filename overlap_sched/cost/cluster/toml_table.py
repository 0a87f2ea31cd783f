"""A table of a TOML file whose values are checked as they are taken: each error says what, where and what to write."""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from overlap_sched.cost.cluster.quantity import quantity
from overlap_sched.errors import ClusterError

_Choice = TypeVar("_Choice", bound=str)


class TomlTable:
    """One table of the file: its values by key, checked; what nobody asked for when it is done is unknown.

    Every method that takes a value raises :class:`ClusterError` where it is missing or of another kind.

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

    def error(self, key: str, problem: str) -> ClusterError:
        """The error about a key."""
        return ClusterError(f"{self._where}: {self._name}{key} {problem}")

    def _value(self, key: str, kind: str) -> Any:
        if key not in self:
            raise self.error(key, f"is missing; it is {kind}.")
        return self._data[key]

    def text(self, key: str, default: str | None = None) -> str:
        """Text."""
        if default is not None and key not in self:
            return default
        value = self._value(key, "text")
        if not isinstance(value, str):
            raise self.error(key, f"is {shown(value)}; it is text.")
        return value

    def choice(self, key: str, among: Sequence[_Choice], default: _Choice | None = None) -> _Choice:
        """One of a few words."""
        value = self.text(key, default)
        for one in among:
            if one == value:
                return one
        raise self.error(key, f"is {shown(value)}; it is one of {', '.join(json.dumps(one) for one in among if one)}.")

    def quantity(self, key: str, what: str, default: float | None = None) -> float:
        """A quantity with its unit, see :mod:`overlap_sched.cost.cluster.quantity`."""
        if default is not None and key not in self:
            return default
        value = self._value(key, f"a {what} with its unit")
        try:
            return quantity(value, what)
        except ValueError as error:
            raise self.error(key, f"is {shown(value)}: it {error}") from None

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number, 0 or more."""
        if default is not None and key not in self:
            return default
        value = self._value(key, "a whole number")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise self.error(key, f"is {shown(value)}; it is a whole number, 0 or more.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, 0 or more."""
        if default is not None and key not in self:
            return default
        value = self._value(key, "a number")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.error(key, f"is {shown(value)}; it is a finite number, 0 or more.")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        if key not in self:
            return default
        value = self._value(key, "true or false")
        if not isinstance(value, bool):
            raise self.error(key, f"is {shown(value)}; it is true or false.")
        return value

    def items(self, key: str) -> list[Any]:
        """A list of anything."""
        value = self._value(key, "a list")
        if not isinstance(value, list):
            raise self.error(key, f"is {shown(value)}; it is a list.")
        return value

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers, 0 or more."""
        whole = TomlTable({str(k): one for k, one in enumerate(self.items(key))}, self._where, f"{self._name}{key}.")
        return [whole.number(k) for k in whole.keys]

    def is_text(self, key: str) -> bool:
        """Tell whether it is text, where it may be a table, too."""
        return isinstance(self._data.get(key), str)

    @property
    def keys(self) -> list[str]:
        """All keys, in the order of the file."""
        return list(self._data)

    def table(self, key: str) -> "TomlTable":
        """A table inside this one."""
        value = self._value(key, "a table")
        if not isinstance(value, dict):
            raise self.error(key, f"is {shown(value)}; it is a table.")
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
                raise ClusterError(f"{self._where}: {where} has an unknown key {shown(key)}. {hint}")


def shown(value: Any) -> str:
    """A value for an error message, at most 40 characters of it."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 40 else text[:37] + "..."

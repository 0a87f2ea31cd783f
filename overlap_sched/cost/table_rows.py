"""Measured times as rows of a cluster file, and back.

    [[collective]]                          [[kernel]]                                     [[slowdown]]
    kind = "all_gather"                     op = "aten.mm.default"                         kind = "all_gather"
    ranks = 8                               shapes = "bfloat16[512,512] bfloat16[512,64]"  factor = 1.1
    nodes = 1                               flops = 33554432                               spread = 0.02
    bytes = 65536                           bytes = 655360
    time_us = 31.5                          time_us = 12.25
    spread_us = 0.75                        spread_us = 0.5
    launch_us = 9.0

The keys are the fields of :class:`~overlap_sched.cost.table.CollectiveTime`,
:class:`~overlap_sched.cost.table.KernelTime` and :class:`~overlap_sched.cost.table.SlowdownFactor`, which say what they
mean.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

from overlap_sched.cost.table import KINDS, CollectiveTime, KernelTime, SlowdownFactor, Tables
from overlap_sched.errors import TableError

SECTIONS = ("collective", "kernel", "slowdown")
"""Names of the arrays of tables in a cluster file that hold rows."""
_AT_LEAST_ONE = ("ranks", "nodes")
_ABOVE_ZERO = ("time_us", "launch_us")
_MAX_COUNT = 2**63 - 1
_Row = TypeVar("_Row", CollectiveTime, KernelTime, SlowdownFactor)


def rows_of(tables: Tables) -> dict[str, list[dict[str, str | int | float]]]:
    """Per section its rows; times and factors with six significant digits. A section without rows is left out."""
    every = zip(SECTIONS, (tables.collectives, tables.kernels, tables.slowdowns), strict=True)
    return {section: [_row(one) for one in ones] for section, ones in every if ones}


def tables_of_rows(sections: Mapping[str, Sequence[Mapping[str, Any]]], where: str) -> Tables:
    """The tables of a file.

    Args:
        sections: Rows by section (:data:`SECTIONS`); one that is missing has none.
        where: How errors name the file.

    Raises:
        TableError: A key is missing, unknown, or holds what it cannot; the message says which, and in which row.
    """
    return Tables(
        _read(CollectiveTime, sections, "collective", where),
        _read(KernelTime, sections, "kernel", where),
        _read(SlowdownFactor, sections, "slowdown", where),
    )


def _row(one: CollectiveTime | KernelTime | SlowdownFactor) -> dict[str, str | int | float]:
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in one._asdict().items()}


def _read(
    kind: type[_Row], sections: Mapping[str, Sequence[Mapping[str, Any]]], section: str, where: str
) -> tuple[_Row, ...]:
    rows = sections.get(section, ())
    return tuple(_one(kind, row, f"{where}: [[{section}]] {number}") for number, row in enumerate(rows, 1))


def _one(kind: type[_Row], row: Mapping[str, Any], where: str) -> _Row:
    types = get_type_hints(kind)
    if not isinstance(row, Mapping) or set(row) != set(types):
        keys = sorted(row) if isinstance(row, Mapping) else type(row).__name__
        raise TableError(f"{where} has {keys}; it needs exactly {', '.join(types)}.")
    return kind(**{name: _value(name, row[name], types[name], where) for name in types})


def _value(name: str, value: Any, wanted: type, where: str) -> Any:
    if wanted is str:
        if not isinstance(value, str) or (name == "kind" and value not in KINDS):
            known = f"one of {', '.join(KINDS)}" if name == "kind" else "text"
            raise TableError(f"{where}: {name} is {value!r}; it is {known}.")
        return value
    if wanted is int:
        least = 1 if name in _AT_LEAST_ONE else 0
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_COUNT:
            raise TableError(f"{where}: {name} is {value!r}; it is a whole number of {least} or more.")
        return value
    least = "above 0" if name in _ABOVE_ZERO else "1 or more" if name == "factor" else "0 or more"
    fits = {"above 0": value > 0, "1 or more": value >= 1, "0 or more": value >= 0} if _is_number(value) else {}
    if not fits.get(least):
        raise TableError(f"{where}: {name} is {value!r}; it is a finite number, {least}.")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

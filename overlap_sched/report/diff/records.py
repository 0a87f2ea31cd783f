"""Two plans, or two records of runs: their figures side by side, row by row."""

import sys
from collections.abc import Mapping
from typing import Any

from overlap_sched.errors import DiffError
from overlap_sched.report.diff.figures import NAMES, Figure, FigureName
from overlap_sched.report.units import printable

_KEYS: Mapping[FigureName, str] = {
    "step": "step_us",
    "exposed": "exposed_us",
    "gap": "gap_percent",
    "peak": "peak_bytes",
    "reserved": "reserved_bytes",
    "original step": "original_step_us",
    "original peak": "original_peak_bytes",
}
_NAMES = "graph model problem case batch update window network memory_model solver order by way"
_IDENTITY = tuple(_NAMES.split())
"""What a row of a record is about, as the scripts of the repository name it; all else is what was found."""
_GIVEN = ("contention", "prices", "headroom_bytes")
"""Of a plan: what its figures rest on."""

Identity = tuple[str, ...]


def plan_figures(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]) -> list[Figure]:
    """Compare the figures of two objects that ``overlap-sched plan --json`` wrote."""
    found = []
    for name in NAMES:
        if name != "reserved":
            sides = (_needed(data, _KEYS[name], at) for data, at in zip((before, after), names, strict=True))
            found.append(Figure(name, "", *sides))
    both = [_number(data, _KEYS["reserved"], at) for data, at in zip((before, after), names, strict=True)]
    if both[0] is not None and both[1] is not None:
        found.append(Figure("reserved", "", both[0], both[1]))
    return sorted(found, key=lambda figure: NAMES.index(figure.name))


def given_otherwise(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """List what two plans rest on that is not the same, a line each."""
    return [
        f"{key}: {_shown(before.get(key))} in A, {_shown(after.get(key))} in B"
        for key in _GIVEN
        if before.get(key) != after.get(key)
    ] + [
        f"{side} keeps the original order: the one found failed verification"
        for side, data in (("A", before), ("B", after))
        if data.get("fell_back") is True
    ]


def rows_by_identity(record: Mapping[str, Any]) -> dict[Identity, Mapping[str, Any]]:
    """The rows of a record by what they are about: their words, and other values with their names."""
    return {tuple(_part(key, row[key]) for key in _IDENTITY if key in row): row for row in record["rows"]}


def _part(key: str, value: object) -> str:
    return value if isinstance(value, str) else f"{key} {value}"


def record_figures(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]) -> list[Figure]:
    """Compare the figures of all rows that are in both records; what a row does not have is left out."""
    one, other = (_rows(data, at) for data, at in zip((before, after), names, strict=True))
    found = []
    for identity, row in other.items():
        if identity not in one:
            continue
        for name in NAMES:
            was = _number(one[identity], _KEYS[name], names[0])
            now = _number(row, _KEYS[name], names[1])
            if was is not None and now is not None:
                found.append(Figure(name, title(identity), was, now))
    if not found:
        firsts = [
            f"{at} has {title(key)!r}" for at, rows in zip(names, (one, other), strict=True) for key in [*rows][:1]
        ]
        raise DiffError(
            f"{names[0]} and {names[1]}: no row is in both with a figure to compare ({', '.join(firsts) or 'no rows'})."
            " Compare records of the same graphs."
        )
    return found


def only_in_one(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Titles of rows that are only in A, and only in B."""
    one, other = rows_by_identity(before), rows_by_identity(after)
    return [title(key) for key in one if key not in other], [title(key) for key in other if key not in one]


def title(identity: Identity) -> str:
    """``dsv3_bw_64, x1, runtime, ours``."""
    return ", ".join(identity) or "the only row"


def made_by(record: Mapping[str, Any]) -> str:
    """When, by what, and of which commit."""
    parts = [str(record[key]) for key in ("date", "command", "commit") if record.get(key)]
    return printable(", ".join(parts)) or "no date"


def _rows(record: Mapping[str, Any], at: str) -> dict[Identity, Mapping[str, Any]]:
    for k, row in enumerate(record["rows"]):
        if not isinstance(row, dict):
            raise DiffError(
                f"{at}: row {k} is no object. Give a record that scripts/bench.py --record or the like wrote."
            )
    found = rows_by_identity(record)
    if alike := len(record["rows"]) - len(found):
        raise DiffError(
            f"{at}: {alike} row{' has' if alike == 1 else 's have'} the same names as another ({', '.join(_IDENTITY)})."
            " Give each names of its own."
        )
    return found


def _needed(data: Mapping[str, Any], key: str, at: str) -> float:
    found = _number(data, key, at)
    if found is None:
        raise DiffError(f"{at}: has no {key}. Make the plan again: overlap-sched plan --json.")
    return found


def _number(data: Mapping[str, Any], key: str, at: str) -> float | None:
    """``None``: there is none."""
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise DiffError(f"{at}: {key} is {_shown(value)}, which is no number. Make the file again.")
    return float(value)


def _shown(value: object) -> str:
    text = printable(repr(value) if isinstance(value, str) else str(value))
    return text if len(text) <= 60 else text[:57] + "..."

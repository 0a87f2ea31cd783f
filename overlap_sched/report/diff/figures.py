"""Figures of two results side by side: orders, plans and records of runs alike come down to these."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from overlap_sched.report.units import time_unit

FigureName = Literal["step", "exposed", "peak", "reserved", "gap", "original step", "original peak"]
"""What is compared; the last two say of plans whether what they started from is the same."""
Unit = Literal["us", "bytes", "percent"]
UNITS: Mapping[FigureName, Unit] = {
    "step": "us",
    "exposed": "us",
    "peak": "bytes",
    "reserved": "bytes",
    "gap": "percent",
    "original step": "us",
    "original peak": "bytes",
}
NAMES: tuple[FigureName, ...] = get_args(FigureName)
_ROUNDING = 1e-9
"""Relative: figures closer than this differ by the order in which floating-point numbers were added up."""
_SIZES = ((2**30, "GiB", 3), (2**20, "MiB", 1), (2**10, "KiB", 1), (1, "B", 0))
_GAP_ROUNDING = 1e-6
"""Percentage points."""


class Figure(NamedTuple):
    """One figure of both results.

    Attributes:
        name: What it is; its unit is ``UNITS[name]``.
        of: Of which row of the records; ``""``: there is only one.
        before, after: In A and in B.
    """

    name: FigureName
    of: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """How much more it is in B, in its unit; 0 where only rounding differs."""
        more = self.after - self.before
        noise = _GAP_ROUNDING if self.name == "gap" else _ROUNDING * max(abs(self.before), abs(self.after))
        return 0.0 if abs(more) <= noise else more

    @property
    def share(self) -> float:
        """The change as a share of A, by which figures of all units compare; of a gap, of 100 %."""
        if self.name == "gap":
            return self.change / 100
        if not self.change:
            return 0.0
        return self.change / self.before if self.before else math.copysign(math.inf, self.change)

    def label(self) -> str:
        """``step``; ``step, dsv3_bw_64, x1``."""
        return f"{self.name}, {self.of}" if self.of else self.name


def largest_first(figures: Sequence[Figure]) -> list[Figure]:
    """By their share, whichever way they changed; equal ones stay in their order."""
    return sorted(figures, key=lambda figure: -abs(figure.share))


def in_one_unit(figure: Figure) -> tuple[str, str, str]:
    """``("150.29", "155.00", "ms")``: before, after, and the unit that both are in."""
    write, unit = _scale(figure)
    return write(figure.before), write(figure.after), unit


def percent_text(figure: Figure) -> str:
    """``+3.1 %``: the change as a share of A; of a gap, in percentage points; a dash where A has none of it."""
    if math.isinf(figure.share):
        return "-"
    digits = 2 if 0.00005 <= abs(figure.share) < 0.001 else 1
    text = f"{100 * figure.share:+.{digits}f}"
    text = "+0.0" if text == "-0.0" else text
    return f"{text} pt" if figure.name == "gap" else f"{text} %"


def change_text(figure: Figure) -> str:
    """``150.29 → 155.00 ms, +3.1 % (+4.71 ms)``."""
    before, after, unit = in_one_unit(figure)
    if figure.name == "gap":
        return f"{before} → {after} {unit}, {percent_text(figure)}"
    write, more_unit = _scale(figure._replace(before=figure.change, after=0.0))
    more = write(figure.change)
    signed = more if more.startswith("-") else f"+{more}"
    share = "" if math.isinf(figure.share) else f", {percent_text(figure)}"
    return f"{before} → {after} {unit}{share} ({signed} {more_unit})"


def figure_data(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Each with its unit; ``change_percent`` is null where A has none of it, and of a gap in percentage points."""
    return [
        {
            "name": figure.name,
            "of": figure.of,
            "unit": UNITS[figure.name],
            "before": figure.before,
            "after": figure.after,
            "change": figure.change,
            "change_percent": 100 * figure.share if abs(figure.share) < float("inf") else None,
        }
        for figure in figures
    ]


def _scale(figure: Figure) -> tuple[Callable[[float], str], str]:
    """How to write figures of that size, and in which unit."""
    largest = max(abs(figure.before), abs(figure.after))
    if UNITS[figure.name] == "percent":
        return (lambda value: f"{value:.2f}"), "%"
    if UNITS[figure.name] == "us":
        factor, unit = time_unit(largest)
        digits = 1 if unit in ("ns", "us") else 2
    else:
        factor, unit, digits = next((row for row in _SIZES if largest >= row[0]), _SIZES[-1])
    return (lambda value: f"{value / factor:,.{digits}f}"), unit

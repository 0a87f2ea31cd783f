"""``--fail-if "step > +1%"``: conditions on what changed, for continuous integration."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from overlap_sched.cli.sizes import shortened, time_us
from overlap_sched.errors import OptionsError
from overlap_sched.problem.sizes import bare_number, size_bytes
from overlap_sched.report.diff.figures import UNITS, Figure, FigureName, change_text, largest_first
from overlap_sched.report.units import count, printable

CONDITION_NAMES: tuple[FigureName, ...] = ("step", "exposed", "peak", "reserved", "gap")
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*[A-Za-z]+")
_EXAMPLES = '"step > +1%", "exposed > +2ms", "peak > +10MiB" or "gap < -1%"'
_MEANT = {
    "us": "is a time. Write percent of A ({0}1%) or a time ({0}850us, {0}2ms, {0}1.5s).",
    "bytes": "is memory. Write percent of A ({0}1%) or a size ({0}10MiB, {0}1GB).",
    "percent": "is in percent already. Write percentage points ({0}0.5%).",
}


@dataclass(frozen=True)
class Condition:
    """One condition on the change of a figure from A to B.

    Attributes:
        text: As given.
        name: Of which figure.
        above: Does it hold for changes above the limit (``>``), or below it (``<``)?
        limit: Microseconds, bytes or percentage points; of a share, the share (0.01: 1 %).
        of_a: Is the limit a share of A?
    """

    text: str
    name: FigureName
    above: bool
    limit: float
    of_a: bool

    def holds(self, figure: Figure) -> bool:
        """Is this figure's change beyond the limit? A change of exactly the limit is not."""
        beyond = figure._replace(before=figure.before + self.limit * (figure.before if self.of_a else 1.0)).change
        return beyond > 0 if self.above else beyond < 0


@dataclass(frozen=True)
class FailedCondition:
    """A condition that holds, and of what: the largest change first."""

    condition: Condition
    figures: tuple[Figure, ...]

    def line(self) -> str:
        """Which condition, and by how much."""
        worst = self.figures[0]
        more = f" (and of {count(len(self.figures) - 1, 'other')})" if len(self.figures) > 1 else ""
        return (
            f"failed: --fail-if {self.condition.text!r}: {printable(worst.label())}{more}: {change_text(worst)}, "
            "from A to B"
        )


def condition_of(text: str) -> Condition:
    """Parse what ``--fail-if`` was given."""
    given = f"--fail-if {shortened(text)!r}"
    name, sign, amount = _parts(text)
    if not sign:
        raise OptionsError(
            f"{given}: has not one > or <. Write NAME > +CHANGE or NAME < -CHANGE, in quotation marks (a shell takes "
            f"> for itself): {_EXAMPLES}."
        )
    if name not in CONDITION_NAMES:
        raise OptionsError(
            f"{given}: {shortened(name)!r}, before the {sign}, is no figure. Write one of {', '.join(CONDITION_NAMES)}."
        )
    if amount[:1] not in ("+", "-"):
        shown = shortened(amount)
        raise OptionsError(
            f"{given}: {shown!r}, after the {sign}, has no sign. Changes from A to B are meant: write {sign} +{shown} "
            f"for {name} that grows, {sign} -{shown} for {name} that shrinks."
            if amount
            else f"{given}: nothing stands after the {sign}. Write a change from A to B with its sign: {_EXAMPLES}."
        )
    limit, of_a = _limit(given, name, amount)
    return Condition(text.strip(), name, sign == ">", -limit if amount[0] == "-" else limit, of_a)


def failures(conditions: Sequence[Condition], figures: Sequence[Figure], what: str) -> list[FailedCondition]:
    """The conditions that hold."""
    found = []
    for condition in conditions:
        ours = [figure for figure in figures if figure.name == condition.name]
        if not ours:
            have = [name for name in CONDITION_NAMES if any(figure.name == name for figure in figures)]
            raise OptionsError(
                f"--fail-if {shortened(condition.text)!r}: {what} do not both have {condition.name}, so this can never "
                f"fail. Both have {', '.join(have) or 'no figure at all'}: write a condition on those, or leave it out."
            )
        holding = [figure for figure in ours if condition.holds(figure)]
        if holding:
            found.append(FailedCondition(condition, tuple(largest_first(holding))))
    return found


def _parts(text: str) -> tuple[str, Literal["", "<", ">"], str]:
    match = re.fullmatch(r"([^<>]*)([<>])([^<>]*)", text.strip(), re.DOTALL)
    if match is None:
        return text.strip(), "", ""
    return match[1].strip(), cast(Literal["<", ">"], match[2]), match[3].strip()


def _limit(given: str, name: FigureName, amount: str) -> tuple[float, bool]:
    """The amount without its sign, and whether it is a share of A."""
    sign, number, unit = amount[0], amount[1:].strip(), UNITS[name]
    percent = _PERCENT.fullmatch(number)
    if percent is not None:
        return (float(percent[1]), False) if unit == "percent" else (float(percent[1]) / 100, True)
    found: float | None = None
    if unit == "us":
        try:
            found = time_us("--fail-if", number)
        except OptionsError:
            found = None
    elif unit == "bytes" and _SIZE.fullmatch(number):
        if bare := bare_number(number):
            raise OptionsError(f"{given}: {shortened(amount)!r} is {bare}")
        found = size_bytes(number, 0)
    if found is None:
        raise OptionsError(f"{given}: {shortened(amount)!r} is no change of {name}, which {_MEANT[unit].format(sign)}")
    return found, False

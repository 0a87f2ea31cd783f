"""Two records side by side: what is better, what is worse, what is only in one."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import duration

_NAMES = "graph model problem case batch update window network memory_model solver order by way"
_IDENTITY = tuple(_NAMES.split())
"""What a row of a record is about; all else is what was found."""
Identity = tuple[str, ...]
SAME_PERCENT = 0.01
"""Steps and peaks that differ by less are the same."""


class Change(NamedTuple):
    """One order in both records; the key: graph, network, memory model, who made the order."""

    key: Identity
    old: Mapping[str, Any]
    new: Mapping[str, Any]

    def percent(self, figure: str) -> float:
        """How much more it is, of the old figure."""
        return 100 * (self.new[figure] / self.old[figure] - 1)

    @property
    def moved(self) -> bool:
        """Is the step another?"""
        return abs(self.percent("step_us")) > SAME_PERCENT

    @property
    def worse(self) -> bool:
        """Is it an order of ours that is slower now, or has lost its promise?"""
        slower = self.percent("step_us") > SAME_PERCENT or bool(self.new.get("broken"))
        return self.key[3].startswith("ours") and slower


def rows_by_identity(record: Mapping[str, Any]) -> dict[Identity, Mapping[str, Any]]:
    """The rows of a record by what they are about: their words, and other values with their names."""
    return {tuple(_part(key, row[key]) for key in _IDENTITY if key in row): row for row in record["rows"]}


def _part(key: str, value: object) -> str:
    return value if isinstance(value, str) else f"{key} {value}"


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """All orders that are in both, in the order of the new record."""
    before = rows_by_identity(old)
    return [Change(key, before[key], row) for key, row in rows_by_identity(new).items() if key in before]


def comparison(old: Mapping[str, Any], new: Mapping[str, Any], everything: bool) -> tuple[Table, list[str]]:
    """A table of what moved (or of everything), and a summary in lines."""
    found = changes(old, new)
    heads = ("order", "step", "", "", "gap", "", "peak", "pass")
    table = captioned_table(f"{_name(old)}  ->  {_name(new)}", "", heads, first="graph, network")
    for change in found:
        if everything or change.moved:
            table.add_row(*_cells(change), style="red" if change.worse else None)
    moved = [change for change in found if change.moved]
    lines = [
        f"{len(found)} orders in both: {len(moved)} with another step, "
        f"{sum(change.percent('step_us') < 0 for change in moved)} of them shorter; "
        f"{sum(change.worse for change in found)} of ours worse."
    ]
    names = ("machine", "python", "packages")  # seconds of two machines are not compared
    lines += [
        f"{name}: {old.get(name)} before, {new.get(name)} now" for name in names if old.get(name) != new.get(name)
    ]
    for which, one, other in (("old", old, new), ("new", new, old)):
        keys = rows_by_identity(one).keys() - rows_by_identity(other).keys()
        alone = [f"{graph} {network} {by}" for graph, network, _, by in keys]
        lines += [f"only in the {which}: {_shown(sorted(set(alone)))}"] if alone else []
    return table, lines


def _cells(change: Change) -> Sequence[str]:
    (graph, network, model, by), old, new = change
    return (
        f"{graph} {network}" + ("" if model == "runtime" else f", {model} model"),
        by,
        duration(old["step_us"]),
        duration(new["step_us"]),
        f"{change.percent('step_us'):+.2f} %",
        f"{abs(old['gap_percent']):.2f} %",
        f"{abs(new['gap_percent']):.2f} %",
        f"{change.percent('peak_bytes'):+.2f} %",
        f"{old['pass_s']:.2f} -> {new['pass_s']:.2f} s",
    )


def _name(record: Mapping[str, Any]) -> str:
    commit = record.get("commit")
    return f"{record.get('date', 'no date')}" + (f" ({commit})" if commit else "")


def _shown(names: Sequence[str]) -> str:
    more = [f"and {len(names) - 6} more"] if len(names) > 6 else []
    return ", ".join([*names[:6], *more])

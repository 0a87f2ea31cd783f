"""Two records side by side: what is better, what is worse, what is only in one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from overlap_sched.report.units import duration

SAME_PERCENT = 0.01
"""Steps and peaks that differ by less are the same."""

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Change:
    """One order in both records; percent are of the old figures."""

    key: Key
    old: Mapping[str, Any]
    new: Mapping[str, Any]

    @property
    def step_percent(self) -> float:
        """How much longer the step is."""
        return 100 * (self.new["step_us"] / self.old["step_us"] - 1)

    @property
    def peak_percent(self) -> float:
        """How much higher the peak is."""
        return 100 * (self.new["peak_bytes"] / self.old["peak_bytes"] - 1)

    @property
    def moved(self) -> bool:
        """Is the step another?"""
        return abs(self.step_percent) > SAME_PERCENT

    @property
    def worse(self) -> bool:
        """Is it an order of ours that is slower now, or has lost its promise?"""
        slower = self.step_percent > SAME_PERCENT or bool(self.new.get("broken"))
        return self.key[3].startswith("ours") and slower


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """All orders that are in both, in the order of the new record."""
    before = _by_key(old)
    return [Change(key, before[key], row) for key, row in _by_key(new).items() if key in before]


def only_in_one(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[Key], list[Key]]:
    """What the old record has and the new one has not; and the other way round."""
    before, after = _by_key(old), _by_key(new)
    return [key for key in before if key not in after], [key for key in after if key not in before]


def comparison(old: Mapping[str, Any], new: Mapping[str, Any], everything: bool) -> tuple[Table, list[str]]:
    """A table of what moved (or of everything), and what else is to be said."""
    found = changes(old, new)
    table = Table(title=f"{_name(old)}  ->  {_name(new)}", box=box.SIMPLE_HEAD)
    for column in ("graph, network", "order"):
        table.add_column(column, no_wrap=True)
    for column in ("step", "", "", "gap", "", "peak", "pass"):
        table.add_column(column, justify="right", no_wrap=True)
    for change in found:
        if everything or change.moved:
            table.add_row(*_cells(change), style="red" if change.worse else None)
    gone, more = only_in_one(old, new)
    moved = [change for change in found if change.moved]
    worse = sum(change.worse for change in found)
    lines = [
        f"{len(found)} orders in both: {len(moved)} with another step, "
        f"{sum(change.step_percent < 0 for change in moved)} of them shorter; {worse} of ours worse."
    ]
    lines += _differences(old, new)
    lines += [
        f"only in the {which}: {', '.join(_shown(keys))}" for which, keys in (("old", gone), ("new", more)) if keys
    ]
    return table, lines


def _cells(change: Change) -> Sequence[str]:
    graph, network, model, by = change.key
    old, new = change.old, change.new
    return (
        f"{graph} {network}" + ("" if model == "runtime" else f", {model} model"),
        by,
        duration(old["step_us"]),
        duration(new["step_us"]),
        f"{change.step_percent:+.2f} %",
        f"{abs(old['gap_percent']):.2f} %",
        f"{abs(new['gap_percent']):.2f} %",
        f"{change.peak_percent:+.2f} %",
        f"{old['pass_s']:.2f} -> {new['pass_s']:.2f} s",
    )


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Whatever else is not alike: seconds of two machines are not compared."""
    names = ("machine", "python", "packages")
    return [f"{name}: {old.get(name)} before, {new.get(name)} now" for name in names if old.get(name) != new.get(name)]


def _by_key(record: Mapping[str, Any]) -> dict[Key, Mapping[str, Any]]:
    return {(row["graph"], row["network"], row["memory_model"], row["by"]): row for row in record["rows"]}


def _name(record: Mapping[str, Any]) -> str:
    commit = record.get("commit")
    return f"{record.get('date', 'no date')}" + (f" ({commit})" if commit else "")


def _shown(keys: Sequence[Key]) -> list[str]:
    graphs = dict.fromkeys(f"{graph} {network} {by}" for graph, network, _, by in keys)
    shown = list(graphs)[:6]
    return [*shown, f"and {len(graphs) - 6} more"] if len(graphs) > 6 else shown

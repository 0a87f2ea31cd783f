"""Committed numbers (``golden.json``): no figure may become worse than them by more than its tolerance."""

import json
from pathlib import Path
from typing import Any

import torch

from llama_repro.errors import GoldenError
from llama_repro.harness.measure import Entry, Measured

GOLDEN = Path(__file__).with_name("golden.json")

RELATIVE = {"peak_bytes": 0.002, "step_us": 0.002, "exposed_us": 0.05}
"""By what share a figure may grow: versions of torch trace a node more or less."""
ABSOLUTE = {"step_us": 20.0, "exposed_us": 500.0}
"""By how many microseconds it may grow whatever its size: for the tiny graphs."""


def figures_of(entry: Entry) -> dict[str, float]:
    """The figures of an order that a machine's speed has no say in; smaller is better for each.

    The gap is not among them: it is the step, measured from another point.
    """
    peaks = {f"{model}_peak_bytes": float(row.peak_bytes) for model, row in entry.rows.items()}
    return {**peaks, "step_us": round(entry.row.step_us, 3), "exposed_us": round(entry.row.exposed_us, 3)}


def worse_than_golden(measured: Measured, path: Path = GOLDEN) -> list[str]:
    """One line for each figure that is worse than the committed one by more than its tolerance; which, and by how much.

    Rows of torch's own pass are compared only under the version of torch that the file was made with.

    Raises:
        GoldenError: The file has no numbers for the graph, or cannot be read.
    """
    golden = _load(path)
    if measured.graph not in golden:
        raise GoldenError(
            f"{path.name} has no numbers for {measured.graph!r}. Make them with --update-golden, and commit them."
        )
    committed, lines = golden[measured.graph]["rows"], []
    same_torch = golden[measured.graph]["torch"] == _torch_version()
    for entry in measured.entries:
        if entry.key not in committed or (entry.name.startswith("torch") and not same_torch):
            continue
        for name, now in figures_of(entry).items():
            before = committed[entry.key][name]
            allowed = before + tolerance(name, before)
            if now > allowed:
                lines.append(
                    f"{entry.key}: {name} is {now:,.10g}; golden {before:,.10g}, at most {allowed:,.10g} allowed"
                )
    return lines


def tolerance(name: str, golden: float) -> float:
    """How much worse than its golden value a figure may be."""
    kind = "peak_bytes" if name.endswith("peak_bytes") else name
    return max(RELATIVE[kind] * golden, ABSOLUTE.get(kind, 0.0))


def update_golden(measured: Measured, path: Path = GOLDEN) -> None:
    """Write the graph's numbers into the file; other graphs keep theirs."""
    golden = _load(path) if path.exists() else {}
    rows = {entry.key: figures_of(entry) for entry in measured.entries}
    bound_us = round(measured.entries[0].row.bound_us, 3)
    golden[measured.graph] = {"torch": _torch_version(), "bound_us": bound_us, "rows": rows}
    path.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")


def _load(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise GoldenError(f"{path} cannot be read: {error}. Make it again with --update-golden.") from None


def _torch_version() -> str:
    return torch.__version__.split("+")[0]

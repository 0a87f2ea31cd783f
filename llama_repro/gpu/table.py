"""A check as a table for people and as a record with everything needed to read it later."""

import os
import platform
import sys
from dataclasses import asdict
from typing import Any

import torch
from rich.table import Table

from llama_repro.gpu.check import Checked, Row
from llama_repro.gpu.plugin import PluginCheck
from llama_repro.harness.record import provenance
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import change, duration, size


def table_of(checked: Checked, hardware: str) -> Table:
    """One line per order; ``off``: measured against predicted."""
    config = checked.config
    title = (
        f"{config.name}, {config.layers} layers, backward graph of one of {config.world} ranks: "
        f"{checked.nodes:,} nodes, {checked.collectives} emulated collectives"
    )
    timed = ("step", "predicted", "off") if checked.cycles_per_us else ("step, predicted",)
    memory = ("allocated", "off", "reserved") if checked.cycles_per_us else ()
    heads = (*timed, "peak, predicted", "counted", *memory, "same results")
    table = captioned_table(title, _caption(checked, hardware), heads, first="order")
    for row in checked.rows:
        table.add_row(row.name, *_cells(row), style=None if broken(row) is None else "red")
    return table


def _cells(row: Row) -> list[str]:
    predicted, peak = duration(row.predicted_step_us), size(row.predicted_peak_bytes)
    counted, same = size(row.live_bytes), "yes" if row.same_results else "no"
    if row.step_us is None or row.allocated_bytes is None or row.reserved_bytes is None:
        return [predicted, peak, counted, same]
    return [
        duration(row.step_us),
        predicted,
        change(row.predicted_step_us, row.step_us),
        peak,
        counted,
        size(row.allocated_bytes),
        change(row.predicted_peak_bytes, row.allocated_bytes),
        size(row.reserved_bytes),
        same,
    ]


def _caption(checked: Checked, hardware: str) -> str:
    if checked.cycles_per_us is None:
        return (
            f"{hardware}. Streams are emulated and nothing is timed: steps are predicted for an H100.\n"
            "Counted: bytes behind the values alive while the order ran; must be the predicted peak to the byte."
        )
    return (
        f"{hardware}. Steps are medians; predicted: replay with node times measured in this run; collectives are\n"
        "as long as the cost model says. Counted: bytes behind values alive. Allocated: the allocator's peak, with\n"
        "workspaces and rounding. Attention's backward adds in no fixed order: results may differ in their last bits."
    )


def broken(row: Row) -> str | None:
    """What is wrong with a row, if anything is.

    Bytes must be exact on every device; results bitwise the same on the CPU (on a GPU atomic additions change them).
    """
    if row.step_us is None and not row.same_results:
        return f"{row.name}: its results are not those of the original order"
    if row.live_bytes != row.predicted_peak_bytes:
        return f"{row.name}: {row.live_bytes} bytes were live, {row.predicted_peak_bytes} predicted"
    return None


def hardware_of(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def record(
    checked: Checked, plugin: PluginCheck | None, device: torch.device, *, repeat: int, headroom: int | str
) -> dict[str, Any]:
    """What ``--json`` writes: bytes, microseconds. ``repeat`` and ``headroom`` are those that the check was given."""
    return {
        **provenance(" ".join(["scripts/gpu_check.py", *sys.argv[1:]])),
        "hardware": hardware_of(device),
        "cuda": torch.version.cuda,
        "measured_on_gpu": checked.cycles_per_us is not None,
        "cycles_per_us": checked.cycles_per_us,
        "repeat": repeat,
        "headroom": headroom,
        "config": asdict(checked.config),
        "nodes": checked.nodes,
        "collectives": checked.collectives,
        "rows": [asdict(row) for row in checked.rows],
        "remarks": list(checked.remarks),
        "plugin": None if plugin is None else asdict(plugin),
    }

"""The benchmark's tables, for a terminal and for documents."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from llama_repro.bench.rows import AT_TORCHS_PEAK, MORE, OURS, TORCH
from llama_repro.bench.scale import Size
from llama_repro.harness.console import markdown_table
from llama_repro.harness.judge import ORIGINAL, Row
from overlap_sched.report.units import change, duration, size

Graph = tuple[str, str, str]
"""Name, network and memory model."""


def by_graph(rows: Sequence[Row]) -> dict[Graph, dict[str, Row]]:
    """Rows of each graph by who made them, in the order of the rows."""
    result: dict[Graph, dict[str, Row]] = {}
    for row in rows:
        result.setdefault((row.graph, row.network, row.memory_model), {})[row.by] = row
    return result


def table(rows: Sequence[Row]) -> Table:
    """One line per order, a rule between graphs."""
    title = "Simulated. gap: step above the lower bound; tail: standstill after the last long reduce_scatter's launch."
    result = Table(title=title, box=box.SIMPLE_HEAD)
    for column in ("graph, network", "order"):
        result.add_column(column, no_wrap=True)
    for column in ("step", "exposed", "gap", "tail", "peak", "", "pass", "torch / ours"):
        result.add_column(column, justify="right", no_wrap=True)
    for graph, mine in by_graph(rows).items():
        result.add_section()
        torch_s = _torch_s(mine)
        for row in mine.values():
            ours = row.by.startswith("ours")
            style = "red" if row.broken else "bold" if row.by == OURS else None
            ratio = f"{torch_s / row.pass_s:.0f} x" if ours and torch_s and row.pass_s else ""
            name = _name(graph) if row.by == ORIGINAL else ""
            result.add_row(name, row.by, *_figures(row), ratio, style=style)
    return result


def _figures(row: Row) -> tuple[str, ...]:
    if row.remark and not row.by.startswith("ours"):
        return ("-",) * 7
    return (
        duration(row.step_us),
        duration(row.exposed_us),
        f"{abs(row.gap_percent):.2f} %",
        duration(row.tail_us),
        size(row.peak_bytes),
        change(100.0, 100.0 + row.peak_percent),
        "" if row.by == ORIGINAL else f"{row.pass_s:.2f} s",
    )


def _name(graph: Graph) -> str:
    return f"{graph[0]} {graph[1]}" + ("" if graph[2] == "runtime" else f", {graph[2]} model")


def _quoted(graph: Graph) -> str:
    return f"`{graph[0]}`{_name(graph).removeprefix(graph[0])}"


def _torch_s(mine: Mapping[str, Row]) -> float | None:
    return min((mine[by].pass_s for by in TORCH if by in mine and mine[by].pass_s), default=None)


def markdown(rows: Sequence[Row]) -> str:
    """One line per graph: step (gap to the bound) and peak against the original, of each scheduler in turn."""
    graphs = by_graph(rows)
    more = [by for by in (AT_TORCHS_PEAK,) if any(by in mine for mine in graphs.values())]
    columns = {**dict.fromkeys(TORCH, "{}"), OURS: "**{}**", **dict.fromkeys(more, "{}")}
    named = [shape.format(by) for by, shape in columns.items()]
    heads, lines = ["graph, network", "lower bound", "original order", *named, "pass: torch / ours"], []
    for graph, mine in graphs.items():
        original, ours, torch_s = mine[ORIGINAL], mine[OURS], _torch_s(mine)
        cells = [_quoted(graph), _ms(original.bound_us)]
        cells.append(f"{_ms(original.step_us)}, {size(original.peak_bytes)}")
        cells += [shape.format(_cell(mine[by])) if by in mine else "-" for by, shape in columns.items()]
        seconds = f"{ours.pass_s:.2f} s"
        cells.append(f"{torch_s:.1f} s / {seconds} = {torch_s / ours.pass_s:.0f}" if torch_s else seconds)
        lines.append(cells)
    return markdown_table(heads, lines)


def _cell(row: Row) -> str:
    if row.remark and not row.by.startswith("ours"):
        return "-"
    peak = "peak " if row.by == OURS else ""
    return f"{_ms(row.step_us)} ({_gap(row)}), {peak}{change(100.0, 100.0 + row.peak_percent)}"


def _gap(row: Row) -> str:
    """Above the lower bound and, where that is more, above the one within the budget."""
    gap, within = f"{abs(row.gap_percent):.2f} %", row.budget_bound_us
    if within is not None and within > row.bound_us * (1 + 1e-6):
        gap += f"; {100 * (row.step_us / within - 1):.2f} % within the budget"
    return gap


def headroom_markdown(rows: Sequence[Row]) -> str:
    """What memory buys: step, gap to the bound and to that within the budget, tail and peak at each headroom."""
    names = [OURS, *MORE]
    heads, lines = ["graph, network", *(name.removeprefix("ours, ") for name in names), "tail at 0"], []
    for graph, mine in by_graph(rows).items():
        if not all(name in mine for name in MORE):
            continue
        cells = [_quoted(graph)]
        for name in names:
            row = mine[name]
            cells.append(f"{_ms(row.step_us)} ({_gap(row)}), {change(100.0, 100.0 + row.peak_percent)}")
        lines.append([*cells, duration(mine[OURS].tail_us)])
    return markdown_table(heads, lines)


def scale_markdown(sizes: Sequence[Size], growth: Mapping[str, Mapping[str, float]]) -> str:
    """One line per graph and network, and the exponents of growth."""
    counters = list(dict.fromkeys(name for one in sizes for name in one.work))
    heads = ["nodes", "collectives", "network", "effort", "schedule", "processor", *counters, "memory", "gap", "bound"]
    lines = []
    for one in sizes:
        counts = [f"{one.work.get(name, 0):,}" for name in counters]
        what = [f"`{one.graph}`", f"{one.nodes:,}", f"{one.collectives:,}", one.network, f"{one.effort}"]
        times = [f"{one.schedule_s:.2f} s", f"{one.cpu_s:.2f} s"]
        ends = [f"{one.resident_mib / 1024:.2f} GiB", f"{abs(one.gap_percent):.2f} %", f"{one.bound_s:.1f} s"]
        lines.append([*what, *times, *counts, *ends])
    parts = [markdown_table(["graph", *heads], lines), ""]
    for network, exponents in growth.items():
        shown = ", ".join(f"{name} {exponent:.2f}" for name, exponent in exponents.items())
        if shown:
            parts.append(f"Growth exponents, {network}, between the smallest and the largest of one effort: {shown}.")
    return "\n".join(parts)


def provenance(data: Mapping[str, Any]) -> str:
    """One sentence for below a table."""
    machine, packages = data["machine"], data["packages"]
    return (
        f"`{data['command']}`, {data['date']}, commit {data['commit']}, torch {packages['torch']}, "
        f"NumPy {packages['numpy']}, Python {data['python']}, {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['memory_gib']} GiB, load {machine['load']} at the end. Steps and peaks are simulated; pass times "
        "are wall clock in that one run."
    )


def _ms(us: float) -> str:
    return f"{us / 1e3:,.1f} ms"

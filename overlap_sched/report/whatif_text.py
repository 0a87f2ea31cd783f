"""Steps on other machines, as a table and as data."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from overlap_sched.analysis.whatif import Point
from overlap_sched.report.contention_text import contention_figures, with_contention_line
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import duration, from_to, printable, size


def whatif_table(points: Sequence[Point], cluster: str) -> Table:
    """One line per variant: step, exposed time and peak of the original order and of ours, and the gap to the bound."""
    # the place of what the allocator reserves, before and after: two more columns behind "peak"
    names = list(points[0].varied)
    problem = points[0].found.problem
    table = captioned_table(
        title=f"{printable(problem.name)} on {printable(cluster)}",
        caption=with_contention_line(
            "Simulated, collectives priced anew for each line: the original order -> ours. Gap: above the lower bound.",
            problem.contention,
        ),
        numbers=(*names, "step", "exposed", "peak", "gap"),
    )
    for point in points:
        before, after = point.found.original, point.found.scheduled
        table.add_row(
            *(_value(name, value) for name, value in point.varied.items()),
            from_to(duration(before.step_us), duration(after.step_us)),
            from_to(duration(before.exposed_us), duration(after.exposed_us)),
            from_to(size(before.peak_bytes), size(after.peak_bytes)),
            f"{_gap_percent(point):.2f} %",
        )
    return table


def whatif_figures(points: Sequence[Point], cluster: str) -> dict[str, Any]:
    """The same as data."""
    problem = points[0].found.problem
    return {
        "name": problem.name,
        "cluster": cluster,
        "memory_model": problem.memory_model,
        "contention": contention_figures(problem.contention),
        "points": [_figures(point) for point in points],
    }


def _figures(point: Point) -> dict[str, Any]:
    def side(figures: Any) -> Mapping[str, float]:
        return {"step_us": figures.step_us, "exposed_us": figures.exposed_us, "peak_bytes": figures.peak_bytes}

    found = point.found
    return {
        "varied": dict(point.varied),
        "original": side(found.original),
        "scheduled": side(found.scheduled),
        "lower_bound_us": found.lower_bound_us,
        "gap_percent": _gap_percent(point),
        "fell_back": found.fell_back,
    }


def _gap_percent(point: Point) -> float:
    bound_us = point.found.lower_bound_us
    return 100 * (point.found.scheduled.step_us / bound_us - 1) if bound_us else 0.0


def _value(name: str, value: float) -> str:
    return f"{value:g}" if name == "ranks" else f"x{value:g}"

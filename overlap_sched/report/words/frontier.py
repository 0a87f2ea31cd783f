"""A frontier in words: a table for people, figures as data, and what a point picked from it costs."""

from typing import Any

from rich.table import Table

from overlap_sched.analysis.frontier_points import Frontier, Point
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import change, duration, printable, size
from overlap_sched.report.words.contention import contention_figures, with_contention_line
from overlap_sched.report.words.schedule import gap_percent


def point_cells(point: Point, original: Point, bound_us: float | None) -> tuple[str, ...]:
    """Peak, its change, step, its change, exposed time, gap to the bound (empty: none is known)."""
    return (
        size(point.peak_bytes),
        change(original.peak_bytes, point.peak_bytes),
        duration(point.step_us),
        change(original.step_us, point.step_us),
        duration(point.exposed_us),
        "" if bound_us is None else f"{gap_percent(point.step_us, bound_us):.2f} %",
    )


def frontier_figures(found: Frontier, picked: Point | None) -> dict[str, Any]:
    """Return what ``overlap-sched frontier --json`` prints: microseconds, bytes, percent."""
    return {
        "name": found.problem.name,
        "memory_model": found.problem.memory_model,
        "contention": contention_figures(found.problem.contention),
        "bound_us": found.bound_us,
        "floor_bytes": found.floor_bytes,
        "original": _figures(found, found.original),
        "points": [_figures(found, point) for point in found.points],
        "picked": None if picked is None else _figures(found, picked),
    }


def _figures(found: Frontier, point: Point) -> dict[str, Any]:
    return {
        "peak_bytes": point.peak_bytes,
        "headroom_bytes": point.peak_bytes - found.original.peak_bytes,
        "step_us": point.step_us,
        "exposed_us": point.exposed_us,
        "gap_percent": gap_percent(point.step_us, found.bound_us),
    }


def frontier_table(found: Frontier, picked: Point | None) -> Table:
    """The frontier by ascending peak, the original order above it unless it is on it; for :mod:`rich` to print."""
    original = found.original
    table = captioned_table(
        title=f"{printable(found.problem.name)}: step against peak memory",
        caption=with_contention_line(
            f"Simulated, in the {found.problem.memory_model} memory model: bytes that live tensors of this graph "
            f"hold. Gap: to the lower bound on any order's step, {duration(found.bound_us)}; lower bound on any peak: "
            f"{size(found.floor_bytes)}. Orders found with {found.budgets} budgets; there may be better ones.",
            found.problem.contention,
        ),
        numbers=("peak", "", "step", "", "exposed", "gap"),
    )
    table.add_column("", no_wrap=True)
    above = [] if original in found.points else [original]
    for at, point in enumerate([*above, *found.points]):
        beside = at < len(above)  # not on the frontier
        names = [name for name, named in (("original", original), ("picked", picked)) if point == named]
        table.add_row(
            *point_cells(point, original, found.bound_us),
            ", ".join(names),
            style="bold" if point == picked else "dim" if beside else None,
            end_section=beside,
        )
    return table


def cost_of_limit(found: Frontier, limit_bytes: int, picked: Point) -> str:
    """Does it fit, and what does it cost?"""
    shortest = found.points[-1]
    cost = 100 * (picked.step_us / shortest.step_us - 1) if shortest.step_us else 0.0
    least = "" if picked is found.points[0] else f", and {size(found.points[0].peak_bytes)} would do"
    free = (
        "more memory buys nothing"
        if picked is shortest
        else f"{cost:.2f} % longer than without a limit ({duration(shortest.step_us)} at {size(shortest.peak_bytes)})"
    )
    return (
        f"Fits into {size(limit_bytes)}: a peak of {size(picked.peak_bytes)}{least}. "
        f"The step takes {duration(picked.step_us)}: {free}."
    )


def cost_of_target(found: Frontier, target_us: float, picked: Point) -> str:
    """Say what memory a step that short takes."""
    return (
        f"The lowest peak found for a step of at most {duration(target_us)}: {size(picked.peak_bytes)} "
        f"({change(found.original.peak_bytes, picked.peak_bytes)} against the original order). "
        f"It takes {duration(picked.step_us)}."
    )

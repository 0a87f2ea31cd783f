"""Curves: step against peak memory, memory along an order, the step on other machines; each with its bound."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlap_sched.analysis.frontier_points import Frontier, Point
from overlap_sched.analysis.whatif import WhatIfPoint
from overlap_sched.judge.validate import memory_profile
from overlap_sched.peak_memory.best import MemoryPlan
from overlap_sched.report.colours import AFTER, BEFORE, EXPOSED, IDLE, INK, LIMIT
from overlap_sched.report.pictures.picture import check_plot, new_figure, write_picture
from overlap_sched.report.units import change, duration, memory_unit, printable, size, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN = 0.06
"""Free space around what is drawn, as a share of its range."""
SHOWN = 1.05
"""A frontier is drawn up to this part of the bound at least: one percent of the step is not to look like a cliff."""


def plot_frontier(found: Frontier, path: str | Path, picked: Point | None = None) -> None:
    """Draw a frontier; the file's ending gives the format (``.png``, ``.svg``, ``.pdf``).

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The file cannot be written, or its ending names no picture format.
    """
    check_plot(path)
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.115, right=0.965, top=0.86, bottom=0.235)
    _draw(axes, found, picked)
    first, last = found.points[0], found.points[-1]
    figure.text(0.115, 0.94, printable(found.problem.name), fontsize=14, weight="bold", color=INK, parse_math=False)
    figures = (
        f"lowest peak {size(first.peak_bytes)} ({duration(first.step_us)})   |   "
        f"shortest step {duration(last.step_us)} ({size(last.peak_bytes)})   |   "
        f"original {size(found.original.peak_bytes)} ({duration(found.original.step_us)})"
    )
    figure.text(0.115, 0.89, figures, fontsize=9.5, color=INK)
    write_picture(figure, path)


def _draw(axes: "Axes", found: Frontier, picked: Point | None) -> None:
    """Stairs through the points: between two of them the left one is the best known."""
    unit_bytes, unit = memory_unit(found.points[-1].peak_bytes)
    scale, time = time_unit(found.points[-1].step_us)
    peaks = [point.peak_bytes / unit_bytes for point in found.points]
    steps = [point.step_us / scale for point in found.points]
    original = (found.original.peak_bytes / unit_bytes, found.original.step_us / scale)
    left, right = _around(min(peaks[0], original[0]), max(peaks[-1], original[0]))
    low, high = _around(min(steps[-1], found.bound_us / scale), steps[0])
    high = max(high + MARGIN * (high - low), found.bound_us / scale * SHOWN)  # room for a line of text
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)

    axes.fill_between([left, peaks[0]], low, high, color=IDLE, linewidth=0, label="no order found")
    axes.axhspan(low, found.bound_us / scale, color=IDLE, linewidth=0)
    axes.axhline(found.bound_us / scale, color=LIMIT, linewidth=1, linestyle=":",
                 label=f"lower bound of the step {duration(found.bound_us)}")  # fmt: skip
    axes.axvline(original[0], color=BEFORE, linewidth=1.2, linestyle="--",
                 label=f"peak of the original order {size(found.original.peak_bytes)}")  # fmt: skip
    axes.step([*peaks, right], [*steps, steps[-1]], where="post", color=AFTER, linewidth=1.5)
    axes.plot(peaks, steps, "o", color=AFTER, markersize=4.5, label="orders found")
    if original[1] <= high:
        axes.plot(*original, "s", color=INK, markersize=6, label="original order")
    else:
        to_the_right = original[0] < (left + right) / 2
        text = f"original order: {duration(found.original.step_us)}"
        axes.annotate(text, (original[0], high), (6 if to_the_right else -6, -11), textcoords="offset points",
                      fontsize=9, color=INK, ha="left" if to_the_right else "right", va="center")  # fmt: skip
    if picked is not None:
        axes.plot(picked.peak_bytes / unit_bytes, picked.step_us / scale, "o", color=EXPOSED, markersize=8,
                  label=f"picked: {duration(picked.step_us)} at {size(picked.peak_bytes)}")  # fmt: skip
    axes.set_xlabel(f"peak memory ({unit}), {found.problem.memory_model} model, simulated", color=INK)
    simulated = f"simulated{' with contention' if found.problem.contention else ''}"
    axes.set_ylabel(f"step ({time}), {simulated}", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.48, -0.13), ncols=2, frameon=False, fontsize=9)


def _around(low: float, high: float) -> tuple[float, float]:
    """A range with a margin, never empty."""
    margin = (high - low) * MARGIN or abs(high) * MARGIN or 1.0
    return low - margin, high + margin


def plot_memory(plan: MemoryPlan, path: str | Path) -> None:
    """Draw the live bytes of a memory plan; the file's ending gives the format (``.png``, ``.svg``, ``.pdf``)."""
    check_plot(path)
    problem = plan.problem
    figure = new_figure(10, 4)
    axes = figure.subplots()
    unit_bytes, unit = memory_unit(plan.original_bytes)
    for order, colour, label in (
        (problem.original_order, BEFORE, f"original, {size(plan.original_bytes)}"),
        (plan.order, AFTER, f"new, {size(plan.peak_bytes)} ({change(plan.original_bytes, plan.peak_bytes)})"),
    ):
        profile = [live / unit_bytes for live in memory_profile(problem, order)]
        axes.step(range(len(profile)), profile, where="post", color=colour, label=label, linewidth=1.2)
    axes.axhline(
        plan.bound_bytes / unit_bytes, color=LIMIT, linewidth=1, linestyle=":", label="no order's peak is lower"
    )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel(f"{unit} live")
    axes.set_title(
        f"{printable(problem.name)} ({problem.memory_model} memory model, simulated)", loc="left", parse_math=False
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    write_picture(figure, path, tight=True)


def plot_whatif(points: Sequence[WhatIfPoint], cluster: str, path: str | Path) -> None:
    """Draw steps over what is varied first; the file's ending gives the format (``.png``, ``.svg``, ``.pdf``)."""
    check_plot(path)
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    first, *others = points[0].varied
    scale, unit = time_unit(max(point.found.original.step_us for point in points))
    series: dict[str, list[WhatIfPoint]] = {}
    for point in points:
        series.setdefault(", ".join(f"{name} {point.varied[name]:g}" for name in others), []).append(point)
    for k, (label, line) in enumerate(series.items()):
        x = [point.varied[first] for point in line]
        named = f" ({label})" if label else ""
        fade = 1.0 - 0.7 * k / len(series)
        for what, color, style, values in (
            ("original order", BEFORE, "--", [point.found.original.step_us for point in line]),
            ("our order", AFTER, "-", [point.found.scheduled.step_us for point in line]),
            ("lower bound", LIMIT, ":", [point.found.lower_bound_us for point in line]),
        ):
            y = [value / scale for value in values]
            axes.plot(x, y, style, color=color, alpha=fade, marker="o", markersize=3.5, label=f"{what}{named}")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(first if first == "ranks" else f"{first}, times its speed", color=INK)
    axes.set_ylabel(f"step ({unit}), simulated", color=INK)
    name = printable(f"{points[0].found.problem.name} on {cluster}")
    axes.set_title(name, loc="left", color=INK, weight="bold", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    write_picture(figure, path)

"""The picture of what another machine would bring: the step over what is varied first, a line per other variant."""

from collections.abc import Sequence
from pathlib import Path

from overlap_sched.analysis.whatif import Point
from overlap_sched.report.pictures.picture import AFTER, BEFORE, INK, LIMIT, check_plot, new_figure, write_picture
from overlap_sched.report.units import printable, time_unit


def plot_whatif(points: Sequence[Point], cluster: str, path: str | Path) -> None:
    """Draw it; the file's ending gives the format (``.png``, ``.svg``, ``.pdf``).

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The file cannot be written, or its ending names no picture format.
    """
    check_plot(path)
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    first, *others = points[0].varied
    scale, unit = time_unit(max(point.found.original.step_us for point in points))
    series: dict[str, list[Point]] = {}
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

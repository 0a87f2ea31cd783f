"""Curves: memory along an order, the step over what a sweep has varied; each with its bound."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from overlap_sched.judge.validate import memory_profile
from overlap_sched.peak_memory.best import MemoryPlan
from overlap_sched.report.colours import AFTER, BEFORE, INK, LIMIT
from overlap_sched.report.pictures.picture import check_plot, new_figure, write_picture
from overlap_sched.report.units import change, memory_unit, printable, size, time_unit


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


class StepCurve(NamedTuple):
    """Steps in microseconds over what is varied; ``fade``: 1.0 in full colour."""

    label: str
    colour: str
    style: str
    fade: float
    x: Sequence[float]
    steps_us: Sequence[float]


def plot_steps(curves: Sequence[StepCurve], title: str, varied: str, path: str | Path, *, powers: bool) -> None:
    """Draw steps over what is varied; the file's ending gives the format (``.png``, ``.svg``, ``.pdf``)."""
    check_plot(path)
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    scale, unit = time_unit(max(max(curve.steps_us) for curve in curves))
    for curve in curves:
        y = [step_us / scale for step_us in curve.steps_us]
        axes.plot(curve.x, y, curve.style, color=curve.colour, alpha=curve.fade, marker="o", markersize=3.5,
                  label=curve.label)  # fmt: skip
    if powers:
        axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(varied, color=INK)
    axes.set_ylabel(f"step ({unit}), simulated", color=INK)
    axes.set_title(title, loc="left", color=INK, weight="bold", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    write_picture(figure, path)

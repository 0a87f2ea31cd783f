"""The picture of a memory plan: bytes live at each step, original and new order, and the bound."""

from pathlib import Path

from overlap_sched.judge.liveness import memory_profile
from overlap_sched.peak_memory.best import MemoryPlan
from overlap_sched.report.pictures.picture import AFTER, BEFORE, LIMIT, check_plot, new_figure, write_picture
from overlap_sched.report.units import change, printable, size


def plot_memory(plan: MemoryPlan, path: str | Path) -> None:
    """Draw a plan; the file's ending gives the format (``.png``, ``.svg``, ``.pdf``).

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The file cannot be written, or its ending names no picture format.
    """
    check_plot(path)
    problem = plan.problem
    figure = new_figure(10, 4)
    axes = figure.subplots()
    unit = 2**30 if plan.original_bytes >= 2**30 else 2**20
    for order, colour, label in (
        (problem.original_order, BEFORE, f"original, {size(plan.original_bytes)}"),
        (plan.order, AFTER, f"new, {size(plan.peak_bytes)} ({change(plan.original_bytes, plan.peak_bytes)})"),
    ):
        profile = [live / unit for live in memory_profile(problem, order)]
        axes.step(range(len(profile)), profile, where="post", color=colour, label=label, linewidth=1.2)
    axes.axhline(plan.bound_bytes / unit, color=LIMIT, linewidth=1, linestyle=":", label="no order's peak is lower")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("GiB live" if unit == 2**30 else "MiB live")
    axes.set_title(
        f"{printable(problem.name)} ({problem.memory_model} memory model, simulated)", loc="left", parse_math=False
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    write_picture(figure, path, tight=True)

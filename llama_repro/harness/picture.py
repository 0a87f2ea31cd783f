"""Two pictures of a graph: ours before and after, and memory over time: the original order, torch's and ours."""

from pathlib import Path

from llama_repro.harness.judge import DEFAULT_CAPS, ORIGINAL
from llama_repro.harness.measure import HEAPS, OURS, Measured
from overlap_sched.report.colours import AFTER, BEFORE, EXPOSED, INK, LIMIT
from overlap_sched.report.pictures import draw_memory, new_figure, plot_schedule, write_picture
from overlap_sched.report.timeline import timeline
from overlap_sched.report.units import change, duration, size

_RIVALS = (DEFAULT_CAPS, *HEAPS)
"""The first that was run is drawn beside ours: torch's own, else the heap."""


def draw(measured: Measured, folder: Path) -> list[Path]:
    """Draw both into a folder, in the last of the graph's memory models.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: A file cannot be written.
    """
    paths = [folder / f"{measured.graph}{which}.png" for which in ("", "-peaks")]
    plot_schedule(measured.ours, paths[0])
    _draw_peaks(measured, paths[1])
    return paths


def _draw_peaks(measured: Measured, path: Path) -> None:
    problem, model = measured.problem, measured.problem.memory_model
    figure = new_figure(12, 5.4)
    axes = figure.subplots()
    peak = measured.entries[0].rows[model].peak_bytes
    names = {entry.name for entry in measured.entries}
    rival = next(name for name in _RIVALS if name in names)
    colours = {ORIGINAL: BEFORE, rival: EXPOSED, next(iter(OURS)): AFTER}
    for entry in measured.entries:
        if entry.name not in colours or (entry.name in OURS and entry.model != model):
            continue
        line, row = timeline(problem, entry.order), entry.rows[model]
        label = f"{entry.name}: {duration(row.step_us)}, {size(row.peak_bytes)}"
        label += "" if entry.name == ORIGINAL else f" ({change(peak, row.peak_bytes)})"
        look = {"color": colours[entry.name], "label": label, "fill": entry.name == ORIGINAL}
        draw_memory(axes, line.memory, line.step_us, (1e3, 2**30), **look)
    axes.axhline(peak / 2**30, color=LIMIT, linewidth=1, linestyle="--", label="peak of the original order")
    axes.set_xlim(0, max(entry.row.step_us for entry in measured.entries) / 1e3)
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.set_xlabel("time (ms), simulated: one compute stream, one stream per process group", color=INK)
    axes.set_ylabel(f"memory (GiB), {model} model", color=INK)
    axes.set_title(f"{problem.name}: memory over the step", loc="left", weight="bold", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", ncols=2, frameon=False, fontsize=9)
    write_picture(figure, path, tight=True)

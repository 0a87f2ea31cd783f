"""Pictures, drawn with matplotlib where that is installed: memory and streams before and after; curves."""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from overlap_sched.errors import MissingExtraError, OutputError
from overlap_sched.judge.validate import memory_profile
from overlap_sched.peak_memory.best import MemoryPlan
from overlap_sched.problem import Problem
from overlap_sched.report.colours import AFTER, BEFORE, COMPUTE, EXPOSED, IDLE, INK, LIMIT, PURPOSES, stream_legend
from overlap_sched.report.files import write_file
from overlap_sched.report.timeline import Span, Timeline, timeline
from overlap_sched.report.units import change, duration, memory_unit, printable, size, time_unit
from overlap_sched.report.words.graph import by_purpose, group_names, group_purposes
from overlap_sched.report.words.schedule import figures_text, summary_rows
from overlap_sched.scheduler.driver import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def check_plot(path: str | Path) -> None:
    """Find out before the work is done that it could not be drawn.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The path's ending names no picture format.
    """
    if _ending(path) not in ("png", "svg", "pdf"):
        raise OutputError(f"{path}: its ending does not name a picture format. End it in .png, .svg or .pdf.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "pictures need matplotlib, which is not installed: pip install 'overlap_sched[plot]'"
        ) from None


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of so many inches, on white; it needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, facecolor="white")


def write_picture(figure: "Figure", path: str | Path, *, tight: bool = False) -> None:
    """Write a figure in the format that the path's ending names; ``tight``: cut to what is drawn."""
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)  # names in any script
        figure.savefig(picture, format=_ending(path), bbox_inches="tight" if tight else None)
    write_file(path, picture.getvalue())


def _ending(path: str | Path) -> str:
    return Path(path).suffix[1:].lower()


Floats = npt.NDArray[np.float64]


def busy_share(spans: Sequence[Span], edges: Floats) -> Floats:
    """Return, per bin between neighbouring ``edges``, the share of it (0 to 1) that lies within the spans.

    The spans are ascending and do not overlap. Busy time up to t is piecewise linear: read it off at the edges.
    """
    if not spans:
        return np.zeros(len(edges) - 1)
    bounds = np.array([(span.start_us, span.end_us) for span in spans])
    busy_until = np.cumsum(bounds[:, 1] - bounds[:, 0])
    known = np.column_stack([busy_until - (bounds[:, 1] - bounds[:, 0]), busy_until])
    share = np.diff(np.interp(edges, bounds.ravel(), known.ravel())) / np.diff(edges)
    return np.asarray(np.clip(share, 0.0, 1.0), dtype=np.float64)


def draw_memory(
    axes: "Axes", samples: Sequence[tuple[float, int]], end_us: float, per: tuple[float, float], **style: Any
) -> None:
    """Draw bytes live from each sample (microseconds, bytes) to the next one; ``per``: microseconds, bytes per unit."""
    edges = [us / per[0] for us, _ in (*samples, (end_us, 0))]
    look = {"edgecolor": style["color"]} if style.get("fill") else {"baseline": None}  # a moment's peak is an edge
    axes.stairs([live / per[1] for _, live in samples], edges, **{"linewidth": 1.2, **look, **style})


BINS = 800
"""Of two pixels each."""
MAX_STREAMS = 6
"""Beyond this, the least busy process groups are left out of the picture, which says so."""
HEIGHT = 0.8
"""Of a row; rows are 1 apart."""
LEFT = 0.115
"""Where the axes begin, as a share of the figure."""


_Lane = tuple[str, Sequence[Span], Sequence[Span], str]
"""One row of the lower panel: its label, what is busy, exposed waits, the colour of what is busy."""


def plot_schedule(schedule: Schedule, path: str | Path) -> None:
    """Draw a schedule; the file's ending gives the format (``.png``, ``.svg``, ``.pdf``).

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The file cannot be written, or its ending names no picture format.
    """
    check_plot(path)
    problem = schedule.problem
    before, after = (timeline(problem, order) for order in (problem.original_order, schedule.order))
    lanes = [_lanes(problem, line) for line in (before, after)]
    rows, end_us = sum(map(len, lanes)), max(before.step_us, after.step_us) or 1.0
    figure = new_figure(12, 5.2 + 0.33 * rows)
    scale, unit = time_unit(end_us)
    edges = np.union1d(np.linspace(0.0, end_us, BINS + 1), [before.step_us, after.step_us])
    inch = 1 / figure.get_figheight()
    ratios = {"height_ratios": (3.0, 0.33 * rows + 0.7), "hspace": 0.08}
    top, streams = figure.subplots(2, 1, sharex=True, gridspec_kw=ratios)
    figure.subplots_adjust(left=LEFT, right=0.95, top=1 - 0.95 * inch, bottom=0.6 * inch)
    title = {"x": LEFT, "ha": "left", "fontsize": 14, "weight": "bold", "color": INK, "parse_math": False}
    figure.suptitle(_short(printable(problem.name), 75), **title)
    figures = "   |   ".join(figures_text(summary_rows(schedule, None)))
    top.set_title(figures, loc="left", fontsize=10, color=INK, pad=14)
    _memory(top, schedule, before, after, scale)
    y = 0.0
    for heading, line, of_line in (("original", before, lanes[0]), ("scheduled", after, lanes[1])):
        streams.text(0, y - 0.65, f"{heading}: {duration(line.step_us)}", fontsize=10, weight="bold", color=INK)
        y -= 0.8
        for lane in of_line:
            y -= 1.0
            _lane(streams, lane, y, line.step_us, edges, scale)
    streams.set_ylim(y - 0.15, 0.1)
    streams.set_yticks([])
    legend = stream_legend(group_purposes(problem).values())
    for label, colour in legend:
        streams.bar(0, 0, color=colour, label=label)
    streams.legend(loc="upper right", ncols=len(legend), frameon=False, fontsize=9, borderaxespad=0.0)
    streams.text(1.005, -0.65, "busy", transform=streams.get_yaxis_transform(), fontsize=9, color=INK)
    bound_us, dotted = schedule.lower_bound_us, {"color": LIMIT, "linewidth": 1, "linestyle": ":"}
    for axes, highest_y in ((top, top.get_ylim()[1] * 0.88), (streams, -0.8)):
        label = f"lower bound {duration(bound_us)}"
        axes.vlines(bound_us / scale, axes.get_ylim()[0], highest_y, label=label, **dotted)
        axes.spines[["top", "right"]].set_visible(False)
    top.legend(loc="upper left", ncols=4, frameon=False, fontsize=9, borderaxespad=0.2)
    streams.set_xlim(0, end_us / scale * 1.002)
    simulated = f"simulated{' with contention' if problem.contention else ''}"
    streams.set_xlabel(f"time ({unit}), {simulated}: one compute stream, one stream per process group", color=INK)
    write_picture(figure, path)


def _memory(axes: "Axes", schedule: Schedule, before: Timeline, after: Timeline, scale: float) -> None:
    """Draw the upper panel: memory before (grey) and after, under the budget."""
    top_bytes = max(schedule.budget_bytes, schedule.scheduled.peak_bytes) or 2**20
    unit_bytes, unit = memory_unit(top_bytes)
    per = (scale, unit_bytes)
    draw_memory(axes, before.memory, before.step_us, per, color=BEFORE, label="original order", fill=True)
    draw_memory(axes, after.memory, after.step_us, per, color=AFTER, label="scheduled order")
    label = f"budget: original {schedule.options.budget} + {size(schedule.headroom_bytes)}"
    style: dict[str, Any] = {"color": LIMIT, "linewidth": 1.0, "linestyle": "--", "label": label}
    if schedule.options.budget == "peak":
        axes.axhline(schedule.budget_bytes / unit_bytes, **style)
    else:  # position by position: the limit of whatever runs at that moment
        reference = memory_profile(schedule.problem, schedule.problem.original_order)
        limits = [(us, live + schedule.headroom_bytes) for (us, _), live in zip(after.memory, reference, strict=True)]
        draw_memory(axes, limits, after.step_us, per, **style)
    axes.set_ylim(0, 1.18 * top_bytes / unit_bytes)
    axes.set_ylabel(f"memory ({unit}), {schedule.problem.memory_model} model", color=INK)
    axes.tick_params(labelbottom=False)


def _lane(axes: "Axes", lane: _Lane, y: float, step_us: float, edges: Floats, scale: float) -> None:
    """Draw a row: what is busy from the bottom, exposed waits on top of it, idle time light; percent at the right."""
    label, spans, exposed, colour = lane
    axes.broken_barh([(0, step_us / scale)], (y, HEIGHT), facecolor=IDLE, linewidth=0)
    busy = y + HEIGHT * busy_share(spans, edges)
    axes.stairs(busy, edges / scale, baseline=y, fill=True, color=colour, linewidth=0)
    stalled = busy + HEIGHT * busy_share(exposed, edges)
    axes.stairs(stalled, edges / scale, baseline=busy, fill=True, color=EXPOSED, linewidth=0)
    share = sum(span.end_us - span.start_us for span in spans) / (step_us or 1.0)
    for x, text, side in ((-0.008, label, "right"), (1.005, f"{100 * share:.1f} %", "left")):
        axes.text(x, y + HEIGHT / 2, text, transform=axes.get_yaxis_transform(), ha=side, va="center", fontsize=9,
                  color=INK, parse_math=False)  # fmt: skip


def _lanes(problem: Problem, line: Timeline) -> list[_Lane]:
    """The compute stream, then the process groups by purpose, each with a label; at most ``MAX_STREAMS`` groups."""
    purposes = group_purposes(problem)
    lanes, called = list[_Lane]([("compute", line.compute, line.exposed, COMPUTE)]), group_names(purposes)
    busy = {name: sum(span.end_us - span.start_us for span in spans) for name, spans in line.streams.items()}
    # rounded: both orders add up the same times, each in its own order, and must show the same groups
    shown = sorted(busy, key=lambda name: -round(busy[name], 3))[:MAX_STREAMS]
    for name in by_purpose((name for name in line.streams if name in shown), purposes):
        label = f"group {name}" if called[name] == name and len(name) <= 6 else _short(called[name], 12)
        label = f"{printable(label)} ({problem.groups[name].size})"
        lanes.append((label, line.streams[name], (), PURPOSES[purposes[name]].colour))
    if len(busy) > len(shown):
        lanes[-1] = (f"{lanes[-1][0]}\n+ {len(busy) - len(shown)} not shown", *lanes[-1][1:])
    return lanes


def _short(name: str, letters: int) -> str:
    return name if len(name) <= letters else name[: letters - 1] + "…"


Curve = tuple[Sequence[float], Sequence[float], Mapping[str, Any]]
"""What is varied, what becomes of it, and how that is drawn."""


def plot_memory(plan: MemoryPlan, path: str | Path) -> None:
    """Draw the live bytes of a memory plan; the file's ending gives the format (``.png``, ``.svg``, ``.pdf``)."""
    problem, (per, unit) = plan.problem, memory_unit(plan.original_bytes)
    new = f"new, {size(plan.peak_bytes)} ({change(plan.original_bytes, plan.peak_bytes)})"
    curves = list[Curve]()
    for order, colour, label in (
        (problem.original_order, BEFORE, f"original, {size(plan.original_bytes)}"),
        (plan.order, AFTER, new),
    ):
        profile = [live / per for live in memory_profile(problem, order)]
        curves.append((range(len(profile)), profile, {"color": colour, "label": label, "drawstyle": "steps-post"}))
    bound = {"color": LIMIT, "linestyle": ":", "label": "no order's peak is lower"}
    curves.append(((0, len(problem.nodes)), (plan.bound_bytes / per,) * 2, bound))
    title = f"{printable(problem.name)} ({problem.memory_model} memory model, simulated)"
    plot_curves(curves, title, "step", f"{unit} live", path)


def plot_curves(
    curves: Sequence[Curve], title: str, varied: str, drawn: str, path: str | Path, *, powers: bool = False
) -> None:
    """Draw curves; ``powers``: what is varied goes in powers of two."""
    check_plot(path)
    figure = new_figure(9, 5)
    axes = figure.subplots()
    for x, y, style in curves:
        axes.plot(x, y, linewidth=1.2, **style)
    if powers:
        axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(varied)
    axes.set_ylabel(drawn)
    axes.set_title(title, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    write_picture(figure, path)

"""The picture of a pipelined job that everybody draws: ranks by time, micro-batches by number, memory below.

One HTML file, without scripts: a picture (SVG) per schedule, all on one axis of time::

    rank 0  |0|1|2|      |0|3|1|...      a box per action, in the colour of its kind; lighter for later stages of a rank
    rank 1    |0|1|2|0|1|
            ~~~~~~~~~~~~~~~~~~~~~        the bytes that are live, beside the limit
"""

from collections.abc import Iterator, Sequence
from datetime import date
from html import escape
from itertools import groupby

from overlap_sched import __version__
from overlap_sched.pipeline.action import Item, parts
from overlap_sched.pipeline.compare import PlannedPipeline
from overlap_sched.pipeline.durations import inside_us
from overlap_sched.pipeline.memory import memory_curves
from overlap_sched.pipeline.replay import RunItem
from overlap_sched.report.colours import EXPOSED, PIPELINE
from overlap_sched.report.units import duration, size
from overlap_sched.report.words.schedule import gap_percent

WIDTH, LEFT = 1280, 70
"""Of a picture, and of what stands beside its rows (pixels)."""
ROW, BELOW, GAP = 22, 16, 6
"""Heights of a rank's actions, and of its memory below."""
WAITS, SEEN = 4, 0.5
"""Height of what waits for collectives inside of an action, at its foot; narrower it is not drawn."""
NUMBERED = 12.0
"""A box of so many pixels shows the number of its micro-batch."""
MOST_BOXES = 60_000
"""Of more actions in all, only some schedules are drawn."""
Curve = tuple[tuple[float, int], ...]
STYLE = """
:root { color-scheme: light dark; --ink: #222; --ground: #fff; --idle: #f1f1f1; --memory: #8a8a8a; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --ground: #181818; --idle: #262626; --memory: #777; } }
body { font: 14px system-ui, sans-serif; color: var(--ink); background: var(--ground); margin: 1.5em; }
svg { display: block; } svg text { font-size: 10px; fill: var(--ink); } svg .on { fill: #fff; text-anchor: middle; }
.idle { fill: var(--idle); } .waits { fill: EXPOSED; } .memory { fill: var(--memory); }
h2 { font-size: 1.05em; margin: 1.4em 0 .3em; } .legend span { margin-right: 1.2em; white-space: nowrap; }
.legend i { display: inline-block; width: .9em; height: .9em; margin-right: .35em; vertical-align: -.1em; }
footer { margin-top: 2em; opacity: .75; }
"""


def pipeline_page(title: str, planned: Sequence[PlannedPipeline], command: str) -> str:
    """Return the page of some schedules of a job; the footer names the command, this version and the date."""
    drawn = list(_drawn(planned))
    most_us = max((one.replay.step_us for one in drawn), default=0.0)
    letters = dict.fromkeys(a.kind.value for one in drawn for run in _runs(one) for a in parts(run.item))
    words: dict[str, list[str]] = {}
    for letter, (colour, what) in PIPELINE.items():
        if letter in letters:
            words.setdefault(colour, []).append(what)
    legend = "".join(f'<span><i style="background:{c}"></i>{", ".join(what)}</span>' for c, what in words.items())
    waits = f'<span><i style="background:{EXPOSED}"></i>compute waits for collectives inside</span>'
    inside = any(inside_us(one.job, run.item) for one in drawn for run in _runs(one))
    limit = f'<span><i style="background:{EXPOSED}"></i>memory limit</span>'
    limited = any(one.job.memory_limit_bytes for one in drawn)
    left_out = len(planned) - len(drawn)
    notes = [f"<p>{left_out} more schedules are not drawn: too many actions.</p>"] if left_out else []
    return "\n".join([
        "<!doctype html><html lang='en' data-ready='true'><meta charset='utf-8'>",
        f"<title>{escape(title)}</title><style>{STYLE.replace('EXPOSED', EXPOSED)}</style>",
        f"<main><h1>{escape(title)}</h1>",
        f"<p class='legend'>{legend}<span><i class='memory' style='background:var(--memory)'></i>live bytes</span>"
        f"{waits if inside else ''}{limit if limited else ''}</p>",
        *(_section(one, most_us) for one in drawn),
        *notes,
        f"</main><footer>Simulated. Numbers are micro-batches. Made by <code>{escape(command)}</code>, "
        f"overlap_sched {__version__}, {date.today()}.</footer></html>",
    ])  # fmt: skip


def _drawn(planned: Sequence[PlannedPipeline]) -> Iterator[PlannedPipeline]:
    left = MOST_BOXES
    for one in planned:
        boxes = sum(map(len, one.replay.items))
        if boxes <= left:
            left -= boxes
            yield one


def _runs(one: PlannedPipeline) -> Iterator[RunItem]:
    for items in one.replay.items:
        yield from items


def _section(one: PlannedPipeline, most_us: float) -> str:
    replay = one.replay
    peak = max(peak.bytes for peak in one.peaks)
    said = (
        f"{one.name}: {duration(replay.step_us)}, bubble {100 * replay.bubble:.1f} %, peak {size(peak)}, "
        f"{gap_percent(replay.step_us, one.bound_us):.2f} % above the bound"
    )
    if len(set(one.cut)) > 1 or one.recomputed:
        said += f"; {cut_words(one)}"
    lack = one.shortage
    if lack is not None:
        said += f"; rank {lack.rank} lacks {size(lack.bytes)}"
    height = one.job.ranks * (ROW + BELOW + GAP)
    curves = memory_curves(one.job, replay)
    shapes = "".join(_rank(one, rank, curve, most_us) for rank, curve in enumerate(curves))
    return (
        f"<h2>{escape(said)}</h2><svg width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' role='img' "
        f"aria-label='{escape(one.name)}'>{shapes}</svg>"
    )


def cut_words(one: PlannedPipeline) -> str:
    """Say how many stages of the file each stage joins, and which of them recompute."""
    alike = [(size, len(list(run))) for size, run in groupby(one.cut)]
    sizes = ", ".join(f"{count} x {size}" if count > 2 else ", ".join([str(size)] * count) for size, count in alike)
    if len(alike) == 1:
        sizes = f"{one.cut[0]} each"
    joined = "stages as written" + ("" if set(one.cut) == {1} else f" joined: {sizes}")
    again = "all" if len(one.recomputed) == sum(one.cut) else ", ".join(map(str, one.recomputed))
    return joined + (f"; recomputed: {again}" if again else "")


def _rank(one: PlannedPipeline, rank: int, curve: Curve, most_us: float) -> str:
    top, scale = rank * (ROW + BELOW + GAP), (WIDTH - LEFT) / (most_us or 1.0)
    width = one.replay.step_us * scale
    first = one.job.stages_of[rank][0]
    shapes = [
        f"<text x='0' y='{top + 15}'>rank {rank}</text>",
        f"<rect class='idle' x='{LEFT}' y='{top}' width='{width:.1f}' height='{ROW}'/>",
    ]
    for run in one.replay.items[rank]:
        x, wide = LEFT + run.start_us * scale, (run.end_us - run.start_us) * scale
        shapes.append(_box(run, x, wide, top, first))
        inside = inside_us(one.job, run.item) * scale
        if inside >= SEEN:
            y = top + ROW - WAITS
            shapes.append(f"<rect class='waits' x='{x:.1f}' y='{y}' width='{inside:.1f}' height='{WAITS}'/>")
    return "".join([*shapes, _memory(one, rank, curve, top + ROW + BELOW, scale)])


def _box(run: RunItem, x: float, width: float, top: int, first: int) -> str:
    height, boxes = ROW // len(parts(run.item)), list[str]()
    for k, action in enumerate(parts(run.item)):
        opacity, y = 1.0 if action.stage == first else 0.62, top + k * height
        colour, _ = PIPELINE[action.kind.value]
        boxes.append(
            f"<rect x='{x:.1f}' y='{y}' width='{max(width - 0.5, 0.3):.1f}' height='{height}' fill='{colour}' "
            f"fill-opacity='{opacity}'><title>{escape(_told(run))}</title></rect>"
        )
        if width >= NUMBERED and action.micro_batch is not None:
            middle, line = x + width / 2, y + height / 2 + 4
            boxes.append(f"<text class='on' x='{middle:.1f}' y='{line:.0f}'>{action.micro_batch}</text>")
    return "".join(boxes)


def _told(run: RunItem) -> str:
    return f"{_name(run.item)}, {duration(run.start_us)} to {duration(run.end_us)}"


def _name(item: Item) -> str:
    return " beside ".join(
        f"{PIPELINE[action.kind.value][1]} of stage {action.stage}"
        + ("" if action.micro_batch is None else f", micro-batch {action.micro_batch}")
        for action in parts(item)
    )


def _memory(one: PlannedPipeline, rank: int, curve: Curve, base: int, scale: float) -> str:
    """The live bytes of a rank as an area, as high as the most of any rank or limit."""
    limits = one.job.memory_limit_bytes
    most = max([*(peak.bytes for peak in one.peaks), *(limits or ()), 1])
    points, last = [f"{LEFT},{base}"], 0
    for time_us, live in curve:
        x = LEFT + time_us * scale
        points += [f"{x:.1f},{base - last / most * BELOW:.1f}", f"{x:.1f},{base - live / most * BELOW:.1f}"]
        last = live
    end = f"{LEFT + one.replay.step_us * scale:.1f}"
    points += [f"{end},{base - last / most * BELOW:.1f}", f"{end},{base}"]
    area = f"<polygon class='memory' points='{' '.join(points)}'/>"
    text = f"<text x='0' y='{base}'>{escape(size(one.peaks[rank].bytes))}</text>"
    if limits is None:
        return area + text
    y = base - limits[rank] / most * BELOW
    return area + text + f"<line x1='{LEFT}' x2='{end}' y1='{y:.1f}' y2='{y:.1f}' stroke='{EXPOSED}'/>"

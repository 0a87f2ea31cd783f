"""The picture of a pipelined job that everybody draws: ranks by time, micro-batches by number, memory below.

One HTML file, without scripts: a verdict, a table, and per schedule a picture (SVG), all on one axis of time. Places
are percent of the width, so that a page of 500 pixels has letters as large as one of 1,500::

    rank 0  |0|1|2|      |0|3|1|...      a box per action, in the colour of its kind; lighter for later stages of a rank
    rank 1    |0|1|2|0|1|
            ~~~~~~~~~~~~~~~~~~~~~        the bytes that are live, beside the limit: red where they are above it
            0    100    200 ms
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from html import escape
from importlib.resources import files
from itertools import accumulate, groupby
from math import log10

from rich.table import Table

from overlap_sched import __version__
from overlap_sched.pipeline.action import GATHERS, parts
from overlap_sched.pipeline.best import FOUND, OF_A_BOUND, FoundPipeline
from overlap_sched.pipeline.capacity import CapacityPlan, Question
from overlap_sched.pipeline.compare import PlannedPipeline, RankShortage
from overlap_sched.pipeline.graphs import JobGraphs
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.replay import RunItem, item_block, memory_curves
from overlap_sched.report.colours import EXPOSED, PIPELINE
from overlap_sched.report.terminal import captioned_table
from overlap_sched.report.units import count, duration, from_to, memory_unit, printable, size, time_unit
from overlap_sched.report.words.schedule import gap_percent

ROW, BELOW = 22, 16
"""Heights of a rank's actions, and of its memory below (pixels)."""
WAITS, SEEN = 4, 0.04
"""Height of what waits for collectives inside of an action, at its foot; narrower (percent) it is not drawn."""
NUMBERED, NUMBERED_NARROW = 1.0, 3.2
"""A box of so many percent shows the number of its micro-batch on a wide page, and on a narrow one."""
MOST_BOXES = 60_000
"""Of more actions in all, only some schedules are drawn."""
Curve = tuple[tuple[float, int], ...]


def pipeline_page(title: str, planned: Sequence[PlannedPipeline], command: str) -> str:
    """Return the page of some schedules of a job; the footer names the command, this version and the date."""
    style = files(__package__).joinpath("page_files", "pipeline.css").read_text().replace("EXPOSED", EXPOSED)
    boxes = accumulate(sum(map(len, one.replay.items)) for one in planned)
    drawn = [one for one, number in zip(planned, boxes, strict=True) if number <= MOST_BOXES]
    most_us = max((one.replay.step_us for one in drawn), default=0.0) or 1.0
    rest = len(planned) - len(drawn)
    return "\n".join([
        "<!doctype html><html lang='en' data-ready='true'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{style}</style>",
        f"<main><h1>{escape(title)}</h1>",
        *([_verdict(planned), _table(planned)] if planned else []),
        _legend(drawn),
        *(_section(one, most_us) for one in drawn),
        f"<p>{rest} more schedules are not drawn: too many actions.</p>" * bool(rest),
        f"</main><footer>Simulated. Numbers are micro-batches. Made by <code>{escape(command)}</code>, "
        f"overlap_sched {__version__}, {date.today()}.</footer></html>",
    ])  # fmt: skip


def _verdict(planned: Sequence[PlannedPipeline]) -> str:
    """The shortest schedule that fits, and shorter ones that do not."""
    by_step, best = sorted(planned, key=lambda one: one.replay.step_us), find_shortest(planned)
    lacking = [f"{one.name} lacks {size(one.shortage.bytes)}" for one in by_step if one.shortage is not None]
    if best is None:
        return f"<p id='verdict' class='fails'>None fits: {escape('; '.join(lacking))}.</p>"
    us = best.replay.step_us
    shorter = [one for one in by_step if one.replay.step_us < us and one.shortage is not None]
    said = (
        f"The shortest step{' of those that fit' if lacking else ''}: {best.name}, {duration(us)}, "
        f"{gap_percent(us, best.bound_us):.2f} % above the bound."
    )
    more = f" Shorter, but too large: {'; '.join(lacking[: len(shorter)])}." if shorter else ""
    return f"<p id='verdict'>{escape(said + more)}</p>"


def schedule_rows(planned: Sequence[PlannedPipeline]) -> tuple[list[str], list[list[str]]]:
    """Return headings of a table, and a row per schedule; ``inside`` where compute waits inside of a graph."""
    inside = any(max(one.inside_us) for one in planned)
    heads = ["schedule", "step", "bubble", "own", "exposed", *["inside"][: int(inside)], "peak", "bound", "gap"]
    rows = []
    for one in planned:
        run, waits = one.replay, [max(one.replay.exposed_us), *[max(one.inside_us)][: int(inside)]]
        idle = (f"{100 * part:.1f} %" for part in (run.bubble, run.own_bubble))
        peak, gap = size(max(peak.bytes for peak in one.peaks)), f"{gap_percent(run.step_us, one.bound_us):.2f} %"
        cells = [duration(run.step_us), *idle, *map(duration, waits), peak]
        rows.append([one.name, *cells, duration(one.bound_us), gap])
    return heads, rows


def _table(planned: Sequence[PlannedPipeline]) -> str:
    limited = any(one.job.memory_limit_bytes for one in planned)
    heads, rows = schedule_rows(planned)
    lines = [f"<tr>{''.join(f'<th>{name}</th>' for name in [*heads, *['fits'] * limited])}</tr>"]
    for one, (name, *cells) in zip(planned, rows, strict=True):
        lack = one.shortage
        cells += ["yes" if lack is None else f"rank {lack.rank} lacks {size(lack.bytes)}"] * limited
        shown = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f"<tr{' class=fails' * (lack is not None)}><th>{escape(name)}</th>{shown}</tr>")
    return f"<div class='scroll'><table>{''.join(lines)}</table></div>"


def _legend(drawn: Sequence[PlannedPipeline]) -> str:
    runs = [(one, run) for one in drawn for items in one.replay.items for run in items]
    letters = {action.kind.value for _, run in runs for action in parts(run.item)}
    words = defaultdict[str, list[str]](list)
    for letter, (colour, what) in PIPELINE.items():
        if letter in letters:
            words[colour].append(what)
    entries = [(colour, ", ".join(what)) for colour, what in words.items()] + [("var(--memory)", "live bytes")]
    if any(item_block(one.job, run.item).exposed_us for one, run in runs):
        entries.append((EXPOSED, "compute waits for collectives inside"))
    if any(one.job.memory_limit_bytes for one in drawn):
        entries += [(EXPOSED, "memory limit"), ("#d9534f", "a rank above it")]
    shown = "".join(f'<span><i style="background:{colour}"></i>{what}</span>' for colour, what in entries)
    return f"<p class='legend'>{shown}</p>"


def _section(one: PlannedPipeline, most_us: float) -> str:
    said = f"{one.name}: {duration(one.replay.step_us)}"
    said += f"; {cut_words(one)}" if len(set(one.cut)) > 1 or one.recomputed else ""
    lack = one.shortage
    badge = "" if lack is None else f" <span class='badge fails'>does not fit: rank {lack.rank}</span>"
    curves = memory_curves(one.job, one.replay)
    ranks = "".join(_rank(one, rank, curve, 100 / most_us) for rank, curve in enumerate(curves))
    return (
        f"<section{' class=fails' * (lack is not None)}><h2>{escape(said)}{badge}</h2>{ranks}"
        f"<div class='rank'><span></span>{_axis(most_us)}</div></section>"
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


def _axis(most_us: float) -> str:
    """Round times below the ranks."""
    unit_us, unit = time_unit(most_us)
    least = most_us / unit_us / 6
    power = 10 ** int(log10(least) // 1)
    step, marks = next(part * power for part in (1, 2, 5, 10) if part * power >= least), list[str]()
    for k in range(int(most_us / unit_us / step) + 1):
        x = 100 * k * step * unit_us / most_us
        marks.append(f"<line class='tick' x1='{x:.2f}%' x2='{x:.2f}%' y1='0' y2='5'/>")
        marks.append(f"<text x='{x:.2f}%' y='17'>{k * step:,.6g} {unit}</text>" if x < 96 else "")
    return f"<svg width='100%' height='20' role='img' aria-label='time'>{''.join(marks)}</svg>"


def _rank(one: PlannedPipeline, rank: int, curve: Curve, scale: float) -> str:
    """A rank's actions and memory; ``scale``: percent per microsecond."""
    limits, peak, end = one.job.memory_limit_bytes, one.peaks[rank].bytes, one.replay.step_us * scale
    fails = "fails" if limits is not None and peak > limits[rank] else ""
    first, most = one.job.stages_of[rank][0], max([*(at.bytes for at in one.peaks), *(limits or ()), 1])
    shapes = [f"<rect class='idle' x='0' width='{end:.2f}%' height='{ROW}'/>"]
    for run in one.replay.items[rank]:
        shapes += _boxes(run, run.start_us * scale, (run.end_us - run.start_us) * scale, first)
        inside = item_block(one.job, run.item).exposed_us * scale
        if inside >= SEEN:
            at = f"x='{run.start_us * scale:.2f}%' y='{ROW - WAITS}' width='{inside:.2f}%'"
            shapes.append(f"<rect class='waits' {at} height='{WAITS}'/>")
    points, y = ["0,1"], 1.0
    for x, below in [*((time_us * scale, 1 - live / most) for time_us, live in curve), (end, 1.0)]:
        points += [f"{x:.2f},{y:.3f}", f"{x:.2f},{below:.3f}"]
        y = below
    area = f"<polygon class='memory {fails}' points='{' '.join(points)}'/>"
    shapes.append(
        f"<svg y='{ROW}' width='100%' height='{BELOW}' viewBox='0 0 100 1' preserveAspectRatio='none'>{area}</svg>"
    )
    if limits is not None:
        y = ROW + BELOW * (1 - limits[rank] / most)
        shapes.append(f"<line x1='0' x2='{end:.2f}%' y1='{y:.1f}' y2='{y:.1f}'/>")
    return (
        f"<div class='rank'><span class='label'>rank {rank}<br><span class='{fails}'>{size(peak)}</span></span>"
        f"<svg width='100%' height='{ROW + BELOW}' role='img' aria-label='{escape(one.name)}, rank {rank}'>"
        f"{''.join(shapes)}</svg></div>"
    )


def _boxes(run: RunItem, x: float, width: float, first: int) -> Iterator[str]:
    what = list[str]()
    actions = [one._replace(micro_batch=None) if one.kind in GATHERS else one for one in parts(run.item)]
    height = ROW // len(actions)
    for kind, stage, m in actions:
        what.append(f"{PIPELINE[kind.value][1]} of stage {stage}" + ("" if m is None else f", micro-batch {m}"))
    told = escape(f"{' beside '.join(what)}, {duration(run.start_us)} to {duration(run.end_us)}")
    for k, action in enumerate(actions):
        place = f"x='{x:.2f}%' y='{k * height}' width='{max(width - 0.04, 0.02):.2f}%' height='{height}'"
        paint = f"fill='{PIPELINE[action.kind.value][0]}' fill-opacity='{1.0 if action.stage == first else 0.62}'"
        yield f"<rect class='box' {place} {paint}><title>{told}</title></rect>"
        if width >= NUMBERED and action.micro_batch is not None:
            narrow, line = " narrow" if width < NUMBERED_NARROW else "", k * height + height / 2 + 4
            yield f"<text class='on{narrow}' x='{x + width / 2:.2f}%' y='{line:.0f}'>{action.micro_batch}</text>"


MOST_RANKS = 16
"""Of which the table shows each one's peak; ``--json`` has all."""


def found_line(found: FoundPipeline) -> str:
    """Say what was found, and how far it is from the best that there may be."""
    us = found.aim_us
    if found.proved:
        end = "No schedule of the layouts and cuts that were tried is shorter within the limits, by 0.1 % or more."
    else:
        gap = f"{gap_percent(us, found.bound_us):.2f} %"
        end = f"None that was tried can be shorter than {duration(found.bound_us)} within the limits: {gap} above."
    if found.any_cut_us < found.bound_us * (1 - OF_A_BOUND):
        end += f" With any cut into these layouts none is shorter than {duration(found.any_cut_us)}."
    return f"{FOUND}: {found.layout}, made from {found.made_from}; {cut_words(found.plan)}. {end}"


def lack_words(lack: RankShortage) -> str:
    """Say which rank lacks how many bytes, and at what."""
    at = " beside ".join(map(str, parts(lack.item)))
    return f"rank {lack.rank} lacks {lack.bytes:,} bytes ({size(lack.bytes)}) at {at}"


def schedules_table(job: PipelineJob, planned: Sequence[PlannedPipeline]) -> Table:
    """A row per schedule."""
    (first, *numbers), rows = schedule_rows(planned)
    inside = "inside" in numbers
    waits = "Inside: of the rank whose compute waits longest for collectives of its graphs. " if inside else ""
    return captioned_table(
        f"{printable(job.name)}: {count(len(job.stages), 'stage')}, {count(job.ranks, 'rank')}, "
        f"micro-batches: {job.micro_batches:,}",
        "Simulated. Bubble: the idle part of all ranks together. Own: of the longest rank, from its first action "
        "to its last, as papers count. Exposed: of the rank that waits longest for "
        f"transfers and reductions. {waits}Peak: of the rank that holds most. Bound: no schedule with these stages "
        f"on these ranks{', and graphs in these orders,' * inside} is shorter.",
        numbers,
        first,
        rows,
    )


def stages_table(job: PipelineJob) -> Table:
    """A row per stage, or per neighbouring stages that are alike: what a micro-batch takes and holds."""
    rows = list[list[str]]()
    for number, stage in enumerate(job.stages):
        blocks = stage.forward, stage.backward, stage.input_gradient, stage.weight_gradient
        times = ["" if block is None else duration(block.time_us) for block in blocks]
        row = [*times, size(stage.saved_bytes), size(stage.kept_bytes)]
        first = rows.pop()[0].split(" ")[0] if rows and rows[-1][1:] == row else str(number)
        rows.append([first if first == str(number) else f"{first} to {number}", *row])
    return captioned_table(
        "Stages of the job, for a micro-batch",
        "Simulated. I: gradient of the input. W: gradients of the weights. Saved: from forward to backward. Kept: from "
        "I to W; what W can gather or make again is not kept.",
        ("forward", "backward", "I", "W", "saved", "kept"),
        "stage",
        rows,
    )


def peaks_table(planned: Sequence[PlannedPipeline]) -> Table | str:
    """The peak of each rank, unless there are many."""
    ranks = len(planned[0].peaks)
    if ranks > MOST_RANKS:
        return f"Peaks of all {ranks} ranks: --json."
    unit, name = memory_unit(max(peak.bytes for one in planned for peak in one.peaks))
    rows = [[one.name, *(f"{peak.bytes / unit:.2f}" for peak in one.peaks)] for one in planned]
    numbers = ["rank 0", *map(str, range(1, ranks))]
    return captioned_table(f"Peak memory by rank, {name}", "", numbers, "schedule", rows)


Change = tuple[tuple[str, float], ...]
"""What is varied, and its values: a combination."""
Varied = Sequence[tuple[Change, Sequence[PlannedPipeline]]]
"""Changes of a job, each with its schedules."""


def varied_table(varied: Varied) -> Table:
    """A row per change: the shortest schedule that fits."""
    rows = []
    for change, planned in varied:
        values, one = [f"{value:g}" for _, value in change], find_shortest(planned)
        cells = [""] * 4
        if one is not None:
            step_us, peak = one.replay.step_us, max(peak.bytes for peak in one.peaks)
            cells = [duration(step_us), duration(step_us * one.job.ranks / one.job.micro_batches), size(peak)]
            cells.append(f"{gap_percent(step_us, one.bound_us):.2f} %")
        rows.append(["none fits" if one is None else one.name, *values, *cells])
    names = (name.replace("_", "-") for name, _ in varied[0][0])
    caption = "Simulated. The shortest that fits; rank time: of all ranks, per micro-batch; links: factor on bandwidth."
    return captioned_table("What if", caption, (*names, "step", "rank time", "peak", "gap"), "schedule", rows)


def find_shortest(planned: Sequence[PlannedPipeline]) -> PlannedPipeline | None:
    """Return the shortest that fits, if any does."""
    return min((one for one in planned if one.shortage is None), key=lambda one: one.replay.step_us, default=None)


def capacity_table(question: Question, found: Sequence[CapacityPlan]) -> Table:
    """A row per layout."""
    rows = []
    for one in found:
        (pp, dp, cp, tp, ep), micro_batch, recompute, sharding = one.layout
        mesh = f"PP{pp} TP{tp} DP{dp}" + f" CP{cp}" * (cp > 1) + f" EP{ep}" * (ep > 1)
        if sharding == "dump":
            mesh = f"PP{pp} DP{dp} of {tp} GPUs"
        ways = [f"{one.planned.name}, {one.planned.job.micro_batches} x {micro_batch}", recompute]
        reached = [f"{one.tokens_per_s:,.0f}", f"{one.mfu:.1%}", size(one.peak_bytes), f"{one.losses['bubble']:.1%}"]
        binds = one.binds + (f" {one.losses[one.binds]:.1%}" if one.binds in one.losses else "")
        rows.append([f"{mesh}, {sharding}", *ways, *reached, binds])
    return captioned_table(
        f"{printable(found[0].planned.job.name)}, {question.global_batch:,} sequences of {question.sequence:,}",
        "Simulated. Micro-batches: their number x sequences in each. Tokens/s of one GPU; peak of the fullest rank. "
        "Bubble: the idle part of all ranks together. Binds: "
        "what costs most, of the bubble, collectives (tp, cp, ep, dp) and recomputation (memory), by the part by which "
        "the step would be shorter if they took no time; compute: all are below 5%.",
        ("micro-batches", "recompute", "tokens/s", "MFU", "peak", "bubble", "binds"),
        "layout",
        rows,
    )


def capacity_lines(found: Sequence[CapacityPlan]) -> Iterator[str]:
    """Say of the second and the third, within 10 % of the best, in what they differ."""
    for place, one in zip(("Second", "Third"), found[1:3], strict=False):
        slower, losses = found[0].tokens_per_s / one.tokens_per_s - 1, one.losses
        if slower <= 0.1:
            more = {what: losses.get(what, 0.0) - found[0].losses.get(what, 0.0) for what in found[0].losses | losses}
            said = ", ".join(f"{what} {part:+.1%}" for what, part in more.items() if abs(part) >= 0.0005)
            yield f"{place}: {slower:.1%} slower than the best; beside it {said or 'nothing'} of the step."


def graphs_table(graphs: JobGraphs) -> Table:
    """A row per graph, then one per pair that is shorter for being interleaved."""
    gain = [one for one in graphs.pairs.values() if one.ordered.timeline.step_us < one.before.timeline.step_us]
    rows = []
    for one in (*graphs.graphs.values(), *gain):
        (step, exposed, peak), after = (
            (duration(run.timeline.step_us), duration(run.timeline.exposed_us), size(max(run.profile)))
            for run in (one.before, one.ordered)
        )
        changes = map(from_to, (step, exposed, peak), after)
        name = printable(one.name).replace(".json.gz", "").replace(".json", "")
        rows.append([name, f"{len(one.problem.nodes):,}", *changes])
    rest = len(graphs.pairs) - len(gain)
    return captioned_table(
        "Graphs of the job, before -> after ordering",
        "Simulated. A pair is a forward and a backward that run together; before: the backward, then the forward, each "
        "in its order. Exposed: compute waits for communication. What a memory limit leaves beside a schedule, its "
        f"graphs use beyond this.{f' Pairs that are no shorter, not shown: {rest}.' if rest else ''}",
        ("nodes", "step", "exposed", "peak"),
        "graph",
        rows,
    )

"""Schedules of a pipelined job in words and figures: tables, sentences, and the answer as JSON."""

from collections.abc import Sequence

from rich.table import Table

from overlap_sched.pipeline.action import parts
from overlap_sched.pipeline.best import FOUND, OF_A_BOUND, FoundPipeline
from overlap_sched.pipeline.compare import ChangedJob, PlannedPipeline, RankShortage
from overlap_sched.pipeline.graphs import JobGraphs
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.report.pipeline_page import cut_words, schedule_rows
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import count, duration, from_to, memory_unit, printable, size
from overlap_sched.report.words.schedule import gap_percent

MOST_RANKS = 16
"""Of which the table shows each one's peak; ``--json`` has all."""


def found_line(found: FoundPipeline) -> str:
    """Say what was found, and how far it is from the best that there may be."""
    us = found.plan.replay.step_us
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
        "Simulated. Bubble: the idle part of all ranks together. Exposed: of the rank that waits longest for "
        f"transfers and reductions. {waits}Peak: of the rank that holds most. Bound: no schedule with these stages "
        f"on these ranks{', and graphs in these orders,' * inside} is shorter.",
        numbers,
        first,
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


Varied = Sequence[tuple[ChangedJob, Sequence[PlannedPipeline]]]
"""Changes of a job, each with its schedules."""


def varied_table(varied: Varied) -> Table:
    """A row per change: the shortest schedule that fits."""
    rows = []
    for change, planned in varied:
        values, one = [f"{value:g}" for _, value in change.values], find_shortest(planned)
        cells = [""] * 4
        if one is not None:
            step_us, peak = one.replay.step_us, max(peak.bytes for peak in one.peaks)
            cells = [duration(step_us), duration(step_us / one.job.micro_batches), size(peak)]
            cells.append(f"{gap_percent(step_us, one.bound_us):.2f} %")
        rows.append(["none fits" if one is None else one.name, *values, *cells])
    names = (name.replace("_", "-") for name, _ in varied[0][0].values)
    caption = "Simulated. The shortest schedule that fits; links: factor on their bandwidth between stages."
    return captioned_table("What if", caption, (*names, "step", "per micro-batch", "peak", "gap"), "schedule", rows)


def find_shortest(planned: Sequence[PlannedPipeline]) -> PlannedPipeline | None:
    """Return the shortest that fits, if any does."""
    return min((one for one in planned if one.shortage is None), key=lambda one: one.replay.step_us, default=None)


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
        rows.append([printable(one.name), f"{len(one.problem.nodes):,}", *changes])
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

"""``overlap-sched pipeline``: its options, and what it answers."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, get_args

from rich.console import RenderableType
from rich.table import Table

from overlap_sched.cli.input import is_dump, load
from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.source import Source
from overlap_sched.errors import OptionsError, PipelineMemoryError
from overlap_sched.options import Options
from overlap_sched.pipeline.action import parts
from overlap_sched.pipeline.compare import (
    PlannedPipeline,
    RankShortage,
    compare_schedules,
    named,
    named_schedules,
    plan_pipeline,
)
from overlap_sched.pipeline.csv_file import CsvFormat, schedule_csv
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.job_file import read_job
from overlap_sched.pipeline.room import left_bytes, with_room
from overlap_sched.pipeline.search.best import FOUND, OF_A_BOUND, FoundPipeline, find_pipeline
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.limits import Limits
from overlap_sched.report.files import write_file
from overlap_sched.report.pipeline_graphs import graph_figures, graphs_table
from overlap_sched.report.pipeline_page import cut_words, pipeline_page
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import count, duration, memory_unit, printable, size
from overlap_sched.report.words.schedule import gap_percent
from overlap_sched.scheduler.pipeline import schedule

LEFT = "left"
"""As a headroom: what memory limits leave."""
MOST_RANKS = 16
"""Of which the table shows each one's peak; ``--json`` has all."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add = parser.add_argument
    add("job", metavar="JOB.toml", help="a pipelined job: its stages, ranks, micro-batches, links and memory limits")
    add(
        "--schedules",
        default="",
        metavar="NAMES",
        help="compare these, joined by commas: gpipe, 1f1b, interleaved:V (V stages per rank), zb-h1, zbv, dualpipe, "
        "dualpipev (default: all that the job can have)",
    )
    add(
        "--find",
        nargs="?",
        type=int,
        const=1,
        metavar="EFFORT",
        help="also search for the shortest schedule within the memory limits, with the stages of the file joined and "
        "recomputed as it suits; more is tried with an effort above 1; small jobs are solved exactly where OR-tools is "
        "installed",
    )
    add(
        "--order-graphs",
        nargs="?",
        const=LEFT,
        metavar="HEADROOM",
        help="order the graphs that the job names before they are measured, and interleave those that run together, "
        "with so much memory above their peaks (0, 1GiB, 5%%; default: what the memory limits leave)",
    )
    add("--csv", metavar="OUT.csv", help="write one schedule as torch.distributed.pipelining reads it (_load_csv)")
    add("--schedule", default="", metavar="NAME", help="the schedule that --csv writes")
    add(
        "--csv-format",
        choices=get_args(CsvFormat),
        default="compute_only",
        help="of --csv: compute alone, to which torch adds sends and receives (default); with them; or with them and "
        "the waits that torch 2.15 asks for",
    )
    add(
        "--html",
        metavar="OUT.html",
        help="write one HTML file with a picture of each schedule: ranks by time, and memory",
    )
    add("--json", action="store_true", help="print the figures as one JSON object (`overlap-sched schema pipeline`)")


def check(options: argparse.Namespace) -> None:
    """Refuse options that cannot be, before anything is read."""
    if bool(options.csv) != bool(options.schedule):
        raise OptionsError("--csv writes one schedule: give both --csv OUT.csv and --schedule NAME.")
    if options.find is not None and options.find < 1:
        raise OptionsError(f"--find {options.find}: an effort is 1 or more.")
    if options.schedule == FOUND and options.find is None:
        raise OptionsError(f"--schedule {FOUND} is what --find finds: give --find, too.")
    if options.order_graphs not in (None, LEFT):
        Options(headroom=options.order_graphs)
    for name in (*_split(options.schedules), *_split("" if options.schedule == FOUND else options.schedule)):
        named(name)


def answer(options: argparse.Namespace, tell: Callable[[str], None]) -> str | tuple[RenderableType, ...]:
    """Plan the schedules; what to print: JSON, or tables and notes."""
    limits = Limits(options.max_input_bytes, options.max_nodes)

    @cache
    def read_graph(source: GraphSource) -> Problem:
        tell(f"reading {source.path}")
        path = str(source.path)
        of_dump = Source(path, cluster=source.cluster, groups=dict(source.groups), limits=limits)
        return load(of_dump if is_dump(path) else Source(path, limits=limits), tell).problem

    @cache
    def job_with(headroom: int | str | None) -> tuple[PipelineJob, JobGraphs]:
        def order(problem: Problem) -> Order:
            tell(f"ordering {problem.name}")
            return schedule(problem, Options(headroom=headroom or 0, allocator="none")).order

        graphs = JobGraphs(read_graph, None if headroom is None else order)
        return graphs.with_pairs(read_job(options.job, graphs, limits), tell), graphs

    tell(f"reading {options.job}")
    job, graphs = job_with(0 if options.order_graphs == LEFT else options.order_graphs)
    if options.order_graphs is not None and not graphs.graphs:
        raise OptionsError(f"--order-graphs: {options.job} names no graph. Give its blocks a problem, or leave it out.")
    wanted = [named(name) for name in _split(options.schedules)] or list(named_schedules(job))
    tell(f"planning {count(len(wanted), 'schedule')}")
    planned, cannot = compare_schedules(job, wanted)
    found = None if options.find is None else find_pipeline(job, options.find, tell)
    if options.order_graphs == LEFT:
        with_more = {one.name: one for one in wanted}
        planned = tuple(
            with_room(one, lambda room: job_with(room)[0], partial(plan_pipeline, of=with_more[one.name]))
            for one in planned
        )
        found = _found_with_room(found, options.find, lambda room: job_with(room)[0], tell)
    if found is None:
        _check_fits(job, planned, options.find is not None)
        if options.schedule == FOUND:
            raise PipelineMemoryError(
                f"{job.name}: nothing was found that fits. Raise memory_limit, or --find's effort."
            )
    else:
        planned = (*planned, found.plan)
    if options.csv:
        tell(f"writing {options.csv}")
        _write_csv(options, job, found)
    if options.html:
        tell(f"writing {options.html}")
        page = pipeline_page(printable(job.name), planned, printable(options.as_given))
        write_file(options.html, page.encode())
    if options.json:
        return as_json("pipeline", {**_figures(job, planned, cannot, found), **graph_figures(graphs)})
    notes = tuple(f"{name}: {why}" for name, why in cannot.items())
    if found is not None:
        notes = (_line(found), *notes)
    uneven = [one for one in planned if one.name != FOUND and len(set(one.cut)) > 1]
    notes = (*notes, *(f"{one.name}: {cut_words(one)}." for one in uneven))
    short = [(one.name, lack) for one in planned if (lack := one.shortage) is not None]
    lacking = tuple(f"{name} does not fit: {_lack(lack)}." for name, lack in short)
    tables: tuple[RenderableType, ...] = (_table(job, planned), "", _peaks_table(planned)) if planned else ()
    if options.order_graphs is not None:
        tables = (graphs_table(graphs), "", *tables)
    return (*tables, *("\n" + "\n".join(lines) for lines in (lacking, notes) if lines))


def _found_with_room(
    found: FoundPipeline | None, effort: int, job_with: Callable[[int], PipelineJob], tell: Callable[[str], None]
) -> FoundPipeline | None:
    """Search again with graphs ordered in what was left; the shorter of both."""
    room = 0 if found is None else left_bytes(found.plan)
    more = find_pipeline(job_with(room), effort, tell) if room else None
    if found is None or more is None or more.plan.replay.step_us >= found.plan.replay.step_us:
        return found
    return more


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _line(found: FoundPipeline) -> str:
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


def _write_csv(options: argparse.Namespace, job: PipelineJob, found: FoundPipeline | None) -> None:
    if found is not None and options.schedule == FOUND:
        chosen = found.plan
    else:
        chosen = plan_pipeline(job, named(options.schedule))
    if chosen.shortage is not None:
        raise PipelineMemoryError(f"{job.name}: {chosen.name} does not fit: {_lack(chosen.shortage)}.")
    text = schedule_csv(chosen.job, chosen.schedule, chosen.replay, options.csv_format)
    write_file(options.csv, text.encode())


def _check_fits(job: PipelineJob, planned: Sequence[PlannedPipeline], searched: bool) -> None:
    """Raise where no schedule fits, with what the nearest lacks."""
    lacks = {one.name: one.shortage for one in planned}
    short = {name: lack for name, lack in lacks.items() if lack is not None}
    if planned and len(short) == len(planned):
        name, lack = min(short.items(), key=lambda one: one[1].bytes)
        recomputes = any(stage.recomputed is not None for stage in job.stages)
        tried = ", recomputed or not" if recomputes and searched else ""
        more = "more ranks or smaller micro-batches"
        more += ", or --find, which recomputes stages" if recomputes and not searched else ""
        raise PipelineMemoryError(
            f"{job.name}: no schedule was found that fits{tried}. With {name}, the nearest, {_lack(lack)}. Raise "
            f"memory_limit, or take {more}."
        )


def _lack(lack: RankShortage) -> str:
    at = " beside ".join(map(str, parts(lack.item)))
    return f"rank {lack.rank} lacks {lack.bytes:,} bytes ({size(lack.bytes)}) at {at}"


def _table(job: PipelineJob, planned: Sequence[PlannedPipeline]) -> Table:
    inside = any(max(one.inside_us) for one in planned)
    waits = "Inside: of the rank whose compute waits longest for collectives of its graphs. " if inside else ""
    table = captioned_table(
        title=f"{printable(job.name)}: {count(len(job.stages), 'stage')}, {count(job.ranks, 'rank')}, "
        f"micro-batches: {job.micro_batches:,}",
        caption="Simulated. Bubble: the idle part of all ranks together. Exposed: of the rank that waits longest for "
        f"transfers and reductions. {waits}Peak: of the rank that holds most. Bound: no schedule with these stages on "
        "these ranks is shorter.",
        numbers=("step", "bubble", "exposed", *(("inside",) if inside else ()), "peak", "bound", "gap"),
        first="schedule",
    )
    for one in planned:
        table.add_row(
            one.name,
            duration(one.replay.step_us),
            f"{100 * one.replay.bubble:.1f} %",
            duration(max(one.replay.exposed_us)),
            *((duration(max(one.inside_us)),) if inside else ()),
            size(max(peak.bytes for peak in one.peaks)),
            duration(one.bound_us),
            f"{gap_percent(one.replay.step_us, one.bound_us):.2f} %",
        )
    return table


def _peaks_table(planned: Sequence[PlannedPipeline]) -> Table | str:
    ranks = len(planned[0].peaks)
    if ranks > MOST_RANKS:
        return f"Peaks of all {ranks} ranks: --json."
    unit, name = memory_unit(max(peak.bytes for one in planned for peak in one.peaks))
    numbers = [f"rank {rank}" if rank == 0 else str(rank) for rank in range(ranks)]
    table = captioned_table(f"Peak memory by rank, {name}", "", numbers, "schedule")
    for one in planned:
        table.add_row(one.name, *(f"{peak.bytes / unit:.2f}" for peak in one.peaks))
    return table


def _figures(
    job: PipelineJob, planned: Sequence[PlannedPipeline], cannot: Mapping[str, str], found: FoundPipeline | None
) -> dict[str, Any]:
    return {
        "name": job.name,
        "stages": len(job.stages),
        "ranks": job.ranks,
        "micro_batches": job.micro_batches,
        "memory_limit_bytes": None if job.memory_limit_bytes is None else list(job.memory_limit_bytes),
        "schedules": [_schedule_figures(one) for one in planned],
        "cannot": [{"name": name, "why": why} for name, why in cannot.items()],
        "found": None
        if found is None
        else {
            "made_from": found.made_from,
            "bound_us": found.bound_us,
            "any_cut_bound_us": found.any_cut_us,
            "proved": found.proved,
        },
    }


def _schedule_figures(one: PlannedPipeline) -> dict[str, Any]:
    short = one.shortage
    return {
        "name": one.name,
        "step_us": one.replay.step_us,
        "bound_us": one.bound_us,
        "gap_percent": gap_percent(one.replay.step_us, one.bound_us),
        "bubble": one.replay.bubble,
        "cut": list(one.cut),
        "recomputed": list(one.recomputed),
        "ranks": [
            {
                "busy_us": one.replay.busy_us[rank],
                "bubble_us": one.replay.bubble_us[rank],
                "exposed_us": one.replay.exposed_us[rank],
                "inside_us": one.inside_us[rank],
                "peak_bytes": peak.bytes,
                "peak_at": str(peak.item),
            }
            for rank, peak in enumerate(one.peaks)
        ],
        "lacks": None if short is None else {"rank": short.rank, "bytes": short.bytes, "at": str(short.item)},
    }

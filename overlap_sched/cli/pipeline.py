"""``overlap-sched pipeline``: its options, and what it answers."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple, get_args

from rich.console import RenderableType

from overlap_sched.cli.input import is_dump, load
from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.source import Source
from overlap_sched.errors import OptionsError, PipelineError
from overlap_sched.options import Options
from overlap_sched.pipeline.best import FOUND, FoundPipeline, find_pipeline
from overlap_sched.pipeline.compare import (
    UNCHANGED,
    ChangedJob,
    PlannedPipeline,
    changes,
    compare_schedules,
    left_bytes,
    named,
    named_schedules,
    plan_pipeline,
    read_axes,
    with_room,
)
from overlap_sched.pipeline.csv_file import CsvFormat, schedule_csv
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.job_file import read_job
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.file import Limits
from overlap_sched.report.files import write_file
from overlap_sched.report.pipeline_graphs import graph_figures, graphs_table
from overlap_sched.report.pipeline_page import cut_words, pipeline_page
from overlap_sched.report.units import count, printable
from overlap_sched.report.words.pipeline import (
    found_line,
    job_figures,
    lack_words,
    peaks_table,
    schedules_table,
    varied_figures,
    varied_table,
)
from overlap_sched.scheduler.driver import schedule

LEFT = "left"
"""As a headroom: what memory limits leave."""


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
    add(
        "--vary",
        nargs="+",
        action="extend",
        default=[],
        metavar="WHAT=VALUES",
        help="also the best schedule for other micro_batches or ranks (8,16,32) or for links between stages of another "
        "bandwidth (a factor: 0.5,1,2); can be repeated, all combinations are tried",
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
    if options.schedule and not options.csv:
        near = f"Did you mean --schedules {options.schedule}, which compares?"
        raise OptionsError(f"--schedule is the one that --csv OUT.csv writes: give --csv, too. {near}")
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
    read_axes(options.vary)


def answer(options: argparse.Namespace, tell: Callable[[str], None]) -> str | tuple[RenderableType, ...]:
    """Plan the schedules; what to print: JSON, or tables and notes."""
    plans = _Plans(options, tell)
    one = plans.of(UNCHANGED)
    if one.found is None:
        if not options.vary:
            _check_fits(one, options.find is not None)
        if options.schedule == FOUND:
            raise PipelineError(f"{one.job.name}: nothing was found that fits. Raise memory_limit, or --find's effort.")
    varied = [(change, plans.of(change).planned) for change in changes(read_axes(options.vary))]
    if options.csv:
        tell(f"writing {options.csv}")
        _write_csv(options, one)
    if options.html:
        tell(f"writing {options.html}")
        page = pipeline_page(printable(one.job.name), one.planned, printable(options.as_given))
        write_file(options.html, page.encode())
    if options.json:
        figures = job_figures(one.job, one.planned, one.cannot, one.found)
        return as_json("pipeline", {**figures, **graph_figures(one.graphs), "varied": varied_figures(varied)})
    short = [(plan.name, lack) for plan in one.planned if (lack := plan.shortage) is not None]
    lacking = [f"{name} does not fit: {lack_words(lack)}." for name, lack in short]
    notes = [] if one.found is None else [found_line(one.found)]
    notes += [f"{name}: {why}" for name, why in one.cannot.items()]
    notes += [f"{plan.name}: {cut_words(plan)}." for plan in one.named if len(set(plan.cut)) > 1]
    tables: list[RenderableType] = [graphs_table(one.graphs), ""] if options.order_graphs is not None else []
    tables += [schedules_table(one.job, one.planned), "", peaks_table(one.planned)] if one.planned else []
    tables += ["", varied_table(varied)] if varied else []
    return (*tables, *("\n" + "\n".join(lines) for lines in (lacking, notes) if lines))


class _Planned(NamedTuple):
    """A job, and its schedules: named ones, why others cannot be had, and what was found."""

    job: PipelineJob
    graphs: JobGraphs
    named: tuple[PlannedPipeline, ...]
    cannot: Mapping[str, str]
    found: FoundPipeline | None

    @property
    def planned(self) -> tuple[PlannedPipeline, ...]:
        """All that there are."""
        return self.named if self.found is None else (*self.named, self.found.plan)


class _Plans:
    """The job of a file, as it is and changed, with its graphs ordered in one headroom or another; read once each."""

    def __init__(self, options: argparse.Namespace, tell: Callable[[str], None]) -> None:
        self._options, self._tell = options, tell
        self._read, self._graphs, self._job = cache(self._read_graph), cache(self._ordered), cache(self._read_job)

    def of(self, change: ChangedJob) -> _Planned:
        """Plan what was asked for."""
        options, tell = self._options, self._tell
        in_what_is_left = options.order_graphs == LEFT
        headroom = 0 if in_what_is_left else options.order_graphs
        job, graphs = self._job(change, headroom), self._graphs(headroom)
        if options.order_graphs is not None and not graphs.graphs:
            raise OptionsError(
                f"--order-graphs: {options.job} names no graph. Give its blocks a problem, or leave it out."
            )
        wanted = [named(name) for name in _split(options.schedules)] or list(named_schedules(job))
        tell(f"planning {count(len(wanted), 'schedule')}")
        planned, cannot = compare_schedules(job, wanted)
        found = None if options.find is None else find_pipeline(job, options.find, tell)
        if in_what_is_left:
            again = partial(self._job, change)
            planned = tuple(with_room(one, again, partial(plan_pipeline, of=named(one.name))) for one in planned)
            found = None if found is None else self._found_with_room(found, again)
        return _Planned(job, graphs, planned, cannot, found)

    def _found_with_room(self, found: FoundPipeline, job_with: Callable[[int], PipelineJob]) -> FoundPipeline:
        """Search again with graphs ordered in what was left; the shorter of both."""
        room = left_bytes(found.plan)
        more = find_pipeline(job_with(room), self._options.find, self._tell) if room else None
        if more is None:
            return found
        best = min(found, more, key=lambda one: one.plan.replay.step_us)
        return replace(
            best, bound_us=min(found.bound_us, more.bound_us), any_cut_us=min(found.any_cut_us, more.any_cut_us)
        )

    def _read_job(self, change: ChangedJob, headroom: int | str | None) -> PipelineJob:
        self._tell(f"reading {self._options.job}")
        graphs = self._graphs(headroom)
        job = read_job(self._options.job, graphs, self._limits, change.instead)
        return graphs.with_pairs(change.linked(job), self._tell)

    def _ordered(self, headroom: int | str | None) -> JobGraphs:
        def order(problem: Problem) -> Order:
            self._tell(f"ordering {problem.name}")
            return schedule(problem, Options(headroom=headroom or 0)).order

        return JobGraphs(self._read, None if headroom is None else order)

    def _read_graph(self, source: GraphSource) -> Problem:
        self._tell(f"reading {source.path}")
        path = str(source.path)
        of_dump = Source(path, cluster=source.cluster, groups=dict(source.groups), limits=self._limits)
        return load(of_dump if is_dump(path) else Source(path, limits=self._limits), self._tell).problem

    @property
    def _limits(self) -> Limits:
        return Limits(self._options.max_input_bytes, self._options.max_nodes)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _write_csv(options: argparse.Namespace, one: _Planned) -> None:
    chosen = next((plan for plan in one.planned if plan.name == options.schedule), None)
    chosen = chosen or plan_pipeline(one.job, named(options.schedule))
    if chosen.shortage is not None:
        raise PipelineError(f"{one.job.name}: {chosen.name} does not fit: {lack_words(chosen.shortage)}.")
    text = schedule_csv(chosen.job, chosen.schedule, chosen.replay, options.csv_format)
    write_file(options.csv, text.encode())


def _check_fits(one: _Planned, searched: bool) -> None:
    short = {plan.name: plan.shortage for plan in one.planned if plan.shortage is not None}
    if one.planned and len(short) == len(one.planned):
        name, lack = min(short.items(), key=lambda each: each[1].bytes)
        recomputes = any(stage.recomputed is not None for stage in one.job.stages)
        tried = ", recomputed or not" if recomputes and searched else ""
        more = "more ranks or smaller micro-batches"
        more += ", or --find, which recomputes stages" if recomputes and not searched else ""
        raise PipelineError(
            f"{one.job.name}: no schedule was found that fits{tried}. With {name}, the nearest, {lack_words(lack)}. "
            f"Raise memory_limit, or take {more}."
        )

"""``overlap-sched pipeline``: its options, and what it answers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import NamedTuple

from rich.console import RenderableType

from overlap_sched.cli.arguments import LEFT, Input, InputLimits, PipelineCommand
from overlap_sched.cli.input import Printed, Tell, is_dump, load
from overlap_sched.cli.vary import read_axes
from overlap_sched.errors import OptionsError, PipelineError
from overlap_sched.options import Options
from overlap_sched.pipeline import compare
from overlap_sched.pipeline.best import FOUND, FoundPipeline, find_pipeline
from overlap_sched.pipeline.csv_file import schedule_csv
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs, ReadGraph, offer
from overlap_sched.pipeline.job import PipelineJob, scale_links
from overlap_sched.pipeline.job_file import read_job
from overlap_sched.problem import Order, Problem
from overlap_sched.report import pipeline as report
from overlap_sched.report.answers import as_json, pipeline_answer
from overlap_sched.report.files import write_file
from overlap_sched.report.units import count, printable
from overlap_sched.scheduler.driver import schedule

WHOLE = "micro_batches", "ranks"
"""What may be varied in whole numbers; they take the place of those of the file."""


def run_pipeline(command: PipelineCommand, tell: Tell) -> Printed:
    """Plan the schedules; what to print: JSON, or tables and notes."""
    if command.schedule == FOUND and command.find is None:
        raise OptionsError(f"--schedule {FOUND} is what --find finds: give --find, too.")
    if command.post_validation and command.find is None:
        raise OptionsError("--post-validation says what --find aims at: give --find, too.")
    changes = _read_changes(command.vary)
    for name in (*_split(command.schedules), *_split("" if command.schedule == FOUND else command.schedule)):
        compare.named(name)
    plan = _planner(command, tell)
    one = plan(())
    if one.found is None:
        if not command.vary:
            _check_fits(one, command.find is not None)
        if command.schedule == FOUND:
            raise PipelineError(f"{one.job.name}: nothing was found that fits. Raise memory_limit, or --find's effort.")
    varied = [(change, plan(change).planned) for change in changes]
    if command.csv:
        _write_csv(command.csv, command, one)
    if command.html:
        page = report.pipeline_page(printable(one.job.name), one.planned, printable(command.given))
        write_file(command.html, page.encode())
    if command.json:
        return as_json(pipeline_answer(one.job, one.planned, one.cannot, one.found, one.graphs, varied)), 0
    lacking = [f"{name} does not fit: {report.lack_words(lack)}." for name, lack in _short(one).items()]
    notes = [] if one.found is None else [report.found_line(one.found)]
    notes += [*one.graphs.notes, *(f"{name}: {why}" for name, why in one.cannot.items())]
    notes += [f"{of.name}: {report.cut_words(of)}." for of in one.named if len(set(of.cut)) > 1]
    notes += [f"{name} has no halves: output_node may be{offer(names)}." for name, names in one.graphs.offered.items()]
    tables: list[RenderableType] = [report.graphs_table(one.graphs), ""] if command.order_graphs is not None else []
    tables += [report.stages_table(one.job), ""] if one.graphs.graphs else []
    tables += [report.schedules_table(one.job, one.planned), "", report.peaks_table(one.planned)] if one.planned else []
    tables += ["", report.varied_table(varied)] if varied else []
    return (*tables, *("\n" + "\n".join(lines) for lines in (lacking, notes) if lines)), 0


class _Planned(NamedTuple):
    """A job, and its schedules: named ones, why others cannot be had, and what was found."""

    job: PipelineJob
    graphs: JobGraphs
    named: tuple[compare.PlannedPipeline, ...]
    cannot: Mapping[str, str]
    found: FoundPipeline | None

    @property
    def planned(self) -> tuple[compare.PlannedPipeline, ...]:
        """All that there are."""
        return self.named if self.found is None else (*self.named, self.found.plan)


def graph_reader(limits: InputLimits, tell: Tell) -> ReadGraph:
    """Return what reads a graph that a job names, once."""

    @cache
    def read_graph(source: GraphSource) -> Problem:
        tell(f"reading {source.path}")
        most = {"max_input_bytes": limits.max_input_bytes, "max_nodes": limits.max_nodes}
        of_dump = {"cluster": source.cluster, "group": source.groups} if is_dump(str(source.path)) else {}
        return load(Input(problem=str(source.path), **most, **of_dump), tell).problem  # type: ignore[arg-type]

    return read_graph


def _planner(command: PipelineCommand, tell: Tell) -> Callable[[report.Change], _Planned]:
    """Return what plans the job as it is and changed; graphs and jobs are read once for each headroom."""
    read_graph = graph_reader(command, tell)

    @cache
    def graphs_in(headroom: int | str | None) -> JobGraphs:
        def order(problem: Problem) -> Order:
            tell(f"ordering {problem.name}")
            return schedule(problem, Options(headroom=headroom or 0)).order

        return JobGraphs(read_graph, None if headroom is None else order)

    @cache
    def job_in(change: report.Change, headroom: int | str | None) -> PipelineJob:
        instead = {name: int(value) for name, value in change if name in WHOLE}
        job = read_job(command.job, graphs_in(headroom), command.limits, instead)
        return graphs_in(headroom).with_pairs(scale_links(job, dict(change).get("links", 1.0)), tell)

    def search(job: PipelineJob) -> FoundPipeline | None:
        return None if command.find is None else find_pipeline(job, command.find, tell, command.post_validation)

    def plan(change: report.Change) -> _Planned:
        headroom = 0 if command.order_graphs == LEFT else command.order_graphs
        job, graphs = job_in(change, headroom), graphs_in(headroom)
        if command.order_graphs is not None and not graphs.graphs:
            raise OptionsError(f"--order-graphs: {command.job} names no graph. Give its blocks a problem.")
        wanted = [compare.named(name) for name in _split(command.schedules)] or list(compare.named_schedules(job))
        tell(f"planning {count(len(wanted), 'schedule')}")
        planned, cannot = compare.compare_schedules(job, wanted)
        found = search(job)
        if command.order_graphs == LEFT:

            def again(room: int, name: str) -> compare.PlannedPipeline:
                return compare.plan_pipeline(job_in(change, room), compare.named(name))

            planned = tuple(compare.with_room(one, partial(again, name=one.name)) for one in planned)
            room = 0 if found is None else compare.left_bytes(found.plan)
            more = search(job_in(change, room)) if room else None
            if found is not None and more is not None:  # graphs ordered in what was left: the shorter of both
                best = min(found, more, key=lambda one: one.aim_us)
                bounds = {key: min(getattr(found, key), getattr(more, key)) for key in ("bound_us", "any_cut_us")}
                found = replace(best, **bounds)
        return _Planned(job, graphs, planned, cannot, found)

    return plan


def _read_changes(texts: Iterable[str]) -> list[report.Change]:
    found = read_axes(texts, (*WHOLE, "links"), "micro_batches=8,16,32 links=0.5,2", 64)
    for name in WHOLE:
        if parts := [value for value in found.get(name, ()) if value % 1]:
            raise OptionsError(f"--vary {name}={parts[0]:g}: {name} are whole numbers.")
    return [tuple(zip(found, values, strict=True)) for values in product(*found.values())] if found else []


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _write_csv(path: str, command: PipelineCommand, one: _Planned) -> None:
    chosen = next((plan for plan in one.planned if plan.name == command.schedule), None)
    chosen = chosen or compare.plan_pipeline(one.job, compare.named(command.schedule))
    if chosen.shortage is not None:
        raise PipelineError(f"{one.job.name}: {chosen.name} does not fit: {report.lack_words(chosen.shortage)}.")
    write_file(path, schedule_csv(chosen.job, chosen.schedule, chosen.replay, command.csv_format).encode())


def _short(one: _Planned) -> dict[str, compare.RankShortage]:
    return {plan.name: plan.shortage for plan in one.planned if plan.shortage is not None}


def _check_fits(one: _Planned, searched: bool) -> None:
    if one.planned and len(short := _short(one)) == len(one.planned):
        name, lack = min(short.items(), key=lambda each: each[1].bytes)
        recomputes = any(stage.recomputed is not None for stage in one.job.stages)
        tried = ", recomputed or not" if recomputes and searched else ""
        more = ", or --find, which recomputes stages" if recomputes and not searched else ""
        raise PipelineError(
            f"{one.job.name}: no schedule was found that fits{tried}. With {name}, the nearest, "
            f"{report.lack_words(lack)}. Raise memory_limit, or take more ranks or smaller micro-batches{more}."
        )

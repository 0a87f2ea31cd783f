"""``overlap-sched capacity``: what it answers."""

from pathlib import Path

from msgspec import structs

from overlap_sched.cli.arguments import CapacityCommand
from overlap_sched.cli.input import Printed, Tell
from overlap_sched.cli.pipeline import graph_reader
from overlap_sched.cost.toml_file import decode_toml
from overlap_sched.errors import PipelineError
from overlap_sched.options import Options
from overlap_sched.pipeline.capacity import DumpQuestion, DumpTable, Question, plan_capacity
from overlap_sched.pipeline.csv_file import schedule_csv
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs
from overlap_sched.pipeline.job_file import read_model_stages, read_text
from overlap_sched.problem.file import decode
from overlap_sched.report import pipeline as report
from overlap_sched.report.answers import as_json, capacity_answer
from overlap_sched.report.files import write_file
from overlap_sched.report.units import printable
from overlap_sched.scheduler.driver import schedule

FIXED = "tp", "cp", "ep", "micro_batch", "sharding", "attention"
"""Keys that do not go with a dump, whose graphs fix them."""


def run_capacity(command: CapacityCommand, tell: Tell) -> Printed:
    """Plan all layouts; what to print: JSON, or a table and what tells the best apart."""
    question, notes = read_question(command, tell)
    found = plan_capacity(question, tell)
    best = found[0].planned
    if command.csv:
        write_file(command.csv, schedule_csv(best.job, best.schedule, best.replay, "compute_only").encode())
    if command.html:
        page = report.pipeline_page(printable(best.job.name), [best], printable(command.given))
        write_file(command.html, page.encode())
    if command.json:
        return as_json(capacity_answer(question, found)), 0
    return (report.capacity_table(question, found), *report.capacity_lines(found), *notes), 0


def read_question(command: CapacityCommand, tell: Tell) -> tuple[Question, list[str]]:
    """The question in a file, and what a reader of its figures should know; graphs are ordered within their peaks."""
    where, folder = command.question, Path(command.question).parent
    question = decode_toml(read_text(where, command.limits), Question, where, PipelineError)
    if isinstance(question.model, str) or "forward" not in question.model:
        return question, []
    for one in structs.fields(Question):
        if one.name in FIXED and getattr(question, one.name) != one.default:
            raise PipelineError(f"{where}: {one.name} is fixed by the dump of the model. Leave it out.")
    dump = decode(question.model, DumpTable, f"{where}: model", PipelineError)

    def source(graph: str) -> GraphSource:
        return GraphSource(graph, folder / graph, question.cluster, tuple(dump.groups.items()))

    graphs = JobGraphs(graph_reader(command, tell), lambda problem: schedule(problem, Options(headroom=0)).order)
    dumped = read_model_stages(structs.replace(dump, recompute=True), where, source, graphs)
    flops = sum(node.flops for name in (dump.forward, dump.backward) for node in graphs.read(source(name)).nodes)
    of_dump = DumpQuestion(**structs.asdict(question), dump=dump, dumped=dumped, flops=flops)
    return of_dump, [*graphs.notes]

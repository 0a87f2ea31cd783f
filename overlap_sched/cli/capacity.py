"""``overlap-sched capacity``: what it answers."""

from collections.abc import Callable

from rich.console import RenderableType

from overlap_sched.cli.arguments import CapacityCommand
from overlap_sched.cost.toml_file import decode_toml
from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.capacity import plan_capacity
from overlap_sched.pipeline.csv_file import schedule_csv
from overlap_sched.pipeline.job_file import read_text
from overlap_sched.pipeline.question import Question
from overlap_sched.report import pipeline as report
from overlap_sched.report.answers import as_json, capacity_answer
from overlap_sched.report.files import write_file
from overlap_sched.report.units import printable


def run_capacity(command: CapacityCommand, tell: Callable[[str], None]) -> tuple[str | tuple[RenderableType, ...], int]:
    """Plan all layouts; what to print: JSON, or a table and what tells the best apart."""
    question = decode_toml(read_text(command.question), Question, command.question, PipelineError)
    found = plan_capacity(question, tell)
    best = found[0].planned
    if command.csv:
        write_file(command.csv, schedule_csv(best.job, best.schedule, best.replay, "compute_only").encode())
    if command.html:
        page = report.pipeline_page(printable(best.job.name), [best], printable(command.given))
        write_file(command.html, page.encode())
    if command.json:
        return as_json(capacity_answer(question, found)), 0
    return (report.capacity_table(question, found), *report.capacity_lines(found)), 0

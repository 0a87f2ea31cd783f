"""``overlap-sched plan``: find an order; and what ``explain`` and ``report`` share with it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from rich.console import RenderableType

from overlap_sched.cli.flags import SCHEDULING, Flag, in_flags
from overlap_sched.cli.input import Input, Loaded, Wants, options_for, read_input, save
from overlap_sched.errors import OptionsError
from overlap_sched.judge.validate import read_order
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.report import summary, write_trace
from overlap_sched.report.answers import PriceSource, as_json, plan_answer
from overlap_sched.report.files import write_order
from overlap_sched.report.memory_snapshot import write_memory_snapshot
from overlap_sched.report.progress import told_stages
from overlap_sched.report.table import complain
from overlap_sched.report.trace_measured import read_measured_steps
from overlap_sched.report.units import count
from overlap_sched.report.words.rewrites import rewrites_text
from overlap_sched.report.words.schedule import (
    pins_text,
    reserved_of,
    reserved_rows,
    short_text,
    together_text,
)
from overlap_sched.scheduler.driver import Schedule, schedule, schedule_of
from overlap_sched.transform.plan import Plan, plan
from overlap_sched.transform.prices import Prices, on_cluster

CLUSTER = "dgx-h100"
"""That problem files are priced for where rewrites are asked for and no cluster is named."""


@dataclass(frozen=True, kw_only=True)
class Rewriting(Input):
    """What is done to a graph."""

    options: Annotated[Options, (*SCHEDULING, "rewrites")]
    order: Annotated[str | None, Flag(file="in")] = None
    """ORDER.json: take this order, as `plan --out` wrote it or another tool did, instead of searching for one"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.options.rewrites and self.profile:
            raise OptionsError(
                "--rewrites: merged collectives are in no trace, so that measured and predicted times do not compare. "
                "Leave --profile out."
            )
        if self.order and self.options.rewrites:
            raise OptionsError("--order is one of the graph as it is, --rewrites changes it. Leave out one of the two.")


@dataclass(frozen=True, kw_only=True)
class PlanCommand(Rewriting):
    """Find an order."""

    out: Annotated[str | None, Flag(file="out")] = None
    """ORDER.json: write the order found as a JSON list of node names"""
    plot: Annotated[str | None, Flag(file="out")] = None
    """OUT.png: draw memory and streams, before and after (.png, .svg, .pdf)"""
    trace: Annotated[str | None, Flag(file="out")] = None
    """OUT.json: write a trace for ui.perfetto.dev or chrome://tracing"""
    merge: Annotated[tuple[str, ...], Flag(many=True, file="in")] = ()
    """PROFILE.json: put a real step under the simulated ones in --trace: from traces of the torch profiler, one per
    rank"""
    memory_snapshot: Annotated[str | None, Flag(file="out")] = None
    """OUT.pickle: write the predicted allocations for torch's viewer, pytorch.org/memory_viz: device 0 is the original
    order, device 1 the new one"""
    json: bool = False
    """print the figures as one JSON object (`overlap-sched schema plan`)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.merge and not self.trace:
            raise OptionsError("--merge puts a real step into what --trace writes: give --trace OUT.json, too.")


def scheduled(command: Rewriting, tell: Callable[[str], None]) -> tuple[Loaded, Schedule, Plan | None]:
    """Read the input and schedule it; with ``--rewrites`` also the plan that the schedule is of."""
    rewrites = bool(command.options.rewrites)
    loaded = read_input(command, tell, Wants(rewrites), saves=not rewrites)
    problem, doing = loaded.problem, f"scheduling {len(loaded.problem.nodes):,} nodes"
    wanted = options_for(command, command.options, problem)
    if command.order:
        return loaded, schedule_of(problem, read_order(command.order, problem), wanted), None
    tell(doing)
    if not rewrites:
        return loaded, schedule(problem, wanted, stages=told_stages(tell, doing)), None
    if loaded.model is not None:
        prices = Prices(loaded.model, command.comm_scale)
    else:
        problem, prices = on_cluster(problem, command.cluster_or(CLUSTER), command.comm_scale)
        complain(
            f"note: the collectives of {command.problem} are priced anew for {command.cluster or CLUSTER}, those of "
            "the original order, too: rewritten ones have no times in the file, and compare with no others. --cluster "
            "FILE_OR_NAME says otherwise; without --rewrites the file's own times count"
        )
    made = plan(problem, prices, wanted, loaded.alike, refuses=loaded.refuses)
    save_rewritten(command, getattr(command, "out", None), made.schedule.problem, bool(made.rewrites), tell)
    return loaded, made.schedule, made


def save_rewritten(
    command: Input, out: str | None, problem: Problem, rewritten: bool, tell: Callable[[str], None]
) -> None:
    """Save the graph that the order found is of, or say that only this file would tell which it is."""
    save(command, problem, tell)
    if out and rewritten and not command.save_problem:
        complain("note: the order is of the rewritten graph: write that, too, with --save-problem OUT.json")


def fell_back(result: Schedule, made: Plan | None) -> bool:
    """Was the original order kept because verification failed? Then the exit code is 1."""
    return (result.fell_back if made is None else made.fell_back or made.without.fell_back) is not None


def times_of(command: Input, loaded: Loaded, *, rewrites: bool = False) -> str:
    """Say for a page where its times come from; ``rewrites``: were the collectives of a problem file priced anew?"""
    if loaded.priced_for is None:
        anew = f", collectives predicted for {command.cluster or CLUSTER}" if rewrites else ""
        return f"of the problem file{anew}"
    measured = f", {count(len(command.profile), 'trace')} of a profiler where they have them" if command.profile else ""
    return f"predicted for {loaded.priced_for['cluster'] or loaded.priced_for['device']}{measured}"


def run(command: PlanCommand, tell: Callable[[str], None]) -> tuple[str | tuple[RenderableType, ...], int]:
    """Schedule, write the files asked for; what to print, and the exit code."""
    real = read_measured_steps(command.merge, command.limits) if command.merge else ()
    loaded, result, made = scheduled(command, tell)
    original = None if made is None else made.without.problem
    if command.out:
        write_order(command.out, result.problem, result.order)
    if command.plot:
        from overlap_sched.report.pictures import plot_schedule

        tell(f"drawing {command.plot}")
        plot_schedule(result, command.plot)
    if command.trace:
        tell(f"writing {command.trace}")
        write_trace(result, command.trace, original=original, measured=real)
    tell("replaying the caching allocator")
    if command.memory_snapshot:
        write_memory_snapshot(result, command.memory_snapshot, original)
    reserved = reserved_of(result, original)
    code = 1 if fell_back(result, made) else 4 if result.short_bytes else 0
    tell("computing the lower bound")
    if command.json:
        return as_json(plan_answer(result, made, reserved, prices_of(command, loaded))), code
    device_bytes = result.memory_limit_bytes or loaded.device_bytes or None
    table, short = summary(result, reserved_rows(reserved, device_bytes)), in_flags(short_text(result))
    if made is None:
        kept = "" if result.fell_back is None else f"The original order was kept: {result.fell_back}"
        more = (kept, pins_text(result))
    else:
        more = (rewrites_text(made),)
    return tuple(filter(None, (short, table, *more, together_text(result)))), code


def prices_of(command: Input, loaded: Loaded) -> PriceSource:
    """Where the times come from, for ``--json``."""
    source: Literal["problem file", "dump"] = "problem file" if loaded.priced_for is None else "dump"
    return PriceSource(source, command.comm_scale, len(command.profile), **(loaded.priced_for or {}))  # type: ignore[arg-type]

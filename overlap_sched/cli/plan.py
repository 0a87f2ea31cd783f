"""``overlap-sched plan``: its options, the files that it writes, and what it prints."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import RenderableType

from overlap_sched.cli.parser import in_flags
from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.source import Loaded, cluster_named
from overlap_sched.errors import OptionsError
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.problem.file import Limits
from overlap_sched.report import figures, summary, write_trace
from overlap_sched.report.files import write_order
from overlap_sched.report.memory_snapshot import write_memory_snapshot
from overlap_sched.report.trace_measured import MeasuredStep, read_measured_steps
from overlap_sched.report.units import count
from overlap_sched.report.words.pins import pins_text
from overlap_sched.report.words.reserved import reserved_figures, reserved_of, reserved_rows, short_text
from overlap_sched.report.words.rewrites import left_text, rewrites_figures, rewrites_text
from overlap_sched.report.words.together import together_text
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.transform.left_out import Left, left_json, left_out
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.plan import plan as transform_plan
from overlap_sched.transform.prices import Prices, on_cluster

CLUSTER = "dgx-h100"
"""That problem files are priced for where rewrites are asked for and no cluster is named."""
LEFT_OUT = 12
"""So many rewrites are left out, one after the other, where ``--left-out`` names no number."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add = parser.add_argument
    add("--out", metavar="ORDER.json", help="write the order found as a JSON list of node names")
    add("--json", action="store_true", help="print the figures as one JSON object (`overlap-sched schema plan`)")
    add("--plot", metavar="OUT.png", help="draw memory and streams, before and after (.png, .svg, .pdf)")
    add("--trace", metavar="OUT.json", help="write a trace for ui.perfetto.dev or chrome://tracing")
    add(
        "--merge",
        nargs="+",
        action="extend",
        default=[],
        metavar="PROFILE.json",
        help="put a real step under the simulated ones in --trace: from traces of the torch profiler, one per rank",
    )
    add(
        "--memory-snapshot",
        metavar="OUT.pickle",
        help="write the predicted allocations for torch's viewer, pytorch.org/memory_viz: device 0 is the original "
        "order, device 1 the new one",
    )
    add_rewrites(parser)


def add_rewrites(parser: argparse.ArgumentParser) -> None:
    """Add the options for what may be done to collectives besides moving them."""
    parser.add_argument(
        "--rewrites",
        default="",
        metavar="KINDS",
        help="rewrite collectives, too, where that makes the step shorter in the same memory: bucket (several become "
        "one), coalesce_gathers (gathers alone, without copies), keep (what is gathered twice is kept for its next "
        "use), regather (what is held is gathered again), stream (reductions on a second communicator), joined by "
        "commas; collectives of a problem file are priced for --cluster (default: dgx-h100)",
    )
    parser.add_argument(
        "--left-out",
        type=int,
        nargs="?",
        const=LEFT_OUT,
        default=0,
        metavar="N",
        help="with --rewrites: also the step without each of the N rewrites that take most off their stream (default: "
        f"{LEFT_OUT}); one run of the scheduler each",
    )


def left_of(options: argparse.Namespace, loaded: Loaded, made: Plan, tell: Callable[[str], None]) -> tuple[Left, ...]:
    """The step without each of the rewrites that ``--left-out`` asks for; nothing without it."""
    if not options.left_out:
        return ()
    tell("leaving out one rewrite after the other")
    return left_out(made, _priced(options, loaded)[1], loaded.alike, options.left_out)


def check_left_out(options: argparse.Namespace) -> None:
    """Refuse options that cannot be, before the input is read."""
    if options.left_out < 0:
        raise OptionsError(f"--left-out is {options.left_out}; it is a number of rewrites, 1 or more.")
    if options.left_out and not options.rewrites:
        raise OptionsError("--left-out leaves out rewrites: give --rewrites bucket, too.")


def measured(options: argparse.Namespace) -> tuple[MeasuredStep, ...]:
    """The real steps that ``--merge`` names; none without it."""
    if not options.merge:
        return ()
    if not options.trace:
        raise OptionsError("--merge puts a real step into what --trace writes: give --trace OUT.json, too.")
    return read_measured_steps(options.merge, Limits(options.max_input_bytes, options.max_nodes))


def rewritten(options: argparse.Namespace, wanted: Options, loaded: Loaded) -> Plan:
    """Choose rewrites and an order; a problem file is priced for the cluster first."""
    problem, prices = _priced(options, loaded)
    return transform_plan(problem, prices, wanted, loaded.alike, refuses=loaded.refuses)


def repriced(options: argparse.Namespace) -> str:
    """Say what rewrites do to the times of a problem file."""
    return (
        f"the collectives of {options.problem} are priced anew for {options.cluster or CLUSTER}, those of the original "
        "order, too: rewritten ones have no times in the file, and compare with no others. --cluster FILE_OR_NAME says "
        "otherwise; without --rewrites the file's own times count"
    )


def times_of(options: argparse.Namespace, loaded: Loaded, *, rewrites: bool = False) -> str:
    """Say for a page where its times come from; ``rewrites``: were the collectives of a problem file priced anew?"""
    if loaded.priced_for is None:
        anew = f", collectives predicted for {options.cluster or CLUSTER}" if rewrites else ""
        return f"of the problem file{anew}"
    measured = f", {count(len(options.profile), 'trace')} of a profiler where they have them" if options.profile else ""
    return f"predicted for {loaded.priced_for['cluster'] or loaded.priced_for['device']}{measured}"


def _priced(options: argparse.Namespace, loaded: Loaded) -> tuple[Problem, Prices]:
    """The problem, and prices of new nodes: by the model that has priced it, or for the cluster."""
    if loaded.model is not None:
        return loaded.problem, Prices(loaded.model, options.comm_scale)
    return on_cluster(loaded.problem, cluster_named(options, CLUSTER), options.comm_scale)


def answer(
    options: argparse.Namespace,
    loaded: Loaded,
    result: Schedule,
    tell: Callable[[str], None],
    made: Plan | None = None,
    real: Sequence[MeasuredStep] = (),
) -> str | tuple[RenderableType, ...]:
    """Write the files asked for; what to print: JSON, or a table and perhaps more lines."""
    original = None if made is None else made.without.problem
    if options.out:
        tell(f"writing {options.out}")
        write_order(options.out, result.problem, result.order)
    if options.plot:
        from overlap_sched.report.pictures import plot_schedule

        tell(f"drawing {options.plot}")
        plot_schedule(result, options.plot)
    if options.trace:
        tell(f"writing {options.trace}")
        write_trace(result, options.trace, original=original, measured=real)
    tell("replaying the caching allocator")
    if options.memory_snapshot:
        write_memory_snapshot(result, options.memory_snapshot, original)
    reserved = reserved_of(result, original)
    left = () if made is None else left_of(options, loaded, made, tell)
    tell("computing the lower bound")
    if options.json:
        more = {} if made is None else rewrites_figures(made)
        if options.left_out:
            more |= {"left_out": left_json(left)}
        more |= {"prices": prices_of(options, loaded), **reserved_figures(reserved)}
        return as_json("plan", {**figures(result), **more})
    device_bytes = result.memory_limit_bytes or loaded.device_bytes or None
    table, short = summary(result, reserved_rows(reserved, device_bytes)), in_flags(short_text(result))
    if made is not None:
        return tuple(filter(None, (short, table, rewrites_text(made), left_text(left), together_text(result))))
    kept = "" if result.fell_back is None else f"The original order was kept: {result.fell_back}"
    return tuple(filter(None, (short, table, kept, pins_text(result), together_text(result))))


def prices_of(options: argparse.Namespace, loaded: Loaded) -> dict[str, Any]:
    """Where the times come from, for ``--json``."""
    of = {"from": "problem file"} if loaded.priced_for is None else {"from": "dump", **loaded.priced_for}
    return {**of, "comm_scale": options.comm_scale, "traces": len(options.profile)}

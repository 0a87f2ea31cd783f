"""``overlap-sched fit``: its options, and what it answers."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace

from rich.console import RenderableType

from overlap_sched.cli.plan import times_of
from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.sizes import limit_bytes, shortened
from overlap_sched.cli.source import BATCH, FISSION, Loaded
from overlap_sched.cost import Roofline
from overlap_sched.errors import OptionsError, UnreachableError
from overlap_sched.fit import Fit, fit
from overlap_sched.fit.planner import KINDS
from overlap_sched.options import Options
from overlap_sched.problem import Kind, Problem
from overlap_sched.report.files import write_order
from overlap_sched.report.page import write_page
from overlap_sched.report.page_data import extras_of_fit
from overlap_sched.report.units import duration, size
from overlap_sched.report.words.fit import answer_line, fit_figures, points_table, rewrites_table
from overlap_sched.transform.host import PCIE_4, PCIE_5, HostLink
from overlap_sched.transform.prices import Prices

LINKS: Mapping[str, HostLink] = {"pcie5": PCIE_5, "pcie4": PCIE_4}
DEFAULT = (*KINDS, FISSION)
"""What is done without ``--kinds``: results stay equal to the last bit."""
ALL = (*DEFAULT, BATCH)
"""What ``--kinds`` may name."""
_LIMIT, _HOST = "--memory-limit", "--host-memory"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument(
        "backward",
        nargs="?",
        metavar="BACKWARD_DUMP",
        help="the dump of the backward graph, where the first is that of its forward graph: both are one step",
    )
    question = parser.add_mutually_exclusive_group(required=True)
    question.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="look for the shortest step within so much memory: 40GiB, 24GB, or 60%% of the original peak",
    )
    question.add_argument(
        "--max-slowdown",
        metavar="PERCENT",
        help="look for the lowest peak at which the step is at most so much longer than the best order: 5%%",
    )
    add = parser.add_argument
    add(
        "--host-memory",
        metavar="SIZE",
        help="use at most so much pinned host memory: 64GiB (default: as much as helps; 0: none)",
    )
    add(
        "--host-link",
        choices=tuple(LINKS),
        default="pcie5",
        help="the link between device and host (default: pcie5, 51.2 GB/s in each direction; pcie4: 25.6)",
    )
    add(
        "--kinds",
        default=",".join(DEFAULT),
        metavar="KINDS",
        help=f"what may be done, joined by commas (default: {','.join(DEFAULT)}; of dumps only: {FISSION}, and "
        f"{BATCH}: the graph in parts along its batch, whose gradients are added up; both round otherwise)",
    )
    add("--effort", type=int, default=2, metavar="N", help="how much to try: 0, 1 or 2 (default); counted, not timed")
    add(
        "--html",
        metavar="OUT.html",
        help="write one HTML file of what was found, beside the graph as it was",
    )
    add("--out", metavar="ORDER.json", help="write the order found, of the rewritten graph, as a list of node names")
    add("--strict", action="store_true", help="fail rather than keep the graph as it is when the search fails")
    add("--json", action="store_true", help="print the figures as one JSON object (`overlap-sched schema fit`)")


def check(options: argparse.Namespace) -> None:
    """Refuse a size, a percentage, a kind or an effort that is none, before anything is read."""
    if options.memory_limit is not None:
        limit_bytes(_LIMIT, options.memory_limit, 0)
    _slowdown(options.max_slowdown)
    _host_bytes(options.host_memory)
    unknown = [name for name in _kinds(options) if name not in ALL]
    if unknown:
        raise OptionsError(f"--kinds has {unknown[0]!r}; known are {', '.join(ALL)}.")
    if options.effort not in (0, 1, 2):
        raise OptionsError(f"--effort is {options.effort}; it is 0, 1 or 2.")


def _kinds(options: argparse.Namespace) -> list[str]:
    return [name.strip() for name in options.kinds.split(",")] if options.kinds.strip() else []


def _slowdown(text: str | None) -> float | None:
    """``5%``: 0.05."""
    if text is None:
        return None
    digits = text.strip().removesuffix("%").strip()
    number = digits.replace(".", "", 1)
    if text.strip().endswith("%") and number.isascii() and number.isdigit() and float(digits) <= 100:
        return float(digits) / 100
    raise OptionsError(f"--max-slowdown is {shortened(text)!r}; write percent of the best order's step: 5%.")


def _host_bytes(text: str | None) -> int | None:
    if text is None:
        return None
    if text.strip().endswith("%"):
        raise OptionsError(f"{_HOST} is {shortened(text)!r}; write a size with a unit: 64GiB.")
    return limit_bytes(_HOST, text, 0)


def answer(
    options: argparse.Namespace, loaded: Loaded, tell: Callable[[str], None]
) -> tuple[Fit, str | tuple[RenderableType, ...]]:
    """Search, write the order; the answer, and what to print."""
    problem = loaded.problem
    tell(f"fitting {len(problem.nodes):,} nodes")
    found = fit(
        problem,
        Prices(loaded.model or Roofline(), options.comm_scale, host=LINKS[options.host_link]),
        Options(strict=options.strict),
        memory_limit=options.memory_limit,
        max_slowdown=_slowdown(options.max_slowdown),
        kinds=[kind for kind in _kinds(options) if kind in KINDS],
        rerun=loaded.rerun,
        host_limit_bytes=_host_bytes(options.host_memory),
        extra=loaded.fissions,
        fissions=loaded.batches,
        effort=options.effort,
        tell=tell,
    )
    if not found.live_bytes_fit:
        raise UnreachableError(_unreachable(found))
    if options.out:
        tell(f"writing {options.out}")
        write_order(options.out, found.best.problem, found.best.order)
    if options.html:
        tell(f"writing {options.html}")
        schedule, extras = extras_of_fit(found)
        made_by = {"command": options.as_given, "times": times_of(options, loaded)}
        write_page(schedule, options.html, extras=replace(extras, **made_by))
    if options.json:
        return found, as_json("fit", fit_figures(found))
    tables = (rewrites_table(found),) if found.best.rewrites else ()
    return found, (*tables, points_table(found), answer_line(found))


def _unreachable(found: Fit) -> str:
    name, best = found.best.problem.name, found.best
    assert found.limit_bytes is not None
    return (
        f"{name!r} does not fit into {size(found.limit_bytes)}: the lowest peak found is {size(best.peak_bytes)}, "
        f"at a step of {duration(best.step_us)}. {_half(found.original.problem)}"
    )


def _half(problem: Problem) -> str:
    """Say what to do: where the graph is one half of a step, that is the cause (names are AOTAutograd's)."""
    inputs = [node.name for node in problem.nodes if node.kind is Kind.INPUT]
    parameters = any(name.startswith("primals_") for name in inputs)
    gradients = any(name.startswith("tangents_") for name in inputs)
    given = any(not name.startswith(("primals_", "tangents_")) for name in inputs)
    if parameters and not gradients:
        half = "This is a forward graph alone: activations that it saves are its results, and live to its end"
    elif gradients and given:
        half = "This is a backward graph alone: activations that forward has saved are its inputs, there from the start"
    else:
        return "Allow more, more host memory or more kinds, shard over more ranks, or take a smaller batch."
    return (
        f"{half}. Give the dumps of both graphs (fit FORWARD.py BACKWARD.py), or let the job itself choose what is "
        "saved: enable(memory_limit=...)."
    )

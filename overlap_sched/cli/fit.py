"""``overlap-sched fit``: its options, and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from rich.console import RenderableType

from overlap_sched.cli.flags import Flag, limit_bytes, read_names
from overlap_sched.cli.input import Input, Wants, read_input
from overlap_sched.cli.plan import prices_of, save_rewritten
from overlap_sched.cost import Roofline
from overlap_sched.errors import OptionsError, UnreachableError
from overlap_sched.fit import fit
from overlap_sched.fit.planner import KINDS
from overlap_sched.options import Options
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.sizes import parse_size
from overlap_sched.report.answers import as_json, fit_answer
from overlap_sched.report.files import write_order
from overlap_sched.report.page import extras_of_fit, write_page
from overlap_sched.report.units import duration, size
from overlap_sched.report.words.rewrites import answer_line, points_table, rewrites_table
from overlap_sched.transform.prices import PCIE_4, PCIE_5, HostLink, Prices

LINKS: Mapping[str, HostLink] = {"pcie5": PCIE_5, "pcie4": PCIE_4}
FISSION, BATCH = "fission", "batch"
"""Of dumps alone, as a problem file has no shapes: sub-graphs in parts, and all that can be cut along the batch."""
DEFAULT = (*KINDS, FISSION)
"""What is done without ``--kinds``: results stay equal to the last bit."""
ALL = (*DEFAULT, BATCH)
"""What ``--kinds`` may name."""
_SIZE = "a size with a unit: 64GiB"
_PERCENT = "percent of the best order's step, 0% to 100%: 5%"


def _percent(text: str) -> float:
    """``5%``: 0.05."""
    number = float(text.strip().removesuffix("%"))
    if not text.strip().endswith("%") or not 0 <= number <= 100:
        raise ValueError(text)
    return number / 100


def _host_bytes(text: str) -> int:
    if "%" in text:
        raise ValueError(text)
    return parse_size("it", text, 0, _SIZE)


@dataclass(frozen=True, kw_only=True)
class FitCommand(Input):
    """Fit a step into less memory."""

    backward: Annotated[str | None, Flag(positional=True, file="in")] = None
    """BACKWARD_DUMP: the dump of the backward graph, where the first is that of its forward graph: both are one step"""
    memory_limit: Annotated[str | None, Flag(group="question!")] = None
    """SIZE: look for the shortest step within so much memory: 40GiB, 24GB, or 60% of the original peak"""
    max_slowdown: Annotated[float | None, Flag(_percent, _PERCENT, group="question!")] = None
    """PERCENT: look for the lowest peak at which the step is at most so much longer than the best order: 5%"""
    host_memory: Annotated[int | None, Flag(_host_bytes, _SIZE)] = None
    """SIZE: use at most so much pinned host memory: 64GiB (default: as much as helps; 0: none)"""
    host_link: Literal["pcie5", "pcie4"] = "pcie5"
    """the link between device and host (default: pcie5, 51.2 GB/s in each direction; pcie4: 25.6)"""
    kinds: str = ",".join(DEFAULT)
    """KINDS: what may be done, joined by commas; of dumps only: fission, and batch: the graph in parts along its batch,
    whose gradients are added up, which rounds otherwise"""
    effort: int = 2
    """N: how much to try: 0, 1 or 2 (default); counted, not timed"""
    html: Annotated[str | None, Flag(file="out")] = None
    """OUT.html: write one HTML file of what was found, beside the graph as it was"""
    out: Annotated[str | None, Flag(file="out")] = None
    """ORDER.json: write the order found, of the rewritten graph, as a list of node names"""
    strict: bool = False
    """fail rather than keep the graph as it is when the search fails"""
    json: bool = False
    """print the figures as one JSON object (`overlap-sched schema fit`)"""
    given: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory_limit is not None:
            limit_bytes("--memory-limit", self.memory_limit, 0)
        read_names(self.kinds, ALL, "--kinds: ")
        if self.effort not in (0, 1, 2):
            raise OptionsError(f"--effort is {self.effort}; it is 0, 1 or 2.")


def run_fit(command: FitCommand, tell: Callable[[str], None]) -> tuple[str | tuple[RenderableType, ...], int]:
    """Search, write the files asked for; what to print, and the exit code. The graph saved is the rewritten one."""
    kinds = read_names(command.kinds, ALL)
    loaded = read_input(command, tell, Wants(True, FISSION in kinds, BATCH in kinds), saves=False)
    problem = loaded.problem
    tell(f"fitting {len(problem.nodes):,} nodes")
    found = fit(
        problem,
        Prices(loaded.model or Roofline(), command.comm_scale, host=LINKS[command.host_link]),
        Options(strict=command.strict),
        memory_limit=command.memory_limit,
        max_slowdown=command.max_slowdown,
        kinds=[kind for kind in kinds if kind in KINDS],
        rerun=loaded.rerun,
        host_limit_bytes=command.host_memory,
        extra=loaded.fissions,
        fissions=loaded.batches,
        effort=command.effort,
        tell=tell,
    )
    best = found.best
    if not found.live_bytes_fit and found.limit_bytes is not None:
        raise UnreachableError(
            f"{best.problem.name!r} does not fit into {size(found.limit_bytes)}: the lowest peak found is "
            f"{size(best.peak_bytes)}, at a step of {duration(best.step_us)}. {_remedy(found.original.problem)}"
        )
    if command.out:
        write_order(command.out, best.problem, best.order)
    if command.html:
        tell(f"writing {command.html}")
        schedule, extras = extras_of_fit(found)
        extras = replace(extras, command=command.given, prices=prices_of(command, loaded))
        write_page(schedule, command.html, extras)
    save_rewritten(command, command.out, best.problem, bool(best.rewrites), tell)
    code = 1 if found.fell_back is not None else 0 if found.fits else 4
    if command.json:
        return as_json(fit_answer(found)), code
    tables = (rewrites_table(found), "") if best.rewrites else ()
    return (*tables, points_table(found), answer_line(found)), code


def _remedy(problem: Problem) -> str:
    """Say what to do: where the graph is one half of a step, that is the cause (names are AOTAutograd's)."""
    inputs = [node.name for node in problem.nodes if node.kind is Kind.INPUT]
    parameters, gradients = (any(name.startswith(start) for name in inputs) for start in ("primals_", "tangents_"))
    if parameters and not gradients:
        half = "This is a forward graph alone: activations that it saves are its results, and live to its end"
    elif gradients and not all(name.startswith(("primals_", "tangents_")) for name in inputs):
        half = "This is a backward graph alone: activations that forward has saved are its inputs, there from the start"
    else:
        return "Allow more, more host memory or more kinds, shard over more ranks, or take a smaller batch."
    return (
        f"{half}. Give the dumps of both graphs (fit FORWARD.py BACKWARD.py), or let the job itself choose what is "
        "saved: enable(memory_limit=...)."
    )

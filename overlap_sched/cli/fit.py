"""``overlap-sched fit``: its options, and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from rich.console import RenderableType

from overlap_sched.cli.flags import Flag, limit_bytes, shortened
from overlap_sched.cli.input import Input, read_input
from overlap_sched.cli.plan import save_rewritten, times_of
from overlap_sched.cost import Roofline
from overlap_sched.errors import OptionsError, UnreachableError
from overlap_sched.fit import Fit, fit
from overlap_sched.fit.planner import KINDS
from overlap_sched.options import Options
from overlap_sched.problem import Kind, Problem
from overlap_sched.report.answers import as_json, fit_answer
from overlap_sched.report.files import write_order
from overlap_sched.report.page import write_page
from overlap_sched.report.page_data import extras_of_fit
from overlap_sched.report.units import duration, size
from overlap_sched.report.words.rewrites import answer_line, points_table, rewrites_table
from overlap_sched.transform.host import PCIE_4, PCIE_5, HostLink
from overlap_sched.transform.prices import Prices

LINKS: Mapping[str, HostLink] = {"pcie5": PCIE_5, "pcie4": PCIE_4}
FISSION, BATCH = "fission", "batch"
"""Of dumps alone, as a problem file has no shapes: sub-graphs in parts, and all that can be cut along the batch."""
DEFAULT = (*KINDS, FISSION)
"""What is done without ``--kinds``: results stay equal to the last bit."""
ALL = (*DEFAULT, BATCH)
"""What ``--kinds`` may name."""


@dataclass(frozen=True, kw_only=True)
class FitCommand(Input):
    """Fit a step into less memory."""

    backward: Annotated[str | None, Flag(positional=True, file="in")] = None
    """BACKWARD_DUMP: the dump of the backward graph, where the first is that of its forward graph: both are one step"""
    memory_limit: Annotated[str | None, Flag(group="question!")] = None
    """SIZE: look for the shortest step within so much memory: 40GiB, 24GB, or 60% of the original peak"""
    max_slowdown: Annotated[str | None, Flag(group="question!")] = None
    """PERCENT: look for the lowest peak at which the step is at most so much longer than the best order: 5%"""
    host_memory: str | None = None
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
        _slowdown(self.max_slowdown)
        _host_bytes(self.host_memory)
        if unknown := next((name for name in self.kinds_named if name not in ALL), None):
            raise OptionsError(f"--kinds has {unknown!r}; known are {', '.join(ALL)}.")
        if self.effort not in (0, 1, 2):
            raise OptionsError(f"--effort is {self.effort}; it is 0, 1 or 2.")

    @property
    def kinds_named(self) -> list[str]:
        """The kinds of rewrites, one by one."""
        return [name.strip() for name in self.kinds.split(",")] if self.kinds.strip() else []

    @property
    def prices_anew(self) -> bool:
        """Values that are made again have no prices in a file."""
        return True

    @property
    def fissions(self) -> bool:
        """True where sub-graphs of a dump may run in parts."""
        return FISSION in self.kinds_named

    @property
    def batches(self) -> bool:
        """True where a dump may run in parts along its batch, or along experts' tokens."""
        return BATCH in self.kinds_named


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
        raise OptionsError(f"{'--host-memory'} is {shortened(text)!r}; write a size with a unit: 64GiB.")
    return limit_bytes("--host-memory", text, 0)


def run(command: FitCommand, tell: Callable[[str], None]) -> tuple[str | tuple[RenderableType, ...], int]:
    """Search, write the files asked for; what to print, and the exit code. The graph saved is the rewritten one."""
    loaded = read_input(command, tell, saves=False)
    problem = loaded.problem
    tell(f"fitting {len(problem.nodes):,} nodes")
    found = fit(
        problem,
        Prices(loaded.model or Roofline(), command.comm_scale, host=LINKS[command.host_link]),
        Options(strict=command.strict),
        memory_limit=command.memory_limit,
        max_slowdown=_slowdown(command.max_slowdown),
        kinds=[kind for kind in command.kinds_named if kind in KINDS],
        rerun=loaded.rerun,
        host_limit_bytes=_host_bytes(command.host_memory),
        extra=loaded.fissions,
        fissions=loaded.batches,
        effort=command.effort,
        tell=tell,
    )
    if not found.live_bytes_fit:
        raise UnreachableError(_unreachable(found))
    if command.out:
        tell(f"writing {command.out}")
        write_order(command.out, found.best.problem, found.best.order)
    if command.html:
        tell(f"writing {command.html}")
        schedule, extras = extras_of_fit(found)
        write_page(
            schedule, command.html, extras=replace(extras, command=command.given, times=times_of(command, loaded))
        )
    save_rewritten(command, command.out, found.best.problem, bool(found.best.rewrites), tell)
    code = 1 if found.fell_back is not None else 0 if found.fits else 4
    if command.json:
        return as_json(fit_answer(found)), code
    tables = (rewrites_table(found),) if found.best.rewrites else ()
    return (*tables, points_table(found), answer_line(found)), code


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

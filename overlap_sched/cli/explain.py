"""``overlap-sched explain``: its options, and what it prints."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from overlap_sched.cli.flags import Flag
from overlap_sched.cli.input import read_input
from overlap_sched.cli.plan import Rewriting, fell_back, scheduled
from overlap_sched.errors import OptionsError
from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.report import explanation
from overlap_sched.report.answers import CostsAnswer, NodeCost, as_json, costs_answer, explain_answer
from overlap_sched.report.table import align_rows
from overlap_sched.report.units import count, duration, printable, size
from overlap_sched.report.words.graph import peak_text
from overlap_sched.report.words.rewrites import rewrites_text
from overlap_sched.report.words.schedule import reserved_lines, reserved_of, with_contention_line

TOP = 10
_FLOPS_UNITS = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))
_BOUNDS = {"flops": "arithmetic", "bytes": "memory", "kernel": "kernel launch"}
"""Limits in words; the others are words already."""


@dataclass(frozen=True, kw_only=True)
class ExplainCommand(Rewriting):
    """Say why the step is exposed."""

    collective: Annotated[str | None, Flag(positional=True)] = None
    """COLLECTIVE: explain only this collective, by the name of its node"""
    top: Annotated[int | None, Flag(group="which")] = None
    """N: explain the N most exposed collectives, after the totals by cause (default: 10; 0: only the totals)"""
    all: Annotated[bool, Flag(group="which")] = False
    """explain every collective, the most exposed first"""
    peak: Annotated[bool, Flag(group="instead")] = False
    """explain instead what is live at the memory peak, and why"""
    costs: Annotated[bool, Flag(group="instead")] = False
    """list instead what every node costs, the longest first: its time, where that comes from, what bounds it; --top and
    --all count nodes"""
    json: bool = False
    """print the same as one JSON object (`overlap-sched schema explain`, with --costs: `schema costs`)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.options.rewrites and (self.peak or self.costs):
            given = "--peak" if self.peak else "--costs"
            raise OptionsError(f"{given} explains the graph as it is, --rewrites changes it. Leave out one of the two.")
        if self.top is not None and self.top < 0:
            what = "nodes" if self.costs else "collectives"
            raise OptionsError(f"--top is {self.top}; it is a number of {what}, 0 or more.")
        if self.costs and self.collective is not None:
            raise OptionsError("--costs lists nodes by their times, and one collective is named. Leave out one.")
        listed = self.top is not None or self.all
        if self.collective is not None and listed:
            raise OptionsError("--top and --all list several collectives, but one is named. Leave out one.")
        if self.peak and (self.json or self.collective is not None or listed):
            raise OptionsError(
                "--peak explains memory, not collectives. Leave out COLLECTIVE, --top, --all and --json."
            )


def run(command: ExplainCommand, tell: Callable[[str], None]) -> tuple[str | tuple[str, ...], int]:
    """Schedule, unless costs are asked for; what to print, and the exit code."""
    top = None if command.all else TOP if command.top is None else command.top
    if command.costs:
        loaded = read_input(command, tell)
        found = costs_answer(loaded.problem, loaded.prices, top)
        return as_json(found) if command.json else (_costs_text(found),), 0
    _, result, made = scheduled(command, tell)
    code = int(fell_back(result, made))
    if command.peak:
        lines = [peak_text(explain_peak(result.problem, result.order)), *reserved_lines(reserved_of(result))]
        return (with_contention_line("\n".join(lines), result.problem.contention),), code
    if command.json:
        return as_json(explain_answer(result, command.collective, top)), code
    told: tuple[str, ...] = (explanation(result, command.collective, top),)
    return (told if made is None else (*told, rewrites_text(made))), code


def _costs_text(found: CostsAnswer) -> str:
    """Totals by source, then a line per node."""
    said = f"{printable(found.name)}: {count(found.nodes, 'node')}, compute {duration(found.compute_us)}, collectives"
    sources = [
        (one.kind, one.source, duration(one.time_us), f"{one.percent:.1f} %", f"in {one.nodes:,}")
        for one in found.sources
    ]
    head = ("time", "source", "bound by", "flops", "bytes", "node")
    longest = ["longest:", *align_rows([head, *map(_costs_row, found.costs)])] if found.costs else []
    return "\n".join([f"{said} {duration(found.collective_us)} (predicted)", *align_rows(sources), *longest])


def _costs_row(one: NodeCost) -> tuple[str, ...]:
    what = f"{printable(one.name)} ({printable(one.op)}"
    what += "" if one.group is None else f" on group {printable(one.group)}"
    what += ")" if one.part_of is None else f"), part of the kernel of {printable(one.part_of)}"
    scale, unit = next(((s, u) for s, u in _FLOPS_UNITS if one.flops >= s), (1.0, "FLOP"))
    flops = "-" if not one.flops else f"{one.flops / scale:,.1f} {unit}" if scale > 1 else f"{one.flops} {unit}"
    bound = "-" if one.bound is None else _BOUNDS.get(one.bound, one.bound)
    return duration(one.time_us), one.source, bound, flops, size(one.bytes), what

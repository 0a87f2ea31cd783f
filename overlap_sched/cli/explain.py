"""``overlap-sched explain``: its options, and what it prints."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from overlap_sched.cli.answers import answer_of, as_json
from overlap_sched.cli.flags import Flag
from overlap_sched.cli.input import read_input
from overlap_sched.cli.plan import Rewriting, fell_back, left_of, scheduled
from overlap_sched.errors import OptionsError
from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.report import explanation
from overlap_sched.report.causes import causes
from overlap_sched.report.words.graph import cost_figures, cost_text, peak_text
from overlap_sched.report.words.rewrites import left_text, rewrites_text
from overlap_sched.report.words.schedule import (
    contention_figures,
    find_collective,
    most_exposed,
    pins_figures,
    reserved_lines,
    reserved_of,
    with_contention_line,
)
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.scheduler.explain import Decision

TOP = 10


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
        shows = (loaded.problem, loaded.prices, top)
        return as_json(answer_of("costs", cost_figures(*shows))) if command.json else (cost_text(*shows),), 0
    loaded, result, made = scheduled(command, tell)
    code = int(fell_back(result, made))
    if command.peak:
        lines = [peak_text(explain_peak(result.problem, result.order)), *reserved_lines(reserved_of(result))]
        return (with_contention_line("\n".join(lines), result.problem.contention),), code
    if command.json:
        return as_json(answer_of("explain", explain_figures(result, command.collective, top))), code
    told: tuple[str, ...] = (explanation(result, command.collective, top),)
    if made is not None:
        told += (rewrites_text(made), *filter(None, [left_text(left_of(command, loaded, made, tell))]))
    return told, code


def explain_figures(schedule: Schedule, collective: str | None = None, top: int | None = None) -> dict[str, Any]:
    """Microseconds and bytes; arguments as of :func:`overlap_sched.report.words.schedule.explanation`."""
    listed = most_exposed(schedule, top)
    if collective is not None:
        wanted = find_collective(schedule.problem, collective)
        listed = [d for d in schedule.decisions if d.collective == wanted]
    return {
        "name": schedule.problem.name,
        "memory_model": schedule.problem.memory_model,
        "contention": contention_figures(schedule.problem.contention),
        "step_us": schedule.scheduled.step_us,
        "exposed_us": schedule.scheduled.exposed_us,
        "fell_back": schedule.fell_back is not None,
        "pins": pins_figures(schedule),
        "collectives": len(schedule.decisions),
        "causes": [cause._asdict() for cause in causes(schedule)],
        "most_exposed": [_record(schedule, decision) for decision in listed],
    }


def _record(schedule: Schedule, decision: Decision) -> dict[str, Any]:
    nodes = schedule.problem.nodes
    node = nodes[decision.collective]
    return {
        "name": node.name,
        "op": node.op,
        "group": node.group,
        "bytes": node.bytes,
        "exposed_us": decision.exposed_us,
        "hidden_us": decision.hidden_us,
        "position": decision.position,
        "original_position": decision.original_position,
        "launch_us": decision.launch_us,
        "start_us": decision.start_us,
        "finish_us": decision.finish_us,
        "wait_us": decision.wait_us,
        "reason": decision.reason,
        "blocked_by": decision.held_by,
        "blocking_node": None if decision.held_node is None else nodes[decision.held_node].name,
        "under": [nodes[v].name for v in decision.under],
        "over_budget_bytes": decision.over_bytes,
    }

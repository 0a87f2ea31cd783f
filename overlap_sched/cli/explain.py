"""``overlap-sched explain``: its options, and what it prints."""

import argparse
from collections.abc import Callable
from typing import Any

from overlap_sched.cli.plan import add_rewrites, check_left_out, left_of
from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.source import Loaded
from overlap_sched.errors import OptionsError
from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.report import explanation
from overlap_sched.report.causes import causes
from overlap_sched.report.words.contention import contention_figures, with_contention_line
from overlap_sched.report.words.costs import cost_figures, cost_text
from overlap_sched.report.words.peak import peak_text
from overlap_sched.report.words.pins import pins_figures
from overlap_sched.report.words.reserved import reserved_lines, reserved_of
from overlap_sched.report.words.rewrites import left_text, rewrites_text
from overlap_sched.report.words.schedule import find_collective, most_exposed
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.scheduler.explain import Decision
from overlap_sched.transform.plan import Plan

TOP = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument(
        "collective", nargs="?", metavar="COLLECTIVE", help="explain only this collective, by the name of its node"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--top",
        type=int,
        metavar="N",
        help=f"explain the N most exposed collectives, after the totals by cause (default: {TOP}; 0: only the totals)",
    )
    which.add_argument("--all", action="store_true", help="explain every collective, the most exposed first")
    add_rewrites(parser)
    parser.set_defaults(out=None)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--peak", action="store_true", help="explain instead what is live at the memory peak, and why")
    instead.add_argument(
        "--costs",
        action="store_true",
        help="list instead what every node costs, the longest first: its time, where that comes from, what bounds it; "
        "--top and --all count nodes",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the same as one JSON object (`overlap-sched schema explain`, with --costs: `schema costs`)",
    )


def check(options: argparse.Namespace) -> None:
    """Refuse options that do not fit together, before the input is read."""
    check_left_out(options)
    if options.rewrites and (options.peak or options.costs):
        given = "--peak" if options.peak else "--costs"
        raise OptionsError(f"{given} explains the graph as it is, --rewrites changes it. Leave out one of the two.")
    if options.top is not None and options.top < 0:
        what = "nodes" if options.costs else "collectives"
        raise OptionsError(f"--top is {options.top}; it is a number of {what}, 0 or more.")
    if options.costs and options.collective is not None:
        raise OptionsError("--costs lists nodes by their times, and one collective is named. Leave out one of the two.")
    if options.collective is not None and (options.top is not None or options.all):
        raise OptionsError("--top and --all list several collectives, but one is named. Leave out one of the two.")
    if options.peak and (options.json or options.collective is not None or options.top is not None or options.all):
        raise OptionsError("--peak explains memory, not collectives. Leave out COLLECTIVE, --top, --all and --json.")


def costs(options: argparse.Namespace, loaded: Loaded) -> str | tuple[str]:
    """Return what ``--costs`` prints, JSON or text: nothing is scheduled for it."""
    top = _top_of(options)
    if options.json:
        return as_json("costs", cost_figures(loaded.problem, loaded.prices, top))
    return (cost_text(loaded.problem, loaded.prices, top),)


def answer(
    options: argparse.Namespace,
    loaded: Loaded,
    result: Schedule,
    tell: Callable[[str], None],
    made: Plan | None = None,
) -> str | tuple[str, ...]:
    """Return what to print: JSON, or text, with rewrites also what each bought and why others were not taken."""
    if options.peak:
        shown = peak_text(explain_peak(result.problem, result.order))
        reserved = reserved_lines(reserved_of(result))
        return (with_contention_line("\n".join([shown, *reserved]), result.problem.contention),)
    top = _top_of(options)
    if options.json:
        return as_json("explain", explain_figures(result, options.collective, top))
    told = explanation(result, options.collective, top)
    if made is None:
        return (told,)
    return (told, rewrites_text(made), *filter(None, [left_text(left_of(options, loaded, made, tell))]))


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


def _top_of(options: argparse.Namespace) -> int | None:
    """How many are shown; ``None``: all."""
    if options.all:
        return None
    return TOP if options.top is None else int(options.top)

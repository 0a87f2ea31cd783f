"""A schedule in words: the figures as data, a table for people, and why each collective is where it is."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from overlap_sched.errors import ProblemError
from overlap_sched.problem import ANY_GROUP, Problem
from overlap_sched.problem.precedence import launched_on
from overlap_sched.report.causes import ROUNDING, causes, causes_text
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import change, count, duration, printable, size
from overlap_sched.report.words.contention import contention_figures, with_contention_line
from overlap_sched.report.words.pins import pins_figures, pins_text
from overlap_sched.report.words.purpose import group_names, group_purposes
from overlap_sched.report.words.together import collectives_text, together_figures, together_rows
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.scheduler.explain import Decision

_WHY = {
    "reference": "it was the next node of the order that the scheduler started from",
    "latest start": "its latest start would have passed while the next compute ran",
    "frees memory": "its latest start would have passed while the next compute ran, and it frees memory",
    "beside another": "a collective of another link is in flight, so that it slows compute no more",
    "no stall": "every other ready node would have stalled",
    "deferred": "its compute was deferred behind a launch that it hides",
    "searched": "the best of the orders searched (the graph is small) has it there",
    "original": "the original order was kept",
}


def gap_percent(step_us: float, bound_us: float) -> float:
    """How far a step is above its lower bound; 0 where the bound is 0. Rounding noise below 1e-7 % is 0 too."""
    gap = 100 * (step_us / bound_us - 1) if bound_us > 0 else 0.0
    return 0.0 if abs(gap) < 1e-7 else gap


def figures(schedule: Schedule) -> dict[str, Any]:
    """Return what ``overlap-sched plan --json`` prints: microseconds, bytes, percent, seconds."""
    bound_us, budget_bound = schedule.lower_bound_us, schedule.budget_bound_us
    return {
        "name": schedule.problem.name,
        "nodes": len(schedule.problem.nodes),
        "original_step_us": schedule.original.step_us,
        "step_us": schedule.scheduled.step_us,
        "exposed_us": schedule.scheduled.exposed_us,
        "bound_us": bound_us,
        "gap_percent": gap_percent(schedule.scheduled.step_us, bound_us),
        "budget_bound_us": budget_bound,
        "gap_within_budget_percent": gap_percent(schedule.scheduled.step_us, budget_bound),
        "original_peak_bytes": schedule.original.peak_bytes,
        "peak_bytes": schedule.scheduled.peak_bytes,
        "headroom_bytes": schedule.headroom_bytes,
        "memory_model": schedule.problem.memory_model,
        "contention": contention_figures(schedule.problem.contention),
        **together_figures(schedule),
        "schedule_s": schedule.schedule_s,
        "fell_back": schedule.fell_back is not None,
        "pins": pins_figures(schedule),
        "memory_limit_bytes": schedule.memory_limit_bytes,
        "short_bytes": schedule.short_bytes,
    }


def summary(schedule: Schedule, more: Sequence[tuple[str, ...]] = ()) -> Table:
    """Before, after, and the limit of each: a table for :mod:`rich` to print; then more rows of the same columns."""
    problem = schedule.problem
    groups = {group for node in problem.nodes for group in launched_on(node)} - {ANY_GROUP}
    table = captioned_table(
        f"{printable(problem.name)}: {count(len(problem.nodes), 'node')}, "
        f"{collectives_text(problem)} on {count(len(groups), 'process group')}",
        with_contention_line(
            f"Simulated, in the {problem.memory_model} memory model. Limits: a lower bound on any order's step; "
            f"the memory budget, {budget_words(schedule)}. Scheduled in {schedule.schedule_s:.2f} s.",
            problem.contention,
        ),
        ("original", "scheduled", "change", "limit"),
        first="",
    )
    for row in (*summary_rows(schedule), *more):
        table.add_row(*row)
    return table


def summary_rows(schedule: Schedule) -> list[tuple[str, ...]]:
    """Rows: what is looked at, original, scheduled, change, limit; short rows end in empty cells."""
    before, after = schedule.original, schedule.scheduled
    bound_us, budget_bound = schedule.lower_bound_us, schedule.budget_bound_us
    step, exposed = (before.step_us, after.step_us), (before.exposed_us, after.exposed_us)
    peak = (before.peak_bytes, after.peak_bytes)
    rows: list[tuple[str, ...]] = [
        ("step", *map(duration, step), change(*step), duration(bound_us)),
        ("exposed", *map(duration, exposed), change(*exposed)),
        ("peak memory", *map(size, peak), change(*peak), size(schedule.budget_bytes)),
        ("gap to the lower bound", *(f"{gap_percent(us, bound_us):.1f} %" for us in step)),
    ]
    if budget_bound > bound_us * (1 + ROUNDING):
        gaps = (f"{gap_percent(us, budget_bound):.1f} %" for us in step)
        rows.append(("... within the budget", *gaps, "", duration(budget_bound)))
    return rows + together_rows(schedule)


def explanation(schedule: Schedule, collective: str | None = None, top: int | None = None) -> str:
    """Why the step is exposed, in totals; then why each collective is where it is, the most exposed first.

    Args:
        schedule: What to explain.
        collective: Only this one, by its name, without the totals.
        top: Only so many of the most exposed; ``None``: all.

    Raises:
        ProblemError: There is no collective of that name.
    """
    decisions, called = schedule.decisions, group_names(group_purposes(schedule.problem))
    if collective is not None:
        wanted = find_collective(schedule.problem, collective)
        record = "\n".join(_record(schedule, d, called) for d in decisions if d.collective == wanted)
        return with_contention_line(record, schedule.problem.contention)
    exposed = sum(d.exposed_us > ROUNDING * schedule.scheduled.step_us for d in decisions)
    summed = (
        f"{printable(schedule.problem.name)}: {count(len(decisions), 'collective')}, {exposed} exposed for "
        f"{duration(schedule.scheduled.exposed_us)} in all (simulated, {schedule.problem.memory_model} memory model)."
    )
    head = [with_contention_line(summed, schedule.problem.contention)]
    if schedule.fell_back is not None:
        head.append(f"The original order was kept: {printable(schedule.fell_back)}.")
    head += filter(None, [pins_text(schedule)])
    listed = most_exposed(schedule, top)
    parts = ["\n".join(head), causes_text(causes(schedule))]
    if listed:
        parts.append(
            "Most exposed first:"
            if len(listed) == len(decisions)
            else f"The {count(len(listed), 'most exposed collective')} of {len(decisions):,} (--all shows every one):"
        )
    return "\n\n".join([*parts, *(_record(schedule, d, called) for d in listed)])


def most_exposed(schedule: Schedule, top: int | None = None) -> list[Decision]:
    """The decisions, the most exposed collective first; only the first ``top``."""
    return sorted(schedule.decisions, key=lambda d: (-d.exposed_us, d.position))[:top]


def _record(schedule: Schedule, decision: Decision, called: Mapping[str, str]) -> str:
    """One decision in a few lines: what, where and why, when, and what blocked it."""
    problem = schedule.problem
    node = problem.nodes[decision.collective]
    group, module = problem.groups[node.group or ""], f" in {printable(node.module)}" if node.module else ""
    lines = [
        f"{printable(node.name)}{module}: {printable(node.op) or 'collective'} on group {called[node.group or '']} "
        f"of {group.size}, {size(node.bytes)}, {duration(node.time_us)}",
        f"  exposed {duration(decision.exposed_us)}, hidden {duration(decision.hidden_us)}{_under(problem, decision)}",
        f"  launched at position {decision.position:,} ({_moved(decision)}), at {duration(decision.launch_us)}: "
        f"{_WHY[decision.reason]}",
        f"  ran from {duration(decision.start_us)} to {duration(decision.finish_us)}; "
        + (
            f"first waited for at {duration(decision.wait_us)}"
            if decision.collective in problem.waits
            else "nothing in this graph waits for it"
        ),
        f"  blocked by {blocked_by(problem, decision)}",
    ]
    if decision.over_position is not None:
        lines.append(f"  {refusal(problem, decision, decision.over_position)}")
    return "\n".join(lines)


def why_text(problem: Problem, decision: Decision) -> str:
    """Why a collective is launched where it is, and what blocks it, on one line."""
    return f"{launched_because(decision)}; blocked by {blocked_by(problem, decision)}"


def launched_because(decision: Decision) -> str:
    """Why a collective is launched where it is."""
    return "where the original order has it" if decision.reason == "original" else _WHY[decision.reason]


def _under(problem: Problem, decision: Decision) -> str:
    names = [f"{printable(problem.nodes[v].name)} ({duration(problem.nodes[v].time_us)})" for v in decision.under]
    return f" under {', '.join(names)}" if names else ""


def _moved(decision: Decision) -> str:
    by = decision.original_position - decision.position
    if by == 0:
        return "as originally"
    return f"originally {decision.original_position:,}: {abs(by):,} {'earlier' if by > 0 else 'later'}"


def blocked_by(problem: Problem, decision: Decision) -> str:
    """Say what keeps a collective from being launched sooner."""
    holder = "" if decision.held_node is None else printable(problem.nodes[decision.held_node].name)
    if decision.held_by == "nothing":
        return "nothing"
    if decision.held_by == "dependency":
        return f"a dependency: {holder} had to run first" if holder else "a dependency"
    if decision.held_by == "stream":
        return f"its stream: {holder} was still on it" if holder else "its stream, which was busy"
    if decision.held_by == "start":
        return "the start of the graph: it was launched at once, and waited for too soon"
    if decision.held_by == "memory":
        return "memory: launched sooner, it would not have fitted into the budget"
    return "nothing: dependencies and live bytes allow an earlier launch"


def refusal(problem: Problem, decision: Decision, over_position: int) -> str:
    """By how much the first refused launch would have broken the budget, and where."""
    return (
        f"memory refused an earlier launch: {size(decision.over_bytes)} ({decision.over_bytes:,} bytes) over the "
        f"budget while {printable(problem.nodes[over_position].name)} runs "
        f"(position {over_position:,} of the original order)"
    )


def find_collective(problem: Problem, name: str) -> int:
    """The id of a collective."""
    names = {problem.nodes[v].name: v for v in problem.collectives}
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        hint = f"Did you mean {' or '.join(map(repr, near))}?"
    elif names:
        hint = f"The first ones are {', '.join(map(repr, list(names)[:3]))}."
    else:
        hint = "This problem has no collectives."
    raise ProblemError(f"problem {problem.name!r} has no collective named {name!r}. {hint}")


def budget_words(schedule: Schedule) -> str:
    """Say what the memory budget is made of."""
    base = "the original peak" if schedule.options.budget == "peak" else "the original profile (its peak is shown)"
    base = "the lowest peak found" if schedule.base_bytes < schedule.original.peak_bytes else base
    more = schedule.headroom_bytes
    return f"{base} {'minus' if more < 0 else 'plus'} {size(abs(more))}"

"""A schedule in words: figures and a table, why each collective is where it is, what came of it, and why not more."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from msgspec import Struct
from rich.table import Table

from overlap_sched.cost.spread import gain_range
from overlap_sched.errors import ProblemError
from overlap_sched.judge.replay import replay
from overlap_sched.options import Options, close_to, replayed_allocator
from overlap_sched.problem import ANY_GROUP, MAX_TOTAL_BYTES, Kind, NodeId, Order, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.pins import pinned
from overlap_sched.problem.precedence import launched_on
from overlap_sched.problem.sizes import EXPANDABLE, PLAIN, VARIABLES, AllocatorSettings
from overlap_sched.report.terminal import align_rows, captioned_table
from overlap_sched.report.units import change, count, duration, from_to, printable, size
from overlap_sched.report.words.graph import group_names, group_purposes
from overlap_sched.scheduler.driver import Schedule, schedule
from overlap_sched.scheduler.explain import Decision
from overlap_sched.simulate.allocator import replay_allocator

TAIL = "tail"
WORDS = {
    TAIL: "no compute is left at the end of the step to run meanwhile",
    "dependency": "what is sent was ready too late for an earlier launch",
    "stream": "another collective was still on the stream",
    "memory": "an earlier launch would not have fitted into the memory budget",
    "memory_limit": "no order with earlier launches was found that runs in memory_limit",
    "start": "what is launched at the start of the graph is waited for too soon",
    "choice": "an earlier launch was possible, but not chosen",
    "nothing": "rounding",
}
"""What each cause is, for people."""
ROUNDING = 1e-9
"""Relative to the step: stall time below this comes from adding up floating-point numbers."""


class Cause(Struct, frozen=True, forbid_unknown_fields=True):
    """One cause and what it costs.

    Attributes:
        name: ``tail``, or what blocked the collectives (:data:`overlap_sched.scheduler.driver.Holder`).
        exposed_us: Stall that it causes.
        collectives: How many collectives it makes compute wait for.
    """

    name: str
    exposed_us: float
    collectives: int


def causes(schedule: Schedule) -> tuple[Cause, ...]:
    """Return the causes that cost anything, the most expensive first; they add up to the exposed time of the step."""
    least_us, found = ROUNDING * schedule.scheduled.step_us, defaultdict[str, list[float]](list)
    for stalls in stalls_by_cause(schedule).values():
        for name, us in stalls.items():
            found[name].append(us)
    made = (Cause(name, sum(all_us), sum(us > least_us for us in all_us)) for name, all_us in found.items())
    return tuple(sorted((one for one in made if one.exposed_us > 0), key=lambda one: (-one.exposed_us, one.name)))


def stalls_by_cause(schedule: Schedule) -> dict[NodeId, Mapping[str, float]]:
    """Return the stalls of each collective in microseconds, by cause; from the last compute on, it is the tail."""
    problem, run = schedule.problem, replay(schedule.problem, schedule.order)
    computing = (v for v, node in enumerate(problem.nodes) if node.kind is Kind.COMPUTE and node.time_us)
    last_us, found = max((run.finish_us[v] for v in computing), default=0.0), dict[NodeId, Mapping[str, float]]()
    for decision in schedule.decisions:
        found[decision.collective] = stalls = defaultdict[str, float](float)
        for w in problem.waits.get(decision.collective, ()):
            stalls[TAIL if run.at_us[w] >= last_us else decision.held_by] += run.stall_us[w]
    return found


def with_contention_line(text: str, contention: Contention) -> str:
    """Return a text, and under it a line that says which contention there is, where there is any."""

    def kind_text(kind: str, kinds: Mapping[str, float]) -> str:
        return f"{printable(kind)}*" if kind else f"any {'other ' * (len(kinds) > 1)}collective"

    slowdown = sorted(contention.slowdown.items(), key=lambda one: one[0] == "")  # "any other" comes last
    beside = [f"{factor:.15g} times as long beside {kind_text(kind, contention.slowdown)}" for kind, factor in slowdown]
    parts = [f"compute takes {', '.join(beside)}"] * any(factor != 1.0 for _, factor in slowdown)
    for kind, share in contention.shares.items():
        parts.append(f"{share:.15g} of that where compute is bound by its {kind}")
    for kind, factor in contention.stretch.items():
        parts.append(f"{kind_text(kind, contention.stretch)} takes {factor:.15g} times as long beside compute")
    if contention.lanes > 1:
        each = f"each takes {contention.crowding:.15g} times as long as one alone"
        parts.append(f"of {contention.lanes} collectives of a group in flight at once {each}")
    for link in contention.shared_links:
        *groups, last = sorted(printable(group) for group, its in contention.links.items() if its == link)
        parts.append(f"groups {', '.join(groups)} and {last} share link {printable(link)}")
    return "\n".join(filter(None, [text, f"With contention: {'; '.join(parts)}." if parts else ""]))


def pins_text(schedule: Schedule) -> str:
    """Say which pins the order keeps, or was to keep, and of how many nodes they are; ``""``: there are none."""
    found = pinned(schedule.problem, schedule.options.pins)
    listed = [f"'{printable(one.pin.text)}' ({count(len(one.nodes), 'node')})" for one in found]
    return f"Pins {'kept' if schedule.fell_back is None else 'asked for'}: {', '.join(listed)}." if listed else ""


def collectives_text(problem: Problem) -> str:
    """``3 collectives``, ``3 collectives (1 blocks compute)``: launched by an operator itself, or in a sub-graph."""
    blocking = sum(group != ANY_GROUP for node in problem.nodes for group in node.launches)
    text = count(len(problem.collectives) + blocking, "collective")
    return f"{text} ({blocking:,} block{'s' * (blocking == 1)} compute)" if blocking else text


def together_text(schedule: Schedule) -> str:
    """Say what keeping groups apart costs, or that they are not; ``""``: there is nothing to be said."""
    step_us, apart_us = schedule.unrestricted_us, schedule.scheduled.step_us
    if step_us is not None:
        costs = f"the step takes {from_to(duration(step_us), duration(apart_us))} ({change(step_us, apart_us)})"
        return f"To keep process groups apart ({schedule.options.concurrent_groups}) {costs}."
    before, after = schedule.original.groups_together, schedule.scheduled.groups_together
    hint = " Forbid that by concurrent_groups='disjoint' (--concurrent-groups disjoint)." if after > before else ""
    pairs = f"{count(after, 'pair')} of collectives of groups that share ranks, {before:,} originally"
    return f"In flight together: {pairs}.{hint}" if before or after else ""


class Reserved(NamedTuple):
    """Bytes reserved on a device without a limit.

    Attributes:
        original_reserved_bytes, reserved_bytes: For the original order, and for the new one.
        settings: Of the allocator.
    """

    original_reserved_bytes: int
    reserved_bytes: int
    settings: AllocatorSettings

    @property
    def title(self) -> str:
        """``reserved, plain segments``."""
        kind = {PLAIN: "plain segments", EXPANDABLE: "expandable segments"}.get(self.settings, VARIABLES[0])
        return f"reserved, {kind}"


def settings_for(problem: Problem, options: Options | None = None) -> AllocatorSettings | None:
    """Return the allocator that is replayed for reports; ``None``: none is, as in the tracker's memory model."""
    settings = replayed_allocator(options or Options(memory_model=problem.memory_model))
    return settings if problem.memory_model == "runtime" else None


def reserved_for(
    problem: Problem, order: Order, options: Options | None = None, original: Problem | None = None
) -> Reserved | None:
    """Replay the original order and a new one; ``None`` where none is replayed.

    Args:
        problem: Of the new order.
        order: The new one.
        options: Say which allocator is replayed; ``None``: the defaults.
        original: Whose order is the original one; ``None``: the same problem (else it was rewritten).
    """
    settings, was = settings_for(problem, options), original or problem
    if settings is None:
        return None
    before = after = replay_allocator(problem, order, settings).reserved_bytes
    if was is not problem or order != was.original_order:
        before = replay_allocator(was, was.original_order, settings).reserved_bytes
    return Reserved(before, after, settings)


def reserved_of(schedule: Schedule, original: Problem | None = None) -> Reserved | None:
    """Replay the orders of a schedule, with the allocator of its options."""
    return reserved_for(schedule.problem, schedule.order, schedule.options, original)


Rows = list[tuple[str, ...]]


def change_row(what: str, shown: Callable[..., str], before: float, after: float, limit: str = "") -> tuple[str, ...]:
    """Return cells: what is looked at, original, scheduled, change, limit."""
    return what, shown(before), shown(after), change(before, after), limit


def reserved_rows(found: Reserved | None, limit_bytes: int = 0) -> Rows:
    """Return the row of a table; ``limit_bytes``: of the device, where there is a limit."""
    return (
        [] if found is None else [change_row(found.title, size, *found[:2], size(limit_bytes) if limit_bytes else "")]
    )


def remarks(schedule: Schedule) -> list[str]:
    """Say what went otherwise than wished, and what the order keeps to."""
    kept = "" if schedule.fell_back is None else f"The original order was kept: {printable(schedule.fell_back)}."
    return [line for line in (kept, short_text(schedule), pins_text(schedule), together_text(schedule)) if line]


def short_text(schedule: Schedule) -> str:
    """Say what a device of ``memory_limit`` lacks for the order; ``""``: nothing, or there is no limit."""
    if schedule.memory_limit_bytes is None or not schedule.short_bytes:
        return ""
    return (
        f"No order was found that runs in the memory_limit of {size(schedule.memory_limit_bytes)}: this one needs "
        f"{size(schedule.short_bytes)} more. Raise the limit, or let `overlap-sched fit` recompute and offload."
    )


WHY = {
    "reference": "it was the next node of the order that the scheduler started from",
    "latest start": "its latest start would have passed while the next compute ran",
    "frees memory": "its latest start would have passed while the next compute ran, and it frees memory",
    "beside another": "a collective of another link is in flight, so that it slows compute no more",
    "no stall": "every other ready node would have stalled",
    "deferred": "its compute was deferred behind a launch that it hides",
    "searched": "the best of the orders searched (the graph is small) has it there",
    "original": "the original order was kept",
}
"""Why a collective is launched where it is."""


def gap_percent(step_us: float, bound_us: float) -> float:
    """Return how far a step is above its lower bound, in percent; 0 where the bound is 0, or it is rounding."""
    gap = 100 * (step_us / bound_us - 1) if bound_us > 0 else 0.0
    return 0.0 if abs(gap) < 1e-7 else gap


def summary(schedule: Schedule, rows: Rows) -> Table:
    """Return a table of :func:`summary_rows` for :mod:`rich` to print."""
    problem = schedule.problem
    groups = {group for node in problem.nodes for group in launched_on(node)} - {ANY_GROUP}
    seconds = f"Scheduled in {schedule.schedule_s:.2f} s. " if schedule.schedule_s else ""
    return captioned_table(
        f"{printable(problem.name)}: {count(len(problem.nodes), 'node')}, "
        f"{collectives_text(problem)} on {count(len(groups), 'process group')}",
        seconds + conditions(schedule),
        ("original", "scheduled", "change", "limit"),
        "",
        rows,
    )


def conditions(schedule: Schedule) -> str:
    """Say what the figures of :func:`summary_rows` are of."""
    said = (
        f"Simulated, in the {schedule.problem.memory_model} memory model: one compute stream, one stream per process "
        f"group. Limits: a lower bound on any order's step; the memory budget, {budget_words(schedule)}."
    )
    return with_contention_line(said, schedule.problem.contention)


def summary_rows(
    schedule: Schedule,
    reserved: Reserved | None,
    gain: tuple[float, float] | None = None,
    device_bytes: int = 0,
) -> Rows:
    """Return rows: what is looked at, original, scheduled, change, limit; short rows end in empty cells.

    Args:
        schedule: Of which the figures are.
        reserved: Of both orders; ``None``: not replayed.
        gain: By :func:`gain_of`; ``None``: no row.
        device_bytes: Of the device, where no limit is asked for; 0: not known.
    """
    before, after = schedule.original, schedule.scheduled
    bound_us, budget_bound, step = schedule.lower_bound_us, schedule.budget_bound_us, (before.step_us, after.step_us)
    rows: Rows = [
        change_row("step", duration, *step, duration(bound_us)),
        change_row("exposed", duration, before.exposed_us, after.exposed_us),
        change_row("peak memory", size, before.peak_bytes, after.peak_bytes, size(schedule.budget_bytes)),
        ("gap to the lower bound", *(f"{gap_percent(us, bound_us):.1f} %" for us in step)),
    ]
    if budget_bound > bound_us * (1 + ROUNDING):
        gaps = (f"{gap_percent(us, budget_bound):.1f} %" for us in step)
        rows.append(("... within the budget", *gaps, "", duration(budget_bound)))
    if gain is not None:
        rows.append(("speed (9 of 10 draws)", "1.0x", gain_text(*step, gain)))
    return rows + reserved_rows(reserved, schedule.memory_limit_bytes or device_bytes)


def gain_of(schedule: Schedule, original: Problem | None = None) -> tuple[float, float] | None:
    """Return between which factors the step is shorter at drawn prices; ``None``: the original order stayed.

    ``original``: the problem of the original order, where the schedule's was rewritten.
    """
    was, now = original or schedule.problem, schedule.problem
    if was is now and schedule.order == now.original_order:
        return None
    return gain_range((was, was.original_order), (now, schedule.order))


def gain_text(before_us: float, after_us: float, gain: tuple[float, float] | None) -> str:
    """``2.5x (2.2 to 2.7)``."""
    between = f" ({gain[0]:.1f} to {gain[1]:.1f})" if gain else ""
    return f"{before_us / after_us if after_us else 1.0:.1f}x{between}"


def explanation(schedule: Schedule, collective: str | None = None, top: int | None = None) -> str:
    """Say why the step is exposed, in totals; then why each collective is where it is, the most exposed first.

    Args:
        schedule: What to explain.
        collective: Only this one, by its name, without the totals.
        top: Only so many of the most exposed; ``None``: all.

    Raises:
        ProblemError: There is no collective of that name.
    """
    decisions, called = schedule.decisions, group_names(group_purposes(schedule.problem))
    listed = most_exposed(schedule, top, collective)
    records = [_record(schedule, d, called) for d in listed]
    if collective is not None:
        return with_contention_line(records[0], schedule.problem.contention)
    exposed = sum(d.exposed_us > ROUNDING * schedule.scheduled.step_us for d in decisions)
    summed = (
        f"{printable(schedule.problem.name)}: {count(len(decisions), 'collective')}, {exposed} exposed for "
        f"{duration(schedule.scheduled.exposed_us)} in all (simulated, {schedule.problem.memory_model} memory model)."
    )
    head = [with_contention_line(summed, schedule.problem.contention), *remarks(schedule)]
    shown = [f"The {len(listed):,} most exposed of {len(decisions):,} (--all shows every one):"] if listed else []
    rows = [
        (duration(cause.exposed_us), f"{cause.collectives:,}", WORDS.get(cause.name, cause.name))
        for cause in causes(schedule)
        if cause.collectives  # else it is rounding
    ]
    title = "Exposed time by cause, and of how many collectives:" if rows else "Nothing is exposed."
    return "\n\n".join(["\n".join(head), "\n".join([title, *align_rows(rows)]), *shown, *records])


def most_exposed(schedule: Schedule, top: int | None = None, collective: str | None = None) -> list[Decision]:
    """Return the decisions, the most exposed collective first; only the first ``top``, or that of one collective."""
    if collective is None:
        return sorted(schedule.decisions, key=lambda d: (-d.exposed_us, d.position))[:top]
    problem = schedule.problem
    names = {problem.nodes[v].name: v for v in problem.collectives}
    if collective not in names:
        some = f" There are {', '.join([*names][:3]) or 'none'}{', ...' * (len(names) > 3)}."
        near = close_to(collective, names) or some
        raise ProblemError(f"problem {problem.name!r} has no collective named {collective!r}.{near}")
    return [d for d in schedule.decisions if d.collective == names[collective]]


def _record(schedule: Schedule, decision: Decision, called: Mapping[str, str]) -> str:
    """Tell of one decision in a few lines: what, where and why, when, and what blocked it."""
    problem, node = schedule.problem, schedule.problem.nodes[decision.collective]
    group, module = problem.groups[node.group or ""], f" in {printable(node.module)}" if node.module else ""
    hiding = [f"{printable(problem.nodes[v].name)} ({duration(problem.nodes[v].time_us)})" for v in decision.under]
    under = f" under {', '.join(hiding)}" if hiding else ""
    waited = "nothing in this graph waits for it"
    if decision.collective in problem.waits:
        waited = f"first waited for at {duration(decision.wait_us)}"
    lines = [
        f"{printable(node.name)}{module}: {printable(node.op) or 'collective'} on group {called[node.group or '']} "
        f"of {group.size}, {size(node.bytes)}, {duration(node.time_us)}",
        f"  exposed {duration(decision.exposed_us)}, hidden {duration(decision.hidden_us)}{under}",
        f"  launched at position {decision.position:,} (originally {decision.original_position:,}), at "
        f"{duration(decision.launch_us)}: {WHY[decision.reason]}",
        f"  ran from {duration(decision.start_us)} to {duration(decision.finish_us)}; {waited}",
        f"  blocked by {blocked_by(problem, decision)}",
        f"  {refusal(problem, decision)}",
    ]
    return "\n".join(filter(str.strip, lines))


def blocked_by(problem: Problem, decision: Decision) -> str:
    """Say what keeps a collective from being launched sooner."""
    if decision.held_by == "nothing":
        return "nothing"
    by = "" if decision.held_node is None else f" ({printable(problem.nodes[decision.held_node].name)})"
    return f"{decision.held_by}{by}: {WORDS[decision.held_by]}"


def refusal(problem: Problem, decision: Decision) -> str:
    """Say by how much the first refused launch would have broken the budget, and where; ``""``: none was refused."""
    if (at := decision.over_position) is None:
        return ""
    return (
        f"memory refused an earlier launch: {size(decision.over_bytes)} ({decision.over_bytes:,} bytes) over the "
        f"budget while {printable(problem.nodes[at].name)} runs (position {at:,} of the original order)"
    )


def budget_words(schedule: Schedule) -> str:
    """Say what the memory budget is made of."""
    base = "the original peak" if schedule.options.budget == "peak" else "the original profile (its peak is shown)"
    base = "the lowest peak found" if schedule.base_bytes < schedule.original.peak_bytes else base
    more = schedule.headroom_bytes
    return f"{base} {'minus' if more < 0 else 'plus'} {size(abs(more))}"


Came = Literal["runs", "fails", "kept", "reordered"]
"""``reordered``: whether it runs in a ``memory_limit`` was not asked."""


def verdict(
    schedule: Schedule, original: Problem, reserved: Reserved | None, fits: bool | None = None
) -> tuple[Came, str, str]:
    """Return what came of a schedule, the same in words, and its figures.

    Args:
        schedule: What to tell of.
        original: The graph of the original order: another one than the schedule's where it was rewritten.
        reserved: Of both orders; ``None``: not replayed.
        fits: Does it fit into the memory limit that was asked for (the budget)? ``None``: none was.
    """
    limit = schedule.memory_limit_bytes
    came: Came = "reordered"
    if original is schedule.problem and schedule.order == schedule.problem.original_order:
        came = "kept"
    elif fits is not None or limit is not None:
        came = "runs" if (not schedule.short_bytes if fits is None else fits) else "fails"
    into = size(schedule.budget_bytes if limit is None else limit)
    fit = {"runs": f"Fits into {into}", "fails": f"Does not fit into {into}", "kept": "Original order kept"}
    return came, fit.get(came, "Reordered"), "; ".join(figures_text(summary_rows(schedule, reserved)))


def figures_text(rows: Rows) -> list[str]:
    """``step 190.0 -> 150.0 us (-21.1 %)``: of each row with a change."""
    return [f"{row[0]} {from_to(*row[1:3])} ({row[3]})" for row in rows if any(row[3:4])]


def why_no_better(kept: Schedule) -> str:
    """Say why a schedule has the original order: what exposes it, the two most expensive causes."""
    if kept.fell_back is not None:
        return kept.fell_back
    if kept.options.effort == 0:
        return "no other order was looked for (effort=0)"
    if not kept.problem.collectives and kept.options.base != "original":
        return "no order with a clearly lower peak was found"
    parts = [
        f"{duration(one.exposed_us)} stay exposed because {WORDS[one.name]} ({count(one.collectives, 'collective')})"
        for one in _causes(kept)
        if one.collectives
    ]
    return f"no better order was found: {', '.join(parts[:2]) or 'nothing is exposed'}"


def _causes(kept: Schedule) -> tuple[Cause, ...]:
    """List what exposes an order, with what memory refuses as a cause of its own; the most expensive first."""
    if not kept.scheduled.exposed_us:
        return ()
    roomy = {"headroom": MAX_TOTAL_BYTES, "memory_limit": None, "base": "original", "effort": 1, "strict": False}
    free = schedule(kept.problem, replace(kept.options, **roomy))  # type: ignore[arg-type]
    name = "memory" if free.scheduled.peak_bytes > kept.budget_bytes else "memory_limit"
    hidden_us = kept.scheduled.exposed_us - free.scheduled.exposed_us
    refused = hidden_us > 0 and free.scheduled.step_us < kept.scheduled.step_us
    if not refused or (name == "memory_limit" and kept.memory_limit_bytes is None):
        return causes(kept)
    exposed_us = {d.collective: d.exposed_us for d in free.decisions}
    hidden = sum(d.exposed_us > exposed_us[d.collective] for d in kept.decisions)
    return tuple(sorted((Cause(name, hidden_us, hidden), *causes(free)), key=lambda one: (-one.exposed_us, one.name)))

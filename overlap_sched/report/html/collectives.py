"""The rows of the page's tables: collectives, why each is where it is and what it was before, and rewrites."""

from collections.abc import Mapping

from overlap_sched.judge.replay import Replay, replay
from overlap_sched.problem import Problem
from overlap_sched.report.causes import causes, last_compute_us, stalls_by_cause
from overlap_sched.report.html.beside import Extras
from overlap_sched.report.html.data import CollectiveRow, RewriteRow
from overlap_sched.report.units import printable
from overlap_sched.report.words.rewrites import record_text
from overlap_sched.report.words.schedule import blocked_by, launched_because, most_exposed, refusal
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.scheduler.explain import Decision
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.rewrites import Bucket, Keep, Offload, Regather, Rewrite, Split, Stream


def collective_rows(schedule: Schedule, original: Problem, extras: Extras) -> tuple[CollectiveRow, ...]:
    """The most exposed first; ``original`` is the graph as it was."""
    problem = schedule.problem
    before, after = replay(original, original.original_order), replay(problem, schedule.order)
    number = {cause.name: at for at, cause in enumerate(causes(schedule))}
    last_us = last_compute_us(problem, after)
    stood_for = _stood_for(schedule, original, extras.made)
    return tuple(
        CollectiveRow(
            node=d.collective,
            before=stood_for[d.collective],
            bytes=problem.nodes[d.collective].bytes,
            time_us=problem.nodes[d.collective].time_us,
            earlier=d.original_position - d.position,
            original_exposed_us=_exposed_us(original, before, stood_for[d.collective]),
            exposed_us=d.exposed_us,
            hidden_us=d.hidden_us,
            causes=tuple(
                (number[name], us) for name, us in stalls_by_cause(problem, after, d, last_us).items() if us > 0
            ),
            why=f"blocked by {blocked_by(problem, d)}",
            more=_more(problem, d),
        )
        for d in most_exposed(schedule)
    )


def rewrite_rows(schedule: Schedule, made: Plan | None) -> tuple[RewriteRow, ...]:
    """In the order in which they are done."""
    if made is None:
        return ()
    ids = {schedule.problem.nodes[v].name: v for v in schedule.problem.collectives}
    return tuple(RewriteRow(printable(record_text(one)), ids.get(_launch(one.rewrite), -1)) for one in made.records)


def marked_nodes(problem: Problem, other: Problem, extras: Extras) -> tuple[int, ...]:
    """Nodes that are not in the other graph, and collectives that went to another communicator."""
    made = extras.told
    if made is None:
        return ()
    moved = {one.collective for one in made.rewrites if isinstance(one, Stream)}
    if extras.made is None:  # the other graph is not on the page
        was, new = ({node.name for node in each.problem.nodes} for each in (made.without, made.schedule))
        marked = (new - was) | moved
    else:
        marked = {node.name for node in problem.nodes} - {node.name for node in other.nodes} | moved
    return tuple(v for v, node in enumerate(problem.nodes) if node.name in marked)


def _launch(rewrite: Rewrite) -> str:
    """The name of (the first of) the collectives that stand for what was rewritten."""
    match rewrite:
        case Bucket() | Regather():
            return rewrite.name
        case Split():
            return f"{rewrite.name}_0"
        case Keep():
            return rewrite.first
        case Stream():
            return rewrite.collective
        case Offload():
            return rewrite.name
    return ""


def _stood_for(schedule: Schedule, original: Problem, made: Plan | None) -> Mapping[int, tuple[int, ...]]:
    """Per collective, the ids of the original ones that it stands for; of a split one, the first part stands for it."""
    ids = {original.nodes[v].name: v for v in original.collectives}
    members: dict[str, tuple[str, ...]] = {}
    for rewrite in () if made is None else made.rewrites:
        match rewrite:
            case Bucket():
                members[rewrite.name] = rewrite.members
            case Split():
                members[f"{rewrite.name}_0"] = (rewrite.collective,)
    found = {}
    for v in schedule.problem.collectives:
        name = schedule.problem.nodes[v].name
        found[v] = tuple(ids[one] for one in members.get(name, (name,)) if one in ids)
    return found


def _exposed_us(problem: Problem, run: Replay, collectives: tuple[int, ...]) -> float:
    return sum(run.stall_us[w] for c in collectives for w in problem.waits.get(c, ()))


def _more(problem: Problem, decision: Decision) -> str:
    refused = "" if decision.over_position is None else f"; {refusal(problem, decision, decision.over_position)}"
    return f"launched there because: {launched_because(decision)}{refused}"

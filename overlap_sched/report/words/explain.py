"""What ``overlap-sched explain --json`` prints: the totals by cause, and a record per collective."""

from typing import Any

from overlap_sched.report.causes import causes
from overlap_sched.report.words.contention import contention_figures
from overlap_sched.report.words.schedule import find_collective, most_exposed
from overlap_sched.scheduler.result import Decision, Schedule


def explain_figures(schedule: Schedule, collective: str | None = None, top: int | None = None) -> dict[str, Any]:
    """Microseconds and bytes; arguments as of :func:`overlap_sched.report.words.schedule.explanation`.

    Raises:
        UnknownIdError: There is no collective of that name.
    """
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

"""Reports of graphs as JSON, for ranks that write what they have found."""

from dataclasses import asdict
from typing import Any

from overlap_sched.inductor import GraphReport
from overlap_sched.problem import Kind


def report_data(one: GraphReport) -> dict[str, Any]:
    plan = one.report.schedule
    nodes = [] if plan is None else [plan.problem.nodes[v] for v in plan.order]
    return {
        "name": one.name,
        "stage": one.stage,
        "changed": one.report.changed,
        "reason": one.report.reason,
        "original": None if plan is None else asdict(plan.original),
        "scheduled": None if plan is None else asdict(plan.scheduled),
        "order": [node.name for node in nodes if node.kind is not Kind.INPUT],
    }

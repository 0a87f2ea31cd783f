"""What ``overlap-sched diff --json`` prints."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from overlap_sched.report.diff.figures import UNITS, Figure
from overlap_sched.report.diff.orders import Moved, OrdersDiff
from overlap_sched.report.words.contention import contention_figures


def figure_data(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Each with its unit; ``change_percent`` is null where A has none of it, and of a gap in percentage points."""
    return [
        {
            "name": figure.name,
            "of": figure.of,
            "unit": UNITS[figure.name],
            "before": figure.before,
            "after": figure.after,
            "change": figure.change,
            "change_percent": 100 * figure.share if abs(figure.share) < float("inf") else None,
        }
        for figure in figures
    ]


def orders_data(diff: OrdersDiff, top: int | None) -> dict[str, Any]:
    """Return what two orders have beyond the figures; times in microseconds."""
    problem = diff.problem
    before = {cause.name: cause for cause in diff.before.causes}
    after = {cause.name: cause for cause in diff.after.causes}
    return {
        "name": problem.name,
        "nodes": len(problem.nodes),
        "memory_model": problem.memory_model,
        "contention": contention_figures(problem.contention),
        "moved": len(diff.moved),
        "causes": [
            {
                "name": name,
                "before_us": before[name].exposed_us if name in before else 0.0,
                "after_us": after[name].exposed_us if name in after else 0.0,
            }
            for name in sorted({**before, **after})
        ],
        "collectives_changed": len(diff.collectives),
        "collectives": [_collective(diff, moved) for moved in diff.collectives[:top]],
    }


def _collective(diff: OrdersDiff, moved: Moved) -> dict[str, Any]:
    node = diff.problem.nodes[moved.collective]
    return {
        "name": node.name,
        "group": node.group,
        "launch_moved": moved.launch,
        "wait_moved": moved.wait,
        "exposed_change_us": moved.exposed_us,
        "before": asdict(moved.before),
        "after": asdict(moved.after),
    }

"""Steps on other machines, as a table and as data."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from overlap_sched.analysis.whatif import WhatIfPoint
from overlap_sched.peak_memory.allocator.reserved import replay_allocator
from overlap_sched.problem import Order
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import change, duration, from_to, printable, size
from overlap_sched.report.words.contention import contention_figures, with_contention_line
from overlap_sched.report.words.schedule import gap_percent
from overlap_sched.scheduler.result import Figures


def whatif_table(points: Sequence[WhatIfPoint], cluster: str) -> Table:
    """One line per variant: step, exposed time, memory, and the gap to the lower bound."""
    names = list(points[0].varied)
    problem = points[0].found.problem
    table = captioned_table(
        title=f"{printable(problem.name)} on {printable(cluster)}",
        caption=with_contention_line(
            "Simulated, collectives priced anew for each line: the original order -> ours. Exposed and peak: of ours. "
            "Reserved: what torch's caching allocator would reserve more (plain segments). Gap: above the lower bound.",
            problem.contention,
        ),
        numbers=(*names, "step", "exposed", "peak", "reserved", "gap"),
    )
    for point in points:
        found = point.found
        before, after = found.original, found.scheduled
        table.add_row(
            *(_value(name, value) for name, value in point.varied.items()),
            from_to(duration(before.step_us), duration(after.step_us)),
            duration(after.exposed_us),
            size(after.peak_bytes),
            change(*(_reserved_bytes(point, order) for order in (problem.original_order, found.order))),
            f"{gap_percent(found.scheduled.step_us, found.lower_bound_us):.2f} %",
        )
    return table


def whatif_answer(points: Sequence[WhatIfPoint]) -> str:
    """Say what it brings, in a sentence."""
    ordered = sorted(points, key=lambda point: point.found.scheduled.step_us)
    if len(ordered) == 1:
        return f"The step with {_at(ordered[0])}."
    return f"The shortest step is that with {_at(ordered[0])}; the longest that with {_at(ordered[-1])}."


def _at(point: WhatIfPoint) -> str:
    varied = ", ".join(f"{name} {_value(name, value)}" for name, value in point.varied.items())
    return f"{varied}: {duration(point.found.scheduled.step_us)}"


def whatif_figures(points: Sequence[WhatIfPoint], cluster: str) -> dict[str, Any]:
    """The same as data."""
    problem = points[0].found.problem
    return {
        "name": problem.name,
        "cluster": cluster,
        "memory_model": problem.memory_model,
        "contention": contention_figures(problem.contention),
        "points": [_figures(point) for point in points],
    }


def _figures(point: WhatIfPoint) -> dict[str, Any]:
    def side(figures: Figures, order: Order) -> Mapping[str, float]:
        return {
            "step_us": figures.step_us,
            "exposed_us": figures.exposed_us,
            "peak_bytes": figures.peak_bytes,
            "reserved_bytes": _reserved_bytes(point, order),
        }

    found = point.found
    return {
        "varied": dict(point.varied),
        "original": side(found.original, found.problem.original_order),
        "scheduled": side(found.scheduled, found.order),
        "lower_bound_us": found.lower_bound_us,
        "gap_percent": gap_percent(found.scheduled.step_us, found.lower_bound_us),
        "fell_back": found.fell_back,
    }


def _reserved_bytes(point: WhatIfPoint, order: Order) -> int:
    return replay_allocator(point.found.problem, order).reserved_bytes


def _value(name: str, value: float) -> str:
    return f"{value:g}" if name == "ranks" else f"x{value:g}"

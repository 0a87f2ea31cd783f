"""What came of a run: figures predicted by the scheduler next to those measured."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from llama_repro.training.measure import Profiled, matmuls_in_between
from overlap_sched.inductor import GraphReport
from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.scheduler.driver import Figures, Schedule


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        losses: By step, from ``first_step`` (0-based) on.
        step_s: Seconds of each of these steps; the first one compiles.
        traffic_us: Of each of these steps, with a slow network, see ``Traffic.taken``; else empty.
        peak_bytes: Most bytes of tensors on this rank; ``None``: not measured (on a CPU: without ``--measure``).
        kernels: Fused kernels that Inductor has generated.
        weights: Per rank, a digest of the final shards.
        profiled: The step that was profiled.
        reports: What the scheduler reports of each compiled graph.
    """

    first_step: int
    losses: tuple[float, ...]
    step_s: tuple[float, ...]
    traffic_us: tuple[tuple[float, float, float], ...]
    peak_bytes: int | None
    kernels: int
    weights: tuple[str, ...]
    profiled: Profiled | None
    reports: tuple[GraphReport, ...]

    @property
    def typical_step_s(self) -> float | None:
        """Median of the steps after the first; ``None`` where there is none."""
        return statistics.median(self.step_s[1:]) if len(self.step_s) > 1 else None

    @property
    def compile_s(self) -> float | None:
        """What the first step took longer than the others: tracing, compiling, agreeing."""
        typical = self.typical_step_s
        return None if typical is None else self.step_s[0] - typical

    @property
    def network(self) -> tuple[float, float, float] | None:
        """Medians of ``Traffic.taken`` over the steps after the first, in microseconds; ``None`` without a network."""
        later = self.traffic_us[1:]
        if not later:
            return None
        link_us, exposed_us, blocked_us = (statistics.median(values) for values in zip(*later, strict=True))
        return link_us, exposed_us, blocked_us

    def to_json(self) -> dict[str, Any]:
        """Losses as hexadecimal floats, exact to the bit."""
        return {
            "first_step": self.first_step,
            "losses": [loss.hex() for loss in self.losses],
            "step_s": list(self.step_s),
            "typical_step_s": self.typical_step_s,
            "compile_s": self.compile_s,
            "network_us": self.network,
            "peak_bytes": self.peak_bytes,
            "kernels": self.kernels,
            "weights": list(self.weights),
            "graphs": [graph_figures(report) for report in self.reports],
            "measured": None if self.profiled is None else asdict(self.profiled),
        }


def graph_figures(report: GraphReport) -> dict[str, Any]:
    """A report as figures: before, and as the graph was left."""
    plan, changed = report.report.schedule, report.report.changed
    if plan is None:
        return {"name": report.name, "changed": False, "reason": report.report.reason}
    order = plan.order if changed else plan.problem.original_order
    return {
        "name": report.name,
        "changed": changed,
        "reason": report.report.reason,
        "collectives": len(plan.problem.collectives),
        "original": _figures(plan.problem, plan.problem.original_order, plan.original),
        "used": _figures(plan.problem, order, plan.scheduled if changed else plan.original),
        "schedule_s": schedule_s(report, plan),
    }


def schedule_s(report: GraphReport, plan: Schedule) -> float:
    """Seconds that our pass added: lifting, scheduling, putting the order back."""
    return report.report.lift_s + plan.schedule_s


def program_of(problem: Problem, order: Order) -> str:
    """The program of an order, as :mod:`~llama_repro.training.measure` has it: what computes by FLOPs is a product."""
    letters = {Kind.COLLECTIVE: "L", Kind.WAIT: "W"}
    nodes = (problem.nodes[v] for v in order)
    return "".join(letters.get(node.kind, "M" if node.flops else "") for node in nodes)


def total_us(graphs: Sequence[dict[str, Any]], which: str, figure: str) -> float | None:
    """A figure summed over the graphs of one micro batch; ``None`` where no graph was scheduled."""
    known = [graph[which][figure] for graph in graphs if which in graph]
    return sum(known) if known else None


def _figures(problem: Problem, order: Order, figures: Figures) -> dict[str, Any]:
    inputs = {s for node in problem.nodes if node.kind is Kind.INPUT for s in node.alloc}
    program = program_of(problem, order)
    return {
        **asdict(figures),
        "growth_bytes": figures.peak_bytes - sum(problem.storages[s].bytes for s in inputs),
        "link_us": sum(node.time_us for node in problem.nodes if node.kind is Kind.COLLECTIVE),
        "matmuls_in_between": matmuls_in_between(program),
        "program": program,
    }

"""The graphs of a pipelined job in words and figures: each as written and as ordered, and pairs that run together."""

from typing import Any

from rich.table import Table

from overlap_sched.judge.validate import JudgedOrder
from overlap_sched.pipeline.graphs import JobGraphs, MeasuredGraph
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import count, duration, printable, size


def graphs_table(graphs: JobGraphs) -> Table:
    """A row per graph, then one per pair that is shorter for being interleaved."""
    gain = [one for one in graphs.pairs.values() if one.ordered.timeline.step_us < one.before.timeline.step_us]
    rest = len(graphs.pairs) - len(gain)
    table = captioned_table(
        title="Graphs of the job, before and after ordering",
        caption="Simulated. A pair is a forward and a backward that run together; before: the backward, then the "
        "forward, each in its order. Exposed: compute waits for communication. What a memory limit leaves beside a "
        "schedule, its graphs use beyond this."
        + (f" Not shown: {count(rest, 'pair')} that is no shorter." if rest == 1 else "")
        + (f" Not shown: {count(rest, 'pair')} that are no shorter." if rest > 1 else ""),
        numbers=("nodes", "step", "ordered", "exposed", "ordered", "peak", "ordered"),
        first="graph",
    )
    for one in (*graphs.graphs.values(), *gain):
        cells: list[str] = []
        for say in (_step, _exposed, _peak):
            cells += [say(one.before), say(one.ordered)]
        table.add_row(printable(one.name), f"{len(one.problem.nodes):,}", *cells)
    return table


def graph_figures(graphs: JobGraphs) -> dict[str, Any]:
    """Parts of the answer as JSON."""
    return {
        "graphs": [{"name": name, **_figures(one)} for name, one in graphs.graphs.items()],
        "pairs": [{"forward": ahead, "backward": back, **_figures(one)} for (ahead, back), one in graphs.pairs.items()],
    }


def _figures(one: MeasuredGraph) -> dict[str, Any]:
    return {"nodes": len(one.problem.nodes), "before": _judged(one.before), "ordered": _judged(one.ordered)}


def _judged(run: JudgedOrder) -> dict[str, Any]:
    line = run.timeline
    return {"step_us": line.step_us, "exposed_us": line.exposed_us, "peak_bytes": max(run.profile)}


def _step(run: JudgedOrder) -> str:
    return duration(run.timeline.step_us)


def _exposed(run: JudgedOrder) -> str:
    return duration(run.timeline.exposed_us)


def _peak(run: JudgedOrder) -> str:
    return size(max(run.profile))

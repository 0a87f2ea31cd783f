"""What ``overlap-sched explain --costs`` shows: every node's price, the largest first, and totals by source."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from overlap_sched.cost import Price
from overlap_sched.problem import Kind, Problem
from overlap_sched.report.units import count, duration, printable, size

_FLOPS_UNITS = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))
_BOUNDS = {"flops": "arithmetic", "bytes": "memory", "kernel": "kernel launch"}
"""Limits in words; the others are words already."""


def cost_figures(problem: Problem, prices: Sequence[Price], top: int | None = None) -> dict[str, Any]:
    """Microseconds, bytes and floating-point operations of the ``top`` longest nodes; ``None``: of all with a time."""
    nodes = problem.nodes
    timed = sorted((v for v, node in enumerate(nodes) if node.time_us), key=lambda v: (-nodes[v].time_us, v))
    return {
        "name": problem.name,
        "nodes": len(nodes),
        "compute_us": sum(nodes[v].time_us for v in timed if nodes[v].kind is Kind.COMPUTE),
        "collective_us": sum(nodes[v].time_us for v in timed if nodes[v].kind is Kind.COLLECTIVE),
        "sources": _sources(problem, prices),
        "costs": [_record(problem, v, prices[v]) for v in timed[:top]],
    }


def _sources(problem: Problem, prices: Sequence[Price]) -> list[dict[str, Any]]:
    """Totals by kind and source, the largest first; percent of all nodes of that kind."""
    us: dict[tuple[str, str], float] = defaultdict(float)
    of_kind: dict[str, float] = defaultdict(float)
    nodes: Counter[tuple[str, str]] = Counter()
    for node, price in zip(problem.nodes, prices, strict=True):
        if node.time_us:
            key = (node.kind.value, price.source)
            us[key] += node.time_us
            of_kind[node.kind.value] += node.time_us
            nodes[key] += 1
    return [
        {
            "source": key[1],
            "kind": key[0],
            "nodes": nodes[key],
            "time_us": us[key],
            "percent": 100 * us[key] / of_kind[key[0]],
        }
        for key in sorted(us, key=lambda key: (-us[key], key))
    ]


def _record(problem: Problem, v: int, price: Price) -> dict[str, Any]:
    node = problem.nodes[v]
    return {
        "name": node.name,
        "op": node.op,
        "kind": node.kind.value,
        "group": node.group,
        "time_us": node.time_us,
        "source": price.source,
        "bound": price.bound or None,
        "part_of": price.part_of or None,
        "flops": node.flops,
        "bytes": node.bytes,
    }


def cost_text(problem: Problem, prices: Sequence[Price], top: int | None = None) -> str:
    """The same in words: totals by source, then a line per node."""
    figures = cost_figures(problem, prices, top)
    lines = [
        f"{printable(problem.name)}: {count(figures['nodes'], 'node')}, compute {duration(figures['compute_us'])}, "
        f"collectives {duration(figures['collective_us'])} (predicted)"
    ]
    for total in figures["sources"]:
        lines.append(
            f"  {total['kind']:<10}  {total['source']:<8}  {duration(total['time_us']):>12}  "
            f"{total['percent']:5.1f} %  in {total['nodes']:,}"
        )
    rows = [_row(record) for record in figures["costs"]]
    if rows:
        head = ("time", "source", "bound by", "flops", "bytes", "node")
        widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
        lines.append("longest:")
        lines += ["  " + _line(row, widths) for row in [head, *rows]]
    return "\n".join(lines)


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    what = f"{printable(record['name'])} ({printable(record['op'])}"
    what += "" if record["group"] is None else f" on group {printable(record['group'])}"
    what += ")" if record["part_of"] is None else f"), part of the kernel of {printable(record['part_of'])}"
    bound = _BOUNDS.get(record["bound"], record["bound"] or "-")
    flops = _flops(record["flops"]) if record["flops"] else "-"
    return duration(record["time_us"]), record["source"], bound, flops, size(record["bytes"]), what


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    time, source, bound, flops, nbytes, what = row
    left = f"{time:>{widths[0]}}  {source:<{widths[1]}}  {bound:<{widths[2]}}"
    return f"{left}  {flops:>{widths[3]}}  {nbytes:>{widths[4]}}  {what}"


def _flops(number: int) -> str:
    """``3.4 TFLOP``."""
    scale, unit = next(((s, u) for s, u in _FLOPS_UNITS if number >= s), (1.0, "FLOP"))
    return f"{number / scale:,.1f} {unit}" if scale > 1 else f"{number} {unit}"

"""What a calibration has found, as text."""

from collections.abc import Sequence

from overlap_sched.cost.measured.lanes import Lanes, lanes_of
from overlap_sched.cost.measured.table import CollectiveTime, KernelTime, Tables, placed
from overlap_sched.report.units import duration, printable, size

NOISY = 0.5
"""Quartiles that lie further apart than this part of the median are told of."""


def calibration_text(tables: Tables, failed: Sequence[str], path: str) -> str:
    """A line per table: how much was measured, and the largest of it; then what was noisy and what failed."""
    lines = [f"{printable(path)}: {_count(tables)} measured"]
    groups: dict[tuple[str, int, int], list[CollectiveTime]] = {}
    for one in tables.collectives:
        groups.setdefault((one.kind, one.ranks, one.nodes), []).append(one)
    lines += [_collectives(placed(*key), ones) for key, ones in sorted(groups.items())]
    ops: dict[str, list[KernelTime]] = {}
    for kernel in tables.kernels:
        ops.setdefault(kernel.op, []).append(kernel)
    lines += [_kernels(op, kernels) for op, kernels in sorted(ops.items())]
    lines += [
        f"  compute beside {one.kind}: {one.factor:.2f} times as long (spread {one.spread:.2f})"
        f"{f', it beside compute: {one.stretch:.2f} times' if one.stretch != 1.0 else ''}"
        for one in tables.slowdowns
    ]
    lanes = lanes_of(tables.in_flight)
    if tables.in_flight:
        lines.append(f"  {_lanes(lanes)}")
    spreads = [one.spread_us / one.time_us for one in tables.collectives]
    spreads += [one.spread_us / one.time_us for one in tables.kernels]
    spreads += [one.spread / one.factor for one in tables.slowdowns]
    spreads += [one.spread / one.times for one in tables.in_flight]
    noisy = sum(spread > NOISY for spread in spreads)
    if noisy:
        lines.append(
            f"  noisy: {noisy}, whose quartiles lie more than {NOISY:.0%} of the median apart. Is the machine busy?"
        )
    return "\n".join([*lines, *(f"  not measured: {printable(what)}" for what in failed)])


def _count(tables: Tables) -> str:
    counts = ((tables.collectives, "collectives"), (tables.kernels, "kernels"), (tables.slowdowns, "slowdowns"))
    return ", ".join(f"{len(ones):,} {what}" for ones, what in counts)


def _lanes(lanes: Lanes) -> str:
    if lanes.number == 1:
        return "collectives of a group run one after the other"
    return f"{lanes.number} collectives of a group run at once, each {lanes.crowding:.2f} times as long as one alone"


def _collectives(what: str, ones: Sequence[CollectiveTime]) -> str:
    least, most = min(ones, key=lambda one: one.bytes), max(ones, key=lambda one: one.bytes)
    rate = most.bytes / most.time_us / 1e3
    return (
        f"  {what}: {size(least.bytes)} {duration(least.time_us)}, {size(most.bytes)} {duration(most.time_us)} "
        f"({rate:.2f} GB/s), launch {duration(least.launch_us)} to {duration(most.launch_us)}"
    )


def _kernels(op: str, ones: Sequence[KernelTime]) -> str:
    flops = max(one.flops / one.time_us / 1e6 for one in ones)
    rate = f"{flops:.3g} TFLOP/s" if flops else f"{max(one.bytes / one.time_us / 1e3 for one in ones):.3g} GB/s"
    return f"  {printable(op)}: {len(ones)} shapes, {rate} at best"

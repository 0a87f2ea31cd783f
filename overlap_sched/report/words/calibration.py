"""What a calibration has found, as text."""

from collections.abc import Sequence

from overlap_sched.cost.table import CollectiveTime, KernelTime, Tables, placed
from overlap_sched.report.units import duration, printable, size


def calibration_text(tables: Tables, failed: Sequence[str], path: str) -> str:
    """A line per table: how much was measured, and the largest of it; then what failed."""
    lines = [f"{printable(path)}: {_count(tables)} measured"]
    groups: dict[tuple[str, int, int], list[CollectiveTime]] = {}
    for one in tables.collectives:
        groups.setdefault((one.kind, one.ranks, one.nodes), []).append(one)
    lines += [_collectives(placed(*key), ones) for key, ones in sorted(groups.items())]
    ops: dict[str, list[KernelTime]] = {}
    for kernel in tables.kernels:
        ops.setdefault(kernel.op, []).append(kernel)
    lines += [_kernels(op, kernels) for op, kernels in sorted(ops.items())]
    return "\n".join([*lines, *(f"  not measured: {printable(what)}" for what in failed)])


def _count(tables: Tables) -> str:
    counts = ((tables.collectives, "collectives"), (tables.kernels, "kernels"))
    return ", ".join(f"{len(ones):,} {what}" for ones, what in counts)


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

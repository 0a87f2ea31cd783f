"""The peak of an order in words: by kind, then the largest storages."""

from overlap_sched.peak_memory.peak import Peak, PeakStorage
from overlap_sched.problem import Problem
from overlap_sched.report.units import printable, size

LARGEST = 10
"""Storages that are shown one by one."""


def peak_text(peak: Peak, largest: int = LARGEST) -> str:
    """A few lines: where the peak is, what it is made of, who made the largest and who still needs them."""
    problem = peak.problem
    lines = [
        f"{printable(problem.name)}: peak {size(peak.bytes)}, first at {printable(problem.nodes[peak.node].name)}, "
        f"step {peak.position + 1:,} of {peak.steps:,} ({problem.memory_model} memory model, simulated)"
    ]
    for kind, total in peak.by_kind().items():
        if total:
            count = sum(storage.kind == kind for storage in peak.storages)
            lines.append(f"  {kind:<22} {size(total):>12}  {100 * total / max(peak.bytes, 1):5.1f} %  in {count:,}")
    lines.append(
        f"  live at this node in every order: {size(peak.forced_bytes)} "
        f"({100 * peak.forced_bytes / max(peak.bytes, 1):.1f} %); in some orders, storages marked * are not live here"
    )
    shown = [storage for storage in peak.storages[:largest] if storage.bytes]
    if shown:
        lines.append("largest:" if len(shown) > 1 else "the only one:")
    lines += [_line(problem, storage) for storage in shown]
    return "\n".join(lines)


def _line(problem: Problem, storage: PeakStorage) -> str:
    names = [printable(problem.nodes[v].name) for v in storage.needed_by]
    if names:
        needed = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
    else:
        needed = "nobody: never freed" if problem.storages[storage.storage].pinned else "nobody"
    mark = " " if storage.forced else "*"
    maker = printable(problem.nodes[storage.maker].name)
    return f"{mark} {size(storage.bytes):>12}  {storage.kind:<22} made by {maker}, needed by {needed}"

"""Contention beside the figures that were made with it: as a line, and as data."""

from typing import Any

from overlap_sched.problem.contention import Contention
from overlap_sched.report.units import printable


def contention_line(contention: Contention) -> str:
    """One line that says which slowdown, stretch, lanes and links there are; empty where there is no contention."""
    parts = []
    if any(factor != 1.0 for factor in contention.slowdown.values()):
        by_kind = sorted(contention.slowdown.items(), key=lambda item: item[0] == "")  # "every kind" comes last
        beside = [f"beside {_kind(kind, len(by_kind) > 1)}" for kind, _ in by_kind]
        times = [f"{factor:.15g}{'' if k else ' times as long'}" for k, (_, factor) in enumerate(by_kind)]
        parts.append(f"compute takes {', '.join(map(' '.join, zip(times, beside, strict=True)))}")
    if contention.shares:
        taken = (f"{share:.15g} where it is bound by its {kind}" for kind, share in contention.shares.items())
        parts.append(f"of that it takes {' and '.join(taken)}")
    for kind, factor in contention.stretch.items():
        parts.append(f"{_kind(kind, len(contention.stretch) > 1)} takes {factor:.15g} times as long beside compute")
    if contention.lanes > 1:
        each = f"where each takes {contention.crowding:.15g} times as long as one alone"
        parts.append(f"{contention.lanes} collectives of a group are in flight at once, {each}")
    for link in contention.shared_links:
        *groups, last = sorted(printable(group) for group, its in contention.links.items() if its == link)
        parts.append(f"groups {', '.join(groups)} and {last} share link {printable(link)}")
    return f"With contention: {'; '.join(parts)}." if parts else ""


def with_contention_line(text: str, contention: Contention) -> str:
    """A text, and under it the line about contention where there is any."""
    return "\n".join(filter(None, (text, contention_line(contention))))


def contention_figures(contention: Contention) -> dict[str, Any] | None:
    """The same as data, in the words of a problem file; ``None`` where there is none."""
    if not contention:
        return None
    figures: dict[str, Any] = {"slowdown": dict(contention.slowdown), "links": dict(contention.links)}
    if contention.stretch:
        figures["stretch"] = dict(contention.stretch)
    if contention.shares:
        figures |= {"shares": dict(contention.shares), "flops_per_byte": contention.flops_per_byte}
    return figures | ({"lanes": contention.lanes, "crowding": contention.crowding} if contention.lanes > 1 else {})


def _kind(kind: str, among_others: bool) -> str:
    if kind:
        return f"{printable(kind)}*"
    return "any other collective" if among_others else "any collective"

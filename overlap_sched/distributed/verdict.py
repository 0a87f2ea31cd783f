"""The decision of all ranks about one graph, and the words for it. No torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from overlap_sched.distributed.digest import PARTS, Digest

SHOWN_RANGES = 8
"""So many runs of ranks are written out; thousands of ranks would hide the message."""

Sides = tuple[tuple[int, ...], ...]
"""Ranks that are alike stand together; the largest side first."""

_REPAIR = {
    "problem": "Each rank must compile the same graphs, in one order and with the same shapes.",
    "options": "Give overlap_sched the same options on every rank.",
    "costs": "Let all ranks take measured times from rank 0 (overlap_sched.distributed.broadcast_costs).",
    "order": "The scheduler failed on a rank (see its warnings), or the ranks run different versions of overlap_sched.",
}


@dataclass(frozen=True)
class Verdict:
    """What was decided for one graph: written once, by whoever decided first, and followed by every rank.

    Attributes:
        agreed: All ranks run the new order; else all keep the original one.
        reason: Why the original order is kept, and how to mend it; ``None`` if agreed.
        differs: Per part (``problem``, ``options``, ``costs``, ``order``) in which the ranks differ, who is like whom.
        missing: Ranks that did not come in time.
    """

    agreed: bool
    reason: str | None = None
    differs: Mapping[str, Sides] = field(default_factory=dict)
    missing: tuple[int, ...] = ()

    def to_json(self) -> str:
        """What goes into the store."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Verdict":
        """Read what :meth:`to_json` wrote."""
        read = json.loads(text)
        differs = {part: tuple(map(tuple, sides)) for part, sides in read["differs"].items()}
        return cls(read["agreed"], read["reason"], differs, tuple(read["missing"]))


def judge(digests: Mapping[int, Digest]) -> Verdict:
    """The verdict on the digests of all ranks; a pure function of them."""
    differs = differences(digests)
    if not differs:
        return Verdict(agreed=True)
    parts = "; ".join(f"{part}: {_sides(sides)}" for part, sides in differs.items())
    names = {min(side): digests[min(side)].name for side in differs.get("problem", ())}
    where = ", ".join(f"rank {rank} compiles {name!r}" for rank, name in list(names.items())[:SHOWN_RANGES])
    repairs = " ".join(_REPAIR[part] for part in differs)
    reason = f"the ranks differ in {parts}{f' ({where})' if where else ''}. {repairs}"
    return Verdict(agreed=False, reason=reason, differs=differs)


def absent(missing: Sequence[int], name: str, limit_s: float) -> Verdict:
    """The verdict when some ranks did not come within the limit (seconds)."""
    reason = (
        f"{ranks_text(missing)} did not publish an order for graph {name!r} within {limit_s:g} s. "
        "Such a rank died, compiles other graphs, is slower than that, or took the graph from a cache: see "
        "docs/agreement.md."
    )
    return Verdict(agreed=False, reason=reason, missing=tuple(missing))


def gone(ranks: Sequence[int], name: str, limit_s: float) -> Verdict:
    """The verdict when some ranks came, but were not waiting any more at the limit (seconds)."""
    was, they = ("was", "It") if len(ranks) == 1 else ("were", "They")
    reason = (
        f"{ranks_text(ranks)} {was} no longer waiting for the others {limit_s:g} s after publishing an order for graph "
        f"{name!r}. {they} died, or lost the connection to the store of the process group."
    )
    return Verdict(agreed=False, reason=reason, missing=tuple(ranks))


def differences(digests: Mapping[int, Digest]) -> dict[str, Sides]:
    """Per part that differs, the ranks that are alike; only causes: costs of different problems are not compared."""
    found: dict[str, Sides] = {}
    for part in PARTS:
        sides: dict[str, list[int]] = {}
        for rank in sorted(digests):
            sides.setdefault(getattr(digests[rank], part), []).append(rank)
        explained = bool(found) if part == "order" else part == "costs" and "problem" in found
        if len(sides) > 1 and not explained:
            found[part] = tuple(tuple(side) for side in sorted(sides.values(), key=lambda side: (-len(side), side[0])))
    return found


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:SHOWN_RANGES])
    left = sum(b - a + 1 for a, b in runs[SHOWN_RANGES:])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{f' and {left} more' if left else ''}"


def _sides(sides: Sides) -> str:
    shown = " against ".join(ranks_text(side) for side in sides[:SHOWN_RANGES])
    return shown + (f" and {len(sides) - SHOWN_RANGES} more kinds" if len(sides) > SHOWN_RANGES else "")

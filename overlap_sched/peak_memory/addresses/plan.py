"""Addresses: an offset in one arena for every storage of an order, so that two that live together never overlap.

The arena can never be smaller than the peak of live bytes; what it is larger is fragmentation. Storages that live
from the first step to the last lie at the bottom. The others are placed one after the other, each at the lowest
offset where it fits among those placed before, in an order that decides everything::

    size        the largest first
    conflicts   what lives together with the most bytes first
    longest     the longest-lived first: activations, in the order in which they nest
    area        bytes times steps

The best of the four is improved by hill climbing: what lies at the top of the arena goes to the front of the order.
Where that leaves fragmentation, :mod:`overlap_sched.peak_memory.addresses.sweep` looks for offsets within the peak, at
little cost per step; then :mod:`overlap_sched.peak_memory.addresses.restarts`, a stronger search for up to some hundred
storages. Work is counted, not timed. Time of one placement of n storages: n vector operations on those placed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlap_sched.errors import OptionsError, VerificationError
from overlap_sched.peak_memory.addresses.check import address_violation
from overlap_sched.peak_memory.addresses.restarts import smallest_arena
from overlap_sched.peak_memory.addresses.sweep import fit_within
from overlap_sched.problem import Problem
from overlap_sched.simulate.ledger import LiveRange, LiveRanges

MOST_CLIMBS, CLIMB_BOXES, SWEEP_BOXES, SEARCH_WORK = 40, 30_000, 300_000, 130_000
"""Per unit of effort: placements of all boxes while climbing, and boxes placed in these; boxes that the sweep looks at;
partial placements that the search looks at."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AddressPlan:
    """Offsets of all storages of an order in one arena, checked.

    Attributes:
        offsets: Per storage id, its first byte.
        arena_bytes: The end of the highest.
        peak_bytes: The most live at once, each storage rounded up to ``align_bytes``: no arena is smaller.
        align_bytes: Offsets and sizes are multiples of it.
        found_by: ``size``, ``conflicts``, ``longest``, ``area``, ``climbing``, ``sweep`` or ``search``.
    """

    offsets: Mapping[int, int]
    arena_bytes: int
    peak_bytes: int
    align_bytes: int
    found_by: str

    @property
    def fragmentation(self) -> float:
        """The part of the arena that is above the peak: 0.0 is perfect, and cannot be better."""
        return (self.arena_bytes - self.peak_bytes) / self.arena_bytes if self.arena_bytes else 0.0


def plan_addresses(problem: Problem, order: Sequence[int], align_bytes: int = 512, effort: int = 2) -> AddressPlan:
    """Offsets for an order that can run.

    Args:
        problem: Whose storages.
        order: Its nodes in the order in which they run.
        align_bytes: Offsets and sizes are multiples of it; 512 is what torch's CUDA allocator aligns to.
        effort: 0: the four orders only; each unit more allows as much climbing and searching again.

    Raises:
        OptionsError: ``align_bytes`` is not a positive whole number.
        VerificationError: The checker refuses the result: a bug.
    """
    if isinstance(align_bytes, bool) or not isinstance(align_bytes, int) or align_bytes < 1:
        raise OptionsError(f"align_bytes is {align_bytes!r}; it is a whole number of bytes, 1 or more.")
    rounded = [
        span._replace(bytes=-(-span.bytes // align_bytes) * align_bytes) for span in LiveRanges(problem).of(order)
    ]
    offsets, found_by = place(rounded, len(order), effort)
    broken = address_violation(problem, order, offsets, align_bytes)
    if broken is not None:
        raise VerificationError(
            f"addresses of {problem.name!r} are not valid: {broken}. This is a bug: please report it."
        )
    arena = max((offsets[span.storage] + span.bytes for span in rounded), default=0)
    return AddressPlan(offsets, arena, most_live(rounded, len(order)), align_bytes, found_by)


def most_live(ranges: Sequence[LiveRange], steps: int) -> int:
    """The most bytes live at once."""
    change = np.zeros(steps + 1, np.int64)
    for span in ranges:
        change[span.first] += span.bytes
        change[span.last + 1] -= span.bytes
    return int(np.cumsum(change).max())


def place(ranges: Sequence[LiveRange], steps: int, effort: int) -> tuple[dict[int, int], str]:
    """Offsets by storage, and what found them."""
    offsets: dict[int, int] = {}
    bottom = 0
    moving = []
    for span in ranges:
        if span.bytes and span.first == 0 and span.last == steps - 1:
            offsets[span.storage] = bottom
            bottom += span.bytes
        elif span.bytes:
            moving.append(span)
        else:
            offsets[span.storage] = 0
    best, found_by = _place_moving(moving, steps, effort)
    offsets.update({span.storage: bottom + at for span, at in zip(moving, best, strict=True)})
    return offsets, found_by


def _place_moving(ranges: Sequence[LiveRange], steps: int, effort: int) -> tuple[list[int], str]:
    if not ranges:
        return [], "size"
    boxes = Boxes(ranges)
    least = most_live(ranges, steps)
    best: tuple[int, str, list[int], Ints] | None = None
    for name, order in boxes.orders().items():
        offsets = boxes.place(order)
        arena = boxes.arena(offsets)
        if best is None or arena < best[0]:
            best = (arena, name, order, offsets)
        if arena == least:
            break
    assert best is not None
    arena, found_by, order, offsets = best
    if effort and arena > least:
        climbed = boxes.climb(order, offsets, least, min(MOST_CLIMBS, CLIMB_BOXES // len(ranges)) * effort)
        if boxes.arena(climbed) < arena:
            arena, found_by, offsets = boxes.arena(climbed), "climbing", climbed
    if effort and arena > least:
        swept = fit_within(ranges, least, SWEEP_BOXES * effort)
        if swept is not None:
            return swept, "sweep"
        searched = smallest_arena(ranges, least, arena, SEARCH_WORK * effort)
        if searched is not None:
            return searched, "search"
    return [int(at) for at in offsets], found_by


class Boxes:
    """Storages as boxes in time and space, in arrays."""

    def __init__(self, ranges: Sequence[LiveRange]) -> None:
        self.bytes = np.array([span.bytes for span in ranges], np.int64)
        self.first = np.array([span.first for span in ranges], np.int64)
        self.last = np.array([span.last for span in ranges], np.int64)

    def orders(self) -> dict[str, list[int]]:
        """Orders of placement by name; ties go to who comes to life first."""
        spans = self.last - self.first + 1
        keys = {
            "size": -self.bytes,
            "longest": -spans,
            "area": -self.bytes * spans,
            "conflicts": -self._conflicts(),
        }
        return {name: [int(i) for i in np.lexsort((-self.bytes, self.first, key))] for name, key in keys.items()}

    def _conflicts(self) -> Ints:
        """Per box, the bytes of all boxes that it lives together with at some time."""
        by_first, by_last = np.argsort(self.first, kind="stable"), np.argsort(self.last, kind="stable")
        begun = np.concatenate(([0], np.cumsum(self.bytes[by_first])))
        ended = np.concatenate(([0], np.cumsum(self.bytes[by_last])))
        have_begun = begun[np.searchsorted(self.first[by_first], self.last, side="right")]
        have_ended = ended[np.searchsorted(self.last[by_last], self.first, side="left")]
        result: Ints = have_begun - have_ended
        return result

    def place(self, order: Sequence[int]) -> Ints:
        """Each box of the order at the lowest offset that is free for all its life."""
        n = len(order)
        firsts, lasts = np.empty(n, np.int64), np.empty(n, np.int64)
        lows, highs = np.empty(n, np.int64), np.empty(n, np.int64)
        offsets = np.zeros(n, np.int64)
        for k, i in enumerate(order):
            first, last, size = self.first[i], self.last[i], self.bytes[i]
            together = np.flatnonzero((firsts[:k] <= last) & (lasts[:k] >= first))
            at = _lowest_gap(lows[together], highs[together], int(size))
            offsets[i] = at
            firsts[k], lasts[k], lows[k], highs[k] = first, last, at, at + size
        return offsets

    def arena(self, offsets: Ints) -> int:
        """The end of the highest box."""
        return int((offsets + self.bytes).max())

    def climb(self, order: Sequence[int], offsets: Ints, least: int, placements: int) -> Ints:
        """Place again with the boxes at the top moved forward, half as far each time it does not help."""
        best, arena, order, share = offsets, self.arena(offsets), list(order), 0.0
        for _ in range(placements):
            if arena == least:
                break
            place_of = {i: k for k, i in enumerate(order)}
            top = [int(i) for i in np.flatnonzero(best + self.bytes == arena)]
            changed = list(order)
            for i in sorted(top, key=place_of.__getitem__):
                changed.remove(i)
                changed.insert(int(place_of[i] * share), i)
            tried = self.place(changed)
            if self.arena(tried) < arena:
                best, arena, order, share = tried, self.arena(tried), changed, 0.0
            elif share > 0.95:
                break
            else:
                share = (1 + share) / 2
        return best


def _lowest_gap(lows: Ints, highs: Ints, size: int) -> int:
    """The lowest offset where so many bytes are free of all [low, high)."""
    if not len(lows):
        return 0
    order = np.argsort(lows, kind="stable")
    lows, highs = lows[order], np.maximum.accumulate(highs[order])
    below = np.concatenate(([0], highs[:-1]))
    gaps = np.flatnonzero(lows - below >= size)
    return int(below[gaps[0]]) if len(gaps) else int(highs[-1])

"""Do these storages fit into so many bytes? Depth first over offsets, exact unless it gives up.

After minimalloc (Moffitt, "MiniMalloc: A lightweight memory allocator for hardware-accelerated machine learning",
ASPLOS 2023). Any solution can be pushed down until each box lies on the bottom or on another, and then be built from
the lowest offset upward: so boxes are placed in order of their offsets, each on top of all it lives together with
that are placed. At every step ``top`` is how high the boxes already reach, ``rest`` what is still to come there:

    no way on    where top + rest is above the limit at some step (what comes lies above the top)
    skipped      a box whose offset is not below the top end of another one that could be placed first, under it
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from overlap_sched.simulate.ledger import LiveRange

Ints = npt.NDArray[np.int64]

Rule = Literal["bytes", "area", "span"]
RULES: tuple[Rule, ...] = ("bytes", "area", "span")
"""Of boxes that could be placed next at one offset, the one with the most of it goes first: each rule gets a share of
the work, since none is good everywhere."""


def fit_within(ranges: Sequence[LiveRange], limit: int, most_work: int) -> list[int] | None:
    """Offsets, one per lifetime, with no end above the limit; ``None`` where there are none or it gave up.

    Args:
        ranges: What is to be placed, each larger than 0 bytes.
        limit: Bytes.
        most_work: Give up after looking at so many boxes (a vector operation on 64 counts as one).
    """
    for rule in RULES:
        sweep = _OffsetSearch(ranges, limit, rule)
        found = sweep.offsets(most_work // len(RULES))
        if found is not None or sweep.work <= most_work // len(RULES):
            return found
    return None


class _OffsetSearch:
    """The state of the search: who is placed, and how high the boxes reach at each moment."""

    def __init__(self, ranges: Sequence[LiveRange], limit: int, rule: Rule = "bytes") -> None:
        moments = sorted({span.first for span in ranges})  # what is live changes upward at these only
        index = np.array(moments, np.int64)
        self.limit = limit
        self.bytes = np.array([span.bytes for span in ranges], np.int64)
        self.begin = np.searchsorted(index, [span.first for span in ranges])
        self.end = np.searchsorted(index, [span.last for span in ranges], side="right")
        spans = self.end - self.begin
        self.prefers = {"bytes": self.bytes, "area": self.bytes * spans, "span": spans}[rule]
        self.top = np.zeros(len(moments), np.int64)
        self.rest = np.zeros(len(moments), np.int64)
        for i in range(len(ranges)):
            self.rest[self.begin[i] : self.end[i]] += self.bytes[i]
        self.least = np.zeros(len(ranges), np.int64)  # where each open box would lie now
        self.open = np.ones(len(ranges), bool)
        self.work = 0
        self.placed: list[tuple[int, int, Ints]] = []  # (box, its offset, the top before it)

    def offsets(self, most_work: int) -> list[int] | None:
        """See :func:`fit_within`."""
        if (self.rest > self.limit).any():
            return None
        branches = [self._choices(0)]
        while branches:
            if not branches[-1]:
                branches.pop()
                if self.placed:
                    self._undo()
                continue
            if self.work > most_work:
                return None
            i = branches[-1].pop()
            self._place(i)
            if not self.open.any():
                found = {box: at for box, at, _ in self.placed}
                return [found[box] for box in range(len(self.bytes))]
            branches.append(self._choices(self.placed[-1][1]))
        return None

    def _place(self, i: int) -> None:
        span = slice(int(self.begin[i]), int(self.end[i]))
        at = int(self.least[i])
        self.placed.append((i, at, self.top[span].copy()))
        self.top[span] = at + self.bytes[i]
        self.rest[span] -= self.bytes[i]
        self.open[i] = False
        self._raise(i)

    def _undo(self) -> None:
        i, _, before = self.placed.pop()
        span = slice(int(self.begin[i]), int(self.end[i]))
        self.top[span] = before
        self.rest[span] += self.bytes[i]
        self.open[i] = True
        self._raise(i)

    def _raise(self, i: int) -> None:
        """Where open boxes that live together with box i would lie now."""
        near = np.flatnonzero(self.open & (self.begin < self.end[i]) & (self.end > self.begin[i]))
        self.work += len(near) + len(self.open) // 64 + 1
        for j in near:
            self.least[j] = self.top[self.begin[j] : self.end[j]].max()

    def _choices(self, floor: int) -> list[int]:
        """Boxes that may be placed next, the best last; none where some moment is already beyond the limit."""
        if (self.top + self.rest > self.limit).any():
            return []
        open_ = np.flatnonzero(self.open)
        least = self.least[open_]
        if (least + self.bytes[open_] > self.limit).any():
            return []
        lowest_end = (np.maximum(least, floor) + self.bytes[open_]).min()
        fits = open_[(least >= floor) & (least < lowest_end)]
        return [int(i) for i in fits[np.lexsort((self.bytes[fits], self.prefers[fits], -self.least[fits]))]]

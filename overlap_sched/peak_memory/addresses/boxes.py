"""Storages as boxes in time and space, in arrays, cut at the moments that matter.

Only moments at which as much as possible is live constrain anything: where something begins, and something else ends
before anything more begins. They are called *sections*, as in MiniMalloc (``src/sweeper.h``); all that is live at any
other step is also live at one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from overlap_sched.simulate.ledger import LiveRange

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sectioned:
    """Boxes over sections; n boxes, s sections.

    Attributes:
        bytes: Per box, its height, in any unit (n).
        begin, end: Per box, its first section and the one after its last (n).
        sections: How many.
    """

    bytes: Ints
    begin: Ints
    end: Ints
    sections: int

    @cached_property
    def covers(self) -> Bools:
        """Per box and section, whether it is live there (n x s)."""
        at = np.arange(self.sections)
        return (self.begin[:, None] <= at) & (at < self.end[:, None])

    @cached_property
    def together(self) -> Bools:
        """Per pair of boxes, whether they live together at some time; no box with itself (n x n)."""
        result = (self.begin[:, None] < self.end) & (self.begin < self.end[:, None])
        np.fill_diagonal(result, False)
        return result

    @cached_property
    def live_bytes(self) -> Ints:
        """Per section, the sum of the boxes that are live there (s)."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.begin, self.bytes)
        np.subtract.at(change, self.end, self.bytes)
        return np.cumsum(change[:-1])

    @cached_property
    def crossings(self) -> Ints:
        """Per section, how many boxes are live there and also in the next (s)."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.begin, 1)
        np.subtract.at(change, self.end - 1, 1)
        return np.cumsum(change[:-1])

    def part(self, boxes: Ints, first: int, last: int) -> "Sectioned":
        """Some boxes, in this order, all of them within sections ``first`` to ``last - 1``."""
        return Sectioned(self.bytes[boxes], self.begin[boxes] - first, self.end[boxes] - first, last - first)

    def in_units_of(self, unit: int) -> "Sectioned":
        """The same with smaller numbers; ``unit`` divides all sizes."""
        return Sectioned(self.bytes // unit, self.begin, self.end, self.sections)


def sectioned(ranges: Sequence[LiveRange]) -> Sectioned:
    """Boxes of these lifetimes, by their position there."""
    first = np.array([span.first for span in ranges], np.int64)
    last = np.array([span.last for span in ranges], np.int64)
    begins, ends = np.unique(first), np.unique(last)
    # The last begin before each end: no more begins until something has ended, so this moment is a maximum.
    moments = np.unique(begins[np.searchsorted(begins, ends, side="right") - 1])
    return Sectioned(
        np.array([span.bytes for span in ranges], np.int64),
        np.searchsorted(moments, first),
        np.searchsorted(moments, last, side="right"),
        len(moments),
    )

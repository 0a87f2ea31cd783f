"""Do these boxes fit below a limit? Place or postpone, depth first, exact unless it runs out of work.

After MiniMalloc (Moffitt, "MiniMalloc: A lightweight memory allocator for hardware-accelerated machine learning",
ASPLOS 2023), whose canonical solutions are built from the lowest offset upward, each box on the ground or on another:

1. of the boxes that may lie at the lowest offset that the placed ones leave them, take one with the lowest such
   offset, the first by a given rule;
2. place it there and go on; where that fails, *postpone* it: something open must come under it first (as SetTimes does
   in scheduling, see Le Pape et al., "Time-versus-capacity compromises in project scheduling", 1994);
3. after either, :mod:`overlap_sched.peak_memory.addresses.bounds` says whether all can still fit, and who else
   must wait.

MiniMalloc tries every other box at the same offset after a failure; postponing tells at once when none can help. Once
no open box crosses a moment, both sides are independent problems and are solved on their own, each in its own order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from overlap_sched.peak_memory.addresses.bounds import NEVER, Standing, failing_section
from overlap_sched.peak_memory.addresses.boxes import Floats, Ints, Sectioned

Rule = Callable[[Sectioned, Floats], Ints]
"""From boxes and blame per section: the boxes by falling preference."""


CELLS_PER_WORK = 2**15
"""Boxes times sections that are looked at within one unit of work, beside what any look costs."""


class OutOfWorkError(Exception):
    """The search ended before it knew."""


@dataclass
class Search:
    """One run: what it may spend, and where it failed.

    Attributes:
        limit: No box ends above it, in the unit of the boxes.
        work_left: Partial placements that may still be looked at; a large one counts as several.
        blame: Per section of the whole problem, how often it could not hold.
        rule: Preference among boxes at one offset.
    """

    limit: int
    work_left: int
    blame: Floats
    rule: Rule
    _found: dict[int, int] = field(default_factory=dict)

    def offsets(self, boxes: Sectioned) -> Ints | None:
        """Offsets of all boxes; ``None``: there are none.

        Raises:
            OutOfWorkError: Neither is known.
        """
        n = len(boxes.bytes)
        start = Standing(
            np.ones(n, np.bool_),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            boxes.live_bytes.copy(),
            boxes.crossings,
        )
        if (start.rest > self.limit).any():
            return None
        if not self._pieces(boxes, np.arange(n), start, 0):
            return None
        return np.array([self._found[i] for i in range(n)], np.int64)

    def _pieces(self, boxes: Sectioned, names: Ints, now: Standing, at: int) -> bool:
        """Solve what no open box joins, piece by piece. ``names``: of the boxes; ``at``: where their sections begin."""
        left = np.flatnonzero(now.open)
        cuts = np.flatnonzero(now.crossings == 0) + 1
        piece_of = np.searchsorted(cuts, boxes.begin[left], side="right")
        for piece in np.unique(piece_of):
            inside = left[piece_of == piece]
            first = int(cuts[piece - 1]) if piece else 0
            if not self._piece(boxes, inside, names, now, at, first, int(cuts[piece])):
                return False
        return True

    def _piece(
        self, boxes: Sectioned, inside: Ints, names: Ints, now: Standing, at: int, first: int, last: int
    ) -> bool:
        part = boxes.part(inside, first, last)
        at += first
        chosen = self.rule(part, self.blame[at : at + part.sections])
        inside = inside[chosen]
        part = part.part(chosen, 0, part.sections)
        start = Standing(
            np.ones(len(inside), np.bool_), now.least[inside], now.low[inside], part.live_bytes.copy(), part.crossings
        )
        return self._search(part, names[inside], start, at)

    def _search(self, boxes: Sectioned, names: Ints, start: Standing, at: int) -> bool:
        path, tried = [start], [-1]
        while path:
            now, i = path[-1], tried[-1]
            if i >= 0 and not self._postpone(boxes, now, i, at):
                path.pop(), tried.pop()
                continue
            free = now.open & (now.low == now.least)
            if not free.any():
                path.pop(), tried.pop()
                continue
            i = tried[-1] = int(np.where(free, now.least, NEVER).argmin())
            after = self._place(boxes, now, i, at)
            if after is None:
                continue
            if not after.open.any() or (after.crossings[boxes.begin[i] : boxes.end[i] - 1] == 0).any():
                if not self._pieces(boxes, names, after, at):
                    continue
                self._found.update({int(names[k]): int(was.least[k]) for was, k in zip(path, tried, strict=True)})
                return True
            path.append(after)
            tried.append(-1)
        return False

    def _place(self, boxes: Sectioned, now: Standing, i: int, at: int) -> Standing | None:
        """The state with box i where it can lie lowest; ``None`` where the others do not fit then."""
        begin, end = int(boxes.begin[i]), int(boxes.end[i])
        top = now.least[i] + boxes.bytes[i]
        is_open, least, rest, crossings = now.open.copy(), now.least.copy(), now.rest.copy(), now.crossings.copy()
        is_open[i] = False
        near = is_open & boxes.together[i]
        lifted = np.flatnonzero(near & (least < top))
        least[lifted] = top
        rest[begin:end] -= boxes.bytes[i]
        crossings[begin : end - 1] -= 1
        after = Standing(is_open, least, np.maximum(now.low, least), rest, crossings)
        free = is_open & (after.low == least)
        if free.any():
            np.maximum(after.low, least[free].min(), out=after.low)  # who lies lowest of all open boxes is free
        elif is_open.any():
            return None
        if len(lifted):
            begin, end = min(begin, int(boxes.begin[lifted].min())), max(end, int(boxes.end[lifted].max()))
        return after if self._holds(boxes, after, begin, end, at) else None

    def _postpone(self, boxes: Sectioned, now: Standing, i: int, at: int) -> bool:
        """Box i does not lie where it could: does all still fit?"""
        now.low[i] = max(now.low[i], now.least[i] + 1)
        return self._holds(boxes, now, int(boxes.begin[i]), int(boxes.end[i]), at)

    def _holds(self, boxes: Sectioned, now: Standing, first: int, last: int, at: int) -> bool:
        if self.work_left <= 0:
            raise OutOfWorkError
        self.work_left -= 1 + len(boxes.bytes) * (last - first) // CELLS_PER_WORK
        failing = failing_section(boxes, now, self.limit, first, last)
        if failing is not None:
            self.blame[at + failing] += 1
        return failing is None

"""Choices of values that are not kept: what they take away above a limit, and which of them comes next."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.fit.remake import RemakePrice
from overlap_sched.fit.state import Again, Bytes, Part, User
from overlap_sched.problem import Position, StorageId

PATIENCE = 16
"""In graphs of more nodes than :data:`PATIENT_NODES`, so many choices are priced for one that is made: where all get
worse together, as a link fills, the best of these is made."""
PATIENT_NODES = 40_000
LEAST_US = 0.5
"""No choice costs less."""
LITTLE = 8
"""What is not high counts this part of its bytes."""


class Gap(NamedTuple):
    """Between two users of a storage's part."""

    storage: StorageId
    part: Part
    after: User
    until: Position


@dataclass(frozen=True)
class Choice:
    """One way not to keep a value through a gap.

    Attributes:
        gap: It. score: bytes above the limit taken away per microsecond. us: those microseconds.
        copy: Runs again already, for another value of the same maker; ``None``: not that way.
        slots: Of copies to the host and back, and the places between which it is gone.
        spare: See :class:`Remake`.
    """

    gap: Gap
    score: float
    us: float
    copy: Again | None = None
    slots: tuple[float, float, Position, Position] | None = None
    spare: int = 0


Entry = tuple[float, int, Choice]
"""Minus the score, the number of the gap, and what was thought of it when it was last priced."""
_KEY: Callable[[Entry], tuple[float, int]] = lambda entry: entry[:2]  # noqa: E731


class Queue:
    """Choices, the best first; all but those that were priced since the last one was made may be worse by now."""

    def __init__(self, nodes: int) -> None:
        """Empty; ``nodes``: of the graph."""
        self._patience = PATIENCE if nodes > PATIENT_NODES else math.inf
        self._stale: list[Entry] = []
        self._fresh: list[Entry] = []

    def __len__(self) -> int:
        return len(self._stale) + len(self._fresh)

    def push(self, k: int, choice: Choice, score: float) -> None:
        """Push a choice that may be worse than its score by now."""
        heapq.heappush(self._stale, (-score, k, choice))

    def priced(self, k: int, choice: Choice) -> None:
        """Push a choice that has just been priced."""
        self._fresh.append((-choice.score, k, choice))

    def pop(self) -> tuple[int, Choice]:
        """The one to look at next."""
        _, k, choice = heapq.heappop(self._stale)
        return k, choice

    def is_behind(self, score: float) -> bool:
        """Tell whether one that is stale may be better than a score."""
        return bool(self._stale) and score < -self._stale[0][0] * (1 - 1e-9)

    def take(self) -> Choice | None:
        """The best of all, or of enough that have been priced; the others may be worse from now on."""
        if not self._fresh:
            return None
        best = min(self._fresh, key=_KEY)
        if len(self._fresh) < self._patience and self.is_behind(-best[0]):
            return None
        for one in self._fresh:
            if one is not best:
                heapq.heappush(self._stale, one)
        self._fresh = []
        return best[2]


def until_of(gap: Gap) -> Position:
    """Where the storage is needed next, as things are."""
    users = gap.part.users
    return users[users.index(gap.after) + 1].at


def chosen_for(gap: Gap, taken: int, price: RemakePrice) -> Choice:
    """A choice by what it takes away and what it costs."""
    us = max(price.us, LEAST_US)
    return Choice(gap, (taken - price.excess) / us, us)


class Above:
    """Bytes above the limit, of the places alone that are above it: asked many times between two changes.

    Attributes:
        most: Above it anywhere.
    """

    def __init__(self, excess: Bytes) -> None:
        """Sum up the bytes above the limit of all places."""
        over = excess > 0
        self._bytes = excess[over]
        self._rank = _summed(over)
        self._sums = _summed(self._bytes)
        self.most = int(self._bytes.max()) if len(self._bytes) else 0

    def any(self, begin: Position, end: Position) -> bool:
        """Tell whether a place from one to before another is above."""
        return begin < end and bool(self._rank[begin] < self._rank[end])

    def taken(self, begin: Position, end: Position, nbytes: int) -> int:
        """Return what so many bytes less from one place to before another take away, in bytes times places."""
        if not self.any(begin, end):
            return 0
        first, last = self._rank[begin], self._rank[end]
        if nbytes >= self.most:
            return int(self._sums[last] - self._sums[first])
        return int(np.minimum(self._bytes[first:last], nbytes).sum())


def _summed(values: npt.NDArray[Any]) -> Bytes:
    """Sums of the first 0, 1, 2, ... of them."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


class AboveHigh:
    """The same where what is less above the limit than a part of the most counts little."""

    def __init__(self, excess: Bytes, high: float) -> None:
        """Sum up the bytes above the limit; ``high``: that part, 0: all places count alike."""
        self.all = Above(excess)
        self._high = Above(np.maximum(excess - int(high * self.all.most), 0)) if high else None

    def taken(self, begin: Position, end: Position, nbytes: int) -> int:
        """See :meth:`Above.taken`."""
        if self._high is None:
            return self.all.taken(begin, end, nbytes)
        return self._high.taken(begin, end, nbytes) or self.all.taken(begin, end, nbytes) // LITTLE

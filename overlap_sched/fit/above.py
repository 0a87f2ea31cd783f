"""Places above a limit: what fewer bytes over some of them would take away, asked many times between two changes."""

from typing import Any

import numpy as np
import numpy.typing as npt

from overlap_sched.fit.state import Bytes
from overlap_sched.problem import Position

LITTLE = 8
"""What is not high counts this part of its bytes."""


class Above:
    """Bytes above the limit, of the places alone that are above it.

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

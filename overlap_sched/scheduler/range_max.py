"""An array with range additions and range maxima, in blocks: both cost the square root of its length, not the length.

Each block keeps its own maximum (found again when it is asked for), and a sum that all its values still have to get::

    values   | 3 1 4 1 | 5 9 2 6 | 5 3 5 8 |      add 10 to [2, 9)
    top      |    4    |    9    |    8    |
                 ^^^^^^^^^^^^^^^^^^^
    values   | 3 1 14 11 | 5 9 2 6 | 15 3 5 8 |   at the edges value by value,
    top      |    14     |    9    |   15    |    in between
    sum      |     0     |   10    |    0    |    one sum a block
"""

import numpy as np
import numpy.typing as npt

BLOCK = 2048
"""Values a block: few enough blocks in a graph of a million nodes, and one or a few in most graphs."""

LOWEST = -(2**62)
"""Below anything, whatever is added to it."""


class RangeMax:
    """Integers at positions 0, 1, 2, ...; ranges are given by begin and end, end excluded, and are not empty.

    With n values in blocks of b::

        self[at], drop              O(1)
        add, max, last_above        O(b + n / b)
        array                       O(length of the range)
    """

    def __init__(self, values: npt.NDArray[np.int64], block: int = BLOCK) -> None:
        """A copy of the values."""
        count = max(-(-len(values) // block), 1)
        self._size = block
        self._values = np.full(count * block, LOWEST, dtype=np.int64)
        self._values[: len(values)] = values
        self._rows = self._values.reshape(count, block)
        self._sum = [0] * count
        self._top = self._rows.max(axis=1).tolist()  # with the sum; of those that are not stale
        self._stale: set[int] = set()

    def __getitem__(self, at: int) -> int:
        return int(self._values[at]) + self._sum[at // self._size]

    def add(self, begin: int, end: int, amount: int) -> None:
        """Add to each value of a range."""
        first, last = begin // self._size, (end - 1) // self._size
        self._stale.add(first)
        if first == last:
            self._values[begin:end] += amount
            return
        self._stale.add(last)
        self._values[begin : (first + 1) * self._size] += amount
        self._values[last * self._size : end] += amount
        for row in range(first + 1, last):
            self._sum[row] += amount
            self._top[row] += amount

    def drop(self, at: int) -> None:
        """Make one value lower than all others, for good."""
        self._values[at] = LOWEST
        self._stale.add(at // self._size)

    def max(self, begin: int, end: int) -> int:
        """The largest value of a range."""
        first, last = begin // self._size, (end - 1) // self._size
        if first == last:
            return int(self._values[begin:end].max()) + self._sum[first]
        highest = int(self._values[begin : (first + 1) * self._size].max()) + self._sum[first]
        highest = max(highest, int(self._values[last * self._size : end].max()) + self._sum[last])
        for row in range(first + 1, last):
            highest = max(highest, self._top_of(row))
        return highest

    def last_above(self, begin: int, end: int, limit: int) -> int:
        """The last position of a range whose value is above the limit; -1: there is none."""
        for row in range((end - 1) // self._size, begin // self._size - 1, -1):
            low, high = max(begin, row * self._size), min(end, (row + 1) * self._size)
            if high - low == self._size and self._top_of(row) <= limit:
                continue
            above = self._values[low:high] > limit - self._sum[row]
            at = high - 1 - int(above[::-1].argmax())
            if above[at - low]:
                return at
        return -1

    def array(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The values of a range, one by one."""
        return self._values[begin:end] + np.array(self._sum)[np.arange(begin, end) // self._size]

    def _top_of(self, row: int) -> int:
        """The largest value of a block."""
        if row in self._stale:
            self._stale.discard(row)
            self._top[row] = int(self._rows[row].max()) + self._sum[row]
        return self._top[row]

"""Keys kept in their order: a plain list while there are few, sortedcontainers' list of lists where there may be many.

A plain list moves all keys behind the place of a change, which for a few thousand takes less time than the Python code
that finds the right one of several lists.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from sortedcontainers import SortedList

FEW = 20_000
"""Up to so many keys are in a plain list."""

K = TypeVar("K")


class SortedKeys(Protocol[K]):
    """Keys, the smallest first; what ``add`` and ``remove`` are given never changes while it is inside."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[K]: ...
    def __getitem__(self, at: int, /) -> K: ...
    def add(self, key: K, /) -> None:
        """Put a key in its place."""

    def remove(self, key: K, /) -> None:
        """Take a key out.

        Raises:
            ValueError: It is not inside.
        """

    def pop(self, at: int, /) -> K:
        """Take out the key at a place."""

    def irange(self, low: Any = None, high: Any = None, /) -> Iterator[K]:
        """The keys from ``low`` to ``high``, both included; ``None``: no end."""


def sorted_keys(most: int) -> SortedKeys[Any]:
    """An empty one that is to hold at most so many keys."""
    return FewKeys() if most <= FEW else SortedList()


class FewKeys(list[Any]):
    """A sorted plain list; as :class:`SortedKeys`."""

    __slots__ = ()

    def add(self, key: Any, /) -> None:
        """Put a key in its place."""
        insort(self, key)

    def remove(self, key: Any, /) -> None:
        """Take a key out."""
        at = bisect_left(self, key)
        if at == len(self) or self[at] != key:
            raise ValueError(f"{key!r} is not among the keys")
        del self[at]

    def irange(self, low: Any = None, high: Any = None, /) -> Iterator[Any]:
        """The keys from ``low`` to ``high``, as they are now."""
        begin = 0 if low is None else bisect_left(self, low)
        return iter(self[begin:] if high is None else self[begin : bisect_right(self, high)])

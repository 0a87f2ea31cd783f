"""The caching allocator with ``expandable_segments:True``: see the picture in its parent's module.

From ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.13 to 2.15): ``get_free_block``, ``find_expandable_block``,
``try_allocate_expandable_block``, ``map_block``, ``unmap_block``, ``release_blocks``, ``ExpandableSegment::map`` and
``unmap``. The range of addresses has no end here (in torch it is nine eighths of the device's memory).
"""

from bisect import bisect_left, insort
from typing import Self

from overlap_sched.peak_memory.allocator.caching import (
    ADDRESS,
    BITS,
    MIN_BLOCK,
    NO_BLOCK,
    SMALL_BASE,
    SMALL_BUFFER,
    SMALL_SIZE,
    Address,
    Block,
    CachingAllocator,
)
from overlap_sched.problem.allocator_settings import EXPANDABLE, NO_LIMIT, AllocatorSettings

_ADDRESSES = 2**61


class ExpandableAllocator(CachingAllocator):
    """As its parent; ``segments`` counts how often pages were mapped."""

    def __init__(self, settings: AllocatorSettings = EXPANDABLE, capacity: int = NO_LIMIT) -> None:
        super().__init__(settings, capacity)
        self._page = {True: SMALL_BUFFER, False: settings.large_segment_size_bytes}
        self._picky, self._unsplit_size, self._least_large = True, NO_LIMIT, MIN_BLOCK
        self._unmapped = {SMALL_BASE: _ADDRESSES, 0: _ADDRESSES}  # from its first address to its size
        self._unmapped_ends = {SMALL_BASE + _ADDRESSES: SMALL_BASE, _ADDRESSES: 0}
        self._holes = {True: [SMALL_BASE], False: [0]}  # what is not mapped, of each pool, by address

    def copied(self) -> Self:
        """As its parent's."""
        found = super().copied()
        found._unmapped, found._unmapped_ends = self._unmapped.copy(), self._unmapped_ends.copy()
        found._holes = {small: holes.copy() for small, holes in self._holes.items()}
        return found

    def _fit(self, pool: list[int], at: int, size: int) -> int:
        if at == len(pool):
            return at
        can_grow_to = self._can_grow_to
        while at + 1 < len(pool) and can_grow_to(pool[at + 1]) < can_grow_to(pool[at]):
            at += 1
        return super()._fit(pool, at, size)

    def _can_grow_to(self, block: int) -> int:
        """Return the size that a free block counts as in its pool (``expandable_size``)."""
        size, address = block >> BITS, block & ADDRESS
        return size + self._unmapped.get(address + size, 0)

    def _from_device(self, size: int) -> Block | None:
        at = self._room(size)
        if at not in self._starts and not self._map(at, min(self._unmapped[at], size)):
            return None
        while (have := self._starts[at]) < size:
            if not self._map(at + have, min(size - have, self._unmapped[at + have])):
                return None
        self._take(at)
        return Block(at, have)

    def _lacking_bytes(self, size: int) -> int:
        return self._page[size <= SMALL_SIZE]  # page by page: how many are mapped already depends on the place

    def _room(self, size: int) -> Address:
        """The lowest block from which on so many bytes are free or not mapped."""
        for hole in self._holes[size <= SMALL_SIZE]:
            at = start = self._ends.get(hole, hole)
            while at - start < size and (have := self._starts.get(at) or self._unmapped.get(at)):
                at += have
            if at - start >= size:
                return start
        raise AssertionError("the range of addresses has an end")

    def _map(self, at: Address, size: int) -> bool:
        """Map the first bytes of what is not mapped, in whole pages; they are free then. False: there is no memory."""
        page, have = self._page[at >= SMALL_BASE], self._unmapped[at]
        size = -(-size // page) * page
        if self.reserved_bytes + size > self.capacity:
            return False
        self._remove_hole(at)
        if size < have:
            self._add_hole(at + size, have - size)
        self.segments += 1
        self._reserve(size)
        self._join(at, size)
        return True

    def _released_some(self, size: int) -> bool:
        return False

    def _release(self) -> None:
        """Unmap every page that is wholly free."""
        for block in self.free_blocks():
            self._unmap(block)

    def _unmap(self, block: Block) -> None:
        page, stop = self._page[block.address >= SMALL_BASE], block.address + block.size
        begin, end = -(-block.address // page) * page, stop // page * page
        if begin >= end:
            return
        self._take(block.address)
        if stop > end:
            self._join(end, stop - end)
        if begin > block.address:
            self._join(block.address, begin - block.address)
        self._reserve(begin - end)
        after = self._unmapped.get(end, 0)
        if after:
            self._remove_hole(end)
        before = self._unmapped_ends.get(begin, NO_BLOCK)
        if before != NO_BLOCK:
            self._remove_hole(before)
            begin = before
        self._add_hole(begin, end + after - begin)

    def _add_hole(self, at: Address, size: int) -> None:
        self._unmapped[at], self._unmapped_ends[at + size] = size, at
        insort(self._holes[at >= SMALL_BASE], at)

    def _remove_hole(self, at: Address) -> None:
        del self._unmapped_ends[at + self._unmapped.pop(at)]
        holes = self._holes[at >= SMALL_BASE]
        del holes[bisect_left(holes, at)]

"""The caching allocator with ``expandable_segments:True``: see the picture in its parent's module.

From ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.13 to 2.15): ``get_free_block``, ``find_expandable_block``,
``try_allocate_expandable_block``, ``map_block``, ``unmap_block``, ``release_blocks``, ``ExpandableSegment::map`` and
``unmap``. The range of addresses has no end here (in torch it is nine eighths of the device's memory).
"""

from itertools import pairwise

from overlap_sched.peak_memory.allocator.caching import (
    MIN_BLOCK,
    SMALL_BASE,
    SMALL_BUFFER,
    SMALL_SIZE,
    Address,
    Block,
    CachingAllocator,
    Ranges,
)
from overlap_sched.problem.sizes import EXPANDABLE, NO_LIMIT, AllocatorSettings

_ADDRESSES = 2**61


class ExpandableAllocator(CachingAllocator):
    """As its parent; ``segments`` counts how often pages were mapped."""

    def __init__(self, settings: AllocatorSettings = EXPANDABLE, capacity: int = NO_LIMIT) -> None:
        super().__init__(settings, capacity)
        self._page = {True: SMALL_BUFFER, False: settings.large_segment_size_bytes}
        self._unmapped = {True: Ranges(), False: Ranges()}
        self._unmapped[True].add(SMALL_BASE, _ADDRESSES)
        self._unmapped[False].add(0, _ADDRESSES)

    def _splits(self, left: int, size: int) -> bool:
        return left >= MIN_BLOCK

    def _smallest(self, size: int) -> Block | None:
        """By the size to which a free block can grow, as far as that falls from one to the next."""
        small = size <= SMALL_SIZE
        blocks = self._free[small].from_size(size)
        can_grow_to = [have + self._unmapped[small].sizes.get(at + have, 0) for at, have in blocks]
        stop = next((k for k, (one, other) in enumerate(pairwise(can_grow_to)) if other >= one), -1)
        return blocks[stop] if blocks else None

    def _from_device(self, size: int) -> Block | None:
        free, unmapped = self._free[size <= SMALL_SIZE], self._unmapped[size <= SMALL_SIZE]
        at = self._room(size)
        while (have := free.sizes.get(at, 0)) < size:
            if not self._map(at + have, min(size - have, unmapped.sizes[at + have])):
                return None
        return Block(at, free.take(at))

    def _room(self, size: int) -> Address:
        """The lowest block from which on so many bytes are free or not mapped."""
        free, unmapped = self._free[size <= SMALL_SIZE], self._unmapped[size <= SMALL_SIZE]
        for hole in sorted(unmapped.sizes):
            at = start = free.begins.get(hole, hole)
            while at - start < size and (have := free.sizes.get(at) or unmapped.sizes.get(at)):
                at += have
            if at - start >= size:
                return start
        raise AssertionError("the range of addresses has an end")

    def _map(self, at: Address, size: int) -> bool:
        """Map the first bytes of what is not mapped, in whole pages; they are free then. False: there is no memory."""
        small = at >= SMALL_BASE
        page, unmapped = self._page[small], self._unmapped[small]
        size = -(-size // page) * page
        if self.reserved_bytes + size > self.capacity:
            return False
        left = unmapped.take(at) - size
        if left:
            unmapped.add(at + size, left)
        self.segments += 1
        self._reserve(size)
        self._free[small].add(at, size)
        return True

    def _released_some(self, size: int) -> bool:
        return False

    def _release(self) -> None:
        """Unmap every page that is wholly free."""
        for address, size in self.free_blocks():
            small, stop = address >= SMALL_BASE, address + size
            page, free = self._page[small], self._free[small]
            begin, end = -(-address // page) * page, stop // page * page
            if begin < end:
                free.take(address)
                for at, left in ((end, stop - end), (address, begin - address)):
                    if left:
                        free.add(at, left)
                self._reserve(begin - end)
                self._unmapped[small].add(begin, end - begin)


def new_allocator(settings: AllocatorSettings, capacity: int = NO_LIMIT) -> CachingAllocator:
    """An allocator with such settings, on a device of so many bytes."""
    return (ExpandableAllocator if settings.expandable_segments else CachingAllocator)(settings, capacity)

"""The caching allocator with ``expandable_segments:True``: see the picture in its parent's module.

From ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.13 to 2.15): ``get_free_block``, ``find_expandable_block``,
``try_allocate_expandable_block``, ``map_block``, ``unmap_block``, ``release_blocks``, ``ExpandableSegment::map`` and
``unmap``. The range of addresses has no end here (in torch it is nine eighths of the device's memory).
"""

import bisect
from collections.abc import Mapping

from overlap_sched.peak_memory.allocator.caching import (
    MIN_BLOCK,
    SMALL_BUFFER,
    SMALL_SIZE,
    Block,
    CachingAllocator,
)
from overlap_sched.problem.allocator_settings import EXPANDABLE, NO_LIMIT, AllocatorSettings

_ADDRESSES = 2**62


class ExpandableAllocator(CachingAllocator):
    """As its parent; ``segments`` counts how often pages were mapped."""

    def __init__(self, settings: AllocatorSettings = EXPANDABLE, capacity: int = NO_LIMIT) -> None:
        super().__init__(settings, capacity)
        self._page = {True: SMALL_BUFFER, False: settings.large_segment_size_bytes}
        self._unmapped: dict[bool, list[tuple[int, Block]]] = {
            small: [(0, Block(0, _ADDRESSES, small, mapped=False))] for small in (True, False)
        }

    def _all_free(self) -> list[Block]:
        return super()._all_free() + [block for pool in self._unmapped.values() for _, block in pool]

    def _stand_alone(self, twins: Mapping[Block, Block]) -> None:
        super()._stand_alone(twins)
        self._unmapped = {
            small: [(address, twins[block]) for address, block in pool] for small, pool in self._unmapped.items()
        }

    def _place(self, size: int) -> int:
        pool = self._pools[size <= SMALL_SIZE]
        at = bisect.bisect_left(pool, (size,))
        if at == len(pool):
            return -1
        while at + 1 < len(pool) and _can_grow_to(pool[at + 1][2]) < _can_grow_to(pool[at][2]):
            at += 1
        return -1 if self._picky and self._oversized(pool[at][0], size) else at

    def _should_split(self, block: Block, size: int) -> bool:
        return block.size - size >= MIN_BLOCK

    def _from_device(self, size: int) -> Block | None:
        block = self._room(size)
        if not block.mapped:
            mapped = self._map(block, min(block.size, size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            after = block.after
            assert after is not None  # _room found enough behind it
            mapped = self._map(after, min(size - block.size, after.size))
            if mapped is None:
                return None
            block = mapped
        self._take(block)
        return block

    def _lacking_bytes(self, size: int) -> int:
        return self._page[size <= SMALL_SIZE]  # page by page: how many are mapped already depends on the place

    def _room(self, size: int) -> Block:
        """The lowest block from which on so many bytes are free or not mapped."""
        for _, unmapped in self._unmapped[size <= SMALL_SIZE]:
            start = unmapped.before if unmapped.before is not None and unmapped.before.free else unmapped
            room = 0
            block: Block | None = start
            while room < size and block is not None and block.free:
                room += block.size
                block = block.after
            if room >= size:
                return start
        raise AssertionError("the range of addresses has an end")

    def _map(self, block: Block, size: int) -> Block | None:
        """Map the first bytes of a block, in whole pages; free, joined with its neighbours. None: no memory."""
        size = -(-size // self._page[block.small]) * self._page[block.small]
        if self.reserved_bytes + size > self.capacity:
            return None
        self._take(block)
        if size < block.size:
            rest = Block(block.address + size, block.size - size, block.small, mapped=False)
            self._splice(rest, block, block.after)
            self._put(rest)
        block.size, block.mapped = size, True
        self.segments += 1
        self._reserve(size)
        block = self._merged(block)
        self._put(block)
        return block

    def _released_one(self, size: int) -> bool:
        return False

    def _release(self) -> None:
        """Unmap every page that is wholly free."""
        for pool in self._pools.values():
            for _, _, block in list(pool):
                self._unmap(block)

    def _unmap(self, block: Block) -> None:
        page = self._page[block.small]
        begin, end = -(-block.address // page) * page, (block.address + block.size) // page * page
        if begin >= end:
            return
        self._take(block)
        if block.address + block.size > end:
            after = Block(end, block.address + block.size - end, block.small)
            self._splice(after, block, block.after)
            self._put(after)
        if begin > block.address:
            front = Block(block.address, begin - block.address, block.small)
            self._splice(front, block.before, block)
            self._put(front)
        block.address, block.size, block.mapped = begin, end - begin, False
        self._reserve(begin - end)
        self._put(self._merged(block))

    @staticmethod
    def _splice(block: Block, before: Block | None, after: Block | None) -> None:
        block.before, block.after = before, after
        if before is not None:
            before.after = block
        if after is not None:
            after.before = block

    def _put(self, block: Block) -> None:
        if block.mapped:
            super()._put(block)
        else:
            bisect.insort(self._unmapped[block.small], (block.address, block))

    def _take(self, block: Block) -> None:
        if block.mapped:
            super()._take(block)
        else:
            pool = self._unmapped[block.small]
            pool.pop(bisect.bisect_left(pool, (block.address,)))


def _can_grow_to(block: Block) -> int:
    """``expandable_size``."""
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)

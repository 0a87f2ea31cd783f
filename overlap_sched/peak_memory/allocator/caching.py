"""torch's CUDA caching allocator, replayed without a GPU: what it reserves, and when it runs out.

The rules and their defaults, from ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h`` (torch 2.13
to 2.15)::

    round     a request is rounded up to a multiple of 512 bytes (round_size), 512 at least
    pools     up to 1 MiB (kSmallSize): small; above: large. Blocks never change pools
    best fit  the smallest free block of the pool that is large enough; of equal ones the lowest address
    grow      none fits: a segment from cudaMalloc (get_allocation_size): 2 MiB for small requests; 20 MiB below 10 MiB;
              above, the request rounded up to 2 MiB
    pressure  the device has no more: every segment that is wholly free goes back to it (release_cached_blocks: this
              stops the GPU, a *retry*), then once more. Still nothing: out of memory
    split     a block's rest becomes a free block (should_split): small pool: from 512 bytes on; large: above 1 MiB
    merge     a freed block joins its free neighbours in the segment (try_merge_blocks)

With ``expandable_segments:True`` a pool has one segment that grows, in a range of addresses without end::

    | block | free | block | free      | - - - not mapped - - - ->
    |<- pages of 20 MiB (large pool) or 2 MiB (small) ->|

    best fit  the size of a free block before what is not mapped is that to which it can grow (expandable_size)
    grow      the lowest place with so much free or unmapped room: pages are mapped there (find_expandable_block)
    pressure  all pages that are wholly free are unmapped (release_blocks, unmap_block)
    split     from 512 bytes on, in both pools

Not replayed: several streams (collectives in a graph take their memory on the compute stream, and from torch 2.8 on
hold it until their wait, which is in the live ranges, instead of ``record_stream``); ``garbage_collection_threshold``;
private pools of CUDA graphs. Segments lie in the order in which they were made, while cudaMalloc promises nothing:
that decides ties.
"""

import copy
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from overlap_sched.problem.allocator_settings import MIB, NO_LIMIT, PLAIN, AllocatorSettings

MIN_BLOCK, SMALL_SIZE, SMALL_BUFFER = 512, MIB, 2 * MIB
MIN_LARGE_ALLOC, ROUND_LARGE = 10 * MIB, 2 * MIB


class OutOfDeviceMemoryError(Exception):
    """A request that the capacity does not hold, after all that is cached was given back."""


class FullDeviceError(OutOfDeviceMemoryError):
    """A request that the capacity does not hold; nothing was given back (``CachingAllocator.halts``)."""


@dataclass(eq=False, slots=True)
class Block:
    """A range of addresses, in use or free; ``before`` and ``after`` are its neighbours in the segment."""

    address: int
    size: int
    small: bool
    free: bool = True
    mapped: bool = True
    before: "Block | None" = None
    after: "Block | None" = None


class CachingAllocator:
    """The allocator on one stream, with segments from cudaMalloc.

    Attributes:
        settings: How it is set up. capacity: bytes that the device has for it.
        reserved_bytes, allocated_bytes: Now. peak_reserved_bytes, peak_allocated_bytes: the most so far.
        segments: How many it has asked for. retries: how often cached memory was given back under pressure.
        halts: When the capacity does not suffice it fails at once, as it is: what asks may go on with a copy.
        most_retries: It gives nothing back any more after so many.
        lent_bytes: By how much it has raised its capacity itself, where that did not suffice: most_lent_bytes at most.
        on_lending: Called each time that it does.
    """

    def __init__(self, settings: AllocatorSettings = PLAIN, capacity: int = NO_LIMIT) -> None:
        self.settings, self.capacity = settings, capacity
        self._sizes: dict[int, int] = {}  # of requests seen so far, rounded
        self._picky = settings.max_split_size_bytes < NO_LIMIT
        self.halts, self.most_retries, self.most_lent_bytes = False, NO_LIMIT, 0
        self.reserved_bytes = self.allocated_bytes = self.segments = self.retries = self.lent_bytes = 0
        self.peak_reserved_bytes = self.peak_allocated_bytes = 0
        self.on_lending: Callable[[], object] = lambda: None
        self._pools: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}  # free: (size, address, block)
        self._next_address = 0

    def allocate(self, count: int) -> Block | None:
        """A block for so many bytes; none for 0.

        Raises:
            FullDeviceError: The capacity does not suffice as things are, and it halts there.
            OutOfDeviceMemoryError: The capacity does not suffice.
        """
        if count == 0:
            return None
        size = self._rounded(count)
        at, pool = self._place(size), self._pools[size <= SMALL_SIZE]
        block = pool.pop(at)[2] if at >= 0 else self._grown(size)
        if block.size > size:
            self._split(block, size)
        block.free = False
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free(self, block: Block | None) -> None:
        """Give a block back."""
        if block is None:
            return
        self.allocated_bytes -= block.size
        block.free = True
        before, after = block.before, block.after
        if (before is not None and before.free) or (after is not None and after.free):
            block = self._merged(block)
        self._put(block)

    def growth_bytes(self, count: int) -> int:
        """What a request for so many bytes would reserve more, as things stand; changes nothing."""
        if count == 0:
            return 0
        size = self._rounded(count)
        return self._growth(size) if self._place(size) < 0 else 0

    def shortfall_bytes(self, size: int) -> int:
        """How many bytes the capacity lacks for the segment of a request, rounded, that no free block serves."""
        return self.reserved_bytes + self._growth(size) - self.capacity

    def free_blocks(self) -> list[Block]:
        """All that is free, by pool and size."""
        return [block for pool in self._pools.values() for _, _, block in pool]

    def largest_free_bytes(self) -> int:
        """The largest free block of the large pool."""
        pool = self._pools[False]
        return pool[-1][0] if pool else 0

    def copied(self, used: Iterable[Block]) -> tuple[Self, Mapping[Block, Block]]:
        """The allocator as it is, to go another way; and what stands for each of its blocks there. O(blocks).

        Args:
            used: The blocks that are in use, all of them.
        """
        found = copy.copy(self)
        twins = {
            block: Block(block.address, block.size, block.small, block.free, block.mapped)
            for block in (*used, *self._all_free())
        }
        for block, twin in twins.items():
            twin.before = None if block.before is None else twins[block.before]
            twin.after = None if block.after is None else twins[block.after]
        found._stand_alone(twins)
        return found, twins

    def _all_free(self) -> list[Block]:
        """All blocks that are not in use, mapped or not."""
        return self.free_blocks()

    def _stand_alone(self, twins: Mapping[Block, Block]) -> None:
        """Hold the twins of the blocks that it holds, in lists of its own."""
        self._pools = {
            small: [(size, address, twins[block]) for size, address, block in pool]
            for small, pool in self._pools.items()
        }

    def _rounded(self, count: int) -> int:
        size = self._sizes.get(count)
        if size is None:
            size = self._sizes[count] = rounded(count, self.settings)
        return size

    def _place(self, size: int) -> int:
        """Where in its pool the free block is that a request gets; -1: there is none."""
        pool = self._pools[size <= SMALL_SIZE]
        at = bisect_left(pool, (size,))
        return -1 if at == len(pool) or (self._picky and self._oversized(pool[at][0], size)) else at

    def _oversized(self, have: int, size: int) -> bool:
        """Is a block too large to be given for a request that it may not be split for?"""
        limit = self.settings.max_split_size_bytes
        return size < limit <= have or (size >= limit and have >= size + self.settings.max_non_split_rounding_bytes)

    def _grown(self, size: int) -> Block:
        """A block from the device, after a retry where it has no more."""
        block = self._from_device(size)
        if block is None and self.halts:
            raise FullDeviceError
        if block is None and self._released_one(size):
            block = self._from_device(size)
        if block is None and self.retries < self.most_retries:
            self.retries += 1
            self._release()
            block = self._from_device(size)
        while block is None:
            self._lend(self._lacking_bytes(size))
            block = self._from_device(size)
        return block

    def _lend(self, count: int) -> None:
        if self.lent_bytes + count > self.most_lent_bytes:
            raise OutOfDeviceMemoryError
        self.lent_bytes += count
        self.capacity += count
        self.on_lending()

    def _lacking_bytes(self, size: int) -> int:
        """What is lent for a request at once."""
        return self.shortfall_bytes(size)

    def _growth(self, size: int) -> int:
        """The segment for a request that no free block serves."""
        if size <= SMALL_SIZE:
            return SMALL_BUFFER
        if size < MIN_LARGE_ALLOC:
            return self.settings.large_segment_size_bytes
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def _from_device(self, size: int) -> Block | None:
        segment = self._growth(size)
        if self.reserved_bytes + segment > self.capacity:
            return None
        block = Block(self._next_address, segment, size <= SMALL_SIZE)
        self._next_address += segment
        self.segments += 1
        self._reserve(segment)
        return block

    def _released_one(self, size: int) -> bool:
        """Give back blocks that are not split, as many as serve the request (``release_available_cached_blocks``)."""
        limit = self.settings.max_split_size_bytes
        if limit == NO_LIMIT:
            return False
        pool, wanted = self._pools[size <= SMALL_SIZE], max(size, limit)
        at = bisect_left(pool, (wanted,))
        if at < len(pool):
            self._give_back(pool, at)
            return True
        released = 0
        while pool and released < wanted and pool[-1][0] >= limit:
            released += pool[-1][0]
            self._give_back(pool, len(pool) - 1)
        return released >= wanted

    def _release(self) -> None:
        """Give back every segment that is wholly free."""
        for pool in self._pools.values():
            for at in reversed(range(len(pool))):
                if pool[at][2].before is None and pool[at][2].after is None:
                    self._give_back(pool, at)

    def _give_back(self, pool: list[tuple[int, int, Block]], at: int) -> None:
        self._reserve(-pool.pop(at)[0])

    def _reserve(self, count: int) -> None:
        self.reserved_bytes += count
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes

    def _should_split(self, block: Block, size: int) -> bool:
        left = block.size - size
        if block.small:
            return left >= MIN_BLOCK
        return left > SMALL_SIZE and size < self.settings.max_split_size_bytes

    def _split(self, block: Block, size: int) -> None:
        if not self._should_split(block, size):
            return
        rest = Block(block.address + size, block.size - size, block.small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._put(rest)

    def _put(self, block: Block) -> None:
        insort(self._pools[block.small], (block.size, block.address, block))

    def _take(self, block: Block) -> None:
        """Out of the free blocks."""
        pool = self._pools[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]

    def _merged(self, block: Block) -> Block:
        """The block, which is in no pool, joined with its free neighbours that are mapped as it is."""
        before, after = block.before, block.after
        if before is not None and before.free and before.mapped == block.mapped:
            self._take(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.free and after.mapped == block.mapped:
            self._take(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        return block


def rounded(count: int, settings: AllocatorSettings = PLAIN) -> int:
    """Bytes that a request takes (``round_size``, ``roundup_power2_next_division``)."""
    if count < MIN_BLOCK:
        return MIN_BLOCK
    divisions = settings.divisions(count)
    if divisions > 1 and count > MIN_BLOCK * divisions:
        if count & (count - 1) == 0:
            return count
        floor = 1 << (count.bit_length() - 1)
        step = floor >> (divisions.bit_length() - 1)
        return floor << 1 if step == 0 else -(-count // step) * step
    if divisions == 1 and count > MIN_BLOCK:
        return count
    return -(-count // MIN_BLOCK) * MIN_BLOCK

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

Schedulers replay it thousands of times: so it is made of whole numbers, lists and dictionaries, which are fast to look
up and to copy. A block is its address. Free ones lie in three tables::

    pool    [(4 MiB, 20), (8 MiB, 2), ...]   by size, then address: best fit
    starts  {2: 8 MiB, 20: 4 MiB, ...}       from its first address to its size: joins it to what is before it
    ends    {10: 2, 24: 20, ...}             from the address behind it to its first: to what is behind it
"""

import copy
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Self

from overlap_sched.problem.allocator_settings import MIB, NO_LIMIT, PLAIN, AllocatorSettings

MIN_BLOCK, SMALL_SIZE, SMALL_BUFFER = 512, MIB, 2 * MIB
MIN_LARGE_ALLOC, ROUND_LARGE = 10 * MIB, 2 * MIB

Address = int
"""Of a block: it stands for the block while that is in use."""
NO_BLOCK: Address = -1
"""In the place of a block: what has no bytes needs none."""
SMALL_BASE: Address = 2**62
"""Blocks of the small pool lie from here on."""
BITS = 64
"""A free block of a pool is one number, compared faster than a pair: its size, then so many bits of address."""
ADDRESS = 2**BITS - 1


class OutOfDeviceMemoryError(Exception):
    """A request that the capacity does not hold, after all that is cached was given back, where that may be."""


class Block(NamedTuple):
    """A range of addresses."""

    address: Address
    size: int


class CachingAllocator:
    """The allocator on one stream, with segments from cudaMalloc.

    Attributes:
        settings: How it is set up. capacity: bytes that the device has for it.
        reserved_bytes, allocated_bytes: Now. peak_reserved_bytes, peak_allocated_bytes: the most so far.
        segments: How many it has asked for. retries: how often cached memory was given back under pressure.
        halts: When the capacity does not suffice it fails at once, as it is: what asks may go on with a copy.
        most_retries: It gives nothing back any more after so many.
        lent_bytes: By how much it has raised its capacity itself, where that did not suffice: most_lent_bytes at most.
    """

    def __init__(self, settings: AllocatorSettings = PLAIN, capacity: int = NO_LIMIT) -> None:
        self.settings, self.capacity = settings, capacity
        self._used = dict[Address, int]()
        self.halts, self.most_retries, self.most_lent_bytes = False, NO_LIMIT, 0
        self.reserved_bytes = self.allocated_bytes = self.segments = self.retries = self.lent_bytes = 0
        self.peak_reserved_bytes = self.peak_allocated_bytes = 0
        self._sizes = dict[int, int]()  # of requests seen so far, rounded
        self._picky = settings.max_split_size_bytes < NO_LIMIT  # the smallest block that fits may not be the one
        self._unsplit_size = settings.max_split_size_bytes
        self._least_small, self._least_large = MIN_BLOCK, SMALL_SIZE + 1  # a rest of so much becomes a block
        self._small, self._large = list[int](), list[int]()
        self._starts, self._ends = dict[Address, int](), dict[Address, Address]()
        self._segment_sizes = dict[Address, int]()  # of each segment, by its first address
        self._next_address = {True: SMALL_BASE, False: 0}

    def allocate(self, count: int) -> Address:
        """A block for so many bytes.

        Raises:
            OutOfDeviceMemoryError: The capacity does not suffice.
        """
        if not count:
            return NO_BLOCK
        size = self._sizes.get(count) or self._rounded(count)
        small = size <= SMALL_SIZE
        pool = self._small if small else self._large
        at = bisect_left(pool, size << BITS)
        if self._picky:
            at = self._fit(pool, at, size)
        if at < len(pool):
            block = pool.pop(at)
            address, have = block & ADDRESS, block >> BITS
            del self._starts[address], self._ends[address + have]
        else:
            address, have = self._grown(size)
        left = have - size
        if left >= (self._least_small if small else self._least_large) and size < self._unsplit_size:
            begin = address + size
            self._starts[begin], self._ends[address + have] = left, begin
            insort(pool, left << BITS | begin)
            have = size
        self._used[address] = have
        self.allocated_bytes += have
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return address

    def free(self, address: Address) -> None:
        """Give a block back."""
        if address == NO_BLOCK:
            return
        size = self._used.pop(address)
        self.allocated_bytes -= size
        self._join(address, size)

    def serve(
        self,
        events: Sequence[int],
        sizes: Sequence[int],
        held: list[Address],
        lent_for: list[int],
        begin: int = 0,
    ) -> int:
        """Serve requests in turn, as far as the capacity holds them.

        Args:
            events: Storage ``s`` is allocated, for ``~s`` it is freed.
            sizes: Per storage, bytes.
            held: Per storage, its block, ``NO_BLOCK`` where there is none: is kept up to date.
            lent_for: To this the storages are added for which something had to be lent.
            begin: The first that is served.

        Returns:
            The first that the capacity does not hold; where it holds all, how many there are.
        """
        for at, event in enumerate(islice(events, begin, None), begin):
            if event < 0:
                self.free(held[~event])
                held[~event] = NO_BLOCK
                continue
            before = self.lent_bytes
            try:
                held[event] = self.allocate(sizes[event])
            except OutOfDeviceMemoryError:
                return at
            if self.lent_bytes > before:
                lent_for.append(event)
        return len(events)

    def growth_bytes(self, count: int) -> int:
        """Return how much more a request for so many bytes would reserve, as things stand; changes nothing."""
        if not count:
            return 0
        size = self._rounded(count)
        pool = self._pool(size)
        return self._growth(size) if self._fit(pool, bisect_left(pool, size << BITS), size) == len(pool) else 0

    def shortfall_bytes(self, size: int) -> int:
        """How many bytes the capacity lacks for the segment of a request, rounded, that no free block serves."""
        return self.reserved_bytes + self._growth(size) - self.capacity

    def size_of(self, address: Address) -> int:
        """Return the size of a block that is in use."""
        return self._used[address]

    def free_blocks(self) -> list[Block]:
        """All that is free."""
        return [Block(*one) for one in self._starts.items()]

    def largest_free_bytes(self) -> int:
        """The largest free block of the large pool."""
        return self._large[-1] >> BITS if self._large else 0

    def copied(self) -> Self:
        """The allocator as it is, to go another way. O(blocks)."""
        found = copy.copy(self)
        found._used, found._small, found._large = self._used.copy(), self._small.copy(), self._large.copy()
        found._starts, found._ends = self._starts.copy(), self._ends.copy()
        found._segment_sizes, found._next_address = self._segment_sizes.copy(), self._next_address.copy()
        return found

    def _rounded(self, count: int) -> int:
        size = self._sizes[count] = rounded(count, self.settings)
        return size

    def _pool(self, size: int) -> list[int]:
        """Return the pool for requests of such a size."""
        return self._small if size <= SMALL_SIZE else self._large

    def _fit(self, pool: list[int], at: int, size: int) -> int:
        """Where in its pool the free block is that a request gets; the pool's end: there is none.

        Args:
            pool: Of the request.
            at: Where its smallest block is that is large enough.
            size: Of the request.
        """
        return len(pool) if at < len(pool) and self._oversized(pool[at] >> BITS, size) else at

    def _oversized(self, have: int, size: int) -> bool:
        """Is a block too large to be given for a request that it may not be split for?"""
        limit = self.settings.max_split_size_bytes
        return size < limit <= have or (size >= limit and have >= size + self.settings.max_non_split_rounding_bytes)

    def _grown(self, size: int) -> Block:
        """A block from the device, after a retry where it has no more; it is in no pool."""
        block = self._from_device(size)
        if block is None and self.halts:
            raise OutOfDeviceMemoryError
        if block is None and self._released_some(size):
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

    def _lacking_bytes(self, size: int) -> int:
        """Count the bytes that are lent for a request at once."""
        return self.shortfall_bytes(size)

    def _growth(self, size: int) -> int:
        """The segment for a request that no free block serves."""
        if size <= SMALL_SIZE:
            return SMALL_BUFFER
        if size < MIN_LARGE_ALLOC:
            return self.settings.large_segment_size_bytes
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def _from_device(self, size: int) -> Block | None:
        segment, small = self._growth(size), size <= SMALL_SIZE
        if self.reserved_bytes + segment > self.capacity:
            return None
        address = self._next_address[small]
        self._next_address[small] += segment + MIN_BLOCK  # with a gap: blocks of two segments never join
        self._segment_sizes[address] = segment
        self.segments += 1
        self._reserve(segment)
        return Block(address, segment)

    def _released_some(self, size: int) -> bool:
        """Give back blocks that are not split, as many as serve the request (``release_available_cached_blocks``)."""
        limit = self.settings.max_split_size_bytes
        if limit == NO_LIMIT:
            return False
        pool, wanted = self._pool(size), max(size, limit)
        large = [block & ADDRESS for block in pool[bisect_left(pool, limit << BITS) :]]
        whole = [Block(address, self._starts[address]) for address in large if self._whole(address)]
        enough = next((block for block in whole if block.size >= wanted), None)
        if enough is not None:
            self._give_back(enough.address)
            return True
        released = 0
        while whole and released < wanted:
            block = whole.pop()
            self._give_back(block.address)
            released += block.size
        return released >= wanted

    def _release(self) -> None:
        """Give back every segment that is wholly free."""
        for address in [address for address in self._segment_sizes if self._whole(address)]:
            self._give_back(address)

    def _whole(self, address: Address) -> bool:
        """Is what lies there a segment that is wholly free?"""
        return self._starts.get(address) == self._segment_sizes.get(address)

    def _give_back(self, address: Address) -> None:
        self._take(address)
        self._reserve(-self._segment_sizes.pop(address))

    def _reserve(self, count: int) -> None:
        self.reserved_bytes += count
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes

    def _join(self, address: Address, size: int) -> None:
        """A block becomes free: one with its free neighbours."""
        starts, ends, end = self._starts, self._ends, address + size
        pool = self._small if address >= SMALL_BASE else self._large
        after = starts.pop(end, 0)
        if after:
            del pool[bisect_left(pool, after << BITS | end)]
            size += after
            end += after
        before = ends.pop(address, NO_BLOCK)
        if before != NO_BLOCK:
            have = starts[before]
            del pool[bisect_left(pool, have << BITS | before)]
            size += have
            address = before
        starts[address], ends[end] = size, address
        insort(pool, size << BITS | address)

    def _take(self, address: Address) -> None:
        """Out of what is free."""
        size = self._starts.pop(address)
        del self._ends[address + size]
        pool = self._small if address >= SMALL_BASE else self._large
        del pool[bisect_left(pool, size << BITS | address)]


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

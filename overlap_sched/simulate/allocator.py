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

Every rule stands here once, by its name in torch. A block is its address; those that are free are ranges of addresses
that do not touch, per pool, to be found by their size, their begin and their end.

The caching allocator with ``expandable_segments:True``: see the picture in its parent's module.

From ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.13 to 2.15): ``get_free_block``, ``find_expandable_block``,
``try_allocate_expandable_block``, ``map_block``, ``unmap_block``, ``release_blocks``, ``ExpandableSegment::map`` and
``unmap``. The range of addresses has no end here (in torch it is nine eighths of the device's memory).

What the caching allocator makes of an order: reserved bytes, and the smallest device on which it runs.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from overlap_sched.problem import Problem
from overlap_sched.problem.sizes import EXPANDABLE, MIB, NO_LIMIT, PLAIN, AllocatorSettings
from overlap_sched.simulate.ledger import LiveRanges

MIN_BLOCK, SMALL_SIZE, SMALL_BUFFER = 512, MIB, 2 * MIB
MIN_LARGE_ALLOC, ROUND_LARGE = 10 * MIB, 2 * MIB

Address = int
"""Of a block: it stands for the block while that is in use."""
NO_BLOCK: Address = -1
"""In the place of a block: what has no bytes needs none."""
SMALL_BASE: Address = 2**62
"""Blocks of the small pool lie from here on."""


class OutOfDeviceMemoryError(Exception):
    """A request that the capacity does not hold, after all that is cached was given back, where that may be."""


class Block(NamedTuple):
    """A range of addresses."""

    address: Address
    size: int


class Ranges:
    """Ranges of addresses that do not touch: joined where they would.

    Attributes:
        sizes: By first address. begins: by the address behind the last, the first. by_size: ``(size, address)`` in
            order; a plain list, since there are a few hundred.
    """

    def __init__(self) -> None:
        self.sizes, self.begins = dict[Address, int](), dict[Address, Address]()
        self.by_size = list[tuple[int, Address]]()

    def add(self, address: Address, size: int) -> None:
        """One more, joined with its neighbours."""
        if address + size in self.sizes:
            size += self.take(address + size)
        if address in self.begins:
            before = self.begins[address]
            size += self.take(before)
            address = before
        self.sizes[address], self.begins[address + size] = size, address
        insort(self.by_size, (size, address))

    def take(self, address: Address) -> int:
        """One less; its size."""
        size = self.sizes.pop(address)
        del self.begins[address + size]
        del self.by_size[bisect_left(self.by_size, (size, address))]
        return size

    def from_size(self, size: int) -> list[Block]:
        """All that have so many bytes or more, the smallest first, of equal ones the lowest."""
        return [Block(at, have) for have, at in self.by_size[bisect_left(self.by_size, (size, 0)) :]]


class CachingAllocator:
    """The allocator on one stream, with segments from cudaMalloc.

    Attributes:
        settings: How it is set up. capacity: bytes that the device has for it.
        reserved_bytes, allocated_bytes: Now. peak_reserved_bytes, peak_allocated_bytes: the most so far.
        segments: How many it has asked for. retries: how often cached memory was given back under pressure.
    """

    def __init__(self, settings: AllocatorSettings = PLAIN, capacity: int = NO_LIMIT) -> None:
        self.settings, self.capacity = settings, capacity
        self.reserved_bytes = self.allocated_bytes = self.segments = self.retries = 0
        self.peak_reserved_bytes = self.peak_allocated_bytes = 0
        self._used = dict[Address, int]()
        self._free = {True: Ranges(), False: Ranges()}  # by whether it is the small pool, as all that follow
        self._segment_sizes = dict[Address, int]()  # of each segment, by its first address
        self._next_address = {True: SMALL_BASE, False: 0}

    def allocate(self, count: int) -> Address:
        """A block for so many bytes.

        Raises:
            OutOfDeviceMemoryError: The capacity does not suffice.
        """
        if not count:
            return NO_BLOCK
        size = rounded(count, self.settings)
        small = size <= SMALL_SIZE
        block = self._best_fit(size)
        if block is None:
            block = self._grown(size)
        else:
            self._free[small].take(block.address)
        if self._splits(block.size - size, size):
            self._free[small].add(block.address + size, block.size - size)
            block = Block(block.address, size)
        self._used[block.address] = block.size
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block.address

    def free(self, address: Address) -> None:
        """Give a block back."""
        if address == NO_BLOCK:
            return
        size = self._used.pop(address)
        self.allocated_bytes -= size
        self._free[address >= SMALL_BASE].add(address, size)

    def free_blocks(self) -> list[Block]:
        """All that is free."""
        return [Block(*one) for free in self._free.values() for one in free.sizes.items()]

    def _splits(self, left: int, size: int) -> bool:
        """Does so much of a request's block become a block of its own (``should_split``)?"""
        least = MIN_BLOCK if size <= SMALL_SIZE else SMALL_SIZE + 1
        return left >= least and size < self.settings.max_split_size_bytes

    def _best_fit(self, size: int) -> Block | None:
        """The free block that a request gets: none too large that it may not be split for (``get_free_block``)."""
        block, limit = self._smallest(size), self.settings.max_split_size_bytes
        if block is None or size < limit <= block.size:
            return None
        oversized = size >= limit and block.size >= size + self.settings.max_non_split_rounding_bytes
        return None if oversized else block

    def _smallest(self, size: int) -> Block | None:
        """The smallest free block that is large enough; of equal ones the lowest."""
        by_size = self._free[size <= SMALL_SIZE].by_size
        first = bisect_left(by_size, (size, 0))
        if first == len(by_size):
            return None
        have, address = by_size[first]
        return Block(address, have)

    def _grown(self, size: int) -> Block:
        """A block from the device, after a retry where it has no more; it is in no pool."""
        block = self._from_device(size)
        if block is None and self._released_some(size):
            block = self._from_device(size)
        if block is None:
            self.retries += 1
            self._release()
            block = self._from_device(size)
        if block is None:
            raise OutOfDeviceMemoryError
        return block

    def _growth(self, size: int) -> int:
        """The segment for a request that no free block serves (``get_allocation_size``)."""
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
        wanted, released = max(size, limit), 0
        large = self._free[size <= SMALL_SIZE].from_size(limit)
        whole = [block for block in large if self._segment_sizes.get(block.address) == block.size]
        enough = next((block for block in whole if block.size >= wanted), None)
        for block in whole[::-1] if enough is None else [enough]:
            if released < wanted:
                self._give_back(block.address)
                released += block.size
        return released >= wanted

    def _release(self) -> None:
        """Give back every segment that is wholly free (``release_blocks``)."""
        for block in self.free_blocks():
            if self._segment_sizes.get(block.address) == block.size:
                self._give_back(block.address)

    def _give_back(self, address: Address) -> None:
        self._free[address >= SMALL_BASE].take(address)
        self._reserve(-self._segment_sizes.pop(address))

    def _reserve(self, count: int) -> None:
        self.reserved_bytes += count
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)


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


CAPACITY_STEP = 8 * MIB
"""The smallest capacity is found to within this."""


@dataclass(frozen=True)
class Reservation:
    """What a replay without a limit found.

    Attributes:
        reserved_bytes: The most of all segments together: ``torch.cuda.max_memory_reserved()``.
        allocated_bytes: The most in use at once, rounded: ``torch.cuda.max_memory_allocated()``.
        segments: Calls of cudaMalloc (with expandable segments: how often pages were mapped).
    """

    reserved_bytes: int
    allocated_bytes: int
    segments: int


@dataclass(frozen=True)
class Requests:
    """What an order asks of the allocator, in turn: storage ``s`` to allocate it, ``~s`` to free it.

    Attributes:
        steps: The inputs first, then per step what is made, then what dies behind it.
        sizes: Per storage, bytes.
        live_bytes: The most in use at once, as asked for.
    """

    steps: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    live_bytes: int

    def fits(self, capacity: int, settings: AllocatorSettings) -> bool:
        """Does the order run in so many bytes, with retries where it needs them?"""
        try:
            self.replayed(settings, capacity)
        except OutOfDeviceMemoryError:
            return False
        return True

    def replayed(self, settings: AllocatorSettings, capacity: int = NO_LIMIT) -> CachingAllocator:
        """The allocator behind the order's end.

        Raises:
            OutOfDeviceMemoryError: The capacity does not suffice.
        """
        found = new_allocator(settings, capacity)
        self._serve(found)
        return found

    def profile(self, settings: AllocatorSettings) -> list[int]:
        """Bytes reserved behind each step, on a device without a limit; the inputs are there at once."""
        return self._serve(new_allocator(settings))[1:]

    def smallest_capacity(self, settings: AllocatorSettings, fails_in: int = 0) -> int:
        """The least in which the order runs, to :data:`CAPACITY_STEP`, by bisection: a lucky smaller one may exist.

        Args:
            settings: Of the allocator.
            fails_in: A capacity in which it is known not to run.
        """
        low, high = max(self.live_bytes, fails_in), self.replayed(settings).peak_reserved_bytes
        while high - low > CAPACITY_STEP:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(middle, settings) else (middle, high)
        return high

    def _serve(self, allocator: CachingAllocator) -> list[int]:
        """Bytes reserved behind each step."""
        held, sizes, reserved = [NO_BLOCK] * len(self.sizes), self.sizes, []
        for step in self.steps:
            for event in step:
                if event < 0:
                    allocator.free(held[~event])
                else:
                    held[event] = allocator.allocate(sizes[event])
            reserved.append(allocator.reserved_bytes)
        return reserved


def requests_of(live_ranges: LiveRanges, order: Sequence[int]) -> Requests:
    """Return what a valid order asks of the allocator: the inputs first, as they are there when the graph begins."""
    left, steps = live_ranges.uses_left(), [live_ranges.given]
    for v in order:
        makes, uses, drops = live_ranges.steps[v]
        for s in uses:
            left[s] -= 1
        dead = [~s for s in uses if not left[s]]
        steps.append((*makes, *dead, *(~s for s in drops)))
    live_bytes = max(live_ranges.input_bytes, int(live_ranges.profile(order).max(initial=0)))
    return Requests(tuple(steps), live_ranges.sizes, live_bytes)


def replay_allocator(problem: Problem, order: Sequence[int], settings: AllocatorSettings = PLAIN) -> Reservation:
    """Run a valid order through the allocator, on a device without a limit."""
    found = requests_of(LiveRanges(problem), order).replayed(settings)
    return Reservation(found.peak_reserved_bytes, found.peak_allocated_bytes, found.segments)

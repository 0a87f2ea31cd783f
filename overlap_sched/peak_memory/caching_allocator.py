"""What torch's CUDA caching allocator would reserve for an order: a replay of its rules, without a GPU.

The rules and their defaults, from ``c10/core/AllocatorConfig.h`` and ``c10/cuda/CUDACachingAllocator.cpp``
(torch 2.13)::

    round     a request is rounded up to a multiple of 512 bytes (kMinBlockSize), 512 at least
    pools     up to 1 MiB (kSmallSize): small; above: large. Blocks never change pools
    best fit  the smallest free block of the pool that is large enough; of equal ones the lowest address
    grow      none: a segment from cudaMalloc: 2 MiB (kSmallBuffer) for small requests; 20 MiB (large_segment_size)
              below 10 MiB (kMinLargeAlloc); above, the request rounded up to 2 MiB (kRoundLarge)
    split     a block's rest becomes a free block: small pool: from 512 bytes on; large pool: above 1 MiB
    merge     a freed block joins its free neighbours in the segment; segments are never given back

Not modelled: ``expandable_segments``, ``max_split_size``, ``roundup_power2_divisions`` and garbage collection (all off
by default); several streams, which have blocks of their own; and running out of memory, when cached segments are
given back. Segments lie in the order in which they were made, while cudaMalloc promises nothing: that decides ties.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Problem

MIN_BLOCK, SMALL_SIZE, SMALL_BUFFER = 512, 2**20, 2 * 2**20
LARGE_BUFFER, MIN_LARGE_ALLOC, ROUND_LARGE = 20 * 2**20, 10 * 2**20, 2 * 2**20


@dataclass(frozen=True)
class Reservation:
    """What a replay found.

    Attributes:
        reserved_bytes: All segments together: ``torch.cuda.max_memory_reserved()``.
        allocated_bytes: The most in use at once, rounded: ``torch.cuda.max_memory_allocated()``.
        segments: How many there are: calls of cudaMalloc.
    """

    reserved_bytes: int
    allocated_bytes: int
    segments: int


@dataclass
class _Block:
    address: int
    size: int
    small: bool
    free: bool = True
    before: "_Block | None" = None
    after: "_Block | None" = None


class CachingAllocator:
    """The allocator on one stream.

    Attributes:
        reserved_bytes, allocated_bytes: Now. peak_allocated_bytes: the most of it so far. segments: how many.
    """

    def __init__(self) -> None:
        self.reserved_bytes = self.allocated_bytes = self.peak_allocated_bytes = self.segments = 0
        self._pools: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # (size, address) of free blocks, sorted
        self._blocks: dict[int, _Block] = {}

    def allocate(self, count: int) -> int:
        """Address of a block for so many bytes; 0 bytes take nothing and are at -1."""
        if count == 0:
            return -1
        size = max(-(-count // MIN_BLOCK) * MIN_BLOCK, MIN_BLOCK)
        pool = self._pools[size <= SMALL_SIZE]
        at = bisect.bisect_left(pool, (size, -1))
        block = self._blocks[pool.pop(at)[1]] if at < len(pool) else self._new_segment(size)
        self._split(block, size)
        block.free = False
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block.address

    def free(self, address: int) -> None:
        """Give a block back."""
        if address < 0:
            return
        block = self._blocks[address]
        self.allocated_bytes -= block.size
        block.free = True
        if block.before is not None and block.before.free:
            self._take(block.before)
            block = self._join(block.before, block)
        if block.after is not None and block.after.free:
            self._take(block.after)
            self._join(block, block.after)
        bisect.insort(self._pools[block.small], (block.size, block.address))

    def _take(self, block: _Block) -> None:
        """Out of the free blocks."""
        pool = self._pools[block.small]
        pool.pop(bisect.bisect_left(pool, (block.size, block.address)))

    def _join(self, left: _Block, right: _Block) -> _Block:
        left.size += right.size
        left.after = right.after
        if right.after is not None:
            right.after.before = left
        del self._blocks[right.address]
        return left

    def _new_segment(self, size: int) -> _Block:
        if size <= SMALL_SIZE:
            segment = SMALL_BUFFER
        elif size < MIN_LARGE_ALLOC:
            segment = LARGE_BUFFER
        else:
            segment = -(-size // ROUND_LARGE) * ROUND_LARGE
        block = _Block(self.reserved_bytes, segment, size <= SMALL_SIZE)
        self._blocks[block.address] = block
        self.reserved_bytes += segment
        self.segments += 1
        return block

    def _split(self, block: _Block, size: int) -> None:
        left = block.size - size
        if left >= MIN_BLOCK if block.small else left > SMALL_SIZE:
            rest = _Block(block.address + size, left, block.small, True, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            self._blocks[rest.address] = rest
            bisect.insort(self._pools[rest.small], (left, rest.address))


def replay_allocator(problem: Problem, order: Sequence[int]) -> Reservation:
    """Run an order through the allocator: first the inputs, then what each step makes; what dies is freed behind it."""
    made: list[list[tuple[int, int]]] = [[] for _ in order]
    dead: list[list[int]] = [[] for _ in order]
    for span in LiveRanges(problem).of(order):
        made[span.first].append((span.storage, span.bytes))
        dead[span.last].append(span.storage)
    allocator = CachingAllocator()
    address: dict[int, int] = {}
    for born, gone in zip(made, dead, strict=True):
        for s, count in born:
            address[s] = allocator.allocate(count)
        for s in gone:
            allocator.free(address[s])
    return Reservation(allocator.reserved_bytes, allocator.peak_allocated_bytes, allocator.segments)

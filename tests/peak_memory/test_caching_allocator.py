"""The replay of torch's allocator against worked examples; test_compiled holds it against another one."""

from overlap_sched.peak_memory.allocator.caching import MIN_BLOCK as GAP
from overlap_sched.peak_memory.allocator.caching import CachingAllocator
from overlap_sched.peak_memory.allocator.reserved import Reservation, replay_allocator
from overlap_sched.problem import EXAMPLE

MIB = 2**20


def reserved_after(*requests: int) -> int:
    allocator = CachingAllocator()
    for request in requests:
        allocator.allocate(request)
    return allocator.reserved_bytes


def test_segments_are_as_large_as_torch_makes_them() -> None:
    assert reserved_after(0) == 0
    assert reserved_after(1) == 2 * MIB
    assert reserved_after(MIB) == 2 * MIB  # the largest small request
    assert reserved_after(MIB, MIB) == 2 * MIB
    assert reserved_after(MIB, MIB, 1) == 4 * MIB
    assert reserved_after(MIB + 1) == 20 * MIB
    assert reserved_after(10 * MIB - 512) == 20 * MIB
    assert reserved_after(10 * MIB) == 10 * MIB
    assert reserved_after(11 * MIB) == 12 * MIB
    assert reserved_after(11 * MIB, MIB) == 14 * MIB  # the rest of a large block is not for small requests


def test_requests_are_rounded_to_512_bytes() -> None:
    allocator = CachingAllocator()
    allocator.allocate(1)
    allocator.allocate(513)
    assert allocator.allocated_bytes == 512 + 1024


def test_a_large_block_is_split_only_where_more_than_a_mebibyte_is_left() -> None:
    allocator = CachingAllocator()
    whole = allocator.allocate(12 * MIB)
    allocator.free(whole)
    allocator.allocate(11 * MIB)  # leaves 1 MiB: not split
    assert allocator.allocated_bytes == 12 * MIB
    allocator.free(whole)
    allocator.allocate(11 * MIB - 512)
    assert allocator.allocated_bytes == 11 * MIB - 512


def test_the_smallest_block_that_fits_and_neighbours_join() -> None:
    allocator = CachingAllocator()
    a, b, c, d = (allocator.allocate(4 * MIB) for _ in range(4))
    small = allocator.allocate(3 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.free(b)
    allocator.free(small)  # joins the last mebibyte of the segment: 4 MiB
    assert allocator.allocate(4 * MIB) == b  # of two blocks of 4 MiB, the lower
    allocator.free(a)
    allocator.free(c)
    assert allocator.allocate(5 * MIB) == 20 * MIB + GAP  # no two free ones are neighbours: a new segment
    allocator.free(b)
    assert allocator.allocate(12 * MIB) == a  # a, b, c joined
    assert d == 12 * MIB


def test_replay_of_the_example() -> None:
    # w (1 MiB, small): a segment of 2. x (4), full (8), g (4): 16 of a segment of 20, then dx (4) fills it; x and full
    # are gone when dw (8) comes: both lie side by side, so it fits. ds (1): the rest of w's segment
    assert replay_allocator(EXAMPLE, EXAMPLE.original_order) == Reservation(22 * MIB, 21 * MIB, 2)

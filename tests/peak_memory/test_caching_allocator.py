"""The replay of torch's allocator against worked examples and a slow list of blocks."""

from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.problem import EXAMPLE
from overlap_sched.simulate.allocator import MIN_BLOCK as GAP
from overlap_sched.simulate.allocator import CachingAllocator, Reservation, replay_allocator

KIB, MIB = 2**10, 2**20


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


class Slow:
    """Segments as lists of [size, in use], searched from end to end."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, list[list[int]]]] = []

    def allocate(self, count: int) -> tuple[int, int]:
        size = (count + 511) // 512 * 512
        small = size <= MIB
        while True:
            fits = [
                (part[0], k, i)
                for k, (is_small, parts) in enumerate(self.segments)
                for i, part in enumerate(parts)
                if is_small == small and not part[1] and part[0] >= size
            ]
            if fits:
                break
            length = 2 * MIB if small else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            self.segments.append((small, [[length, 0]]))
        _, k, i = min(fits)
        part = self.segments[k][1][i]
        left = part[0] - size
        if left >= 512 if small else left > MIB:
            part[0] = size
            self.segments[k][1].insert(i + 1, [left, 0])
        part[1] = 1
        return k, sum(p[0] for p in self.segments[k][1][:i])

    def free(self, where: tuple[int, int]) -> None:
        k, offset = where
        parts = self.segments[k][1]
        at = 0
        for part in parts:
            if at == offset:
                part[1] = 0
            at += part[0]
        joined: list[list[int]] = []
        for part in parts:
            if joined and not joined[-1][1] and not part[1]:
                joined[-1][0] += part[0]
            else:
                joined.append(part)
        parts[:] = joined

    def reserved(self) -> int:
        return sum(part[0] for _, parts in self.segments for part in parts)

    def used(self) -> int:
        return sum(part[0] for _, parts in self.segments for part in parts if part[1])


SIZES = st.sampled_from(
    (1, 512, 700, 64 * KIB, MIB - 511, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 11 * MIB, 33 * MIB)
)


@given(st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 30)), max_size=60))
def test_against_a_slow_allocator(script: list[tuple[bool, int, int]]) -> None:
    fast, slow, held = CachingAllocator(), Slow(), []
    for give_back, size, which in script:
        if give_back and held:
            address, where = held.pop(which % len(held))
            fast.free(address)
            slow.free(where)
        else:
            held.append((fast.allocate(size), slow.allocate(size)))
        assert (fast.reserved_bytes, fast.allocated_bytes) == (slow.reserved(), slow.used())
        assert fast.segments == len(slow.segments)


def test_replay_of_the_example() -> None:
    # w (1 MiB, small): a segment of 2. x (4), full (8), g (4): 16 of a segment of 20, then dx (4) fills it; x and full
    # are gone when dw (8) comes: both lie side by side, so it fits. ds (1): the rest of w's segment
    assert replay_allocator(EXAMPLE, EXAMPLE.original_order) == Reservation(22 * MIB, 21 * MIB, 2)

"""What the caching allocator makes of an order: reserved bytes, and the smallest device on which it runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.peak_memory.allocator.caching import NO_BLOCK, CachingAllocator, OutOfDeviceMemoryError
from overlap_sched.peak_memory.allocator.expandable import new_allocator
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Problem
from overlap_sched.problem.sizes import MIB, NO_LIMIT, PLAIN, AllocatorSettings

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

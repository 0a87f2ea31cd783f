"""What the caching allocator makes of an order: reserved, the smallest capacity, retries, where devices are full."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from overlap_sched.peak_memory.allocator.caching import NO_BLOCK, Address, OutOfDeviceMemoryError
from overlap_sched.peak_memory.allocator.kinds import Allocator, all_events_of, allocator
from overlap_sched.peak_memory.allocator.run import AllocatorRun
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Problem
from overlap_sched.problem.allocator_settings import MIB, NO_LIMIT, PLAIN, AllocatorSettings

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


@dataclass
class AllocatorReplay:
    """Requests served by an allocator, as far as that has come.

    Attributes:
        allocator: What it has come to. held: per storage its block.
        lent_for: The storages for which something was lent.
    """

    allocator: Allocator
    held: list[Address]
    lent_for: list[int] = field(default_factory=list)

    @classmethod
    def begin(cls, new: Allocator, storages: int) -> "AllocatorReplay":
        """By a new allocator, of requests for so many storages."""
        return cls(new, [NO_BLOCK] * storages)

    def serve(self, events: Sequence[int], sizes: Sequence[int], begin: int = 0) -> int:
        """Go on, see :meth:`~overlap_sched.peak_memory.allocator.caching.CachingAllocator.serve`."""
        return self.allocator.serve(events, sizes, self.held, self.lent_for, begin)

    def copied(self) -> "AllocatorReplay":
        """The same, to go another way."""
        return AllocatorReplay(self.allocator.copied(), self.held.copy(), self.lent_for.copy())


@dataclass(frozen=True)
class Requests:
    """What an order asks of the allocator, in turn: storage ``s`` to allocate it, ``~s`` to free it.

    Attributes:
        events: Inputs first, then step by step what is made, then what dies behind it.
        sizes: Per storage, bytes.
        live_bytes: The most in use at once, as asked for.
    """

    events: tuple[int, ...]
    sizes: tuple[int, ...]
    live_bytes: int

    def fits(self, capacity: int, settings: AllocatorSettings) -> bool:
        """Does the order run in so many bytes?"""
        return self.retries(capacity, settings) is not None

    def retries(self, capacity: int, settings: AllocatorSettings) -> int | None:
        """How often cached memory is given back in so many bytes; None: it runs out of memory."""
        try:
            return self.replayed(settings, capacity).retries
        except OutOfDeviceMemoryError:
            return None

    def replayed(self, settings: AllocatorSettings, capacity: int = NO_LIMIT) -> Allocator:
        """The allocator behind the order's end.

        Raises:
            OutOfDeviceMemoryError: The capacity does not suffice.
        """
        replay = AllocatorReplay.begin(allocator(settings, capacity), len(self.sizes))
        if replay.serve(self.events, self.sizes) < len(self.events):
            raise OutOfDeviceMemoryError
        return replay.allocator

    def smallest_capacity(self, settings: AllocatorSettings, enough: int) -> int:
        """The least in which the order runs, to :data:`CAPACITY_STEP`, by bisection: a lucky smaller one may exist.

        Args:
            settings: Of the allocator.
            enough: A capacity in which it runs: what it reserves without a limit.
        """
        return self.bisected(settings, enough, 0)[1]

    def bisected(self, settings: AllocatorSettings, enough: int, sought: int) -> tuple[int, int]:
        """The same; it ends where the order is found to run in what is sought.

        Returns:
            The largest that was found not to suffice, and the least that was found to.
        """
        low, high = self.live_bytes, enough
        while high - low > CAPACITY_STEP and high > sought:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(middle, settings) else (middle, high)
        return low, high


def requests_of(live_ranges: LiveRanges, order: Sequence[int]) -> Requests:
    """Return what a valid order asks of the allocator: the inputs first, as they are there when the graph begins."""
    events = all_events_of(live_ranges, order)
    live_bytes = max(live_ranges.input_bytes, int(live_ranges.profile(order).max(initial=0)))
    return Requests(tuple(events), live_ranges.sizes, live_bytes)


class AllocatorDevice(NamedTuple):
    """What an order must run on.

    Attributes:
        capacity: Bytes for the allocator.
        most_retries: So often it may give cached memory back under pressure.
    """

    capacity: int
    most_retries: int = NO_LIMIT


class Full(NamedTuple):
    """A device that is full before an order's end.

    Attributes:
        replay: Up to the request that it does not hold as it is. at: which one that is.
    """

    replay: AllocatorReplay
    at: int

    def go_on(self, requests: Requests) -> bool:
        """To the order's end; false: it runs out of memory before."""
        return self.replay.serve(requests.events, requests.sizes, self.at) == len(requests.events)


def where_full(
    requests: Requests, devices: Sequence[AllocatorDevice], settings: AllocatorSettings
) -> Iterator[tuple[AllocatorDevice, Full]]:
    """The devices that are full before an order's end, the least first.

    Up to there one replay stands for all devices that are larger::

        common      |= = = = = = = = =|= = = = = = =|= = = ->    the least is full; the next is full
        the least                     |- - - - - - - - - - ->    what comes behind that is up to the caller
        the next                                    |- - - ->
    """
    common, at = AllocatorReplay.begin(allocator(settings), len(requests.sizes)), 0
    common.allocator.halts = True
    for device in sorted(set(devices)):
        common.allocator.capacity = device.capacity
        at = common.serve(requests.events, requests.sizes, at)
        if at == len(requests.events):
            return
        alone = common.copied()
        alone.allocator.halts, alone.allocator.most_retries = False, device.most_retries
        yield device, Full(alone, at)


def replay_allocator(problem: Problem, order: Sequence[int], settings: AllocatorSettings = PLAIN) -> Reservation:
    """Run a valid order through the allocator, on a device without a limit."""
    found = requests_of(LiveRanges(problem), order).replayed(settings)
    return Reservation(found.peak_reserved_bytes, found.peak_allocated_bytes, found.segments)


def reserved_profile(problem: Problem, order: Sequence[int], settings: AllocatorSettings = PLAIN) -> list[int]:
    """Bytes reserved behind each step of a valid order, on a device without a limit; the inputs are there at once."""
    run = AllocatorRun(LiveRanges(problem), allocator(settings))
    profile = []
    for v in order:
        run.step(v)
        profile.append(run.allocator.reserved_bytes)
    return profile


@dataclass(frozen=True)
class ReservedChange:
    """What the allocator makes of one order and of another of the same problem.

    Attributes:
        original_bytes, new_bytes: Reserved, on a device without a limit.
        original_capacity_bytes, new_capacity_bytes: The smallest capacity in which each runs, with retries: to
            :data:`CAPACITY_STEP`.
        retries: How often the new order makes the allocator stop the GPU to give cached memory back, in
            ``original_bytes``, where the original never does; ``None``: it runs out of memory there.
    """

    original_bytes: int
    new_bytes: int
    original_capacity_bytes: int
    new_capacity_bytes: int
    retries: int | None


def reserved_change(
    problem: Problem, original: Sequence[int], new: Sequence[int], settings: AllocatorSettings = PLAIN
) -> ReservedChange:
    """Two valid orders of a problem before the same allocator; O(n log n) a replay, about ten replays each."""
    live_ranges = LiveRanges(problem)
    return change_of(requests_of(live_ranges, original), requests_of(live_ranges, new), settings)


def change_of(before: Requests, after: Requests, settings: AllocatorSettings) -> ReservedChange:
    """The same for requests: of two orders of one problem, or of an order of a graph and one of what became of it."""
    original_bytes = before.replayed(settings).peak_reserved_bytes
    original_capacity = before.smallest_capacity(settings, original_bytes)
    if before == after:
        return ReservedChange(original_bytes, original_bytes, original_capacity, original_capacity, 0)
    new_bytes = after.replayed(settings).peak_reserved_bytes
    new_capacity = after.smallest_capacity(settings, new_bytes)
    retries = 0 if new_bytes <= original_bytes else after.retries(original_bytes, settings)
    return ReservedChange(original_bytes, new_bytes, original_capacity, new_capacity, retries)

"""What the caching allocator makes of an order: reserved, the smallest capacity, retries."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from overlap_sched.peak_memory.allocator.caching import NO_BLOCK, Address, OutOfDeviceMemoryError
from overlap_sched.peak_memory.allocator.kinds import Allocator, allocator
from overlap_sched.peak_memory.allocator.run import AllocatorRun
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import NodeId, Problem
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
class UnderWay:
    """A replay as far as it has come.

    Attributes:
        allocator: What it has come to. held: per storage its block.
        at: The next event.
    """

    allocator: Allocator
    held: list[Address]
    at: int = 0

    def copied(self) -> "UnderWay":
        """The same, to go another way."""
        return UnderWay(self.allocator.copied(), self.held.copy(), self.at)


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
        return self.go_on(self.begin(allocator(settings, capacity)))

    def begin(self, new: Allocator) -> UnderWay:
        """A replay by a new allocator, before its first event."""
        return UnderWay(new, [NO_BLOCK] * len(self.sizes))

    def go_on(self, replay: UnderWay) -> Allocator:
        """The allocator behind the order's end.

        Raises:
            OutOfDeviceMemoryError: What it has does not suffice; the replay is where that happened.
        """
        allocate, free, sizes, held = replay.allocator.allocate, replay.allocator.free, self.sizes, replay.held
        begin = replay.at
        for replay.at, event in enumerate(islice(self.events, begin, None), begin):
            if event >= 0:
                held[event] = allocate(sizes[event])
            else:
                free(held[~event])
                held[~event] = NO_BLOCK
        replay.at = len(self.events)
        return replay.allocator

    def smallest_capacity(self, settings: AllocatorSettings, enough: int, too_small: int = -1) -> int:
        """The least in which the order runs, to :data:`CAPACITY_STEP`, by bisection: a lucky smaller one may exist.

        Args:
            settings: Of the allocator.
            enough: A capacity in which it runs: what it reserves without a limit.
            too_small: One in which it is known not to run: nothing below is tried.
        """
        low, high = self.live_bytes, enough
        while high - low > CAPACITY_STEP:
            middle = (low + high) // 2
            runs = middle > too_small and self.fits(middle, settings)
            low, high = (low, middle) if runs else (middle, high)
        return high


def requests_of(live_ranges: LiveRanges, order: Sequence[int]) -> Requests:
    """What a valid order asks of the allocator: the inputs first, as they are there when the graph begins."""
    events = all_events_of(live_ranges, order)
    live_bytes = max(live_ranges.input_bytes, int(live_ranges.profile(order).max(initial=0)))
    return Requests(tuple(events), live_ranges.sizes, live_bytes)


def all_events_of(live_ranges: LiveRanges, order: Sequence[NodeId]) -> list[int]:
    """The events of :class:`Requests` of a valid order."""
    return [*live_ranges.given, *events_of(live_ranges, order, live_ranges.uses_left())]


def events_of(live_ranges: LiveRanges, nodes: Iterable[NodeId], left: list[int]) -> list[int]:
    """What some nodes ask of the allocator, in turn, as in :class:`Requests`.

    Args:
        live_ranges: Of their problem.
        nodes: In the order in which they run.
        left: Per storage, how many of its users have not run: is counted down.
    """
    steps, events = live_ranges.steps, list[int]()
    for v in nodes:
        makes, uses, drops = steps[v]
        events += makes
        for s in uses:
            left[s] -= 1
            if not left[s]:
                events.append(~s)
        for s in drops:
            events.append(~s)
    return events


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

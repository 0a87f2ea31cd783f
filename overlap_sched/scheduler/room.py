"""Where an order does not fit its allocator, and the cheapest room for what does not.

::

    place 7 asks for 128 MiB       segment  | a 32 | free 48 | b 16 | free 64 |  c 32 |
                                                   |<------ b gone: 128 ------>|

Room is a run of neighbouring blocks, free but for storages that can be moved out of the way; or whole segments, where
those can go back to the device. Of all, the one whose storages cost least to move.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from overlap_sched.peak_memory.allocator.caching import (
    NO_BLOCK,
    SMALL_BASE,
    SMALL_SIZE,
    Address,
    rounded,
)
from overlap_sched.peak_memory.allocator.kinds import Allocator, all_events_of, allocator
from overlap_sched.peak_memory.allocator.reserved import AllocatorReplay
from overlap_sched.peak_memory.allocator.run import AllocatorRun
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, NodeId, StorageId
from overlap_sched.problem.allocator_settings import PLAIN


@dataclass(frozen=True)
class Growth:
    """How an order makes an allocator with plain segments grow, on a device without a limit.

    Attributes:
        inputs_bytes: Reserved for the inputs.
        by_node: Bytes that a node makes it grow by; those that do not are left out.
    """

    inputs_bytes: int
    by_node: dict[NodeId, int]

    @property
    def total_bytes(self) -> int:
        """Reserved at the end."""
        return self.inputs_bytes + sum(self.by_node.values())

    @classmethod
    def of(cls, live_ranges: LiveRanges, order: Sequence[NodeId]) -> "Growth":
        """Return the growth of a valid order."""
        run = AllocatorRun(live_ranges, allocator())
        inputs_bytes = before = run.allocator.reserved_bytes
        by_node: dict[NodeId, int] = {}
        for v in order:
            run.step(v)
            if run.allocator.reserved_bytes > before:
                by_node[v] = run.allocator.reserved_bytes - before
                before = run.allocator.reserved_bytes
        return cls(inputs_bytes, by_node)


class AllocationFailure(NamedTuple):
    """A request that does not fit.

    Attributes:
        node: That asks. size: for so many bytes, rounded.
        allocator: As it is there. held: per storage its block.
        gives_back: May whole segments go back to the device?
    """

    node: NodeId
    size: int
    allocator: Allocator
    held: Sequence[Address]
    gives_back: bool


def outgrown(
    live_ranges: LiveRanges, order: Sequence[NodeId], growth: Growth, spare_bytes: int
) -> AllocationFailure | None:
    """Where an order makes the allocator grow by more than its nodes do in the original order, and the spare bytes.

    Growth is counted as it goes, not at the end: what grows too early is in the way of what must grow later.
    """
    rises = {live_ranges.steps[v].makes[0]: count for v, count in growth.by_node.items()}
    device = allocator(PLAIN, growth.inputs_bytes + spare_bytes)
    device.most_retries = 0
    return _failure(live_ranges, order, device, rises, gives_back=False)


def out_of_memory(live_ranges: LiveRanges, order: Sequence[NodeId], capacity: int) -> AllocationFailure | None:
    """Where an order runs out of memory on a device of so many bytes, with plain segments; None: nowhere."""
    return _failure(live_ranges, order, allocator(PLAIN, capacity), {}, gives_back=True)


def _failure(
    live_ranges: LiveRanges,
    order: Sequence[NodeId],
    device: Allocator,
    rises: Mapping[StorageId, int],
    gives_back: bool,
) -> AllocationFailure | None:
    """The first on a device whose capacity rises by so many bytes when a storage is made."""
    events, sizes, begin = all_events_of(live_ranges, order), live_ranges.sizes, 0
    replay = AllocatorReplay.begin(device, len(sizes))
    for end in [*(at for at, event in enumerate(events) if event in rises), len(events)]:
        at = begin + replay.serve(events[begin:end], sizes)
        if at < end:
            maker = live_ranges.problem.maker[events[at]]
            if live_ranges.problem.nodes[maker].kind is Kind.INPUT:
                return None  # the inputs alone do not fit: no order does
            return AllocationFailure(maker, rounded(sizes[events[at]]), device, replay.held, gives_back)
        if end < len(events):
            device.capacity += rises[events[end]]
        begin = end
    return None


def cheapest_room(failure: AllocationFailure, cost_of: Callable[[int], float]) -> list[int]:
    """The storages to be moved out of the way of a failing request; empty: there is no room to be had.

    Args:
        failure: The request.
        cost_of: What it costs to have a live storage out of its way; ``math.inf``: that cannot be had.
    """
    segments, small = list(_segments(failure, cost_of)), failure.size <= SMALL_SIZE
    rooms = [_neighbours(segment, failure.size) for segment in segments if (segment[0].address >= SMALL_BASE) == small]
    if failure.gives_back:
        rooms.append(_whole(segments, failure.allocator.shortfall_bytes(failure.size)))
    cost, blocks = min(rooms, key=lambda room: room[0], default=(math.inf, []))
    return [block.storage for block in blocks if block.storage is not None] if cost < math.inf else []


class _Priced(NamedTuple):
    """A block, in use by a storage or free, and what it costs to have it free."""

    address: Address
    size: int
    storage: int | None
    cost: float


def _segments(failure: AllocationFailure, cost_of: Callable[[int], float]) -> Iterator[list[_Priced]]:
    """The blocks of each segment, by address."""
    size_of = failure.allocator.size_of
    blocks = [_Priced(*block, None, 0.0) for block in failure.allocator.free_blocks()]
    blocks += [
        _Priced(block, size_of(block), s, cost_of(s)) for s, block in enumerate(failure.held) if block != NO_BLOCK
    ]
    segment = list[_Priced]()
    for block in sorted(blocks, key=lambda block: block.address):
        if segment and segment[-1].address + segment[-1].size < block.address:  # there is a gap between two segments
            yield segment
            segment = []
        segment.append(block)
    if segment:
        yield segment


def _neighbours(segment: Sequence[_Priced], size: int) -> tuple[float, list[_Priced]]:
    """The cheapest run of neighbouring blocks that is large enough."""
    best: tuple[float, list[_Priced]] = (math.inf, [])
    for begin in range(len(segment)):
        cost, found = 0.0, 0
        for end in range(begin, len(segment)):
            cost, found = cost + segment[end].cost, found + segment[end].size
            if cost >= best[0]:
                break
            if found >= size:
                best = (cost, list(segment[begin : end + 1]))
                break
    return best


def _whole(segments: Sequence[list[_Priced]], count: int) -> tuple[float, list[_Priced]]:
    """Segments of so many bytes together, those first that cost least for their size."""
    priced = [
        (sum(block.cost for block in segment), sum(block.size for block in segment), segment) for segment in segments
    ]
    total, cost = 0, 0.0
    chosen = list[_Priced]()
    for price, size, blocks in sorted((p for p in priced if 0 < p[0] < math.inf), key=lambda p: p[0] / p[1]):
        if total >= count:
            break
        total, cost, chosen = total + size, cost + price, chosen + blocks
    return (cost, chosen) if total >= count else (math.inf, [])

"""Which allocator replays, and what an order asks of it; compiled where that could be built: the same, faster."""

from collections.abc import Sequence
from typing import TypeAlias

from overlap_sched.peak_memory.allocator.caching import CachingAllocator
from overlap_sched.peak_memory.allocator.expandable import ExpandableAllocator
from overlap_sched.peak_memory.live_ranges import LiveRanges, NodeStorages
from overlap_sched.problem import NodeId
from overlap_sched.problem.allocator_settings import NO_LIMIT, PLAIN, AllocatorSettings

try:
    from overlap_sched.peak_memory.allocator import _compiled
except ImportError:  # no C compiler was there when the package was installed
    COMPILED = False
else:
    COMPILED = True

Allocator: TypeAlias = "CachingAllocator | _compiled.CompiledAllocator"


def allocator(settings: AllocatorSettings = PLAIN, capacity: int = NO_LIMIT) -> Allocator:
    """A new one.

    Args:
        settings: How it is set up.
        capacity: Bytes that the device has for it.
    """
    if COMPILED:
        return _compiled.CompiledAllocator(settings, capacity)
    return in_python(settings, capacity)


def in_python(settings: AllocatorSettings = PLAIN, capacity: int = NO_LIMIT) -> CachingAllocator:
    """The one that is not compiled: slower, and what the other one is checked against."""
    kind = ExpandableAllocator if settings.expandable_segments else CachingAllocator
    return kind(settings, capacity)


def all_events_of(live_ranges: LiveRanges, order: Sequence[NodeId]) -> list[int]:
    """Return what a valid order asks for, in turn: storage ``s`` to allocate it, ``~s`` to free it.

    The inputs come first, as they are there when the graph begins.
    """
    return [*live_ranges.given, *events_of(live_ranges, order, live_ranges.uses_left())]


def events_of(live_ranges: LiveRanges, nodes: Sequence[NodeId], left: list[int]) -> list[int]:
    """The events of some nodes: step by step what is made, then what dies behind it.

    Args:
        live_ranges: Of their problem.
        nodes: In the order in which they run.
        left: Per storage, how many of its users have not run: is counted down.
    """
    if COMPILED:
        return _compiled.events_of(live_ranges.steps, nodes, left)
    return events_in_python(live_ranges.steps, nodes, left)


def events_in_python(steps: Sequence[NodeStorages], nodes: Sequence[NodeId], left: list[int]) -> list[int]:
    """The same where nothing is compiled."""
    events = list[int]()
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

"""Which allocator replays: by its settings; compiled where that could be built, which gives the same answers faster."""

from typing import TypeAlias

from overlap_sched.peak_memory.allocator.caching import CachingAllocator
from overlap_sched.peak_memory.allocator.expandable import ExpandableAllocator
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
    """The one that is not compiled: slower by a few times, and what the other one is checked against."""
    kind = ExpandableAllocator if settings.expandable_segments else CachingAllocator
    return kind(settings, capacity)

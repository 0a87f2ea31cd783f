"""By how many bytes an order misses what devices have: one figure, which falls as the order comes nearer to fitting.

That an order runs out of memory says little of whether another one comes nearer. So a replay goes on where a device
does not suffice: what is lacking is lent, and the sum of that is the shortage.
"""

from collections.abc import Sequence
from typing import NamedTuple

from overlap_sched.peak_memory.allocator.caching import Block, CachingAllocator, OutOfDeviceMemoryError
from overlap_sched.peak_memory.allocator.reserved import Requests, allocator
from overlap_sched.problem import StorageId
from overlap_sched.problem.allocator_settings import NO_LIMIT, AllocatorSettings


class Device(NamedTuple):
    """What an order must run on.

    Attributes:
        capacity: Bytes for the allocator.
        most_retries: So often it may give cached memory back under pressure.
    """

    capacity: int
    most_retries: int = NO_LIMIT

    def allocator(self, settings: AllocatorSettings, most_lent_bytes: int = 0) -> CachingAllocator:
        """The device's allocator, which is lent so many bytes at most."""
        found = allocator(settings, self.capacity)
        found.most_retries, found.most_lent_bytes = self.most_retries, most_lent_bytes
        return found


def shortage_bytes(
    requests: Requests, devices: Sequence[Device], settings: AllocatorSettings, most_bytes: int = NO_LIMIT
) -> int:
    """What an order lacks on each of several devices, together; 0: it runs on all of them.

    Args:
        requests: Of the order.
        devices: Each with an allocator of its own.
        settings: Of the allocators.
        most_bytes: What lacks more is not replayed to its end: ``most_bytes + 1`` is said of it.
    """
    lacking = 0
    for device in devices:
        try:
            lacking += requests.through(device.allocator(settings, most_bytes - lacking)).lent_bytes
        except OutOfDeviceMemoryError:
            return most_bytes + 1
    return lacking


def lent_for(requests: Requests, devices: Sequence[Device], settings: AllocatorSettings) -> list[StorageId]:
    """The storages that something is lent for, in turn, on one device after the other; empty: it runs on all."""
    found = list[StorageId]()
    for device in devices:
        lender, held, lent_bytes = device.allocator(settings, NO_LIMIT), dict[StorageId, Block | None](), 0
        for event in requests.events:
            if event < 0:
                lender.free(held.pop(~event))
                continue
            held[event] = lender.allocate(requests.sizes[event])
            if lender.lent_bytes > lent_bytes:
                found.append(event)
                lent_bytes = lender.lent_bytes
    return found

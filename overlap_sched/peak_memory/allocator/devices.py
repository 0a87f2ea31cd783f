"""What an order must run on, and how far it comes there."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from overlap_sched.peak_memory.allocator.kinds import allocator
from overlap_sched.peak_memory.allocator.reserved import AllocatorReplay, Requests
from overlap_sched.problem.allocator_settings import NO_LIMIT, AllocatorSettings


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

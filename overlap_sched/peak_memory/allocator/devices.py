"""What an order must run on, and how far it comes there."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from overlap_sched.peak_memory.allocator.caching import FullDeviceError
from overlap_sched.peak_memory.allocator.kinds import allocator
from overlap_sched.peak_memory.allocator.reserved import Requests, UnderWay
from overlap_sched.problem.allocator_settings import NO_LIMIT, AllocatorSettings


class Device(NamedTuple):
    """What an order must run on.

    Attributes:
        capacity: Bytes for the allocator.
        most_retries: So often it may give cached memory back under pressure.
    """

    capacity: int
    most_retries: int = NO_LIMIT


def where_full(
    requests: Requests, devices: Sequence[Device], settings: AllocatorSettings
) -> Iterator[tuple[Device, UnderWay]]:
    """The devices that are full before an order's end, the least first; each with its replay, which is there.

    Up to there one replay stands for all devices that are larger::

        common      |= = = = = = = = =|= = = = = = =|= = = ->    the least is full; the next is full
        the least                     |- - - - - - - - - - ->    what comes behind that is up to the caller
        the next                                    |- - - ->
    """
    common = requests.begin(allocator(settings))
    common.allocator.halts = True
    for device in sorted(set(devices)):
        common.allocator.capacity = device.capacity
        try:
            requests.go_on(common)
        except FullDeviceError:
            alone = common.copied()
            alone.allocator.halts, alone.allocator.most_retries = False, device.most_retries
            yield device, alone
        else:
            return

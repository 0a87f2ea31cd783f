"""By how many bytes an order misses what devices have: one figure, which falls as the order comes nearer to fitting.

That an order runs out of memory says little of whether another one comes nearer. So a replay goes on where a device
does not suffice: what is lacking is lent, and the sum of that is the shortage.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from overlap_sched.peak_memory.allocator.caching import FullDeviceError, OutOfDeviceMemoryError
from overlap_sched.peak_memory.allocator.reserved import Requests, UnderWay, allocator
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


class Lacking(NamedTuple):
    """What an order lacks.

    Attributes:
        lent_bytes: By how much.
        storages: What something is lent for, in turn, on one device after the other.
    """

    lent_bytes: int
    storages: Sequence[StorageId]


class Replays:
    """One order on several devices: together, as far as the least of them has what is asked for; then on each alone.

    ::

        common      |= = = = = = = = =|= = = = = = =|= = = ->    the least is full; the next is full
        the least                     |- - - - - - - - - - ->    what is lacking is lent from there on
        the next                                    |- - - ->
    """

    def __init__(self, requests: Requests, devices: Sequence[Device], settings: AllocatorSettings) -> None:
        """Nothing is replayed yet; the allocators, with these settings, are new."""
        self._requests, self._devices, self._settings = requests, sorted(set(devices)), settings

    def full(self) -> Iterator[tuple[Device, UnderWay]]:
        """The devices that are full before the order's end, the least first; each with its replay, which is there."""
        common = self._requests.begin(allocator(self._settings))
        common.allocator.halts = True
        for device in self._devices:
            common.allocator.capacity = device.capacity
            try:
                self._requests.go_on(common)
            except FullDeviceError:
                alone = common.copied()
                alone.allocator.halts, alone.allocator.most_retries = False, device.most_retries
                yield device, alone
            else:
                return

    def lacking(self, most_bytes: int = NO_LIMIT) -> Lacking:
        """What the order lacks on each device, together; nothing: it runs on all of them.

        Args:
            most_bytes: What lacks more is not replayed to its end: ``most_bytes + 1`` is said of it.
        """
        lent_bytes, storages = 0, list[StorageId]()
        for _, replay in self.full():
            replay.allocator.most_lent_bytes = most_bytes - lent_bytes
            replay.allocator.on_lending = partial(self._note_storage, replay, storages)
            try:
                lent_bytes += self._requests.go_on(replay).lent_bytes
            except OutOfDeviceMemoryError:
                return Lacking(most_bytes + 1, storages)
        return Lacking(lent_bytes, storages)

    def _note_storage(self, replay: UnderWay, storages: list[StorageId]) -> None:
        """Note what a replay is allocating."""
        storages.append(self._requests.events[replay.at])

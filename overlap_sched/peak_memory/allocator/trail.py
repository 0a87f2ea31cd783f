"""By how many bytes orders miss what devices have: one figure, which falls as an order comes nearer to fitting.

That an order runs out of memory says little of whether another one comes nearer. So a replay goes on where a device
does not suffice: what is lacking is lent, and the sum of that is what the order lacks. Orders that are like another one
are replayed from where they begin to differ; what they ask for is found anew up to where they are the same again::

    order       |====|====|====|= = =|= = =|= =    the trail: what all devices hold, every few nodes, as far as asked
    like it     . . . . . |====|moved|= = =|= =    replayed from the checkpoint before it differs
    asks for    . . . . . |found anew|the same
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from overlap_sched.peak_memory.allocator.caching import OutOfDeviceMemoryError
from overlap_sched.peak_memory.allocator.kinds import allocator, events_of
from overlap_sched.peak_memory.allocator.reserved import AllocatorDevice, AllocatorReplay
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import NodeId, StorageId
from overlap_sched.problem.allocator_settings import NO_LIMIT, AllocatorSettings
from overlap_sched.problem.precedence import alike

CHECKPOINTS = 32
"""Of a trail."""


class Lacking(NamedTuple):
    """What an order lacks.

    Attributes:
        lent_bytes: By how much.
        storages: What something is lent for, in turn, on one device after the other.
    """

    lent_bytes: int
    storages: Sequence[StorageId]


@dataclass
class _DeviceStates:
    """All devices behind some nodes of an order.

    Attributes:
        together: On as many devices as suffice so far. alone: on those that do not, the least first.
    """

    together: AllocatorReplay | None
    alone: list[AllocatorReplay] = field(default_factory=list)

    def copied(self) -> "_DeviceStates":
        """The same, to go another way."""
        together = None if self.together is None else self.together.copied()
        return _DeviceStates(together, [one.copied() for one in self.alone])

    @property
    def lent_bytes(self) -> int:
        """On all devices."""
        return sum(one.allocator.lent_bytes for one in self.alone)


class Trail:
    """An order's replay on several devices, with checkpoints: made as far as others are like it."""

    def __init__(
        self,
        live_ranges: LiveRanges,
        order: Sequence[NodeId],
        devices: Sequence[AllocatorDevice],
        settings: AllocatorSettings,
    ) -> None:
        """Only the inputs are there."""
        self._live_ranges, self._order = live_ranges, order
        self._devices = sorted(set(devices))
        together = AllocatorReplay.begin(allocator(settings, self._devices[0].capacity), len(live_ranges.sizes))
        together.allocator.halts = True
        state = _DeviceStates(together)
        self._serve(state, live_ranges.given, NO_LIMIT)
        self._every = max(len(order) // CHECKPOINTS, 1)
        self._states, self._events, self._left = [state], list[list[int]](), list[list[int]]()
        left = live_ranges.uses_left()  # per storage, how many of its users have not run
        for checkpoint in range(-(-len(order) // self._every)):
            self._left.append(left.copy())
            self._events.append(events_of(live_ranges, self._part(order, checkpoint), left))

    def lacking_of(self, order: Sequence[NodeId], most_bytes: int = NO_LIMIT) -> Lacking:
        """Return what another valid order of the same nodes lacks on all devices, together.

        Args:
            order: Where it begins as the trail's does, it is not replayed again.
            most_bytes: What lacks more need not be replayed to its end: some figure above it is said.
        """
        first = alike(self._order, order) // self._every
        same = -(-(len(order) - alike(self._order[::-1], order[::-1])) // self._every)
        state, left = self._at(first).copied(), self._left[first].copy() if first < same else []
        try:
            for checkpoint in range(first, same):
                events = events_of(self._live_ranges, self._part(order, checkpoint), left)
                self._serve(state, events, most_bytes)
            for events in self._events[max(first, same) :]:
                self._serve(state, events, most_bytes)
        except OutOfDeviceMemoryError:
            return Lacking(most_bytes + 1, ())
        return Lacking(state.lent_bytes, [s for one in state.alone for s in one.lent_for])

    def _at(self, checkpoint: int) -> _DeviceStates:
        """Return what all devices hold there."""
        while len(self._states) <= checkpoint:
            state = self._states[-1].copied()
            self._serve(state, self._events[len(self._states) - 1], NO_LIMIT)
            self._states.append(state)
        return self._states[checkpoint]

    def _part(self, order: Sequence[NodeId], checkpoint: int) -> Sequence[NodeId]:
        """Return what is run between a checkpoint and the next one."""
        return order[checkpoint * self._every : (checkpoint + 1) * self._every]

    def _serve(self, state: _DeviceStates, events: Sequence[int], most_bytes: int) -> None:
        """Some requests more.

        Raises:
            OutOfDeviceMemoryError: More than so many bytes are lacking on all devices.
        """
        sizes = self._live_ranges.sizes
        for one in state.alone:
            self._lend(state, one, events, most_bytes)
        while state.together is not None:
            at = state.together.serve(events, sizes)
            if at == len(events):
                break
            device, events = self._devices[len(state.alone)], events[at:]
            full = state.together.copied()
            full.allocator.halts, full.allocator.most_retries = False, device.most_retries
            state.alone.append(full)
            if len(state.alone) < len(self._devices):
                state.together.allocator.capacity = self._devices[len(state.alone)].capacity
            else:
                state.together = None
            self._lend(state, full, events, most_bytes)

    def _lend(self, state: _DeviceStates, one: AllocatorReplay, events: Sequence[int], most_bytes: int) -> None:
        """Go on with one device; what all of them lack is no more than so many bytes."""
        one.allocator.most_lent_bytes = most_bytes - (state.lent_bytes - one.allocator.lent_bytes)
        if one.serve(events, self._live_ranges.sizes) < len(events):
            raise OutOfDeviceMemoryError

"""A step's allocations, from the profiler's memory events: the peak, and what is live at it, by kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from overlap_sched.simulate.allocator import Address, CachingAllocator

KINDS = ("parameters and batch", "saved for backward", "gradients", "temporaries of forward", "temporaries of backward")


class Event(NamedTuple):
    """One allocation (``bytes`` above 0) or free (below), in the order in which they happened."""

    address: int
    bytes: int
    backward: bool


@dataclass(frozen=True)
class Peak:
    """The most live at once.

    Attributes:
        bytes: All of it. backward: whether backward runs by then.
        kinds: Bytes by :data:`KINDS`.
        pool_bytes: What a pool of torch's caching allocator of its own would reserve for all allocations of the step:
            simulated.
    """

    bytes: int
    backward: bool
    kinds: Mapping[str, int]
    pool_bytes: int


def events_of(trace: Mapping[str, Any], mark: str) -> list[Event]:
    """Of a trace of the torch profiler with ``profile_memory``; backward begins with the span named ``mark``."""
    fields = trace["traceEvents"]
    begins = min(e["ts"] for e in fields if e.get("name") == mark and e.get("ph") == "X")
    memory = [e for e in fields if e.get("name") == "[memory]" and e["args"].get("Device Type") == 0]
    memory.sort(key=lambda e: e["ts"])
    return [Event(e["args"]["Addr"], e["args"]["Bytes"], e["ts"] >= begins) for e in memory if e["args"]["Bytes"]]


def peak_of(events: Sequence[Event], held_bytes: int) -> Peak:
    """The first peak.

    Args:
        events: Of one step.
        held_bytes: What is there before: parameters, buffers, the batch.
    """
    spans = _spans(events)
    change = [0] * (len(events) + 1)
    for first, last, size, _ in spans:
        change[first] += size
        change[last] -= size
    live = most = held_bytes
    at = -1
    for position, by in enumerate(change[: len(events)]):
        live += by
        if live > most:
            most, at = live, position
    kinds = dict.fromkeys(KINDS, 0) | {KINDS[0]: held_bytes}
    for first, last, size, kind in spans:
        if first <= at < last:
            kinds[kind] += size
    return Peak(most, at >= 0 and events[at].backward, kinds, _pool_bytes(events))


def _spans(events: Sequence[Event]) -> list[tuple[int, int, int, str]]:
    """(first event, event behind the last, bytes, kind) of each allocation that the step makes."""
    turn = next((at for at, event in enumerate(events) if event.backward), len(events))
    begun: dict[int, tuple[int, int]] = {}
    found = []
    for at, event in enumerate(events):
        if event.bytes > 0:
            begun[event.address] = (at, event.bytes)
        elif event.address in begun:  # else it was there before the step
            first, size = begun.pop(event.address)
            found.append((first, at, size, _kind(first, at, turn, len(events))))
    found += [
        (first, len(events), size, _kind(first, len(events), turn, len(events))) for first, size in begun.values()
    ]
    return found


def _kind(first: int, last: int, turn: int, end: int) -> str:
    if first >= turn:
        return KINDS[2] if last == end else KINDS[4]
    return KINDS[1] if last > turn else KINDS[3]


def _pool_bytes(events: Sequence[Event]) -> int:
    allocator, held = CachingAllocator(), dict[int, Address]()
    for event in events:
        if event.bytes > 0:
            held[event.address] = allocator.allocate(event.bytes)
        elif event.address in held:
            allocator.free(held.pop(event.address))
    return allocator.peak_reserved_bytes

"""What an order asks of the allocator, in turn: storage ``s`` to allocate it, ``~s`` to free it."""

from collections.abc import Sequence

from overlap_sched.peak_memory.allocator.kinds import COMPILED
from overlap_sched.peak_memory.live_ranges import LiveRanges, NodeStorages
from overlap_sched.problem import NodeId

if COMPILED:
    from overlap_sched.peak_memory.allocator import _compiled


def all_events_of(live_ranges: LiveRanges, order: Sequence[NodeId]) -> list[int]:
    """The events of a valid order: the inputs first, as they are there when the graph begins."""
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
    return in_python(live_ranges.steps, nodes, left)


def in_python(steps: Sequence[NodeStorages], nodes: Sequence[NodeId], left: list[int]) -> list[int]:
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

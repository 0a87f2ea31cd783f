"""torch's caching allocator beside ours: the blocks that a GPU was really asked for, replayed.

``torch.cuda.memory`` records every request of a process, and every segment that it took from the device for them. The
same requests, through :mod:`overlap_sched.peak_memory.allocator`, must reserve as much. Each stream has a pool of its
own, and what another stream still reads is freed when that has finished (``free_completed``).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from overlap_sched.peak_memory.allocator.caching import CachingAllocator
from overlap_sched.peak_memory.allocator.expandable import new_allocator
from overlap_sched.problem.sizes import PLAIN, AllocatorSettings

MOST_EVENTS = 1_000_000
"""So many are recorded at most."""


@dataclass(frozen=True)
class Replayed:
    """What torch reserved for some requests, and what we reserve for them, from an empty cache; bytes.

    Attributes:
        requests: How many blocks were asked for. unknown: of those that were freed, how many were there before.
        torch_bytes, our_bytes: The most that was reserved at once.
        torch_segments, our_segments: How often the device was asked.
    """

    requests: int
    unknown: int
    torch_bytes: int
    our_bytes: int
    torch_segments: int
    our_segments: int

    @property
    def same(self) -> bool:
        """Do both reserve as much, in as many segments?"""
        return (self.torch_bytes, self.torch_segments) == (self.our_bytes, self.our_segments)


def replayed(events: Iterable[Mapping[str, Any]], settings: AllocatorSettings = PLAIN) -> Replayed:
    """Replay what torch recorded on one device.

    Args:
        events: As in ``torch.cuda.memory._snapshot()["device_traces"][0]``: ``action``, ``addr``, ``size``, ``stream``.
        settings: How the allocator was set up; with expandable segments the device maps parts, which are not counted.
    """
    pools = defaultdict[Any, CachingAllocator](lambda: new_allocator(settings))
    blocks = dict[int, tuple[Any, int]]()
    requests = unknown = reserved = most = segments = our_most = 0
    for event in events:
        action, address, size, stream = (event.get(name, 0) for name in ("action", "addr", "size", "stream"))
        if action == "alloc":
            blocks[address] = stream, pools[stream].allocate(size)
            requests += 1
            our_most = max(our_most, sum(pool.reserved_bytes for pool in pools.values()))
        elif action == "free_completed":
            if address not in blocks:
                unknown += 1
                continue
            pool, mine = blocks.pop(address)
            pools[pool].free(mine)
        elif action in ("segment_alloc", "segment_map"):
            reserved, segments = reserved + size, segments + 1
            most = max(most, reserved)
        elif action in ("segment_free", "segment_unmap"):
            reserved -= size
    ours = sum(pool.segments for pool in pools.values())
    return Replayed(requests, unknown, most, our_most, segments, ours)

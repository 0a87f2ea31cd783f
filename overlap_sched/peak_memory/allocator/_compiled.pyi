"""Types of ``compiled/module.c``.

What each does: :mod:`overlap_sched.peak_memory.allocator.caching`, :mod:`overlap_sched.peak_memory.allocator.kinds`.
"""

from collections.abc import Sequence
from typing import Self

from overlap_sched.peak_memory.allocator.caching import Address, Block
from overlap_sched.peak_memory.live_ranges import NodeStorages
from overlap_sched.problem import NodeId
from overlap_sched.problem.allocator_settings import AllocatorSettings

def events_of(steps: Sequence[NodeStorages], nodes: Sequence[NodeId], left: list[int], /) -> list[int]: ...

class CompiledAllocator:
    settings: AllocatorSettings
    capacity: int
    most_retries: int
    most_lent_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    segments: int
    retries: int
    lent_bytes: int
    halts: bool
    def __init__(self, settings: AllocatorSettings, capacity: int = ...) -> None: ...
    def allocate(self, count: int, /) -> Address: ...
    def free(self, address: Address, /) -> None: ...
    def serve(
        self, events: Sequence[int], sizes: Sequence[int], held: list[Address], lent_for: list[int], begin: int = ..., /
    ) -> int: ...
    def size_of(self, address: Address, /) -> int: ...
    def growth_bytes(self, count: int, /) -> int: ...
    def shortfall_bytes(self, size: int, /) -> int: ...
    def free_blocks(self) -> list[Block]: ...
    def largest_free_bytes(self) -> int: ...
    def copied(self) -> Self: ...

"""Types of ``compiled/module.c``; what each does: :mod:`overlap_sched.peak_memory.allocator.caching`."""

from collections.abc import Callable
from typing import Self

from overlap_sched.peak_memory.allocator.caching import Address, Block
from overlap_sched.problem.allocator_settings import AllocatorSettings

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
    on_lending: Callable[[], object] | None
    def __init__(self, settings: AllocatorSettings, capacity: int = ...) -> None: ...
    def allocate(self, count: int, /) -> Address: ...
    def free(self, address: Address, /) -> None: ...
    def size_of(self, address: Address, /) -> int: ...
    def growth_bytes(self, count: int, /) -> int: ...
    def shortfall_bytes(self, size: int, /) -> int: ...
    def free_blocks(self) -> list[Block]: ...
    def largest_free_bytes(self) -> int: ...
    def copied(self) -> Self: ...

"""The allocator beside an order that is still being made agrees with the replay of whole orders."""

from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Problem
from overlap_sched.peak_memory.allocator.caching import NO_BLOCK, CachingAllocator
from overlap_sched.peak_memory.allocator.reserved import requests_of
from overlap_sched.peak_memory.allocator.run import AllocatorRun
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem.allocator_settings import PLAIN
from tests.peak_memory.test_reserved import with_sizes_of_all_kinds
from tests.support.graphs import problems
from tests.support.oracle import random_order


@given(problems(models=("runtime",)), st.integers(0, 2**32))
def test_step_by_step_it_ends_as_the_replay_does(problem: Problem, seed: int) -> None:
    problem = with_sizes_of_all_kinds(problem)
    live_ranges, order = LiveRanges(problem), random_order(problem, seed)
    run = AllocatorRun(live_ranges, CachingAllocator())
    for v in order:
        before = run.allocator.allocated_bytes
        freed = run.step(v)
        assert freed or run.allocator.allocated_bytes >= before
    whole = requests_of(live_ranges, order).replayed(PLAIN)
    assert run.allocator.peak_reserved_bytes == whole.peak_reserved_bytes
    assert run.allocator.peak_allocated_bytes == whole.peak_allocated_bytes
    assert run.allocator.allocated_bytes == whole.allocated_bytes
    assert (
        sum(run.allocator.size_of(block) for block in run.held.values() if block != NO_BLOCK) == whole.allocated_bytes
    )

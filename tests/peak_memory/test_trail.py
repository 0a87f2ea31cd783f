"""An order replayed from where it differs from another one: as if it were replayed from its start."""

from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Problem
from overlap_sched.peak_memory.allocator.reserved import requests_of
from overlap_sched.peak_memory.allocator.shortage import Device, Replays
from overlap_sched.peak_memory.allocator.trail import Trail, alike
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem.allocator_settings import NO_LIMIT, AllocatorSettings
from tests.peak_memory.test_reserved import with_sizes_of_all_kinds
from tests.peak_memory.test_shortage import SETTINGS
from tests.support.graphs import problems
from tests.support.oracle import random_order


@given(
    problems(models=("runtime",)),
    st.integers(0, 2**32),
    st.lists(st.integers(0, 2**32), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 110), st.sampled_from((0, 1, NO_LIMIT))), min_size=1, max_size=3),
    st.sampled_from(SETTINGS),
)
def test_as_if_it_were_replayed_from_its_start(
    problem: Problem, seed: int, seeds: list[int], rows: list[tuple[int, int]], settings: AllocatorSettings
) -> None:
    problem = with_sizes_of_all_kinds(problem)
    live_ranges, order = LiveRanges(problem), random_order(problem, seed)
    most = requests_of(live_ranges, order).replayed(settings).peak_reserved_bytes
    devices = [Device(most * percent // 100, retries) for percent, retries in rows]
    trail = Trail(live_ranges, order, devices, settings)
    for other in (order, *(random_order(problem, each) for each in seeds)):
        whole = Replays(requests_of(live_ranges, other), devices, settings).lacking()
        assert trail.lacking_of(other) == whole
        assert trail.lacking_of(other, whole.lent_bytes) == whole
        if whole.lent_bytes:
            assert trail.lacking_of(other, whole.lent_bytes - 1).lent_bytes == whole.lent_bytes


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_how_far_orders_are_alike(one: list[int], other: list[int]) -> None:
    length = min(len(one), len(other))
    one, other = one[:length], other[:length]
    assert alike(one, other) == next((at for at in range(length) if one[at] != other[at]), length)

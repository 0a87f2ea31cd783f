"""One order on several devices: as if it were replayed on each from its start."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Problem
from overlap_sched.peak_memory.allocator.caching import NO_BLOCK
from overlap_sched.peak_memory.allocator.kinds import Allocator, allocator
from overlap_sched.peak_memory.allocator.reserved import (
    AllocatorDevice,
    AllocatorReplay,
    Full,
    Requests,
    requests_of,
    where_full,
)
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem.allocator_settings import EXPANDABLE, MIB, NO_LIMIT, PLAIN, AllocatorSettings
from tests.peak_memory.test_reserved import with_sizes_of_all_kinds
from tests.support.graphs import problems
from tests.support.oracle import random_order

SETTINGS = (PLAIN, EXPANDABLE, replace(PLAIN, max_split_size_bytes=20 * MIB))


def said(found: Allocator) -> tuple[int, ...]:
    return (
        found.reserved_bytes,
        found.peak_reserved_bytes,
        found.allocated_bytes,
        found.peak_allocated_bytes,
        found.segments,
        found.retries,
        found.lent_bytes,
        found.largest_free_bytes(),
    )


def behind(requests: Requests, replay: AllocatorReplay, begin: int = 0) -> Allocator:
    """The allocator behind an order's end, which it comes to."""
    assert replay.serve(requests.events, requests.sizes, begin) == len(requests.events)
    return replay.allocator


def from_the_start(requests: Requests, device: AllocatorDevice, settings: AllocatorSettings) -> Allocator:
    found = allocator(settings, device.capacity)
    found.most_retries, found.most_lent_bytes = device.most_retries, NO_LIMIT
    return behind(requests, AllocatorReplay.begin(found, len(requests.sizes)))


@given(
    problems(models=("runtime",)),
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(0, 110), st.sampled_from((0, 1, NO_LIMIT))), min_size=1, max_size=4),
    st.sampled_from(SETTINGS),
)
def test_each_device_as_if_it_were_alone(
    problem: Problem, seed: int, rows: list[tuple[int, int]], settings: AllocatorSettings
) -> None:
    problem = with_sizes_of_all_kinds(problem)
    requests = requests_of(LiveRanges(problem), random_order(problem, seed))
    most = requests.replayed(settings).peak_reserved_bytes
    devices = {AllocatorDevice(most * percent // 100, retries) for percent, retries in rows}
    full = dict(where_full(requests, list(devices), settings))
    assert set(full) == {device for device in devices if device.capacity < most}
    for device, here in full.items():
        alone = from_the_start(requests, device, settings)
        here.replay.allocator.most_lent_bytes = NO_LIMIT
        assert here.go_on(requests)
        assert said(here.replay.allocator) == said(alone)


def test_a_replay_is_where_its_device_is_full() -> None:
    """12 and 30 MiB: the second does not fit in 40, both do in 50."""
    requests = Requests((0, 1, ~0, ~1), (12 * MIB, 30 * MIB), 42 * MIB)
    ((device, (replay, at)),) = where_full(requests, (AllocatorDevice(50 * MIB), AllocatorDevice(40 * MIB)), PLAIN)
    assert device.capacity == 40 * MIB
    assert (at, replay.allocator.reserved_bytes) == (1, 12 * MIB)
    assert replay.held[0] != NO_BLOCK
    assert replay.held[1] == NO_BLOCK
    assert not Full(replay, at).go_on(requests)


def test_a_copy_goes_its_own_way() -> None:
    requests = Requests((0, ~0, 1), (12 * MIB, 14 * MIB), 14 * MIB)
    for settings in SETTINGS:
        one = AllocatorReplay.begin(allocator(settings), 2)
        assert one.serve(requests.events[:1], requests.sizes) == 1
        other = one.copied()
        assert said(behind(requests, other, 1)) == said(requests.replayed(settings))
        assert one.allocator.allocated_bytes == 12 * MIB
        assert one.held[1] == NO_BLOCK
        assert said(behind(requests, one, 1)) == said(requests.replayed(settings))


def test_it_ends_where_it_is_full_and_may_go_on() -> None:
    requests = Requests((0, 1), (12 * MIB, 30 * MIB), 42 * MIB)
    replay = AllocatorReplay.begin(allocator(PLAIN, 40 * MIB), 2)
    assert replay.serve(requests.events, requests.sizes) == 1
    replay.allocator.capacity = 42 * MIB
    assert behind(requests, replay, 1).reserved_bytes == 42 * MIB

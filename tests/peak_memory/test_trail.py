"""An order replayed from where it differs from another one: as if it were replayed from its start."""

from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Kind, Node, Problem, Storage
from overlap_sched.peak_memory.allocator.reserved import AllocatorDevice, requests_of
from overlap_sched.peak_memory.allocator.trail import Lacking, Trail
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem.allocator_settings import MIB, NO_LIMIT, PLAIN, AllocatorSettings
from overlap_sched.problem.precedence import alike
from tests.peak_memory.test_devices import SETTINGS, from_the_start
from tests.peak_memory.test_reserved import with_sizes_of_all_kinds
from tests.support.graphs import problems
from tests.support.oracle import random_order


def chain_of(*sizes: int) -> Problem:
    """Each node uses what the one before has made; the last has nothing to do with the others, and makes no bytes."""
    nodes = [Node(f"n{v}", Kind.COMPUTE, (v - 1,) * (v > 0), (v,), (v - 1,) * (v > 0), 1.0) for v in range(len(sizes))]
    other = Node("other", Kind.COMPUTE, (), (len(sizes),), (), 1.0)
    return Problem("chain", (*nodes, other), tuple(map(Storage, (*sizes, 0))), {})


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
    devices = {AllocatorDevice(most * percent // 100, retries) for percent, retries in rows}
    trail = Trail(live_ranges, order, list(devices), settings)
    others = [random_order(problem, each) for each in seeds]
    for other in (order, *others, *(like(order, other, seed) for other in others)):
        requests = requests_of(live_ranges, other)
        lent_bytes = sum(from_the_start(requests, device, settings).lent_bytes for device in devices)
        found = trail.lacking_of(other)
        assert found.lent_bytes == lent_bytes
        assert bool(found.storages) == (lent_bytes > 0)
        assert trail.lacking_of(other, lent_bytes) == found
        if lent_bytes:
            assert trail.lacking_of(other, lent_bytes - 1).lent_bytes == lent_bytes
            assert trail.lacking_of(other, lent_bytes // 2).lent_bytes > lent_bytes // 2


def like(order: list[int], other: list[int], seed: int) -> list[int]:
    """The order, in some middle part of it as the other one."""
    begin, end = sorted((seed % (len(order) + 1), seed // 1000 % (len(order) + 1)))
    part = set(order[begin:end])
    return [*order[:begin], *(v for v in other if v in part), *order[end:]]


def test_what_something_is_lent_for() -> None:
    """In turn 12 and 30 MiB: the second lacks 2 in 40; nothing is lacking in 50; the second lacks 22 in 20."""
    problem = chain_of(12 * MIB, 30 * MIB)
    live_ranges = LiveRanges(problem)

    def lacking(*capacities: int, most: int = 100) -> Lacking:
        trail = Trail(live_ranges, (2, 0, 1), [AllocatorDevice(each * MIB) for each in capacities], PLAIN)
        return trail.lacking_of((0, 1, 2), most * MIB)

    assert lacking(40, 50) == Lacking(2 * MIB, [1])
    assert lacking(40, 20) == Lacking(24 * MIB, [1, 1])
    assert lacking(10) == Lacking(32 * MIB, [0, 1])
    assert lacking(40, 20, most=23) == Lacking(23 * MIB + 1, ())


def test_a_device_gives_back_as_often_as_it_may() -> None:
    """12 MiB are cached when 30 are asked for beside 14: without them 44 suffice, with them it takes 56."""
    problem = chain_of(12 * MIB, 14 * MIB, 30 * MIB)
    order = problem.original_order
    for retries, lent_bytes in ((0, 11 * MIB), (1, 0)):
        trail = Trail(LiveRanges(problem), order, [AllocatorDevice(45 * MIB, retries)], PLAIN)
        assert trail.lacking_of(order).lent_bytes == lent_bytes


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_how_far_orders_are_alike(one: list[int], other: list[int]) -> None:
    length = min(len(one), len(other))
    one, other = one[:length], other[:length]
    assert alike(one, other) == next((at for at in range(length) if one[at] != other[at]), length)
